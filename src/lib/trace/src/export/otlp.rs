//! The one message that is sent: `ExportTraceServiceRequest` of OpenTelemetry's protocol 1, as protobuf. Field numbers are those of its `.proto` files.

use crate::context::TraceContext;
use crate::id::{SpanId, TraceId};

/// A value with its field's number and a length: text, bytes or a message.
fn field(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    varint(out, u64::from(number << 3 | 2));
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn number(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number << 3));
    varint(out, value);
}

fn fixed64(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number << 3 | 1));
    out.extend_from_slice(&value.to_le_bytes());
}

fn fixed32(out: &mut Vec<u8>, number: u32, value: u32) {
    varint(out, u64::from(number << 3 | 5));
    out.extend_from_slice(&value.to_le_bytes());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(super) enum Any<'a> {
    Text(&'a str),
    Integer(u64),
}

/// `KeyValue` in the given field.
pub(super) fn attribute(out: &mut Vec<u8>, place: u32, key: &str, value: Any<'_>) {
    let mut any = Vec::with_capacity(16);
    match value {
        Any::Text(text) => field(&mut any, 1, text.as_bytes()),
        Any::Integer(value) => number(&mut any, 3, value),
    }
    let mut pair = Vec::with_capacity(key.len() + any.len() + 8);
    field(&mut pair, 1, key.as_bytes());
    field(&mut pair, 2, &any);
    field(out, place, &pair);
}

/// Where a span's attributes stand.
pub(super) const SPAN_ATTRIBUTES: u32 = 9;

/// A span's head: what is known when it begins.
pub(super) fn begin_span(out: &mut Vec<u8>, context: &TraceContext, kind: u64, name: [&str; 2], start_nanos: u64) {
    field(out, 1, &context.trace_id.bytes());
    field(out, 2, &context.span_id.bytes());
    if let Some(parent) = context.parent_span_id {
        field(out, 4, &parent.bytes());
    }
    let space = usize::from(!name[1].is_empty());
    varint(out, u64::from(5_u32 << 3 | 2));
    varint(out, (name[0].len() + space + name[1].len()) as u64);
    out.extend_from_slice(name[0].as_bytes());
    out.extend_from_slice(&b" "[..space]);
    out.extend_from_slice(name[1].as_bytes());
    number(out, 6, kind);
    fixed64(out, 7, start_nanos);
    fixed32(out, 16, u32::from(context.flags));
    if let Some((trace, span)) = context.link {
        link(out, trace, span);
    }
}

/// A link to another span.
pub(super) fn link(out: &mut Vec<u8>, trace: TraceId, span: SpanId) {
    let mut link = Vec::with_capacity(28);
    field(&mut link, 1, &trace.bytes());
    field(&mut link, 2, &span.bytes());
    field(out, 13, &link);
}

/// A span's end.
pub(super) fn end_span(out: &mut Vec<u8>, end_nanos: u64, failed: bool) {
    fixed64(out, 8, end_nanos);
    if failed {
        // Status { code: ERROR }
        field(out, 15, &[3 << 3, 2]);
    }
}

/// Appends a span to the `ScopeSpans` that gathers.
pub(super) fn add_span(out: &mut Vec<u8>, span: &[u8]) {
    field(out, 2, span);
}

/// The request: one resource, one scope, the spans.
pub(super) fn request(service: &str, instance: &str, spans: &[u8]) -> Vec<u8> {
    let mut resource = Vec::new();
    attribute(&mut resource, 1, "service.name", Any::Text(service));
    attribute(&mut resource, 1, "service.version", Any::Text(env!("CARGO_PKG_VERSION")));
    attribute(&mut resource, 1, "service.instance.id", Any::Text(instance));
    let mut scope = Vec::new();
    field(&mut scope, 1, b"ferrokube");
    let mut scope_spans = Vec::with_capacity(spans.len() + 32);
    field(&mut scope_spans, 1, &scope);
    scope_spans.extend_from_slice(spans);
    let mut resource_spans = Vec::with_capacity(scope_spans.len() + 128);
    field(&mut resource_spans, 1, &resource);
    field(&mut resource_spans, 2, &scope_spans);
    let mut request = Vec::with_capacity(resource_spans.len() + 8);
    field(&mut request, 1, &resource_spans);
    request
}

/// How many spans the answer (`ExportTraceServiceResponse`) says were refused; what cannot be read says none.
pub(super) fn rejected(response: &[u8]) -> u64 {
    let Some(partial) = find(response, 1) else { return 0 };
    // `partial_success.rejected_spans`
    let mut rest = partial;
    while let Some((tag, after)) = read_varint(rest) {
        match tag & 7 {
            0 => {
                let Some((value, after)) = read_varint(after) else { return 0 };
                if tag >> 3 == 1 {
                    return value;
                }
                rest = after;
            }
            _ => return 0,
        }
    }
    0
}

/// The first length-delimited field with a number, if it is the message's first.
fn find(message: &[u8], number: u64) -> Option<&[u8]> {
    let (tag, rest) = read_varint(message)?;
    let (length, rest) = read_varint(rest)?;
    (tag == (number << 3 | 2)).then(|| rest.get(..usize::try_from(length).ok()?)).flatten()
}

fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_written_as_protobuf_writes_them() {
        let mut out = Vec::new();
        number(&mut out, 3, 300);
        field(&mut out, 16, b"ab");
        fixed64(&mut out, 7, 1);
        assert_eq!(out, [0x18, 0xac, 0x02, 0x82, 0x01, 0x02, b'a', b'b', 0x39, 1, 0, 0, 0, 0, 0, 0, 0]);
        let mut attribute_bytes = Vec::new();
        attribute(&mut attribute_bytes, 9, "k", Any::Text("v"));
        assert_eq!(attribute_bytes, [0x4a, 8, 0x0a, 1, b'k', 0x12, 3, 0x0a, 1, b'v']);
    }

    #[test]
    fn answers_say_what_was_refused() {
        assert_eq!(rejected(&[]), 0);
        assert_eq!(rejected(&[0x0a, 2, 0x08, 5]), 5);
        assert_eq!(rejected(&[0x0a, 200, 0x08, 5]), 0);
        assert_eq!(rejected(&[0xff; 40]), 0);
        assert_eq!(rejected(&[0x0a, 4, 0x12, 2, b'n', b'o']), 0);
    }
}
