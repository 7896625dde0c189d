//! JSON: a reader that finds duplicate keys and bounds depth in one pass, and the canonical writer.

mod census;
pub mod forms;
mod reader;
pub mod scan;
mod text;
mod writer;

use crate::document::{Document, Number, Value};

/// Nesting limit of objects and arrays in bodies and stored values.
///
/// Typical objects stay below 40; some clients store 500 (parity case `deep-nesting-stored`). Every
/// walk over a value may recurse, because no reader or patch makes a deeper one.
pub const MAX_DEPTH: usize = 512;

/// Duplicate keys reported.
pub(crate) const MAX_DUPLICATES: usize = 10;

/// A decoded body.
#[derive(Debug)]
pub struct Decoded {
    /// The document; the last of equal keys wins, as in kube-apiserver.
    pub document: Document,
    /// Paths of duplicate keys, such as `metadata.name`, in the order of the first duplicates; at
    /// most 10.
    pub duplicates: Vec<String>,
}

/// A decoded JSON value with its duplicate keys.
#[derive(Debug)]
pub struct DecodedValue {
    /// A value of any type.
    pub value: Value,
    /// As in [`Decoded`].
    pub duplicates: Vec<String>,
}

/// Why a body cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Syntax error, with the message of Go's JSON decoder.
    #[error("{0}")]
    Syntax(String),
    /// A number outside the range of floats, with the message of Go's untyped decoder.
    #[error("json: cannot unmarshal number {0} into Go value of type float64")]
    Range(String),
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("the body nests deeper than {MAX_DEPTH}")]
    TooDeep,
    /// Not an object; with Go's name of its type.
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    NotObject(&'static str),
    /// YAML aliases expand beyond the limit.
    #[error("the body's aliases expand to more than {0} nodes")]
    TooManyAliases(usize),
    /// Many values inside many open collections (YAML).
    #[error("the body holds too many values at its depth")]
    TooMuchWork,
    /// Would take more memory than [`crate::heap::LARGEST`].
    #[error("the body holds too many values")]
    TooLarge,
}

/// A float after Go's round trip of an untyped value (YAML, stored custom objects): `1.0` is
/// encoded as `1` and read as an integer (so `-0.0` is 0). The JSON reader distinguishes them,
/// since a typed integer rejects `1.0` and CEL rules see a double. `None` for infinities and NaN.
pub fn float(float: f64) -> Option<Number> {
    if float.fract() == 0.0 && float.abs() < 9e18 {
        Some((float as i64).into())
    } else {
        Number::from_f64(float)
    }
}

/// Converts all integral floats to integers, like Go's round trip of untyped values: `1.0` becomes
/// `1`, `-0.0` becomes `0`. Integers of more than 63 bits, which are floats in Go, keep their
/// digits.
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
        // Bounded by `MAX_DEPTH`.
        Value::Array(items) => items.iter_mut().for_each(round_trip_floats),
        Value::Object(fields) => fields.values_mut().for_each(round_trip_floats),
        _ => {}
    }
}

/// Decodes one JSON object.
///
/// Invalid UTF-8 in strings becomes U+FFFD, as in kube-apiserver. Trailing bytes other than white
/// space are an error.
///
/// # Errors
/// Every [`DecodeError`].
pub fn read(body: &[u8]) -> Result<Decoded, DecodeError> {
    into_object(read_any(body)?)
}

/// Decodes any JSON value (for patches).
///
/// # Errors
/// As [`read`], without `NotObject`.
pub fn read_value(body: &[u8]) -> Result<Value, DecodeError> {
    Ok(read_any(body)?.value)
}

/// Decodes any JSON value with its duplicate keys (for patches under strict field validation).
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
        // Syntax comes first.
        DecodeError::Range(number) => {
            crate::go::syntax_fault(body).map_or(DecodeError::Range(number), DecodeError::Syntax)
        }
        other => other,
    })
}

/// Decodes JSON given as YAML: integral floats are integers (see [`round_trip_floats`]).
pub(crate) fn read_as_yaml(body: &[u8]) -> Result<DecodedValue, DecodeError> {
    match std::str::from_utf8(body) {
        Ok(text) => reader::parse(text, true),
        Err(_) => reader::parse(&text::replace_invalid(body), true),
    }
}

/// The value as an object, or an error with its type.
pub(crate) fn into_object(decoded: DecodedValue) -> Result<Decoded, DecodeError> {
    let document = Document::from_value(decoded.value)
        .map_err(|value| DecodeError::NotObject(type_name(&value)))?;
    Ok(Decoded { document, duplicates: decoded.duplicates })
}

/// JSON type of a value, as Go's decoder names it.
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

/// Nesting depth of a value; 0 for a scalar.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Positions in canonical bytes, whose slices are other forms of the object (see [`forms`]).
///
/// ```text
/// {"kind":"ConfigMap","apiVersion":"v1","metadata":{"labels":{..},"name":"a"},"data":{..}}
///                                       ^type_end  ^metadata ^labels        ^revision_at
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Start of the key `"metadata"`; only the brace, `kind` and `apiVersion` precede it.
    pub type_end: u32,
    /// Opening brace of metadata.
    pub metadata: u32,
    /// Start of the value of `metadata.labels`; 0 without labels.
    pub labels: u32,
    /// Where `"resourceVersion":"N"` is spliced in (after a comma unless metadata is empty): before
    /// metadata's closing brace.
    pub revision_at: u32,
}

impl Layout {
    /// From the marks that the store keeps, see [`Self::marks`].
    pub fn from_marks(marks: [u32; 3], revision_at: u32) -> Self {
        Self { type_end: marks[0], metadata: marks[1], labels: marks[2], revision_at }
    }

    /// `type_end`, `metadata` and `labels`, which the store keeps.
    pub fn marks(&self) -> [u32; 3] {
        [self.type_end, self.metadata, self.labels]
    }

    /// Whether a comma precedes the spliced resourceVersion.
    pub fn comma(&self) -> bool {
        self.revision_at > self.metadata + 1
    }
}

/// Canonical bytes of an object: kind, apiVersion, metadata, then the other fields in key order; no
/// white space, no newline at the end.
///
/// Without `metadata.resourceVersion`, which the store splices in. Missing metadata becomes an
/// empty object.
pub fn write(document: &Document) -> (Vec<u8>, Layout) {
    writer::canonical(document, &[])
}

/// [`write()`] with annotations merged into the object's own, without inserting them into the
/// document. The keys are sorted, and neither keys nor values need escapes (see [`is_plain`]).
pub fn write_with(document: &Document, annotations: &[(&str, &str)]) -> (Vec<u8>, Layout) {
    debug_assert!(
        annotations.is_sorted()
            && annotations.iter().all(|(key, text)| is_plain(key) && is_plain(text))
    );
    writer::canonical(document, annotations)
}

/// Whether a string needs no escapes in JSON.
pub fn is_plain(text: &str) -> bool {
    text::plain_end(text.as_bytes(), 0) == text.len()
}

/// Appends a JSON string with its quotes.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    text::write_string(out, text);
}

/// Any value as compact JSON, with sorted keys.
pub fn to_vec(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    writer::compact(&mut out, value);
    out
}

/// A document as compact JSON, with sorted keys.
pub fn document_to_vec(document: &Document) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    writer::compact_fields(&mut out, document.fields());
    out
}

/// Appends a value as compact JSON, with sorted keys.
pub fn append(out: &mut Vec<u8>, value: &Value) {
    writer::compact(out, value);
}

/// Appends a string as JSON, with quotes.
pub fn append_string(out: &mut Vec<u8>, text: &str) {
    text::write_string(out, text);
}

/// Any value as JSON indented by two spaces, for `?pretty`.
pub fn to_vec_pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    writer::pretty(&mut out, value, 0);
    out
}

#[cfg(test)]
pub(crate) mod tests;
