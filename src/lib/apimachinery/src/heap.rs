//! How much memory trees take: exactly of one that is there, at most of one that a body would
//! become.
//!
//! Bounds are for budgets: they hold for every body, hostile ones included, and cost one vectorized
//! pass. Sizes are what is requested of the allocator.

use crate::document::{Map, Text, Value};

/// An element of a list, or any other value.
const ELEMENT: usize = size_of::<Value>();
/// A field of a large map at the worst fill; of others it takes half of it.
pub(crate) const FIELD: usize = 104;
/// A value or a field waits on a stack while the list or map is open that it is in: so many at
/// most, and thrice while the stack grows.
const WAITING: usize = 512 * 64;
/// What YAML's scanner keeps of each mark in `[]` and `{}`, all of which may be a key until it
/// ends: twice two tokens, and a string.
const TOKENS: usize = 2 * TOKEN;
/// What it keeps of each step, two tokens and a string, while its queue grows.
const TOKEN: usize = 330;
/// What an alias of YAML may copy, at most: see `yaml`.
const ALIASES: usize = 100_000 * FIELD;
/// The most that reading one body may take, whatever its form: a JSON body that would take more is
/// not read, and readers of other forms stop there.
pub const LARGEST: usize = 32 << 20;
/// What a value takes while its list or map grows, of forms that are read one value at a time.
pub(crate) const GROWN: usize = 80;
/// The same of a field of a map.
pub(crate) const GROWN_FIELD: usize = FIELD + 48;

/// What a value owns on the heap.
///
/// An upper bound of large maps that were changed. Walks the value: keep the result.
pub fn bytes(value: &Value) -> usize {
    match value {
        Value::String(string) => self::string(string),
        Value::Array(items) => items.heap_bytes() + items.iter().map(bytes).sum::<usize>(),
        Value::Object(map) => fields(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// What a map owns on the heap.
pub(crate) fn fields(map: &Map) -> usize {
    map.heap_bytes() + map.iter().map(|(key, value)| string(key) + bytes(value)).sum::<usize>()
}

fn string(text: &Text) -> usize {
    // A long capacity is kept with the text.
    if text.is_heap_allocated() { text.capacity() } else { 0 }
}

/// The most that reading a JSON body takes, from counts of its brackets, commas and colons: about
/// 15 times the body at worst, 4 times an ordinary one.
pub fn json_bound(body: &[u8]) -> usize {
    let fields = count(body, |byte| byte == b':');
    let elements = 1 + count(body, |byte| matches!(byte, b',' | b'['));
    let waiting = 3 * (fields.min(WAITING) * 2 + elements.min(WAITING)) * ELEMENT;
    text(body) + fields * FIELD + elements * ELEMENT + waiting
}

/// What reading a YAML body may take, in addition to its strings.
pub(crate) struct YamlRoom {
    /// Of what the scanner has read and not given away, in steps.
    pub(crate) steps: usize,
    /// Of values, in bytes.
    pub(crate) values: usize,
}

/// Few write much YAML in `{}` that is no JSON, and JSON that is sent as YAML needs no more than as
/// JSON.
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

/// The most that reading a YAML body takes, its aliases included, and never more than [`LARGEST`]:
/// its reader stops there.
pub fn yaml_bound(body: &[u8]) -> usize {
    let room = yaml_room(body);
    let values = count(body, |byte| matches!(byte, b'{' | b':' | b'?' | b',' | b'[' | b'-'));
    let flow = memchr::memchr2(b'[', b'{', body).map_or(&[][..], |at| &body[at..]);
    let tokens = count(flow, |byte| {
        matches!(
            byte,
            b'{' | b'}' | b'[' | b']' | b':' | b'?' | b',' | b'"' | b'\'' | b'&' | b'!' | b'*'
        )
    });
    let aliases = if memchr::memchr(b'*', body).is_some() { ALIASES } else { 0 };
    // The scanner keeps about 200 bytes of each open list in a line.
    let kept = (256 << 10)
        + (tokens * TOKENS).min(room.steps * TOKEN)
        + (values * 2 * GROWN + aliases).min(room.values);
    let json = if is_in_braces(body) { json_bound(body) } else { 0 };
    // A string is copied while it grows.
    json.max(text(body) + 2 * body.len() + kept).min(LARGEST)
}

/// The most that reading a protobuf body takes, a packed list having an element in each byte; never
/// more than [`LARGEST`]: its reader stops there.
pub fn protobuf_bound(body: &[u8]) -> usize {
    (text(body) + body.len() * GROWN_FIELD).min(LARGEST)
}

/// Strings and keys: their own bytes, rounded up, and again while one is unescaped.
fn text(body: &[u8]) -> usize {
    let times = if memchr::memchr(b'\\', body).is_some() { 5 } else { 2 };
    16 * 1024 + times * body.len()
}

/// How many bytes are such: counted in blocks whose sums fit into bytes, a form that becomes vector
/// instructions.
fn count(body: &[u8], is: impl Fn(u8) -> bool) -> usize {
    body.chunks(255)
        .map(|block| usize::from(block.iter().map(|byte| u8::from(is(*byte))).sum::<u8>()))
        .sum()
}
