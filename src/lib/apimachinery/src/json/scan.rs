//! Finds single values in canonical bytes without parsing the rest.
//!
//! Requires output of [`super::write`]: compact and well-formed. On other bytes the results are
//! wrong or `None`, never a panic.

use super::text;
use std::borrow::Cow;

/// Fields of the object at the start of `bytes`, in order; ignores what follows the object.
pub fn fields(bytes: &[u8]) -> FieldScan<'_> {
    let at = if bytes.first() == Some(&b'{') { 1 } else { bytes.len() };
    FieldScan { bytes, at }
}

/// Remaining fields of an object whose start was cut off: `bytes` start with a comma or the closing
/// brace.
pub fn following(bytes: &[u8]) -> FieldScan<'_> {
    let at = if bytes.first() == Some(&b',') { 1 } else { bytes.len() };
    FieldScan { bytes, at }
}

/// Iterator over an object's fields: see [`fields`] and [`following`].
#[derive(Clone, Debug)]
pub struct FieldScan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl FieldScan<'_> {
    /// Position of the next field in the given bytes, or their end.
    pub(super) fn position(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for FieldScan<'a> {
    /// The key between its quotes (escaped), and the value's bytes.
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.bytes;
        let key_end = string_end(bytes, self.at)?;
        let value_at = key_end + 1;
        let value_end = value_end(bytes, value_at)?;
        let item = (bytes.get(self.at + 1..key_end - 1)?, bytes.get(value_at..value_end)?);
        self.at = if bytes.get(value_end) == Some(&b',') { value_end + 1 } else { bytes.len() };
        Some(item)
    }
}

/// Bytes of the value at a path of field names.
pub fn field<'a>(object: &'a [u8], path: &[impl AsRef<str>]) -> Option<&'a [u8]> {
    path.iter().try_fold(object, |value, name| named(fields(value), name.as_ref()))
}

/// Bytes of the next field with this name.
pub fn named<'a>(mut fields: FieldScan<'a>, name: &str) -> Option<&'a [u8]> {
    Some(fields.find(|(key, _)| key_is(key, name))?.1)
}

/// String at a path of field names; `None` if missing or of another type.
pub fn str_field<'a>(object: &'a [u8], path: &[&str]) -> Option<Cow<'a, str>> {
    string(field(object, path)?)
}

/// Value of a label; `labels` starts with the labels object.
pub fn label<'a>(labels: &'a [u8], key: &str) -> Option<Cow<'a, str>> {
    str_field(labels, &[key])
}

/// All labels; `labels` starts with the labels object.
pub fn labels(labels: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    fields(labels).filter_map(|(key, value)| Some((unescape(key)?, string(value)?)))
}

/// Items of the array at the start of `bytes`.
pub fn items(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at =
        if bytes.first() == Some(&b'[') && bytes.get(1) != Some(&b']') { 1 } else { bytes.len() };
    std::iter::from_fn(move || {
        let end = value_end(bytes, at)?;
        let item = bytes.get(at..end)?;
        at = if bytes.get(end) == Some(&b',') { end + 1 } else { bytes.len() };
        Some(item)
    })
}

/// A string from its bytes with quotes; `None` for another type.
pub fn string(value: &[u8]) -> Option<Cow<'_, str>> {
    unescape(value.strip_prefix(b"\"")?.strip_suffix(b"\"")?)
}

fn unescape(raw: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', raw).is_none() {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    }
    let mut out = String::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let end = memchr::memchr(b'\\', &raw[at..]).map_or(raw.len(), |offset| at + offset);
        out.push_str(std::str::from_utf8(&raw[at..end]).ok()?);
        at = end;
        if at < raw.len() {
            let (char, after) = text::read_escape(raw, at).ok()?;
            out.push(char);
            at = after;
        }
    }
    Some(Cow::Owned(out))
}

fn key_is(raw: &[u8], name: &str) -> bool {
    raw == name.as_bytes() || (raw.contains(&b'\\') && unescape(raw).is_some_and(|key| key == name))
}

/// Position after the string at `at`.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Position after the value at `at`.
fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => string_end(bytes, at),
        b'{' | b'[' => container_end(bytes, at),
        _ => {
            let length = bytes[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b']'));
            Some(length.map_or(bytes.len(), |length| at + length))
        }
    }
}

fn container_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = at;
    loop {
        match bytes.get(at)? {
            b'"' => {
                at = string_end(bytes, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}
