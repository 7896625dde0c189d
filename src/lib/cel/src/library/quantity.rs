//! Quantities.

use super::function::{Arg, Function, function, method, one, walk};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::Value;
use crate::value::library::{Library, QUANTITY};
use ferrokube_apimachinery::quantity::{FORMAT_WRONG, Format, Quantity};
use std::cmp::Ordering;

const Q: Arg = Arg::Library(QUANTITY);

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "quantity",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Library(QUANTITY),
        cost: walk,
        run: quantity,
    },
    Function {
        name: "isQuantity",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_quantity,
    },
    // A function, unlike the other accessors.
    Function {
        name: "sign",
        method: false,
        args: &[Q],
        answer: |_| Type::Int,
        cost: one,
        run: sign,
    },
    method("isInteger", &[Q], |_| Type::Bool, is_integer),
    method("asInteger", &[Q], |_| Type::Int, as_integer),
    method("asApproximateFloat", &[Q], |_| Type::Double, as_float),
    method("add", &[Q, Q], |_| Type::Library(QUANTITY), add),
    method("add", &[Q, Arg::Int], |_| Type::Library(QUANTITY), add),
    method("sub", &[Q, Q], |_| Type::Library(QUANTITY), sub),
    method("sub", &[Q, Arg::Int], |_| Type::Library(QUANTITY), sub),
    method("isGreaterThan", &[Q, Q], |_| Type::Bool, is_greater),
    method("isLessThan", &[Q, Q], |_| Type::Bool, is_less),
    method("compareTo", &[Q, Q], |_| Type::Int, compare_to),
];

fn of(value: &Value<'_>) -> Result<Quantity, Failure> {
    match value {
        Value::Int(number) => Ok(Quantity::new(*number, Format::DecimalSi)),
        Value::Library(library) => match &**library {
            Library::Quantity(quantity) => Ok(quantity.clone()),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn made<'a>(quantity: Quantity) -> Value<'a> {
    Value::library(Library::Quantity(quantity))
}

fn number<'a>(order: Ordering) -> Value<'a> {
    Value::Int(order as i64)
}

function!(quantity, [Value::String(text)] => Quantity::parse(text).map(made).map_err(|_| FORMAT_WRONG.into()));
function!(is_quantity, [Value::String(text)] => Ok(Value::Bool(Quantity::parse(text).is_ok())));
function!(sign, [value] => of(value).map(|quantity| number(quantity.cmp(&Quantity::default()))));
function!(is_integer, [value] => of(value).map(|quantity| Value::Bool(quantity.exact().is_some())));
function!(as_integer, [value] => of(value)?.exact().map(Value::Int).ok_or_else(|| "cannot convert value to integer".into()));
function!(as_float, [value] => of(value).map(|quantity| Value::Double(quantity.approximate())));
function!(add, [one, other] => Ok(made(of(one)?.add(&of(other)?))));
function!(sub, [one, other] => Ok(made(of(one)?.sub(&of(other)?))));
function!(is_greater, [one, other] => Ok(Value::Bool(of(one)? > of(other)?)));
function!(is_less, [one, other] => Ok(Value::Bool(of(one)? < of(other)?)));
function!(compare_to, [one, other] => Ok(number(of(one)?.cmp(&of(other)?))));
