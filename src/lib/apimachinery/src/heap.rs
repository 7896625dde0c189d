//! Memory of value trees: exact for an existing one, an upper bound for the one that a body
//! becomes.
//!
//! Bounds feed memory budgets: they hold for every body, also hostile ones, and take vectorized
//! passes. Sizes are those requested from the allocator.

use crate::document::{Map, Text, Value};

/// An element of a list.
const ELEMENT: usize = size_of::<Value>();
/// A field of a large map at the lowest fill; others take half of it.
pub(crate) const FIELD: usize = 104;
/// Values and fields wait on a stack until their list or map ends. Bounded; three times as much
/// while the stack grows.
const WAITING: usize = 512 * 64;
/// Marks in `[]` and `{}` may all be keys until the collection ends: the YAML scanner keeps two
/// tokens and a string for each, twice while its queue grows.
const TOKENS: usize = 2 * TOKEN;
/// Two tokens and a string of the scanner, while its queue grows.
const TOKEN: usize = 330;
/// Bound on the bytes copied by YAML aliases, see `yaml`.
const ALIASES: usize = 100_000 * FIELD;
/// Memory bound of reading one body. A JSON body that would exceed it is not read; readers of other
/// formats stop there.
pub const LARGEST: usize = 32 << 20;
/// A value while its list or map grows, in formats without known lengths.
pub(crate) const GROWN: usize = 80;
/// A field while its map grows.
pub(crate) const GROWN_FIELD: usize = FIELD + 48;

/// Heap bytes owned by a value.
///
/// An upper bound for large maps that were changed. Walks the value: keep the result.
pub fn bytes(value: &Value) -> usize {
    match value {
        Value::String(string) => self::string(string),
        Value::Array(items) => items.heap_bytes() + items.iter().map(bytes).sum::<usize>(),
        Value::Object(map) => fields(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Heap bytes owned by a map, as of a value.
pub fn fields(map: &Map) -> usize {
    map.heap_bytes() + map.iter().map(|(key, value)| string(key) + bytes(value)).sum::<usize>()
}

fn string(text: &Text) -> usize {
    // A heap string keeps its capacity.
    if text.is_heap_allocated() { text.capacity() } else { 0 }
}

/// Memory bound of reading a JSON body, from counts of its brackets, commas and colons: at worst 15
/// times the body, typically 4 times.
pub fn json_bound(body: &[u8]) -> usize {
    let fields = count(body, b":");
    let elements = 1 + count(body, b",[");
    let waiting = 3 * (fields.min(WAITING) * 2 + elements.min(WAITING)) * ELEMENT;
    text(body) + fields * FIELD + elements * ELEMENT + waiting
}

/// Memory of reading a YAML body without its strings.
pub(crate) struct YamlRoom {
    /// Scanner steps that are queued.
    pub(crate) steps: usize,
    /// Bytes of values.
    pub(crate) values: usize,
}

/// Flow-style YAML that is not JSON is rare, and JSON sent as YAML needs no more than JSON.
pub(crate) fn yaml_room(body: &[u8]) -> YamlRoom {
    if is_in_braces(body) {
        YamlRoom { steps: 12_000, values: 4 << 20 }
    } else {
        YamlRoom { steps: 32_000, values: 16 << 20 }
    }
}

fn is_in_braces(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

/// Memory bound of reading a YAML body with its aliases; at most [`LARGEST`], where the reader
/// stops.
pub fn yaml_bound(body: &[u8]) -> usize {
    let room = yaml_room(body);
    let values = count(body, b"{:?,[-");
    let flow = memchr::memchr2(b'[', b'{', body).map_or(&[][..], |at| &body[at..]);
    let tokens = count(flow, b"{}[]:?,\"'&!*");
    let aliases = if memchr::memchr(b'*', body).is_some() { ALIASES } else { 0 };
    // The scanner keeps about 200 bytes per open list of a line.
    let kept = (256 << 10)
        + (tokens * TOKENS).min(room.steps * TOKEN)
        + (values * 2 * GROWN + aliases).min(room.values);
    let json = if is_in_braces(body) { json_bound(body) } else { 0 };
    // Strings are copied while they grow.
    json.max(text(body) + 2 * body.len() + kept).min(LARGEST)
}

/// Memory bound of reading a protobuf body, whose packed lists have an element per byte; at most
/// [`LARGEST`], where the reader stops.
pub fn protobuf_bound(body: &[u8]) -> usize {
    (text(body) + body.len() * GROWN_FIELD).min(LARGEST)
}

/// Strings and keys: their bytes, rounded up, and once more while one is unescaped.
fn text(body: &[u8]) -> usize {
    let times = if memchr::memchr(b'\\', body).is_some() { 5 } else { 2 };
    16 * 1024 + times * body.len()
}

/// Counts the bytes that are in `any_of`, which has each once. Takes a pass for each of those: a
/// loop over the body compiles to vector instructions in some builds only.
pub fn count(body: &[u8], any_of: &[u8]) -> usize {
    any_of.iter().map(|byte| memchr::memchr_iter(*byte, body).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_set_are_counted() {
        let body: Vec<u8> = (0..=u8::MAX).cycle().take(1000).collect();
        let counted = |any_of: &[u8]| body.iter().filter(|byte| any_of.contains(byte)).count();
        for any_of in [&b""[..], b":", b",[", b"{}[]:?,\"'&!*", &[0, 231, 232, 255]] {
            assert_eq!(count(&body, any_of), counted(any_of), "{any_of:?}");
        }
        assert_eq!(count(&body, &[231, 232]), 4 + 3, "1000 is 3 * 256 + 232");
    }
}
