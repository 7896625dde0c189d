//! Conversions between types, `type`, `size`.

use super::function::{Arg, Function, function, one, walk};
use crate::failure::{Failure, overflow, unsigned_overflow};
use crate::types::Type;
use crate::value::library::{CIDR, IP};
use crate::value::text::text;
use crate::value::{Value, time};
use std::sync::Arc;

macro_rules! conversion {
    ($name:literal, $arg:expr, $answer:expr, $run:ident) => {
        Function {
            name: $name,
            method: false,
            args: &[$arg],
            answer: |_| $answer,
            cost: walk,
            run: $run,
        }
    };
}

macro_rules! size {
    ($method:literal, $arg:expr) => {
        Function {
            name: "size",
            method: $method,
            args: &[$arg],
            answer: |_| Type::Int,
            cost: one,
            run: size,
        }
    };
}

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "dyn",
        method: false,
        args: &[Arg::Any],
        answer: |_| Type::Dyn,
        cost: one,
        run: same,
    },
    Function {
        name: "type",
        method: false,
        args: &[Arg::Any],
        answer: |types| Type::Type(types[0].shown().into()),
        cost: one,
        run: type_of,
    },
    size!(false, Arg::String),
    size!(false, Arg::Bytes),
    size!(false, Arg::List),
    size!(false, Arg::Map),
    size!(true, Arg::String),
    size!(true, Arg::Bytes),
    size!(true, Arg::List),
    size!(true, Arg::Map),
    conversion!("bool", Arg::Bool, Type::Bool, same),
    conversion!("bool", Arg::String, Type::Bool, to_bool),
    conversion!("int", Arg::Number, Type::Int, to_int),
    conversion!("int", Arg::String, Type::Int, to_int),
    conversion!("int", Arg::Timestamp, Type::Int, to_int),
    conversion!("int", Arg::Duration, Type::Int, to_int),
    conversion!("uint", Arg::Number, Type::Uint, to_uint),
    conversion!("uint", Arg::String, Type::Uint, to_uint),
    conversion!("double", Arg::Number, Type::Double, to_double),
    conversion!("double", Arg::String, Type::Double, to_double),
    conversion!("string", Arg::String, Type::String, same),
    conversion!("string", Arg::Bytes, Type::String, to_text),
    conversion!("string", Arg::Number, Type::String, to_text),
    conversion!("string", Arg::Bool, Type::String, to_text),
    conversion!("string", Arg::Timestamp, Type::String, to_text),
    conversion!("string", Arg::Duration, Type::String, to_text),
    conversion!("string", Arg::Library(IP), Type::String, to_text),
    conversion!("string", Arg::Library(CIDR), Type::String, to_text),
    conversion!("bytes", Arg::Bytes, Type::Bytes, same),
    conversion!("bytes", Arg::String, Type::Bytes, to_bytes),
    conversion!("duration", Arg::Duration, Type::Duration, same),
    conversion!("duration", Arg::String, Type::Duration, to_duration),
    conversion!("duration", Arg::Int, Type::Duration, to_duration),
    conversion!("timestamp", Arg::Timestamp, Type::Timestamp, same),
    conversion!("timestamp", Arg::String, Type::Timestamp, to_timestamp),
    conversion!("timestamp", Arg::Int, Type::Timestamp, to_timestamp),
];

function!(same, [value] => Ok(value.clone()));
function!(type_of, [value] => Ok(Value::Type(value.type_name())));
function!(size,
    [Value::String(text)] => Ok(Value::Int(text.chars().count() as i64)),
    [other] => Ok(Value::Int(i64::try_from(other.size()).unwrap_or(i64::MAX))),
);
function!(to_bool, [Value::String(text)] => match &**text {
    "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
    "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
    _ => Err(no_conversion("bool")),
});
function!(to_int,
    [Value::Int(number)] => Ok(Value::Int(*number)),
    [Value::Uint(number)] => i64::try_from(*number).map(Value::Int).map_err(|_| overflow()),
    [Value::Double(number)] => truncated(*number, -(2f64.powi(63))).and_then(|number| i64::try_from(number).ok()).map(Value::Int).ok_or_else(overflow),
    [Value::String(text)] => text.parse().map(Value::Int).map_err(|_| no_conversion("int")),
    [Value::Timestamp(nanos)] => i64::try_from(nanos.div_euclid(time::SECOND)).map(Value::Int).map_err(|_| overflow()),
    [Value::Duration(nanos)] => Ok(Value::Int(*nanos)),
);
function!(to_uint,
    [Value::Uint(number)] => Ok(Value::Uint(*number)),
    [Value::Int(number)] => u64::try_from(*number).map(Value::Uint).map_err(|_| unsigned_overflow()),
    [Value::Double(number)] if *number < 0.0 => Err(unsigned_overflow()),
    [Value::Double(number)] => truncated(*number, -1.0).and_then(|number| u64::try_from(number).ok()).map(Value::Uint).ok_or_else(unsigned_overflow),
    [Value::String(text)] => unsigned(text).map(Value::Uint).ok_or_else(|| no_conversion("uint")),
);
function!(to_double,
    [Value::Double(number)] => Ok(Value::Double(*number)),
    [Value::Int(number)] => Ok(Value::Double(*number as f64)),
    [Value::Uint(number)] => Ok(Value::Double(*number as f64)),
    [Value::String(text)] => float(text).map(Value::Double).ok_or_else(|| no_conversion("double")),
);
function!(to_text, [value] => text(value).map(Value::text));
function!(to_bytes, [Value::String(text)] => Ok(Value::Bytes(Arc::from(text.as_bytes()))));
function!(to_duration,
    [Value::String(text)] => time::duration(text).map(Value::Duration).ok_or_else(|| no_conversion(DURATION)),
    // Declared, but not implemented by cel-go.
    [Value::Int(_)] => Err("type conversion error from 'int' to 'google.protobuf.Duration'".into()),
);
function!(to_timestamp,
    [Value::String(text)] => time::timestamp(text).ok_or_else(|| no_conversion(TIMESTAMP)).and_then(time::in_range).map(Value::Timestamp),
    [Value::Int(seconds)] => time::from_seconds(*seconds).map(Value::Timestamp),
);

const DURATION: &str = "google.protobuf.Duration";
const TIMESTAMP: &str = "google.protobuf.Timestamp";

fn no_conversion(to: &str) -> Failure {
    Failure::Failed(format!("type conversion error from 'string' to '{to}'"))
}

/// Truncates a number between the bound, exclusive, and 2^64.
fn truncated(number: f64, low: f64) -> Option<i128> {
    #[allow(clippy::cast_possible_truncation, reason = "bounded just before")]
    (number > low && number < 2f64.powi(64)).then_some(number as i128)
}

/// Parses digits without a sign.
fn unsigned(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// Parses a number as Go does: hexadecimal, too, with a binary exponent.
fn float(text: &str) -> Option<f64> {
    if text.contains('_') {
        let separates = |at: usize| {
            let is_digit = |at: Option<usize>| {
                at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_hexdigit)
            };
            is_digit(at.checked_sub(1)) && is_digit(Some(at + 1))
        };
        let all = text.match_indices('_').all(|(at, _)| separates(at));
        return float(&text.replace('_', "")).filter(|_| all);
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let Some(hex) = digits.strip_prefix(['0']).and_then(|rest| rest.strip_prefix(['x', 'X']))
    else {
        return text.parse().ok().filter(|number: &f64| {
            number.is_finite() || !text.contains(|c: char| c.is_ascii_digit())
        });
    };
    let (mantissa, exponent) = hex.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let value = u64::from_str_radix(&all, 16).ok().filter(|_| !all.starts_with('+'))?;
    let exponent: i32 = exponent.parse().ok()?;
    let scale = i32::try_from(fraction.len()).ok()?.checked_mul(4)?;
    let number = value as f64 * 2f64.powi(exponent.checked_sub(scale)?);
    number.is_finite().then_some(if negative { -number } else { number })
}
