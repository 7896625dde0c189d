//! JSON: one reader that finds duplicate keys and bounds depth in one pass, and the canonical
//! writer.

mod census;
pub mod forms;
mod reader;
pub mod scan;
mod text;
mod writer;

use crate::document::{Document, Number, Value};

/// How deep objects and arrays may nest in any body or stored value.
///
/// Real objects stay below 40; clients do store 500 (parity case `deep-nesting-stored`). Every walk
/// over a value may recurse, because no reader or patch makes a deeper one.
pub const MAX_DEPTH: usize = 512;

/// How many repeated keys are reported.
pub(crate) const MAX_DUPLICATES: usize = 10;

/// A body that was read.
#[derive(Debug)]
pub struct Decoded {
    /// The last of several equal keys wins, as in upstream's decoder.
    pub document: Document,
    /// Paths of repeated keys, such as `metadata.name`, first repeat first; bounded to the first
    /// 10.
    pub duplicates: Vec<String>,
}

/// Any JSON value that was read, with its repeated keys.
#[derive(Debug)]
pub struct DecodedValue {
    /// The value.
    pub value: Value,
    /// As in [`Decoded`].
    pub duplicates: Vec<String>,
}

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not well-formed, in the words of Go's parser for JSON.
    #[error("{0}")]
    Syntax(String),
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("the body nests deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Well-formed, but not an object: Go's word for what it is.
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    NotObject(&'static str),
    /// YAML aliases expand beyond the body's bound.
    #[error("the body's aliases expand to more than {0} nodes")]
    TooManyAliases(usize),
    /// Many values inside many open collections (YAML).
    #[error("the body holds too many values at its depth")]
    TooMuchWork,
    /// Its values would take more memory than one body may: see [`crate::heap::LARGEST`].
    #[error("the body holds too many values")]
    TooLarge,
}

/// A float as Go's round trip leaves it where no type is known (YAML, stored custom objects): `1.0`
/// is written as `1`, and the next reader sees an integer (so `-0.0` is 0). The JSON reader keeps
/// the difference, since a typed integer refuses `1.0`, and rules of custom objects see a double.
/// `None` for infinities and NaN, which JSON cannot say.
pub fn float(float: f64) -> Option<Number> {
    if float.fract() == 0.0 && float.abs() < 9e18 {
        Some((float as i64).into())
    } else {
        Number::from_f64(float)
    }
}

/// Makes integers of all floats without a fraction, as Go's round trip does: `1.0` becomes `1`,
/// `-0.0` becomes `0`. Integers over 63 bits, which are floats there, keep the digits of one.
pub fn round_trip_floats(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(float) {
                *number = whole;
            }
        }
        Value::Number(number) if number.is_u64() && !number.is_i64() => {
            if let Some(rounded) =
                number.as_f64().and_then(|float| float.to_string().parse::<u64>().ok())
            {
                *number = rounded.into();
            }
        }
        // No deeper than what was read: `MAX_DEPTH`.
        Value::Array(items) => items.iter_mut().for_each(round_trip_floats),
        Value::Object(fields) => fields.values_mut().for_each(round_trip_floats),
        _ => {}
    }
}

/// Reads one JSON object.
///
/// Invalid UTF-8 inside strings is read as U+FFFD, as upstream does. Trailing bytes other than
/// white space are an error.
///
/// # Errors
/// [`DecodeError`]; nothing is partially read.
pub fn read(body: &[u8]) -> Result<Decoded, DecodeError> {
    into_object(read_any(body)?)
}

/// Reads any JSON value (for patches).
///
/// # Errors
/// As [`read`], without `NotObject`.
pub fn read_value(body: &[u8]) -> Result<Value, DecodeError> {
    Ok(read_any(body)?.value)
}

/// Reads any JSON value with the paths of its repeated keys (for patches under strict field
/// validation).
///
/// # Errors
/// As [`read`], without `NotObject`.
pub fn read_any(body: &[u8]) -> Result<DecodedValue, DecodeError> {
    let read = match std::str::from_utf8(body) {
        Ok(text) => reader::parse(text, false),
        Err(_) => reader::parse(&text::replace_invalid(body), false),
    };
    read.map_err(|error| match error {
        DecodeError::Syntax(why) => {
            DecodeError::Syntax(crate::go::syntax_fault(body).unwrap_or(why))
        }
        other => other,
    })
}

/// The same for JSON that is given as YAML: floats without a fraction are integers (see
/// [`round_trip_floats`]).
pub(crate) fn read_as_yaml(body: &[u8]) -> Result<DecodedValue, DecodeError> {
    match std::str::from_utf8(body) {
        Ok(text) => reader::parse(text, true),
        Err(_) => reader::parse(&text::replace_invalid(body), true),
    }
}

/// Takes the value as an object or says what else it is.
pub(crate) fn into_object(decoded: DecodedValue) -> Result<Decoded, DecodeError> {
    let document = Document::from_value(decoded.value)
        .map_err(|value| DecodeError::NotObject(type_name(&value)))?;
    Ok(Decoded { document, duplicates: decoded.duplicates })
}

/// The JSON type of a value, as Go's decoder names it.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// How deep objects and arrays nest in a value: 0 for a scalar.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Positions in a canonical encoding, so that other forms of an object are slices of its bytes (see
/// [`forms`]).
///
/// ```text
/// {"kind":"ConfigMap","apiVersion":"v1","metadata":{"labels":{..},"name":"a"},"data":{..}}
///                                       ^type_end  ^metadata ^labels        ^revision_at
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Where the key `"metadata"` begins: before it are only the brace, `kind` and `apiVersion`.
    pub type_end: u32,
    /// Where the metadata object's opening brace is.
    pub metadata: u32,
    /// Where the value of `metadata.labels` begins; 0 without labels.
    pub labels: u32,
    /// Where `"resourceVersion":"N"` (with a comma before it unless metadata is empty) is spliced
    /// in: before metadata's closing brace.
    pub revision_at: u32,
}

impl Layout {
    /// From the three marks that the store keeps (`type_end`, `metadata`, `labels`) and the splice
    /// position.
    pub fn from_marks(marks: [u32; 3], revision_at: u32) -> Self {
        Self { type_end: marks[0], metadata: marks[1], labels: marks[2], revision_at }
    }

    /// `type_end`, `metadata`, `labels`: what the store keeps.
    pub fn marks(&self) -> [u32; 3] {
        [self.type_end, self.metadata, self.labels]
    }

    /// Whether the spliced resourceVersion needs a comma before it.
    pub fn comma(&self) -> bool {
        self.revision_at > self.metadata + 1
    }
}

/// The canonical bytes of an object: kind, apiVersion, metadata, then the other fields in key
/// order; no white space, no newline at the end.
///
/// `metadata.resourceVersion` is left out: the store splices it in. Objects without metadata get an
/// empty one.
pub fn write(document: &Document) -> (Vec<u8>, Layout) {
    writer::canonical(document, &[])
}

/// The same with these annotations among the object's own, in whose place they come: as if they had
/// been set before, without making room for them in the document. The keys are in order, and
/// neither keys nor values need an escape (see [`is_plain`]).
pub fn write_with(document: &Document, annotations: &[(&str, &str)]) -> (Vec<u8>, Layout) {
    debug_assert!(
        annotations.is_sorted()
            && annotations.iter().all(|(key, text)| is_plain(key) && is_plain(text))
    );
    writer::canonical(document, annotations)
}

/// Whether a text is the same as a JSON string, between its quotes.
pub fn is_plain(text: &str) -> bool {
    text::plain_end(text.as_bytes(), 0) == text.len()
}

/// Appends a JSON string with its quotes.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    text::write_string(out, text);
}

/// Any value as compact JSON, fields in key order.
pub fn to_vec(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    writer::compact(&mut out, value);
    out
}

/// Appends a value as compact JSON, fields in key order.
pub fn append(out: &mut Vec<u8>, value: &Value) {
    writer::compact(out, value);
}

/// Appends a text as a JSON string, with its quotes.
pub fn append_string(out: &mut Vec<u8>, text: &str) {
    text::write_string(out, text);
}

/// Any value as JSON indented by two spaces, for `?pretty` and people.
pub fn to_vec_pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    writer::pretty(&mut out, value, 0);
    out
}

#[cfg(test)]
pub(crate) mod tests;
