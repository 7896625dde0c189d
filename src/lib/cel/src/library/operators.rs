//! Operators: arithmetic, equality, order, membership.

use super::function::{Arg, Function, FunctionBody, function, one, walk_both};
use crate::cost::{Meter, traversal};
use crate::failure::{Failure, no_overload, overflow, unsigned_overflow};
use crate::types::Type;
use crate::value::order::{compare, equal};
use crate::value::sum::add_values;
use crate::value::{CelResult, MapKey, Value, time};
use std::cmp::Ordering;

const fn arithmetic(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
) -> Function {
    Function { name, method: false, args, answer, cost: one, run: calculate_of(name) }
}

const fn calculate_of(name: &'static str) -> FunctionBody {
    match name.as_bytes() {
        b"+" => add_values,
        b"-" => subtract,
        b"*" => multiply,
        b"/" => divide,
        _ => remainder,
    }
}

const fn ordered(name: &'static str, args: &'static [Arg]) -> Function {
    let run = match name.as_bytes() {
        b"<" => less,
        b"<=" => less_or_equal,
        b">" => greater,
        _ => greater_or_equal,
    };
    Function {
        name,
        method: false,
        args,
        answer: |_| Type::Bool,
        cost: |sizes| 1 + traversal(sizes[0].min(sizes[1])),
        run,
    }
}

macro_rules! all_orders {
    ($($name:literal),*) => {
        [$(
            ordered($name, &[Arg::Number, Arg::Number]),
            ordered($name, &[Arg::String, Arg::String]),
            ordered($name, &[Arg::Bytes, Arg::Bytes]),
            ordered($name, &[Arg::Bool, Arg::Bool]),
            ordered($name, &[Arg::Timestamp, Arg::Timestamp]),
            ordered($name, &[Arg::Duration, Arg::Duration]),
        )*]
    };
}

macro_rules! all_numbers {
    ($($name:literal),*) => {
        [$(
            arithmetic($name, &[Arg::Int, Arg::Int], |_| Type::Int),
            arithmetic($name, &[Arg::Uint, Arg::Uint], |_| Type::Uint),
            arithmetic($name, &[Arg::Double, Arg::Double], |_| Type::Double),
        )*]
    };
}

pub(super) const ORDERS: &[Function] = &all_orders!("<", "<=", ">", ">=");
pub(super) const NUMBERS: &[Function] = &all_numbers!("+", "-", "*", "/");

const fn join(name: &'static str, args: &'static [Arg], answer: fn(&[Type]) -> Type) -> Function {
    Function { name, method: false, args, answer, cost: walk_both, run: add_values }
}

pub(super) const OTHERS: &[Function] = &[
    arithmetic("%", &[Arg::Int, Arg::Int], |_| Type::Int),
    arithmetic("%", &[Arg::Uint, Arg::Uint], |_| Type::Uint),
    join("+", &[Arg::String, Arg::String], |_| Type::String),
    join("+", &[Arg::Bytes, Arg::Bytes], |_| Type::Bytes),
    join("+", &[Arg::List, Arg::SameList], |types| {
        match (types[0].join(&types[1]), &types[0], &types[1]) {
            (list @ Type::List(_), ..) => list,
            (_, list @ Type::List(_), _) | (_, _, list @ Type::List(_)) => list.clone(),
            (other, ..) => other,
        }
    }),
    arithmetic("+", &[Arg::Duration, Arg::Duration], |_| Type::Duration),
    arithmetic("+", &[Arg::Timestamp, Arg::Duration], |_| Type::Timestamp),
    arithmetic("+", &[Arg::Duration, Arg::Timestamp], |_| Type::Timestamp),
    arithmetic("-", &[Arg::Duration, Arg::Duration], |_| Type::Duration),
    arithmetic("-", &[Arg::Timestamp, Arg::Duration], |_| Type::Timestamp),
    arithmetic("-", &[Arg::Timestamp, Arg::Timestamp], |_| Type::Duration),
    Function {
        name: "-",
        method: false,
        args: &[Arg::Int],
        answer: |_| Type::Int,
        cost: one,
        run: negate,
    },
    Function {
        name: "-",
        method: false,
        args: &[Arg::Double],
        answer: |_| Type::Double,
        cost: one,
        run: negate,
    },
    Function {
        name: "!",
        method: false,
        args: &[Arg::Bool],
        answer: |_| Type::Bool,
        cost: one,
        run: not,
    },
    Function {
        name: "==",
        method: false,
        args: &[Arg::Any, Arg::Same],
        answer: |_| Type::Bool,
        cost: compared,
        run: equals,
    },
    Function {
        name: "!=",
        method: false,
        args: &[Arg::Any, Arg::Same],
        answer: |_| Type::Bool,
        cost: compared,
        run: differs,
    },
    Function {
        name: "in",
        method: false,
        args: &[Arg::Any, Arg::Holder],
        answer: |_| Type::Bool,
        cost: |sizes| 1u64.saturating_add(sizes[1]),
        run: within,
    },
    Function {
        name: "in",
        method: false,
        args: &[Arg::Any, Arg::KeyHolder],
        answer: |_| Type::Bool,
        cost: one,
        run: within,
    },
    Function {
        name: "in",
        method: false,
        args: &[Arg::Any, Arg::Library("")],
        answer: |_| Type::Bool,
        cost: one,
        run: within,
    },
];

fn compared(sizes: &[u64]) -> u64 {
    1 + traversal(sizes[0].min(sizes[1]))
}

function!(not, [Value::Bool(flag)] => Ok(Value::Bool(!flag)));
function!(negate, [Value::Int(number)] => number.checked_neg().map(Value::Int).ok_or_else(overflow), [Value::Double(number)] => Ok(Value::Double(-number)));
function!(less, [one, other] => order(one, other, Ordering::is_lt));
function!(less_or_equal, [one, other] => order(one, other, Ordering::is_le));
function!(greater, [one, other] => order(one, other, Ordering::is_gt));
function!(greater_or_equal, [one, other] => order(one, other, Ordering::is_ge));

fn order<'a>(one: &Value<'a>, other: &Value<'a>, wanted: fn(Ordering) -> bool) -> CelResult<'a> {
    match compare(one, other) {
        Some(order) => Ok(Value::Bool(wanted(order))),
        None if [one, other].into_iter().any(is_nan) => Err("NaN values cannot be ordered".into()),
        None => no_overload(),
    }
}

fn is_nan(value: &Value<'_>) -> bool {
    matches!(value, Value::Double(number) if number.is_nan())
}

function!(subtract,
    [Value::Int(one), Value::Int(other)] => one.checked_sub(*other).map(Value::Int).ok_or_else(overflow),
    [Value::Uint(one), Value::Uint(other)] => one.checked_sub(*other).map(Value::Uint).ok_or_else(unsigned_overflow),
    [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one - other)),
    [Value::Duration(one), Value::Duration(other)] => one.checked_sub(*other).map(Value::Duration).ok_or_else(overflow),
    [Value::Timestamp(one), Value::Duration(nanos)] => time::in_range(one - i128::from(*nanos)).map(Value::Timestamp),
    [Value::Timestamp(one), Value::Timestamp(other)] => i64::try_from(one - other).map(Value::Duration).map_err(|_| overflow()),
);
function!(multiply,
    [Value::Int(one), Value::Int(other)] => one.checked_mul(*other).map(Value::Int).ok_or_else(overflow),
    [Value::Uint(one), Value::Uint(other)] => one.checked_mul(*other).map(Value::Uint).ok_or_else(unsigned_overflow),
    [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one * other)),
);
function!(divide,
    [Value::Int(_), Value::Int(0)] => Err("division by zero".into()),
    [Value::Uint(_), Value::Uint(0)] => Err("division by zero".into()),
    [Value::Int(one), Value::Int(other)] => one.checked_div(*other).map(Value::Int).ok_or_else(overflow),
    [Value::Uint(one), Value::Uint(other)] => Ok(Value::Uint(one / other)),
    [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one / other)),
);
function!(remainder,
    [Value::Int(_), Value::Int(0)] => Err("modulus by zero".into()),
    [Value::Uint(_), Value::Uint(0)] => Err("modulus by zero".into()),
    [Value::Int(one), Value::Int(other)] => one.checked_rem(*other).map(Value::Int).ok_or_else(overflow),
    [Value::Uint(one), Value::Uint(other)] => Ok(Value::Uint(one % other)),
);

fn equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    match args {
        [one, other] => equal(meter, one, other).map(Value::Bool),
        _ => no_overload(),
    }
}

fn differs<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    match args {
        [one, other] => equal(meter, one, other).map(|same| Value::Bool(!same)),
        _ => no_overload(),
    }
}

fn within<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    match args {
        [item, Value::List(list)] => {
            // An error on one item only matters if no other is equal.
            let mut failure = None;
            for known in list.iter() {
                match equal(meter, &known, item) {
                    Ok(true) => return Ok(Value::Bool(true)),
                    Ok(false) => {}
                    Err(error @ Failure::Budget) => return Err(error),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            failure.map_or(Ok(Value::Bool(false)), Err)
        }
        [key, Value::Map(map)] => {
            Ok(Value::Bool(MapKey::of(key).is_some_and(|key| map.get(&key).is_some())))
        }
        _ => no_overload(),
    }
}
