//! Decodes messages into values.

use super::special::{self, Special};
use super::table::{Cardinality, FieldType, LIST_META, MessageDescriptor, MessageField, Messages};
use super::wire::{self, WireValue};
use super::{MAGIC, ProtobufError};
use crate::document::{Array, Map, Number, Text, Value};
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
    let mut read = ReadMessage::default();
    MessageReader { messages, room: &room }.fields(message, bytes, 0, &mut read)?;
    let mut map = read.finish();
    for (field, text) in more.into_iter().filter(|(_, text)| !text.is_empty()) {
        map.insert(field, Value::from(text));
    }
    map.shrink_to_fit();
    Ok(map)
}

/// The fields of a message that have been read. Descriptors tell them apart, and they are put
/// in order by the ranks of their names, without a comparison of texts.
#[derive(Default)]
struct ReadMessage<'a> {
    fields: Vec<(&'a MessageField, ReadField<'a>)>,
    /// Whether some are of a message that is inlined, whose ranks are its own.
    is_mixed: bool,
}

enum ReadField<'a> {
    Value(Value),
    /// A repeated one is merged into it.
    Message(ReadMessage<'a>),
}

impl<'a> ReadMessage<'a> {
    fn position(&self, field: &MessageField) -> Option<usize> {
        self.fields.iter().position(|(present, _)| std::ptr::eq(*present, field))
    }

    fn get_mut(&mut self, field: &MessageField) -> Option<&mut ReadField<'a>> {
        self.position(field).map(|at| &mut self.fields[at].1)
    }

    fn set(&mut self, field: &'a MessageField, value: ReadField<'a>) {
        match self.get_mut(field) {
            Some(present) => *present = value,
            None => self.fields.push((field, value)),
        }
    }

    /// The value of a field; if missing, set to the result of `default`.
    fn entry(&mut self, field: &'a MessageField, default: fn() -> Value) -> &mut ReadField<'a> {
        let at = self.position(field).unwrap_or_else(|| {
            self.fields.push((field, ReadField::Value(default())));
            self.fields.len() - 1
        });
        &mut self.fields[at].1
    }

    fn finish(mut self) -> Map {
        let is_mixed = self.is_mixed;
        let order = |(one, _): &(&MessageField, _), (other, _): &(&MessageField, _)| match is_mixed
        {
            true => one.name.cmp(&other.name),
            false => one.rank.cmp(&other.rank),
        };
        self.fields.sort_by(order);
        // Tables may give a name to several fields.
        self.fields.dedup_by(|later, first| {
            let is_same = order(later, first).is_eq();
            if is_same {
                std::mem::swap(later, first);
            }
            is_same
        });
        let mut map = Vec::with_capacity(self.fields.len());
        map.extend(
            self.fields
                .into_iter()
                .map(|(field, value)| (Text::from(&*field.name), value.finish())),
        );
        Map::from_sorted(map)
    }
}

impl ReadField<'_> {
    fn finish(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Message(message) => Value::Object(message.finish()),
        }
    }
}

#[derive(Clone, Copy)]
struct MessageReader<'a> {
    messages: &'a Messages,
    /// Bytes left for values.
    room: &'a Cell<usize>,
}

impl<'a> MessageReader<'a> {
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
        let mut read = ReadMessage::default();
        self.fields(message, bytes, depth, &mut read)?;
        Ok(Some(Value::Object(read.finish())))
    }

    fn fields(
        self,
        message: &'a MessageDescriptor,
        bytes: &[u8],
        depth: usize,
        read: &mut ReadMessage<'a>,
    ) -> Result<(), ProtobufError> {
        for field in wire::fields(bytes) {
            let (number, wire) = field?;
            match message.field(number) {
                Some(field) => self.field(field, wire, depth, read)?,
                None => wire.skip()?,
            }
        }
        Ok(())
    }

    fn field(
        self,
        field: &'a MessageField,
        wire: WireValue<'_>,
        depth: usize,
        read: &mut ReadMessage<'a>,
    ) -> Result<(), ProtobufError> {
        match (field.shape, field.kind, wire) {
            (Cardinality::One, FieldType::Message(index), WireValue::Bytes(bytes))
                if self.messages.message(index).special == Special::None =>
            {
                if depth >= MAX_NESTING {
                    return Err(ProtobufError::malformed("messages nest too deep"));
                }
                let message = self.messages.message(index);
                if let Some(ReadField::Message(first)) = read.get_mut(field) {
                    return self.fields(message, bytes, depth + 1, first);
                }
                self.take(GROWN_FIELD)?;
                let mut inner = ReadMessage::default();
                self.fields(message, bytes, depth + 1, &mut inner)?;
                read.set(field, ReadField::Message(inner));
            }
            (Cardinality::One, ..) => {
                let value = self.value(field.kind, wire, depth + 1);
                if let Some(value) = value.map_err(|error| self.at(error, field, wire))? {
                    read.set(field, ReadField::Value(value));
                }
            }
            (Cardinality::List, ..) => self.list_element(field, wire, depth, read)?,
            (Cardinality::Map, ..) => self.map_entry(field, wire, depth, read)?,
            (Cardinality::Inline, FieldType::Message(index), WireValue::Bytes(bytes))
                if depth < MAX_NESTING =>
            {
                read.is_mixed = true;
                self.fields(self.messages.message(index), bytes, depth + 1, read)?;
            }
            (Cardinality::Inline, ..) => return Err(wire.mismatch(&self.go_name(field))),
        }
        Ok(())
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
        field: &'a MessageField,
        wire: WireValue<'_>,
        depth: usize,
        read: &mut ReadMessage<'a>,
    ) -> Result<(), ProtobufError> {
        let slot = read.entry(field, || Value::Array(Array::new()));
        let ReadField::Value(Value::Array(items)) = slot else {
            return Err(wire.mismatch(&self.go_name(field)));
        };
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
        field: &'a MessageField,
        wire: WireValue<'_>,
        depth: usize,
        read: &mut ReadMessage<'a>,
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
        let slot = read.entry(field, || Value::Object(Map::new()));
        if let (ReadField::Value(Value::Object(entries)), Some(value)) = (slot, value) {
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
        message: &'a MessageDescriptor,
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
        message: &'a MessageDescriptor,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        let mut read = ReadMessage::default();
        self.fields(message, bytes, depth, &mut read)?;
        let order = if message.special == Special::SchemaOrBool { [2, 1] } else { [1, 2] };
        let found = order.iter().find_map(|number| {
            let at = read.fields.iter().position(|(field, _)| field.number == *number)?;
            Some(read.fields.swap_remove(at).1.finish())
        });
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
