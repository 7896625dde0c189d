//! YAML bodies: read with bounded aliases and depth, written for `Accept: application/yaml`.

use crate::document::Value;
use crate::json::{DecodeError, Decoded};

/// Reads the first document of a YAML stream as an object, by YAML 1.1's rules for booleans as Go's reader applies them.
///
/// # Errors
/// [`DecodeError`]: syntax (also tabs), depth, alias expansion, not an object.
pub fn read(_body: &[u8]) -> Result<Decoded, DecodeError> {
    unimplemented!("apimachinery owner")
}

/// Writes a value in block style, keys in order, strings quoted where YAML would read another type.
pub fn to_vec(_value: &Value) -> Vec<u8> {
    unimplemented!("apimachinery owner")
}
