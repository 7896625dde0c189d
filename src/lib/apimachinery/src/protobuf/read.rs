//! Decodes messages into values.

use super::special::{self, Special};
use super::table::{Cardinality, FieldType, LIST_META, MessageDescriptor, MessageField, Messages};
use super::wire::{self, WireValue};
use super::{MAGIC, ProtobufError};
use crate::document::{Array, Map, Number, Value};
use crate::heap::{GROWN_FIELD, LARGEST};
use crate::json::{self, MAX_DEPTH};
use crate::quantity::{FORMAT_WRONG, Quantity};
use crate::time;
use crate::work;
use base64::Engine as _;
use std::borrow::Cow;
use std::cell::Cell;

/// Nesting limit of messages; JSON in them may be nested up to [`MAX_DEPTH`].
const MAX_NESTING: usize = 150;

/// Decodes a bare message that is an object, and sets further fields unless they are empty.
pub(super) fn object(
    messages: &Messages,
    index: usize,
    bytes: &[u8],
    more: [(&str, Cow<'_, str>); 2],
) -> Result<Map, ProtobufError> {
    let message = messages.message(index);
    if message.special != Special::None {
        return Err(ProtobufError::malformed("the message is no object"));
    }
    // Strings take no more than in the body.
    let room = Cell::new(LARGEST.saturating_sub(2 * bytes.len()));
    let mut map = Map::new();
    MessageReader { messages, room: &room }.fields(message, bytes, 0, &mut map)?;
    for (field, text) in more.into_iter().filter(|(_, text)| !text.is_empty()) {
        map.insert(field, Value::from(text));
    }
    map.shrink_to_fit();
    Ok(map)
}

#[derive(Clone, Copy)]
struct MessageReader<'a> {
    messages: &'a Messages,
    /// Bytes left for values.
    room: &'a Cell<usize>,
}

impl MessageReader<'_> {
    fn take(self, bytes: usize) -> Result<(), ProtobufError> {
        self.room.set(self.room.get().checked_sub(bytes).ok_or(ProtobufError::TooLarge)?);
        Ok(())
    }

    /// `None` for a missing special form, such as a zero time.
    fn message(
        self,
        index: usize,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Option<Value>, ProtobufError> {
        if depth > MAX_NESTING {
            return Err(ProtobufError::malformed("messages nest too deep"));
        }
        let message = self.messages.message(index);
        if message.special != Special::None {
            return self.special(message, bytes, depth);
        }
        let mut map = Map::new();
        self.fields(message, bytes, depth, &mut map)?;
        map.shrink_to_fit();
        Ok(Some(Value::Object(map)))
    }

    fn fields(
        self,
        message: &MessageDescriptor,
        bytes: &[u8],
        depth: usize,
        map: &mut Map,
    ) -> Result<(), ProtobufError> {
        for field in wire::fields(bytes) {
            let (number, wire) = field?;
            match message.field(number) {
                Some(field) => self.field(field, wire, depth, map)?,
                None => wire.skip()?,
            }
        }
        Ok(())
    }

    fn field(
        self,
        field: &MessageField,
        wire: WireValue<'_>,
        depth: usize,
        map: &mut Map,
    ) -> Result<(), ProtobufError> {
        match field.shape {
            Cardinality::One => {
                if self.merge(field, wire, depth, map)? {
                    return Ok(());
                }
                let value = self.value(field.kind, wire, depth + 1);
                if let Some(value) = value.map_err(|error| self.at(error, field, wire))? {
                    map.insert(&*field.name, value);
                }
            }
            Cardinality::List => self.list_element(field, wire, depth, map)?,
            Cardinality::Map => self.map_entry(field, wire, depth, map)?,
            Cardinality::Inline => match (field.kind, wire) {
                (FieldType::Message(index), WireValue::Bytes(bytes)) if depth < MAX_NESTING => {
                    self.fields(self.messages.message(index), bytes, depth + 1, map)?
                }
                _ => return Err(wire.mismatch(&self.go_name(field))),
            },
        }
        Ok(())
    }

    /// A message that is there again adds to the first one. Whether there is a first one.
    fn merge(
        self,
        field: &MessageField,
        wire: WireValue<'_>,
        depth: usize,
        map: &mut Map,
    ) -> Result<bool, ProtobufError> {
        let (FieldType::Message(index), WireValue::Bytes(bytes)) = (field.kind, wire) else {
            return Ok(false);
        };
        let message = self.messages.message(index);
        let Some(Value::Object(first)) =
            map.get_mut(&field.name).filter(|_| message.special == Special::None)
        else {
            return Ok(false);
        };
        if depth >= MAX_NESTING {
            return Err(ProtobufError::malformed("messages nest too deep"));
        }
        self.fields(message, bytes, depth + 1, first)?;
        Ok(true)
    }

    /// The error about a field, with its name if its wire type is wrong.
    fn at(self, error: ProtobufError, field: &MessageField, wire: WireValue<'_>) -> ProtobufError {
        match error {
            ProtobufError::WireType => wire.mismatch(&self.go_name(field)),
            other => other,
        }
    }

    /// Name of the field in Go's type.
    fn go_name(self, field: &MessageField) -> String {
        const INITIALS: [&str; 10] =
            ["api", "csi", "dns", "fs", "ip", "os", "tls", "ttl", "uid", "url"];
        if &*field.name == "metadata" {
            let list = self.messages.index_of(LIST_META).ok().map(FieldType::Message);
            return if list == Some(field.kind) { "ListMeta" } else { "ObjectMeta" }.to_owned();
        }
        // `Port` of DaemonEndpoint begins with a capital.
        let capital = field.name.find(|char: char| char.is_ascii_uppercase());
        let first = capital.filter(|at| *at > 0);
        let (head, rest) = field.name.split_at(first.unwrap_or(field.name.len()));
        if INITIALS.contains(&head) {
            return format!("{}{rest}", head.to_ascii_uppercase());
        }
        format!("{}{}{rest}", head[..1].to_ascii_uppercase(), &head[1..])
    }

    fn list_element(
        self,
        field: &MessageField,
        wire: WireValue<'_>,
        depth: usize,
        map: &mut Map,
    ) -> Result<(), ProtobufError> {
        let slot = map.entry(&*field.name).or_insert_with(|| Value::Array(Array::new()));
        let Value::Array(items) = slot else { return Err(wire.mismatch(&self.go_name(field))) };
        match (field.kind, wire) {
            // A packed list of numbers.
            (
                FieldType::Bool | FieldType::Int32 | FieldType::Int64,
                WireValue::Bytes(mut packed),
            ) => {
                while !packed.is_empty() {
                    work::count(1);
                    items.extend(self.value(
                        field.kind,
                        WireValue::Varint(wire::varint(&mut packed)?),
                        depth,
                    )?);
                }
            }
            _ => items.extend(
                self.element(field.kind, wire, depth + 2)
                    .map_err(|error| self.at(error, field, wire))?,
            ),
        }
        Ok(())
    }

    fn map_entry(
        self,
        field: &MessageField,
        wire: WireValue<'_>,
        depth: usize,
        map: &mut Map,
    ) -> Result<(), ProtobufError> {
        let WireValue::Bytes(entry) = wire else {
            return Err(wire.mismatch(&self.go_name(field)));
        };
        let (mut key, mut payload) = (Cow::Borrowed(""), None);
        for part in wire::fields(entry) {
            match part? {
                (1, WireValue::Bytes(bytes)) => key = wire::text(bytes),
                (2, wire) => payload = Some(wire),
                _ => {}
            }
        }
        let wire = payload.unwrap_or(WireValue::Bytes(&[]));
        let value = self
            .element(field.kind, wire, depth + 2)
            .map_err(|error| self.at(error, field, wire))?;
        let slot = map.entry(&*field.name).or_insert_with(|| Value::Object(Map::new()));
        if let (Value::Object(entries), Some(value)) = (slot, value) {
            entries.insert(key, value);
        }
        Ok(())
    }

    /// A value in a list or map. There a missing special form is null, as in Go.
    fn element(
        self,
        kind: FieldType,
        wire: WireValue<'_>,
        depth: usize,
    ) -> Result<Option<Value>, ProtobufError> {
        let value = self.value(kind, wire, depth)?;
        Ok(value.or(matches!(kind, FieldType::Message(_)).then_some(Value::Null)))
    }

    fn value(
        self,
        kind: FieldType,
        wire: WireValue<'_>,
        depth: usize,
    ) -> Result<Option<Value>, ProtobufError> {
        self.take(GROWN_FIELD)?;
        Ok(Some(match (kind, wire) {
            (FieldType::Bool, WireValue::Varint(value)) => Value::Bool(value != 0),
            (FieldType::Int32, WireValue::Varint(value)) => Value::from(value as i32),
            (FieldType::Int64, WireValue::Varint(value)) => Value::from(value as i64),
            (FieldType::Double, WireValue::Fixed64(bits)) => double(f64::from_bits(bits))?,
            (FieldType::String, WireValue::Bytes(bytes)) => Value::from(wire::text(bytes)),
            (FieldType::Bytes, WireValue::Bytes(bytes)) => {
                Value::from(base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            (FieldType::Message(index), WireValue::Bytes(bytes)) => {
                return self.message(index, bytes, depth);
            }
            (FieldType::Absent, _) => return Ok(None),
            _ => return Err(ProtobufError::WireType),
        }))
    }

    fn special(
        self,
        message: &MessageDescriptor,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Option<Value>, ProtobufError> {
        Ok(match message.special {
            Special::None => None,
            Special::Time => time_of(bytes)?.map(|time| Value::from(time::rfc3339_seconds(time))),
            Special::MicroTime => {
                time_of(bytes)?.map(|time| Value::from(time::rfc3339_micros(time)))
            }
            Special::Duration => {
                Some(Value::from(special::duration_text(number_of(bytes, 1)? as i64)))
            }
            Special::IntOrString => Some(int_or_string(bytes)?),
            Special::Quantity => Some(Value::from(quantity(bytes)?)),
            Special::Raw => {
                self.take(15 * bytes.len())?;
                raw(bytes, depth)?
            }
            Special::Strings => {
                self.take(bytes.len() * GROWN_FIELD / 2)?;
                Some(strings(bytes, 1)?)
            }
            Special::SchemaOrArray | Special::SchemaOrBool | Special::SchemaOrStrings => {
                Some(self.schema_or(message, bytes, depth)?)
            }
        })
    }

    /// A schema (field 1, or 2 next to a boolean), or another type.
    fn schema_or(
        self,
        message: &MessageDescriptor,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        let mut map = Map::new();
        let mut plain = MessageDescriptor { special: Special::None, fields: Vec::new() };
        plain.fields.extend(
            message
                .fields
                .iter()
                .map(|field| MessageField { name: field.number.to_string().into(), ..*field }),
        );
        self.fields(&plain, bytes, depth, &mut map)?;
        let order = if message.special == Special::SchemaOrBool { ["2", "1"] } else { ["1", "2"] };
        let found = order.iter().find_map(|number| map.remove(number));
        Ok(found.unwrap_or(if message.special == Special::SchemaOrBool {
            Value::Bool(false)
        } else {
            Value::Array(Array::new())
        }))
    }
}

fn double(value: f64) -> Result<Value, ProtobufError> {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        // 5, not 5.0, as in JSON.
        return Ok(Value::from(value as i64));
    }
    Number::from_f64(value)
        .map(Value::Number)
        .ok_or_else(|| ProtobufError::malformed("a number that JSON does not have"))
}

/// Last varint of a field; zero if missing.
fn number_of(bytes: &[u8], wanted: u32) -> Result<u64, ProtobufError> {
    let mut value = 0;
    for field in wire::fields(bytes) {
        if let (number, WireValue::Varint(found)) = field?
            && number == wanted
        {
            value = found;
        }
    }
    Ok(value)
}

/// Last bytes of a field; empty if missing.
fn bytes_of(bytes: &[u8], wanted: u32) -> Result<&[u8], ProtobufError> {
    let mut value: &[u8] = &[];
    for field in wire::fields(bytes) {
        if let (number, WireValue::Bytes(found)) = field?
            && number == wanted
        {
            value = found;
        }
    }
    Ok(value)
}

/// `None` for the zero time, an empty message.
fn time_of(bytes: &[u8]) -> Result<Option<std::time::SystemTime>, ProtobufError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (seconds, nanos) = (number_of(bytes, 1)? as i64, number_of(bytes, 2)? as i32);
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let time = nanos.and_then(|nanos| time::from_epoch(seconds, nanos));
    let time = time.filter(|time| time::is_readable(*time));
    time.map(Some).ok_or_else(|| ProtobufError::malformed("a time out of range"))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    Ok(match number_of(bytes, 1)? {
        0 => Value::from(number_of(bytes, 2)? as i32),
        1 => Value::from(wire::text(bytes_of(bytes, 3)?)),
        _ => return Err(ProtobufError::malformed("neither an integer nor a string")),
    })
}

fn quantity(bytes: &[u8]) -> Result<String, ProtobufError> {
    let text = wire::text(bytes_of(bytes, 1)?);
    if text.is_empty() {
        return Ok("0".to_owned());
    }
    let parsed = Quantity::parse(&text).map_err(|_| ProtobufError::malformed(FORMAT_WRONG))?;
    Ok(parsed.canonical())
}

fn raw(bytes: &[u8], depth: usize) -> Result<Option<Value>, ProtobufError> {
    let raw = bytes_of(bytes, 1)?;
    if raw.is_empty() {
        return Ok(None);
    }
    if raw.starts_with(MAGIC) {
        return Err(ProtobufError::malformed("an embedded object must be JSON"));
    }
    let value =
        json::read_value(raw).map_err(|error| ProtobufError::Malformed(error.to_string()))?;
    if depth + json::depth(&value) > MAX_DEPTH {
        return Err(ProtobufError::malformed("embedded JSON nests too deep"));
    }
    Ok(Some(value))
}

fn strings(bytes: &[u8], wanted: u32) -> Result<Value, ProtobufError> {
    let mut items = Vec::new();
    for field in wire::fields(bytes) {
        if let (number, WireValue::Bytes(text)) = field?
            && number == wanted
        {
            items.push(Value::from(wire::text(text)));
        }
    }
    Ok(Value::from(items))
}
