//! The writer: block style, two spaces for each level, lists not indented below their key.

use super::resolve;
use crate::document::{Map, Value};
use crate::json;

/// From this length on a key is written as `? key`, since readers look ahead only so far.
const LONGEST_SIMPLE_KEY: usize = 120;

pub(super) fn document(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    match value {
        Value::Object(map) if !map.is_empty() => mapping(&mut out, map, 0, false),
        Value::Array(items) if !items.is_empty() => sequence(&mut out, items, 0, false),
        scalar => {
            self::scalar(&mut out, scalar, 0);
            out.push(b'\n');
        }
    }
    out
}

/// Writes the fields, each with its indentation except a first one that follows something on its line.
fn mapping(out: &mut Vec<u8>, map: &Map, level: usize, inline: bool) {
    for (index, (name, value)) in map.iter().enumerate() {
        if index > 0 || !inline {
            indent(out, level);
        }
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
        field_value(out, value, level);
    }
}

fn field_value(out: &mut Vec<u8>, value: &Value, level: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push(b'\n');
            mapping(out, map, level + 1, false);
        }
        Value::Array(items) if !items.is_empty() => {
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

fn sequence(out: &mut Vec<u8>, items: &[Value], level: usize, inline: bool) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 || !inline {
            indent(out, level);
        }
        out.extend_from_slice(b"- ");
        match item {
            Value::Object(map) if !map.is_empty() => mapping(out, map, level + 1, true),
            Value::Array(items) if !items.is_empty() => sequence(out, items, level + 1, true),
            scalar => {
                self::scalar(out, scalar, level + 1);
                out.push(b'\n');
            }
        }
    }
}

fn indent(out: &mut Vec<u8>, level: usize) {
    out.resize(out.len() + 2 * level, b' ');
}

fn scalar(out: &mut Vec<u8>, value: &Value, level: usize) {
    match value {
        Value::String(text) => string(out, text, Some(level)),
        other => json::append(out, other),
    }
}

/// Writes a string; with a level, one of several lines is written as a block at that level.
fn string(out: &mut Vec<u8>, text: &str, level: Option<usize>) {
    match level {
        Some(level) if can_be_block(text) => block(out, text, level),
        _ if text.chars().any(is_special) => double_quoted(out, text),
        _ if resolve::needs_quotes(text) => double_quoted(out, text),
        _ if can_be_plain(text) => out.extend_from_slice(text.as_bytes()),
        _ => single_quoted(out, text),
    }
}

/// Characters that only double quotes can hold (also line breaks of YAML 1.1, and what is not printable).
fn is_special(char: char) -> bool {
    char.is_control() || matches!(char, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn can_be_plain(text: &str) -> bool {
    let first_ok = !text.starts_with(['-', '?', ':', ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@', '`', ' ']);
    let inside_ok = !text.contains(": ") && !text.contains(" #") && !text.ends_with([':', ' ']);
    first_ok && inside_ok && !text.starts_with("...")
}

/// Several lines of printable text whose first one has something on it and no space before it.
fn can_be_block(text: &str) -> bool {
    let printable = || text.chars().all(|char| char == '\n' || !is_special(char));
    text.contains('\n') && !text.starts_with([' ', '\n']) && printable()
}

fn block(out: &mut Vec<u8>, text: &str, level: usize) {
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
    out.resize(out.len() + breaks.saturating_sub(1), b'\n');
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
            _ if is_special(char) => out.extend_from_slice(format!("\\u{:04x}", char as u32).as_bytes()),
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}
