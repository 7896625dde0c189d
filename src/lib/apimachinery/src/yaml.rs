//! YAML bodies: read with bounded aliases and depth, written for `Accept: application/yaml`.

mod input;
mod reader;
mod repeats;
mod resolve;
mod writer;

use crate::document::Value;
use crate::heap;
use crate::json::{self, DecodeError, Decoded, DecodedValue};

/// Reads the first document of a YAML stream as an object, by YAML 1.1's rules for booleans as Go's
/// reader applies them.
///
/// # Errors
/// [`DecodeError`]: syntax (also tabs), depth, alias expansion, not an object.
pub fn read(body: &[u8]) -> Result<Decoded, DecodeError> {
    json::into_object(read_any(body)?)
}

/// Reads the first document of a YAML stream as any value.
///
/// # Errors
/// As [`read`], without `NotObject`.
pub fn read_any(body: &[u8]) -> Result<DecodedValue, DecodeError> {
    // JSON is YAML, most apply patches are JSON, and its reader is far faster.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        if heap::json_bound(body) > heap::LARGEST {
            return Err(DecodeError::TooLarge);
        }
        match json::read_as_yaml(body) {
            Err(DecodeError::Syntax(_)) => {}
            read => return read,
        }
    }
    reader::parse(text(body)?, heap::yaml_room(body))
}

/// Bodies up to this length are looked at again for their repeated keys.
const MAX_REPEATING: usize = 16 * 1024;

/// The repeated keys of a body that was read, with their lines and in the words of Go's strict
/// reader; none for a long body.
pub fn repeated_keys(body: &[u8]) -> Vec<String> {
    match std::str::from_utf8(body) {
        Ok(text) if text.len() <= MAX_REPEATING => repeats::sentences(text),
        _ => Vec::new(),
    }
}

/// Writes a value in block style, keys in order, strings quoted where YAML would read another type.
pub fn to_vec(value: &Value) -> Vec<u8> {
    writer::document(value)
}

/// The body as text without a byte order mark; characters that YAML forbids are refused.
fn text(body: &[u8]) -> Result<&str, DecodeError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        DecodeError::Syntax(format!("not UTF-8 at byte {}", error.valid_up_to()))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.bytes().position(|byte| matches!(byte, 0..=8 | 0x0b | 0x0c | 0x0e..=0x1f | 0x7f)) {
        Some(_) => Err(DecodeError::Syntax("control characters are not allowed".to_owned())),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests;
