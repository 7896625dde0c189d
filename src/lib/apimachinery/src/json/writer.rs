//! The writers. They recurse: values are at most [`super::MAX_DEPTH`] deep.

use super::{Layout, text};
use crate::document::{Document, Map, Value};

/// See [`super::write_with`].
pub(super) fn canonical(document: &Document, annotations: &[(&str, &str)]) -> (Vec<u8>, Layout) {
    let fields = document.fields();
    let mut out = Vec::with_capacity(1024);
    out.push(b'{');
    for name in ["kind", "apiVersion"] {
        if let Some(value) = fields.get(name) {
            field(&mut out, name, value);
            out.push(b',');
        }
    }
    let layout = metadata(&mut out, fields.get("metadata").and_then(Value::as_object), annotations);
    for (name, value) in fields {
        if !matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
            out.push(b',');
            field(&mut out, name, value);
        }
    }
    out.push(b'}');
    (out, layout)
}

/// First fields of metadata, in order.
pub(super) const FIRST: [&str; 4] = ["name", "generateName", "namespace", "uid"];

fn metadata(out: &mut Vec<u8>, fields: Option<&Map>, mut added: &[(&str, &str)]) -> Layout {
    let mut layout = Layout { type_end: position(out), ..Layout::default() };
    out.extend_from_slice(b"\"metadata\":");
    layout.metadata = position(out);
    out.push(b'{');
    // Identity first, for readers of the bytes; the uid precedes those of owners.
    for (name, value) in FIRST.iter().filter_map(|name| fields?.get_key_value(name)) {
        comma(out);
        field(out, name, value);
    }
    for (name, value) in fields
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "resourceVersion" && !FIRST.contains(&name.as_str()))
    {
        if !added.is_empty() && name.as_str() >= ANNOTATIONS {
            let own = (name == ANNOTATIONS).then(|| value.as_object()).flatten();
            annotations(out, own, std::mem::take(&mut added));
            if name == ANNOTATIONS {
                continue;
            }
        }
        comma(out);
        if name == "labels" && value.is_object() {
            layout.labels = position(out) + "\"labels\":".len() as u32;
        }
        field(out, name, value);
    }
    if !added.is_empty() {
        annotations(out, None, added);
    }
    layout.revision_at = position(out);
    out.push(b'}');
    layout
}

const ANNOTATIONS: &str = "annotations";

/// Annotations of the object merged with added ones; of equal keys the added one wins.
fn annotations(out: &mut Vec<u8>, own: Option<&Map>, added: &[(&str, &str)]) {
    comma(out);
    out.extend_from_slice(b"\"annotations\":{");
    let mut added = added.iter().peekable();
    for (key, value) in own.into_iter().flatten() {
        while let Some((before, text)) = added.next_if(|(added, _)| *added < key.as_str()) {
            plain(out, before, text);
        }
        match added.next_if(|(added, _)| *added == key.as_str()) {
            Some((key, text)) => plain(out, key, text),
            None => {
                comma(out);
                field(out, key, value);
            }
        }
    }
    added.for_each(|(key, text)| plain(out, key, text));
    out.push(b'}');
}

/// A field without escapes.
pub(super) fn plain(out: &mut Vec<u8>, key: &str, text: &str) {
    comma(out);
    out.push(b'"');
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":\"");
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Precedes every field of an object but the first.
pub(super) fn comma(out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
}

fn position(out: &[u8]) -> u32 {
    u32::try_from(out.len()).expect("bodies are bounded far below 4 GiB")
}

fn field(out: &mut Vec<u8>, name: &str, value: &Value) {
    text::write_string(out, name);
    out.push(b':');
    compact(out, value);
}

/// Compact JSON.
pub(super) fn compact(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                compact(out, item);
            }
            out.push(b']');
        }
        Value::Object(map) => compact_fields(out, map),
        scalar => self::scalar(out, scalar),
    }
}

pub(super) fn compact_fields(out: &mut Vec<u8>, map: &Map) {
    out.push(b'{');
    for (index, (name, value)) in map.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        field(out, name, value);
    }
    out.push(b'}');
}

/// JSON indented by two spaces per level.
pub(super) fn pretty(out: &mut Vec<u8>, value: &Value, level: usize) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                out.push(if index == 0 { b'[' } else { b',' });
                new_line(out, level + 1);
                pretty(out, item, level + 1);
            }
            new_line(out, level);
            out.push(b']');
        }
        Value::Object(map) if !map.is_empty() => {
            for (index, (name, value)) in map.iter().enumerate() {
                out.push(if index == 0 { b'{' } else { b',' });
                new_line(out, level + 1);
                text::write_string(out, name);
                out.extend_from_slice(b": ");
                pretty(out, value, level + 1);
            }
            new_line(out, level);
            out.push(b'}');
        }
        Value::Array(_) => out.extend_from_slice(b"[]"),
        Value::Object(_) => out.extend_from_slice(b"{}"),
        scalar => self::scalar(out, scalar),
    }
}

fn new_line(out: &mut Vec<u8>, level: usize) {
    out.push(b'\n');
    out.resize(out.len() + 2 * level, b' ');
}

fn scalar(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(string) => text::write_string(out, string),
        Value::Number(number) => number.write(out),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        _ => out.extend_from_slice(b"null"),
    }
}
