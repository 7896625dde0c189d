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

/// How messages are written.
#[derive(Clone, Copy)]
pub(super) struct MessageForm<'a> {
    pub(super) messages: &'a Messages,
    /// Fields that Go always writes are written though they are not set.
    pub(super) has_zeros: bool,
}

/// Appends a message, in the order of field numbers. Unknown fields are dropped.
pub(super) fn object(
    form: MessageForm<'_>,
    index: usize,
    fields: &Map,
    out: &mut Vec<u8>,
) -> Result<()> {
    for field in &form.messages.message(index).fields {
        if field.shape == Cardinality::Inline {
            if let FieldType::Message(inner) = field.kind {
                wire::put_nested(out, field.number, |out| object(form, inner, fields, out))?;
            }
        } else if let Some(value) = fields.get(&field.name).filter(|value| !value.is_null()) {
            self::field(form, field, value, out)?;
        } else if field.is_always && form.has_zeros {
            zero(form, field, out)?;
        }
    }
    Ok(())
}

/// A field that is not set, as Go writes it if it is no pointer.
fn zero(form: MessageForm<'_>, field: &MessageField, out: &mut Vec<u8>) -> Result<()> {
    let value = match field.kind {
        FieldType::Absent => return Ok(()),
        FieldType::Bool => Value::Bool(false),
        FieldType::Int32 | FieldType::Int64 | FieldType::Double => Value::from(0),
        FieldType::String | FieldType::Bytes => Value::from(""),
        FieldType::Message(index) => match form.messages.message(index).special {
            Special::IntOrString => Value::from(0),
            Special::Quantity => Value::from("0"),
            Special::Duration => Value::from("0s"),
            // A list in Go.
            Special::Strings => return Ok(()),
            _ => Value::Null,
        },
    };
    one(form, field, field.number, &value, out)
}

fn field(
    form: MessageForm<'_>,
    field: &MessageField,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mismatch = || ProtobufError::DoesNotFit(field.name.to_string());
    match field.shape {
        Cardinality::One | Cardinality::Inline => one(form, field, field.number, value, out),
        Cardinality::List => {
            let items = value.as_array().ok_or_else(mismatch)?;
            items.iter().try_for_each(|item| one(form, field, field.number, item, out))
        }
        Cardinality::Map => {
            let entries = value.as_object().ok_or_else(mismatch)?;
            entries.iter().try_for_each(|(key, value)| {
                wire::put_nested(out, field.number, |out| {
                    wire::put_bytes(out, 1, key.as_bytes());
                    one(form, field, 2, value, out)
                })
            })
        }
    }
}

/// One value of a field.
fn one(
    form: MessageForm<'_>,
    field: &MessageField,
    number: u32,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mismatch = || ProtobufError::DoesNotFit(field.name.to_string());
    match (field.kind, value) {
        (FieldType::Absent, _) => {}
        (FieldType::Bool, Value::Bool(value)) => wire::put_number(out, number, u64::from(*value)),
        (FieldType::Int32 | FieldType::Int64, Value::Number(_)) => {
            wire::put_number(out, number, integer(value).ok_or_else(mismatch)? as u64)
        }
        (FieldType::Double, Value::Number(value)) => {
            wire::put_double(out, number, value.as_f64().ok_or_else(mismatch)?)
        }
        (FieldType::String, Value::String(text)) => wire::put_bytes(out, number, text.as_bytes()),
        // Null in a map or list is the zero value, as in Go.
        (FieldType::String | FieldType::Bytes, Value::Null) => wire::put_bytes(out, number, b""),
        (FieldType::Bytes, Value::String(text)) => {
            wire::put_bytes(out, number, &bytes(text).ok_or_else(mismatch)?)
        }
        (FieldType::Message(index), value) => {
            let message = form.messages.message(index);
            if message.special != Special::None {
                return special(form, message, number, value, out)
                    .unwrap_or_else(|| Err(mismatch()));
            }
            let empty = Map::new();
            let fields =
                if value.is_null() { &empty } else { value.as_object().ok_or_else(mismatch)? };
            wire::put_nested(out, number, |out| object(form, index, fields, out))?;
        }
        _ => return Err(mismatch()),
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
    form: MessageForm<'_>,
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
            nested(&|out| schema_or(form, message, value, out))
        }
    }
}

/// A schema or another type, which determines the field.
fn schema_or(
    form: MessageForm<'_>,
    message: &MessageDescriptor,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (schema, other) = if message.special == Special::SchemaOrBool { (2, 1) } else { (1, 2) };
    let put = |number: u32, value: &Value, out: &mut Vec<u8>| match message.field(number) {
        Some(field) => self::field(form, field, value, out),
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
