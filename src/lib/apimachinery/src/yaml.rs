//! YAML bodies, with bounded aliases and depth, and responses for `Accept: application/yaml`.

mod input;
mod reader;
mod repeats;
mod resolve;
mod stream;
mod writer;

pub use stream::YamlStream;

use crate::document::Value;
use crate::heap;
use crate::json::{self, DecodeError, Decoded, DecodedValue};
use crate::work;

/// Decodes the first document of a YAML stream as an object, with YAML 1.1 booleans as in Go's
/// reader.
///
/// # Errors
/// [`DecodeError`]: syntax (including tabs), depth, alias expansion, not an object.
pub fn read(body: &[u8]) -> Result<Decoded, DecodeError> {
    read_json(body).unwrap_or_else(|| read_events(body))
}

/// The same of a body that is JSON, or too large to tell; `None` of others. JSON is YAML, most
/// apply patches are JSON, and its reader is far faster.
pub fn read_json(body: &[u8]) -> Option<Result<Decoded, DecodeError>> {
    json_of(body).map(|read| read.and_then(json::into_object))
}

/// The same of any other body, which takes long.
///
/// # Errors
/// As [`read`].
pub fn read_events(body: &[u8]) -> Result<Decoded, DecodeError> {
    json::into_object(events_of(body)?)
}

/// Decodes the first document of a YAML stream as any value.
///
/// # Errors
/// As [`read`], without `NotObject`.
pub fn read_any(body: &[u8]) -> Result<DecodedValue, DecodeError> {
    json_of(body).unwrap_or_else(|| events_of(body))
}

fn json_of(body: &[u8]) -> Option<Result<DecodedValue, DecodeError>> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    if heap::json_bound(body) > heap::LARGEST {
        return Some(Err(DecodeError::TooLarge));
    }
    match json::read_as_yaml(body) {
        Err(DecodeError::Syntax(_) | DecodeError::Range(_)) => None,
        read => Some(read),
    }
}

fn events_of(body: &[u8]) -> Result<DecodedValue, DecodeError> {
    reader::parse(text(body)?, heap::yaml_room(body))
}

/// Bodies up to this length are scanned again for duplicate keys.
const MAX_REPEATING: usize = 16 * 1024;

/// Go's strict decoder's messages about duplicate keys, with lines; none for a long body.
pub fn repeated_keys(body: &[u8]) -> Vec<String> {
    match std::str::from_utf8(body) {
        Ok(text) if text.len() <= MAX_REPEATING => repeats::sentences(text),
        _ => Vec::new(),
    }
}

/// Encodes in block style with sorted keys; quotes strings that YAML would read as another type.
pub fn to_vec(value: &Value) -> Vec<u8> {
    writer::document(value)
}

/// The body as text without a byte order mark; an error for characters that YAML forbids.
fn text(body: &[u8]) -> Result<&str, DecodeError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        DecodeError::Syntax(format!("not UTF-8 at byte {}", error.valid_up_to()))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.as_bytes().chunks(CHECKED).any(has_control) {
        true => Err(DecodeError::Syntax("control characters are not allowed".to_owned())),
        false => Ok(text),
    }
}

/// Bytes that are checked for control characters at a time: some 10 microseconds.
const CHECKED: usize = 16 * 1024;

/// Whether one of the bytes is a control character.
fn has_control(chunk: &[u8]) -> bool {
    work::breathe();
    let is_control = |byte: u8| matches!(byte, 0..=8 | 0x0b | 0x0c | 0x0e..=0x1f | 0x7f);
    chunk.iter().any(|byte| is_control(*byte))
}

#[cfg(test)]
mod tests;
