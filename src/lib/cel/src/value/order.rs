//! Equality and order of values.

use super::library::Library;
use super::{List, Map, MapKey, Text, Value};
use crate::cost::{Meter, traversal};
use crate::failure::Failure;
use ferrokube_schema::ListType;
use std::cmp::Ordering;

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

/// Whether values are comparable with each other.
pub(crate) fn is_sortable<'v, 'a: 'v>(values: impl Iterator<Item = &'v Value<'a>>) -> bool {
    let mut kind = None;
    values.into_iter().all(|value| {
        *kind.get_or_insert(value.type_name()) == value.type_name()
            && compare(value, value).is_some()
    })
}

/// Equality. Recursion is as deep as the values, whose depth the parser bounds.
pub(crate) fn equal(
    meter: &mut Meter,
    one: &Value<'_>,
    other: &Value<'_>,
) -> Result<bool, Failure> {
    meter.spend(traversal(one.size().min(other.size())))?;
    Ok(match (one, other) {
        (Value::Mistyped(why), _) | (_, Value::Mistyped(why)) => {
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

/// The index of the first item that `is` accepts.
pub(crate) fn find<'a>(
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

/// Whether two items of a list map have the same keys.
pub(crate) fn same_keys(
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
    MapKey::Text(Text::Own(key.into()))
}
