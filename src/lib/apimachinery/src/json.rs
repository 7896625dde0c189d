//! JSON: one reader that finds duplicate keys and bounds depth in one pass, and the canonical writer.

use crate::document::{Document, Value};

/// How deep objects and arrays may nest in any body or stored value.
pub const MAX_DEPTH: usize = 256;

/// A body that was read.
#[derive(Debug)]
pub struct Decoded {
    /// The last of several equal keys wins, as in upstream's decoder.
    pub document: Document,
    /// Paths of repeated keys, such as `metadata.name`, first repeat first; bounded to the first 10.
    pub duplicates: Vec<String>,
}

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not well-formed, with the parser's words.
    #[error("couldn't read the body: {0}")]
    Syntax(String),
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("the body nests deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Well-formed, but not an object.
    #[error("the body is a JSON {0}, not an object")]
    NotObject(&'static str),
    /// YAML aliases expand beyond the body's bound.
    #[error("the body's aliases expand to more than {0} nodes")]
    TooManyAliases(usize),
}

/// Reads one JSON object.
///
/// Invalid UTF-8 inside strings is read as U+FFFD, as upstream does. Trailing bytes other than white space are an error.
///
/// # Errors
/// [`DecodeError`]; nothing is partially read.
pub fn read(_body: &[u8]) -> Result<Decoded, DecodeError> {
    unimplemented!("apimachinery owner")
}

/// Reads any JSON value (for patches).
///
/// # Errors
/// As [`read`], without `NotObject`.
pub fn read_value(_body: &[u8]) -> Result<Value, DecodeError> {
    unimplemented!("apimachinery owner")
}

/// Positions in a canonical encoding, so that other forms of an object are slices of its bytes.
///
/// ```text
/// {"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","labels":{..}},"data":{..}}
///                                       ^type_end  ^metadata    ^labels     ^revision_at (before the brace)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Where the key `"metadata"` begins: before it are only the brace, `kind` and `apiVersion`.
    pub type_end: u32,
    /// Where the metadata object's opening brace is.
    pub metadata: u32,
    /// Where the value of `metadata.labels` begins; 0 without labels.
    pub labels: u32,
    /// Where `"resourceVersion":"N"` (with a comma before it unless metadata is empty) is spliced in: before metadata's closing brace.
    pub revision_at: u32,
}

/// The canonical bytes of an object: kind, apiVersion, metadata, then the other fields in key order; no white space, no newline at the end.
///
/// `metadata.resourceVersion` is left out: the store splices it in. Objects without metadata get an empty one.
pub fn write(_document: &Document) -> (Vec<u8>, Layout) {
    unimplemented!("apimachinery owner")
}

/// Any value as compact JSON, fields in key order.
pub fn to_vec(_value: &Value) -> Vec<u8> {
    unimplemented!("apimachinery owner")
}

/// Any value as JSON indented by two spaces, for `?pretty` and people.
pub fn to_vec_pretty(_value: &Value) -> Vec<u8> {
    unimplemented!("apimachinery owner")
}
