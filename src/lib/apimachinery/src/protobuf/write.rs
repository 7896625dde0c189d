//! Encodes values. Recursive: values are at most [`crate::json::MAX_DEPTH`] deep.

use super::ProtobufError;
use super::special::{self, Special};
use super::table::{Cardinality, FieldType, MessageDescriptor, MessageField, Messages};
use super::wire;
use crate::document::{Map, Value};
use crate::json;
use crate::time;
use base64::Engine as _;

type Result<T> = std::result::Result<T, ProtobufError>;

/// Appends a message, in the order of field numbers. Unknown fields are dropped.
pub(super) fn object(
    messages: &Messages,
    index: usize,
    fields: &Map,
    out: &mut Vec<u8>,
) -> Result<()> {
    for field in &messages.message(index).fields {
        if field.shape == Cardinality::Inline {
            if let FieldType::Message(inner) = field.kind {
                wire::put_nested(out, field.number, |out| object(messages, inner, fields, out))?;
            }
        } else if let Some(value) = fields.get(&field.name)
            && !value.is_null()
        {
            self::field(messages, field, value, out)?;
        }
    }
    Ok(())
}

fn field(
    messages: &Messages,
    field: &MessageField,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let misfit = || ProtobufError::DoesNotFit(field.name.to_string());
    match field.shape {
        Cardinality::One | Cardinality::Inline => one(messages, field, field.number, value, out),
        Cardinality::List => {
            let items = value.as_array().ok_or_else(misfit)?;
            items.iter().try_for_each(|item| one(messages, field, field.number, item, out))
        }
        Cardinality::Map => {
            let entries = value.as_object().ok_or_else(misfit)?;
            entries.iter().try_for_each(|(key, value)| {
                wire::put_nested(out, field.number, |out| {
                    wire::put_bytes(out, 1, key.as_bytes());
                    one(messages, field, 2, value, out)
                })
            })
        }
    }
}

/// One value of a field.
fn one(
    messages: &Messages,
    field: &MessageField,
    number: u32,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let misfit = || ProtobufError::DoesNotFit(field.name.to_string());
    match (field.kind, value) {
        (FieldType::Absent, _) => {}
        (FieldType::Bool, Value::Bool(value)) => wire::put_number(out, number, u64::from(*value)),
        (FieldType::Int32 | FieldType::Int64, Value::Number(_)) => {
            wire::put_number(out, number, integer(value).ok_or_else(misfit)? as u64)
        }
        (FieldType::Double, Value::Number(value)) => {
            wire::put_double(out, number, value.as_f64().ok_or_else(misfit)?)
        }
        (FieldType::String, Value::String(text)) => wire::put_bytes(out, number, text.as_bytes()),
        // Null in a map or list is the zero value, as in Go.
        (FieldType::String | FieldType::Bytes, Value::Null) => wire::put_bytes(out, number, b""),
        (FieldType::Bytes, Value::String(text)) => {
            wire::put_bytes(out, number, &bytes(text).ok_or_else(misfit)?)
        }
        (FieldType::Message(index), value) => {
            let message = messages.message(index);
            if message.special != Special::None {
                return special(messages, message, number, value, out)
                    .unwrap_or_else(|| Err(misfit()));
            }
            let empty = Map::new();
            let fields =
                if value.is_null() { &empty } else { value.as_object().ok_or_else(misfit)? };
            wire::put_nested(out, number, |out| object(messages, index, fields, out))?;
        }
        _ => return Err(misfit()),
    }
    Ok(())
}

/// An integer or integral float.
fn integer(value: &Value) -> Option<i64> {
    let float = || {
        value
            .as_f64()
            .filter(|float| float.fract() == 0.0 && float.abs() < 9e18)
            .map(|float| float as i64)
    };
    value.as_i64().or_else(float)
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let engine = base64::engine::general_purpose::STANDARD;
    if text.contains(['\r', '\n']) {
        engine.decode(text.replace(['\r', '\n'], "")).ok()
    } else {
        engine.decode(text).ok()
    }
}

/// A message with a special form; `None` if the value does not match it.
fn special(
    messages: &Messages,
    message: &MessageDescriptor,
    number: u32,
    value: &Value,
    out: &mut Vec<u8>,
) -> Option<Result<()>> {
    let mut nested =
        |write: &dyn Fn(&mut Vec<u8>) -> Result<()>| Some(wire::put_nested(out, number, write));
    match message.special {
        Special::None => None,
        _ if value.is_null() => nested(&|_| Ok(())),
        Special::Raw => nested(&|out| {
            wire::put_bytes(out, 1, &json::to_vec(value));
            Ok(())
        }),
        Special::Time | Special::MicroTime => {
            let (seconds, nanos) = time::since_epoch(time::parse_rfc3339(value.as_str()?)?);
            let nanos = if message.special == Special::Time { 0 } else { nanos };
            nested(&|out| {
                wire::put_number(out, 1, seconds as u64);
                wire::put_number(out, 2, nanos.into());
                Ok(())
            })
        }
        Special::Duration => {
            let nanos = special::parse_duration(value.as_str()?)?;
            nested(&|out| {
                wire::put_number(out, 1, nanos as u64);
                Ok(())
            })
        }
        Special::IntOrString => {
            let (text, number) = (value.as_str(), integer(value));
            text.is_some().then_some(0).or(number)?;
            nested(&|out| {
                wire::put_number(out, 1, text.is_some().into());
                wire::put_number(out, 2, number.unwrap_or_default() as u64);
                wire::put_bytes(out, 3, text.unwrap_or_default().as_bytes());
                Ok(())
            })
        }
        Special::Quantity => {
            let text = match value {
                Value::String(text) => text.to_string(),
                Value::Number(number) => number.to_string(),
                _ => return None,
            };
            nested(&|out| {
                wire::put_bytes(out, 1, text.as_bytes());
                Ok(())
            })
        }
        Special::Strings => {
            let items: Option<Vec<&str>> = value.as_array()?.iter().map(Value::as_str).collect();
            let items = items?;
            nested(&|out| {
                items.iter().for_each(|item| wire::put_bytes(out, 1, item.as_bytes()));
                Ok(())
            })
        }
        Special::SchemaOrArray | Special::SchemaOrBool | Special::SchemaOrStrings => {
            nested(&|out| schema_or(messages, message, value, out))
        }
    }
}

/// A schema or another type, which determines the field.
fn schema_or(
    messages: &Messages,
    message: &MessageDescriptor,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (schema, other) = if message.special == Special::SchemaOrBool { (2, 1) } else { (1, 2) };
    let put = |number: u32, value: &Value, out: &mut Vec<u8>| match message.field(number) {
        Some(field) => self::field(messages, field, value, out),
        None => Ok(()),
    };
    match value {
        Value::Object(_) => {
            if message.special == Special::SchemaOrBool {
                // Go sets both: a schema implies true.
                put(other, &Value::Bool(true), out)?;
            }
            put(schema, value, out)
        }
        value => put(other, value, out),
    }
}
