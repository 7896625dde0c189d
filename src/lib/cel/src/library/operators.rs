//! Operators: arithmetic, equality, order, membership.

use super::{Arg, Function, Library, function, one, walk_both};
use crate::cost::{Meter, traversal};
use crate::evaluator::{Answer, Failure, no_overload};
use crate::types::Type;
use crate::value::{List, Map, MapKey, Value};
use ferrokube_schema::ListType;
use std::cmp::Ordering;

const fn arithmetic(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
) -> Function {
    Function { name, method: false, args, answer, cost: one, run: calculate_of(name) }
}

const fn calculate_of(name: &'static str) -> for<'a> fn(&mut Meter, &[Value<'a>]) -> Answer<'a> {
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

pub(super) fn overflow() -> Failure {
    "integer overflow".into()
}

pub(super) fn unsigned_overflow() -> Failure {
    "unsigned integer overflow".into()
}

fn order<'a>(one: &Value<'a>, other: &Value<'a>, wanted: fn(Ordering) -> bool) -> Answer<'a> {
    match compare(one, other) {
        Some(order) => Ok(Value::Bool(wanted(order))),
        None if matches!((one, other), (Value::Double(_), Value::Double(_))) => {
            Ok(Value::Bool(false))
        }
        None => no_overload(),
    }
}

/// Compares values of ordered types; numbers compare across types.
pub(crate) fn compare(one: &Value<'_>, other: &Value<'_>) -> Option<Ordering> {
    match (one, other) {
        (Value::Bool(one), Value::Bool(other)) => Some(one.cmp(other)),
        (Value::String(one), Value::String(other)) => Some((**one).cmp(&**other)),
        (Value::Bytes(one), Value::Bytes(other)) => Some(one.cmp(other)),
        (Value::Duration(one), Value::Duration(other)) => Some(one.cmp(other)),
        (Value::Timestamp(one), Value::Timestamp(other)) => Some(one.cmp(other)),
        (Value::Double(one), Value::Double(other)) => one.partial_cmp(other),
        (Value::Double(one), other) => compare_float(*one, whole(other)?),
        (one, Value::Double(other)) => compare_float(*other, whole(one)?).map(Ordering::reverse),
        (one, other) => Some(whole(one)?.cmp(&whole(other)?)),
    }
}

fn whole(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Int(number) => Some(i128::from(*number)),
        Value::Uint(number) => Some(i128::from(*number)),
        _ => None,
    }
}

fn compare_float(one: f64, other: i128) -> Option<Ordering> {
    if one.is_nan() {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        reason = "saturates, and no 64-bit number is beyond it"
    )]
    let floor = one.floor() as i128;
    Some(floor.cmp(&other).then(if one.fract() == 0.0 {
        Ordering::Equal
    } else {
        Ordering::Greater
    }))
}

pub(super) fn add_values<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    match args {
        [Value::Int(one), Value::Int(other)] => {
            one.checked_add(*other).map(Value::Int).ok_or_else(overflow)
        }
        [Value::Uint(one), Value::Uint(other)] => {
            one.checked_add(*other).map(Value::Uint).ok_or_else(unsigned_overflow)
        }
        [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one + other)),
        [Value::String(one), Value::String(other)] => Ok(Value::text([&**one, &**other].concat())),
        [Value::Bytes(one), Value::Bytes(other)] => {
            Ok(Value::Bytes([&**one, &**other].concat().into()))
        }
        [Value::List(one), Value::List(other)] => concatenate(meter, one, other),
        [Value::Duration(one), Value::Duration(other)] => {
            one.checked_add(*other).map(Value::Duration).ok_or_else(overflow)
        }
        [Value::Timestamp(time), Value::Duration(nanos)]
        | [Value::Duration(nanos), Value::Timestamp(time)] => {
            super::time::in_range(time + i128::from(*nanos)).map(Value::Timestamp)
        }
        _ => no_overload(),
    }
}

/// Joins lists by their list type: sets as a union; a list map's later item replaces the earlier
/// one with its key.
fn concatenate<'a>(meter: &mut Meter, one: &List<'a>, other: &List<'a>) -> Answer<'a> {
    let mut out: Vec<Value<'a>> = one.iter().collect();
    meter.spend((one.len() + other.len()) as u64)?;
    for item in other.iter() {
        let same = match one.list_type() {
            ListType::Atomic => None,
            ListType::Set => find(meter, &out, |known, meter| equal(meter, known, &item))?,
            ListType::Map(keys) => {
                find(meter, &out, |known, meter| same_keys(meter, keys, known, &item))?
            }
        };
        match same {
            Some(index) => out[index] = item,
            None => out.push(item),
        }
    }
    Ok(Value::list(out))
}

fn find<'a>(
    meter: &mut Meter,
    items: &[Value<'a>],
    is: impl Fn(&Value<'a>, &mut Meter) -> Result<bool, Failure>,
) -> Result<Option<usize>, Failure> {
    for (index, item) in items.iter().enumerate() {
        if is(item, meter)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn same_keys(
    meter: &mut Meter,
    keys: &[String],
    one: &Value<'_>,
    other: &Value<'_>,
) -> Result<bool, Failure> {
    let (Value::Map(one), Value::Map(other)) = (one, other) else { return Ok(false) };
    for key in keys {
        let same = match (one.get(&name(key)), other.get(&name(key))) {
            (Some(one), Some(other)) => equal(meter, &one, &other)?,
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn name<'a>(key: &str) -> MapKey<'a> {
    MapKey::Text(crate::value::Text::Own(key.into()))
}

function!(subtract,
    [Value::Int(one), Value::Int(other)] => one.checked_sub(*other).map(Value::Int).ok_or_else(overflow),
    [Value::Uint(one), Value::Uint(other)] => one.checked_sub(*other).map(Value::Uint).ok_or_else(unsigned_overflow),
    [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one - other)),
    [Value::Duration(one), Value::Duration(other)] => one.checked_sub(*other).map(Value::Duration).ok_or_else(overflow),
    [Value::Timestamp(one), Value::Duration(nanos)] => super::time::in_range(one - i128::from(*nanos)).map(Value::Timestamp),
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

fn equals<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    match args {
        [one, other] => equal(meter, one, other).map(Value::Bool),
        _ => no_overload(),
    }
}

fn differs<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    match args {
        [one, other] => equal(meter, one, other).map(|same| Value::Bool(!same)),
        _ => no_overload(),
    }
}

fn within<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
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

/// Equality. Recursion is as deep as the values, whose depth the parser bounds.
pub(crate) fn equal(
    meter: &mut Meter,
    one: &Value<'_>,
    other: &Value<'_>,
) -> Result<bool, Failure> {
    meter.spend(traversal(one.size().min(other.size())))?;
    Ok(match (one, other) {
        (Value::Misfit(why), _) | (_, Value::Misfit(why)) => {
            return Err(Failure::Failed(why.to_string()));
        }
        (Value::Null, Value::Null) => true,
        (Value::List(one), Value::List(other)) => return equal_lists(meter, one, other),
        (Value::Map(one), Value::Map(other)) => return equal_maps(meter, one, other),
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(one)), Value::Optional(Some(other))) => {
            return equal(meter, one, other);
        }
        (Value::Type(one), Value::Type(other)) => one == other,
        (Value::Library(one), Value::Library(other)) => equal_libraries(one, other),
        (one, other) => compare(one, other) == Some(Ordering::Equal),
    })
}

fn equal_libraries(one: &Library, other: &Library) -> bool {
    match (one, other) {
        (Library::Url(one), Library::Url(other)) => one == other,
        (Library::Ip(one), Library::Ip(other)) => one == other,
        (Library::Cidr(one), Library::Cidr(other)) => one == other,
        (Library::Quantity(one), Library::Quantity(other)) => one == other,
        (Library::Semver(one), Library::Semver(other)) => one == other,
        (Library::Format(one), Library::Format(other)) => std::ptr::eq(*one, *other),
        _ => false,
    }
}

fn equal_lists(meter: &mut Meter, one: &List<'_>, other: &List<'_>) -> Result<bool, Failure> {
    if one.len() != other.len() {
        return Ok(false);
    }
    match one.list_type() {
        ListType::Atomic => {
            for (one, other) in one.iter().zip(other.iter()) {
                if !equal(meter, &one, &other)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        // Unordered: each item must be in the other.
        ListType::Set | ListType::Map(_) => {
            let others: Vec<Value<'_>> = other.iter().collect();
            for item in one.iter() {
                if find(meter, &others, |known, meter| {
                    meter.spend(1)?;
                    equal(meter, known, &item)
                })?
                .is_none()
                {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

fn equal_maps(meter: &mut Meter, one: &Map<'_>, other: &Map<'_>) -> Result<bool, Failure> {
    let (one, more) = (one.entries(), other.entries());
    if one.len() != more.len() {
        return Ok(false);
    }
    for (key, value) in one {
        let same = match more.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(index) => equal(meter, &value, &more[index].1)?,
            Err(_) => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}
