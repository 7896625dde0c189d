//! Sums of values.

use super::order::{equal, find, same_keys};
use super::{CelResult, List, Value, time};
use crate::cost::Meter;
use crate::failure::{no_overload, overflow, unsigned_overflow};
use ferrokube_schema::ListType;

/// `+`.
///
/// # Errors
/// Overflow, or types that have no sum.
pub(crate) fn add_values<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
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
            time::in_range(time + i128::from(*nanos)).map(Value::Timestamp)
        }
        _ => no_overload(),
    }
}

/// Joins lists by their list type: sets as a union; a list map's later item replaces the earlier
/// one with its key.
fn concatenate<'a>(meter: &mut Meter, one: &List<'a>, other: &List<'a>) -> CelResult<'a> {
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
