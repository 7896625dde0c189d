//! Conversions between types, `type`, `size`.

use super::{Arg, Function, Library, function, one, time, walk};
use crate::evaluator::Failure;
use crate::types::Type;
use crate::value::Value;
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

/// The size of a string converted from another type is not estimated: functions that scan it exceed
/// the limit; comparing it does not.
const UNKNOWN: u64 = u64::MAX;

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
    Function {
        name: "size",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: false,
        args: &[Arg::Bytes],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: false,
        args: &[Arg::List],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: false,
        args: &[Arg::Map],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: true,
        args: &[Arg::String],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: true,
        args: &[Arg::Bytes],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: true,
        args: &[Arg::List],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
    Function {
        name: "size",
        method: true,
        args: &[Arg::Map],
        answer: |_| Type::Int,
        cost: one,
        run: size,
    },
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
    Function {
        name: "string",
        method: false,
        args: &[Arg::String],
        answer: |types| Type::String(types[0].size()),
        cost: walk,
        run: same,
    },
    Function {
        name: "string",
        method: false,
        args: &[Arg::Bytes],
        answer: |types| Type::String(types[0].size()),
        cost: walk,
        run: to_text,
    },
    conversion!("string", Arg::Number, Type::String(UNKNOWN), to_text),
    conversion!("string", Arg::Bool, Type::String(UNKNOWN), to_text),
    conversion!("string", Arg::Timestamp, Type::String(UNKNOWN), to_text),
    conversion!("string", Arg::Duration, Type::String(UNKNOWN), to_text),
    conversion!("string", Arg::Library(super::IP), Type::String(UNKNOWN), to_text),
    conversion!("string", Arg::Library(super::CIDR), Type::String(UNKNOWN), to_text),
    Function {
        name: "bytes",
        method: false,
        args: &[Arg::Bytes],
        answer: |types| Type::Bytes(types[0].size()),
        cost: walk,
        run: same,
    },
    Function {
        name: "bytes",
        method: false,
        args: &[Arg::String],
        answer: |types| Type::Bytes(types[0].size()),
        cost: walk,
        run: to_bytes,
    },
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
    _ => Err(malformed("bool")),
});
function!(to_int,
    [Value::Int(number)] => Ok(Value::Int(*number)),
    [Value::Uint(number)] => i64::try_from(*number).map(Value::Int).map_err(|_| range()),
    [Value::Double(number)] => truncate(*number, -(2f64.powi(63)), 2f64.powi(63)).and_then(|number| i64::try_from(number).map(Value::Int).map_err(|_| range())),
    [Value::String(text)] => text.parse().map(Value::Int).map_err(|_| malformed("int")),
    [Value::Timestamp(nanos)] => i64::try_from(nanos.div_euclid(time::SECOND)).map(Value::Int).map_err(|_| range()),
    [Value::Duration(nanos)] => Ok(Value::Int(*nanos)),
);
function!(to_uint,
    [Value::Uint(number)] => Ok(Value::Uint(*number)),
    [Value::Int(number)] => u64::try_from(*number).map(Value::Uint).map_err(|_| range()),
    [Value::Double(number)] => truncate(*number, -1.0, 2f64.powi(64)).and_then(|number| u64::try_from(number).map(Value::Uint).map_err(|_| range())),
    [Value::String(text)] => text.parse().map(Value::Uint).map_err(|_| malformed("uint")),
);
function!(to_double,
    [Value::Double(number)] => Ok(Value::Double(*number)),
    [Value::Int(number)] => Ok(Value::Double(*number as f64)),
    [Value::Uint(number)] => Ok(Value::Double(*number as f64)),
    [Value::String(text)] => text.parse().map(Value::Double).map_err(|_| malformed("double")),
);
function!(to_text, [value] => text(value).map(Value::text));
function!(to_bytes, [Value::String(text)] => Ok(Value::Bytes(Arc::from(text.as_bytes()))));
function!(to_duration,
    [Value::String(text)] => time::duration(text).map(Value::Duration).ok_or_else(|| malformed("duration")),
    [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
);
function!(to_timestamp,
    [Value::String(text)] => time::timestamp(text).map(Value::Timestamp).ok_or_else(|| malformed("timestamp")),
    [Value::Int(seconds)] => time::in_range(i128::from(*seconds) * time::SECOND).map(Value::Timestamp),
);

fn malformed(what: &str) -> Failure {
    Failure::Failed(format!("a text is no {what}"))
}

fn range() -> Failure {
    "a number is out of range".into()
}

/// Both bounds are exclusive.
fn truncate(number: f64, low: f64, high: f64) -> Result<i128, Failure> {
    #[allow(clippy::cast_possible_truncation, reason = "bounded just before")]
    if number > low && number < high { Ok(number as i128) } else { Err(range()) }
}

/// Converts a value to a string.
pub(super) fn text(value: &Value<'_>) -> Result<String, Failure> {
    Ok(match value {
        Value::String(text) => text.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => double(*number),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map_err(|_| Failure::from("invalid UTF-8 in bytes"))?
            .to_owned(),
        Value::Timestamp(nanos) => time::write_timestamp(*nanos)?,
        Value::Duration(nanos) => time::write_duration(*nanos),
        Value::Library(library) => match &**library {
            Library::Ip(address) => address.to_string(),
            Library::Cidr(cidr) => cidr.to_string(),
            _ => return crate::evaluator::no_overload(),
        },
        _ => return crate::evaluator::no_overload(),
    })
}

/// The shortest representation, with an exponent if that is shorter.
pub(super) fn double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) =
            exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    number.to_string()
}
