//! How much memory trees take: exactly of one that is there, at most of one that a body would become.
//!
//! Bounds are for budgets: they hold for every body, hostile ones included, and cost one vectorized pass. Sizes are what is requested of the allocator.

use crate::document::Value;

/// What a B-tree node with one entry takes: eleven keys, eleven values, the rest.
const NODE: usize = 640;
/// An entry of a map at the worst fill.
const ENTRY: usize = 160;
/// An element of a list while the list grows.
const ELEMENT: usize = 96;
/// A list with one element: it makes room for four.
const LIST: usize = 128 + ELEMENT;
/// What YAML's scanner keeps of each mark in `[]` and `{}`, all of which may be a key until it ends.
const TOKENS: usize = 1000;
/// What an alias of YAML may copy, at most: see `yaml`.
const ALIASES: usize = 100_000 * ENTRY;

/// What a value owns on the heap.
///
/// An upper bound where maps are sparsely filled. Walks the value: keep the result.
pub fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.capacity(),
        Value::Array(items) => items.capacity() * size_of::<Value>() + items.iter().map(bytes).sum::<usize>(),
        Value::Object(map) => fields(map.len()) + map.iter().map(|(key, value)| key.capacity() + bytes(value)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The nodes of a map with so many entries.
pub(crate) fn fields(entries: usize) -> usize {
    if entries == 0 { 0 } else { NODE + (entries - 1) * ENTRY }
}

/// The most that reading a JSON body takes, from counts of its brackets, commas and colons.
pub fn json_bound(body: &[u8]) -> usize {
    let objects = count(body, |byte| byte == b'{');
    let entries = count(body, |byte| byte == b':');
    let lists = count(body, |byte| byte == b'[');
    let elements = count(body, |byte| byte == b',');
    text(body) + objects * NODE + entries * ENTRY + lists * LIST + elements * ELEMENT
}

/// The most that reading a YAML body takes, its aliases included.
pub fn yaml_bound(body: &[u8]) -> usize {
    let objects = |body: &[u8]| count(body, |byte| matches!(byte, b'{' | b':' | b'?'));
    let elements = |body: &[u8]| count(body, |byte| matches!(byte, b',' | b'[' | b'-'));
    let flow = memchr::memchr2(b'[', b'{', body).map_or(&[][..], |at| &body[at..]);
    let aliases = if memchr::memchr(b'*', body).is_some() { ALIASES } else { 0 };
    // The scanner keeps about 200 bytes of each open list in a line.
    (256 << 10) + text(body) + objects(body) * NODE + elements(body) * LIST + (objects(flow) + elements(flow)) * TOKENS + aliases
}

/// The most that reading a protobuf body takes: a packed list has an element in each byte, a message of two bytes may be empty.
pub fn protobuf_bound(body: &[u8]) -> usize {
    text(body) + body.len() / 2 * (NODE / 2 + ELEMENT)
}

/// Strings and keys: their own bytes, as many again while one is unescaped, and what each allocation rounds up to.
fn text(body: &[u8]) -> usize {
    1024 + 4 * body.len()
}

/// How many bytes are such: counted in blocks whose sums fit into bytes, a form that becomes vector instructions.
fn count(body: &[u8], is: impl Fn(u8) -> bool) -> usize {
    body.chunks(255).map(|block| usize::from(block.iter().map(|byte| u8::from(is(*byte))).sum::<u8>())).sum()
}
