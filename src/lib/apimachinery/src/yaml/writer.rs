//! The writer: block style, two spaces per level, lists not indented below their key.

use super::resolve;
use crate::document::{Map, Value};
use crate::json;

/// Longer keys are written as `? key`, since readers limit their lookahead.
const LONGEST_SIMPLE_KEY: usize = 120;

/// Indentation allowed in any document; see [`Out::affords`].
const INDENTATION: usize = 1 << 20;

/// Output, with its amount of indentation.
#[derive(Debug, Default)]
pub(super) struct Out {
    bytes: Vec<u8>,
    /// Bytes written and no longer buffered.
    sent: usize,
    indented: usize,
}

impl Out {
    /// Exchanges the bytes; the caller sends those that it takes.
    pub(super) fn swap(&mut self, bytes: &mut Vec<u8>) {
        // Wraps around while bytes of others are here.
        self.sent = self.sent.wrapping_add(self.bytes.len()).wrapping_sub(bytes.len());
        std::mem::swap(&mut self.bytes, bytes);
    }

    fn written(&self) -> usize {
        self.sent.wrapping_add(self.bytes.len())
    }

    /// Whether `lines` fit at a level: indentation stays within a MiB and four times the rest, at
    /// any depth. Otherwise flow style is used, which reads the same.
    pub(super) fn affords(&self, lines: usize, level: usize) -> bool {
        lines.saturating_mul(2 * level).saturating_add(self.indented)
            <= INDENTATION + 4 * self.written().saturating_sub(self.indented)
    }
}

impl std::ops::Deref for Out {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl std::ops::DerefMut for Out {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

pub(super) fn document(value: &Value) -> Vec<u8> {
    let mut out = Out { bytes: Vec::with_capacity(512), ..Out::default() };
    match value {
        Value::Object(map) if !map.is_empty() => mapping(&mut out, map, 0, false),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0, false),
        scalar => {
            self::scalar(&mut out, scalar, 0);
            out.push(b'\n');
        }
    }
    out.bytes
}

/// Writes fields with indentation, except a first one that continues a line.
fn mapping(out: &mut Out, map: &Map, level: usize, inline: bool) {
    for (index, (name, value)) in map.iter().enumerate() {
        if index > 0 || !inline {
            indent(out, level);
        }
        key(out, name, level);
        field_value(out, value, level);
    }
}

/// A key and its colon.
pub(super) fn key(out: &mut Out, name: &str, level: usize) {
    let simple = name.len() < LONGEST_SIMPLE_KEY;
    if !simple {
        out.extend_from_slice(b"? ");
    }
    string(out, name, None);
    if !simple {
        out.push(b'\n');
        indent(out, level);
    }
    out.push(b':');
}

fn field_value(out: &mut Out, value: &Value, level: usize) {
    match value {
        Value::Object(map) if !map.is_empty() && out.affords(map.len(), level + 1) => {
            out.push(b'\n');
            mapping(out, map, level + 1, false);
        }
        Value::Array(items) if !items.is_empty() && out.affords(items.len(), level) => {
            out.push(b'\n');
            sequence(out, items, level, false);
        }
        scalar => {
            out.push(b' ');
            self::scalar(out, scalar, level + 1);
            out.push(b'\n');
        }
    }
}

fn sequence(out: &mut Out, items: &[Value], level: usize, inline: bool) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 || !inline {
            indent(out, level);
        }
        out.extend_from_slice(b"- ");
        match item {
            Value::Object(map) if !map.is_empty() && out.affords(map.len(), level + 1) => {
                mapping(out, map, level + 1, true)
            }
            Value::Array(items) if !items.is_empty() && out.affords(items.len(), level + 1) => {
                sequence(out, items, level + 1, true)
            }
            scalar => {
                self::scalar(out, scalar, level + 1);
                out.push(b'\n');
            }
        }
    }
}

pub(super) fn indent(out: &mut Out, level: usize) {
    out.indented += 2 * level;
    let end = out.len() + 2 * level;
    out.resize(end, b' ');
}

pub(super) fn scalar(out: &mut Out, value: &Value, level: usize) {
    match value {
        Value::String(text) => string(out, text, Some(level)),
        other => json::append(out, other),
    }
}

/// Writes a string; with a level, several lines become a block at that level.
fn string(out: &mut Out, text: &str, level: Option<usize>) {
    match level {
        Some(level)
            if can_be_block(text)
                && out.affords(text.bytes().filter(|byte| *byte == b'\n').count(), level) =>
        {
            block(out, text, level)
        }
        _ if text.chars().any(is_special) => double_quoted(out, text),
        _ if resolve::needs_quotes(text) => double_quoted(out, text),
        _ if can_be_plain(text) => out.extend_from_slice(text.as_bytes()),
        _ => single_quoted(out, text),
    }
}

/// Characters that need double quotes (including line breaks of YAML 1.1 and unprintable ones).
fn is_special(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn can_be_plain(text: &str) -> bool {
    let first_ok = !text.starts_with([
        '-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@',
        '`', ' ',
    ]);
    let inside_ok = !text.contains(": ") && !text.contains(" #") && !text.ends_with([':', ' ']);
    first_ok && inside_ok && !text.starts_with("...")
}

/// Several lines of printable text, the first of which is not blank and has no leading space.
fn can_be_block(text: &str) -> bool {
    let printable = || text.chars().all(|char| char == '\n' || !is_special(char));
    text.contains('\n') && !text.starts_with([' ', '\n']) && printable()
}

fn block(out: &mut Out, text: &str, level: usize) {
    let body = text.trim_end_matches('\n');
    let breaks = text.len() - body.len();
    out.extend_from_slice(match breaks {
        0 => b"|-",
        1 => b"|",
        _ => b"|+",
    });
    for line in body.split('\n') {
        out.push(b'\n');
        if !line.is_empty() {
            indent(out, level.max(1));
            out.extend_from_slice(line.as_bytes());
        }
    }
    // The caller ends the last line.
    let end = out.len() + breaks.saturating_sub(1);
    out.resize(end, b'\n');
}

fn single_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'\'');
    for (index, part) in text.split('\'').enumerate() {
        if index > 0 {
            out.extend_from_slice(b"''");
        }
        out.extend_from_slice(part.as_bytes());
    }
    out.push(b'\'');
}

fn double_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for char in text.chars() {
        match char {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\r' => out.extend_from_slice(b"\\r"),
            _ if is_special(char) => {
                out.extend_from_slice(format!("\\u{:04x}", char as u32).as_bytes())
            }
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}
