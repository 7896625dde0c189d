//! `format`: string formatting with verbs.

use super::conversion::{double, text};
use super::{Arg, Function, walk};
use crate::cost::{Meter, traversal};
use crate::evaluator::{Answer, Failure, no_overload};
use crate::types::{MAX_REQUEST, Type};
use crate::value::Value;

/// Max fraction digits.
const MAX_PRECISION: usize = 100;
/// Max depth of printed lists and maps.
const MAX_DEPTH: usize = 64;

pub(super) const FUNCTIONS: &[Function] = &[Function {
    name: "format",
    method: true,
    args: &[Arg::String, Arg::List],
    answer: |_| Type::String(MAX_REQUEST),
    cost: walk,
    run: format,
}];

fn format<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    let [Value::String(pattern), Value::List(list)] = args else { return no_overload() };
    let mut values = list.iter();
    let mut out = String::new();
    let mut rest = &**pattern;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let (precision, after) = precision(after)?;
        let verb = after.chars().next().ok_or_else(|| Failure::from("a format ends in '%'"))?;
        let value = values.next().ok_or_else(|| Failure::from("too few arguments for a format"))?;
        let written = one(meter, verb, precision, &value)?;
        meter.spend(1 + traversal(written.len() as u64))?;
        out.push_str(&written);
        rest = &after[verb.len_utf8()..];
    }
    out.push_str(rest);
    match values.next() {
        None => Ok(Value::text(out)),
        Some(_) => Err("too many arguments for a format".into()),
    }
}

fn precision(text: &str) -> Result<(usize, &str), Failure> {
    let Some(rest) = text.strip_prefix('.') else { return Ok((6, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let digits = rest[..end].parse().ok().filter(|digits| *digits <= MAX_PRECISION);
    digits.map(|digits| (digits, &rest[end..])).ok_or_else(|| "a format has a bad precision".into())
}

fn one(
    meter: &mut Meter,
    verb: char,
    precision: usize,
    value: &Value<'_>,
) -> Result<String, Failure> {
    match (verb, value) {
        ('s', value) => shown(meter, value, 0),
        ('d', Value::Int(number)) => Ok(number.to_string()),
        ('d', Value::Uint(number)) => Ok(number.to_string()),
        ('f', Value::Double(number)) => Ok(format!("{number:.precision$}")),
        ('f', Value::Int(number)) => Ok(format!("{:.precision$}", *number as f64)),
        ('e', Value::Double(number)) => Ok(exponent(*number, precision)),
        ('e', Value::Int(number)) => Ok(exponent(*number as f64, precision)),
        ('b', Value::Int(number)) => Ok(signed(*number, |magnitude| format!("{magnitude:b}"))),
        ('b', Value::Uint(number)) => Ok(format!("{number:b}")),
        ('b', Value::Bool(flag)) => Ok(u8::from(*flag).to_string()),
        ('o', Value::Int(number)) => Ok(signed(*number, |magnitude| format!("{magnitude:o}"))),
        ('o', Value::Uint(number)) => Ok(format!("{number:o}")),
        ('x', Value::Int(number)) => Ok(signed(*number, |magnitude| format!("{magnitude:x}"))),
        ('x', Value::Uint(number)) => Ok(format!("{number:x}")),
        ('x', Value::String(text)) => Ok(text.bytes().map(|byte| format!("{byte:02x}")).collect()),
        ('x', Value::Bytes(bytes)) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        ('X', value) => one(meter, 'x', precision, value).map(|text| text.to_ascii_uppercase()),
        _ => Err("a format has a verb that does not fit its argument".into()),
    }
}

fn signed(number: i64, write: impl Fn(u64) -> String) -> String {
    format!("{}{}", if number < 0 { "-" } else { "" }, write(number.unsigned_abs()))
}

fn exponent(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) =
        exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn shown(meter: &mut Meter, value: &Value<'_>, depth: usize) -> Result<String, Failure> {
    meter.spend(1 + traversal(value.size()))?;
    if depth > MAX_DEPTH {
        return Err("a value is too deep for a format".into());
    }
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Type(name) => (*name).to_owned(),
        Value::Double(number) => double(*number),
        Value::List(list) => {
            let items: Result<Vec<String>, Failure> =
                list.iter().map(|item| shown(meter, &item, depth + 1)).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Map(map) => {
            let mut entries = Vec::with_capacity(map.len());
            for (key, value) in map.entries() {
                entries.push(format!(
                    "{}: {}",
                    shown(meter, &key.value(), depth + 1)?,
                    shown(meter, &value, depth + 1)?
                ));
            }
            format!("{{{}}}", entries.join(", "))
        }
        other => text(other)?,
    })
}
