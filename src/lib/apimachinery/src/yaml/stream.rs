//! Converts JSON text to YAML incrementally, with the same output as [`super::to_vec`] on the
//! parsed value. A stalled reader costs one chunk, however large the object.
//!
//! The text is scanned once for the extent of its lists and maps; then one token after the other is
//! written, with a stack as deep as the text.

use super::writer::{self, Out};
use crate::document::Value;
use crate::json;
use crate::work;
use std::borrow::Cow;
use std::ops::Range;

/// YAML being written. `T` is well-formed JSON.
#[derive(Debug)]
pub struct YamlStream<T> {
    json: T,
    /// Lists and maps, in order of their opening brackets.
    spans: Vec<TextSpan>,
    stack: Vec<Frame>,
    out: Out,
    root: YamlRoot,
}

/// Root of a parsed text.
#[derive(Clone, Copy, Debug)]
enum YamlRoot {
    Document,
    /// An item of a list, without these fields.
    Item(&'static [&'static str]),
    Begun,
}

/// A list or map.
#[derive(Clone, Copy, Debug, Default)]
struct TextSpan {
    /// After its closing bracket.
    end: u32,
    children: u32,
    /// The first span that is not in it.
    next: u32,
}

/// A value's place: where it begins, and the first span that is not before it.
#[derive(Clone, Copy, Debug)]
struct ValueAt {
    at: usize,
    span: u32,
}

/// A field's name, with its quotes, and its value.
#[derive(Clone, Debug)]
struct FieldAt {
    name: Range<usize>,
    value: ValueAt,
}

#[derive(Debug)]
enum Frame {
    /// Fields in the text's order, which is sorted.
    Fields {
        next: ValueAt,
        left: u32,
        level: usize,
        inline: bool,
    },
    Sorted {
        fields: std::vec::IntoIter<FieldAt>,
        level: usize,
        inline: bool,
    },
    Items {
        next: ValueAt,
        left: u32,
        level: usize,
        inline: bool,
    },
    /// Copied as it is: JSON is YAML.
    Flow(Range<usize>),
}

impl<T: AsRef<[u8]>> YamlStream<T> {
    /// Scans the text.
    pub fn new(json: T) -> Self {
        let spans = spans(json.as_ref());
        Self { json, spans, stack: Vec::new(), out: Out::default(), root: YamlRoot::Document }
    }

    /// As [`Self::new`], to be written as an item of a list that is not indented, without some of
    /// its fields.
    pub fn item(json: T, without: &'static [&'static str]) -> Self {
        Self { root: YamlRoot::Item(without), ..Self::new(json) }
    }

    /// Appends the next piece: until `out` has `most` bytes, or more by one key or scalar. False at
    /// the end.
    pub fn write(&mut self, out: &mut Vec<u8>, most: usize) -> bool {
        self.out.swap(out);
        let first = ValueAt { at: self.token(0), span: 0 };
        match std::mem::replace(&mut self.root, YamlRoot::Begun) {
            YamlRoot::Document => self.document(first),
            YamlRoot::Item(without) => self.top_item(first, without),
            YamlRoot::Begun => {}
        }
        while self.out.len() < most
            && let Some(frame) = self.stack.pop()
        {
            work::count(1);
            match frame {
                Frame::Flow(range) => self.flow(range, most),
                frame => self.child(frame),
            }
        }
        self.out.swap(out);
        !self.stack.is_empty()
    }

    fn text(&self, range: Range<usize>) -> &[u8] {
        self.json.as_ref().get(range).unwrap_or_default()
    }

    /// The first byte of a value.
    fn byte(&self, at: usize) -> u8 {
        self.json.as_ref().get(at).copied().unwrap_or(b' ')
    }

    /// Skips white space, commas and colons.
    fn token(&self, mut at: usize) -> usize {
        while matches!(self.byte(at), b' ' | b'\n' | b'\r' | b'\t' | b',' | b':')
            && at < self.json.as_ref().len()
        {
            at += 1;
        }
        at
    }

    fn span(&self, value: ValueAt) -> Option<TextSpan> {
        let is_span = matches!(self.byte(value.at), b'{' | b'[');
        self.spans.get(value.span as usize).copied().filter(|_| is_span)
    }

    /// The end of a value, and what follows it.
    fn after(&self, value: ValueAt) -> (usize, ValueAt) {
        match self.span(value) {
            Some(span) => {
                let end = span.end as usize;
                (end, ValueAt { at: self.token(end), span: span.next })
            }
            None => {
                let end = scalar_end(self.json.as_ref(), value.at);
                (end, ValueAt { at: self.token(end), span: value.span })
            }
        }
    }

    /// The first value in a list or map.
    fn first_in(&self, value: ValueAt) -> ValueAt {
        ValueAt { at: self.token(value.at + 1), span: value.span + 1 }
    }

    fn document(&mut self, root: ValueAt) {
        match self.span(root) {
            Some(span) if span.children > 0 => self.push(root, span, 0, false),
            _ => self.line(root, 0),
        }
    }

    fn top_item(&mut self, root: ValueAt, without: &[&str]) {
        let fields = match self.span(root) {
            Some(span) if self.byte(root.at) == b'{' && !without.is_empty() => {
                let fields = self.fields(self.first_in(root), span.children);
                let is_kept = |field: &FieldAt| {
                    let name = self.name(field);
                    !without.iter().any(|left_out| left_out.as_bytes() == &*name)
                };
                fields.into_iter().filter(is_kept).collect()
            }
            _ => Vec::new(),
        };
        if fields.is_empty() {
            return self.item_line(root, 0, false);
        }
        self.out.extend_from_slice(b"- ");
        self.stack.push(Frame::Sorted { fields: fields.into_iter(), level: 1, inline: true });
    }

    fn push(&mut self, value: ValueAt, span: TextSpan, level: usize, inline: bool) {
        let (next, left) = (self.first_in(value), span.children);
        let frame = if self.byte(value.at) == b'[' {
            Frame::Items { next, left, level, inline }
        } else {
            match self.sorted(next, left) {
                None => Frame::Fields { next, left, level, inline },
                Some(fields) => Frame::Sorted { fields: fields.into_iter(), level, inline },
            }
        };
        self.stack.push(frame);
    }

    /// The field whose name begins here, and what follows it.
    fn field(&self, at: ValueAt) -> (FieldAt, ValueAt) {
        let end = scalar_end(self.json.as_ref(), at.at);
        let value = ValueAt { at: self.token(end), span: at.span };
        (FieldAt { name: at.at..end, value }, self.after(value).1)
    }

    fn name(&self, field: &FieldAt) -> Cow<'_, [u8]> {
        let name = self.text(field.name.start + 1..field.name.end.saturating_sub(1));
        if !name.contains(&b'\\') {
            return Cow::Borrowed(name);
        }
        match json::read_value(self.text(field.name.clone())) {
            Ok(Value::String(name)) => Cow::Owned(name.as_bytes().to_vec()),
            _ => Cow::Borrowed(name),
        }
    }

    /// The fields by name, unless they are in this order already.
    fn sorted(&self, first: ValueAt, count: u32) -> Option<Vec<FieldAt>> {
        let (mut next, mut last, mut is_sorted) = (first, None, true);
        for _ in 0..count {
            work::count(1);
            let (field, after) = self.field(next);
            is_sorted &= last.is_none_or(|last| self.name(&last) <= self.name(&field));
            (last, next) = (Some(field), after);
        }
        if is_sorted {
            return None;
        }
        Some(self.fields(first, count))
    }

    /// All fields, by name.
    fn fields(&self, first: ValueAt, count: u32) -> Vec<FieldAt> {
        let mut next = first;
        let mut fields: Vec<FieldAt> = (0..count)
            .map(|_| {
                let (field, after) = self.field(next);
                next = after;
                field
            })
            .collect();
        fields.sort_by(|one, other| self.name(one).cmp(&self.name(other)));
        fields
    }

    /// Writes the next child of a list or map, and returns the rest of it to the stack.
    fn child(&mut self, frame: Frame) {
        match frame {
            Frame::Flow(_) => {}
            Frame::Items { left: 0, .. } | Frame::Fields { left: 0, .. } => {}
            Frame::Items { next, left, level, inline } => {
                let after = self.after(next).1;
                self.stack.push(Frame::Items { next: after, left: left - 1, level, inline: false });
                self.item_line(next, level, inline);
            }
            Frame::Fields { next, left, level, inline } => {
                let (field, next) = self.field(next);
                self.stack.push(Frame::Fields { next, left: left - 1, level, inline: false });
                self.field_line(&field, level, inline);
            }
            Frame::Sorted { mut fields, level, inline } => {
                let Some(field) = fields.next() else { return };
                self.stack.push(Frame::Sorted { fields, level, inline: false });
                self.field_line(&field, level, inline);
            }
        }
    }

    fn item_line(&mut self, value: ValueAt, level: usize, inline: bool) {
        if !inline {
            writer::indent(&mut self.out, level);
        }
        self.out.extend_from_slice(b"- ");
        match self.span(value) {
            Some(span) if self.is_block(span, level + 1) => self.push(value, span, level + 1, true),
            _ => self.line(value, level + 1),
        }
    }

    fn is_block(&self, span: TextSpan, level: usize) -> bool {
        span.children > 0 && self.out.affords(span.children as usize, level)
    }

    fn field_line(&mut self, field: &FieldAt, level: usize, inline: bool) {
        let name = String::from_utf8_lossy(&self.name(field)).into_owned();
        if !inline {
            writer::indent(&mut self.out, level);
        }
        writer::key(&mut self.out, &name, level);
        let value = field.value;
        let inner = if self.byte(value.at) == b'[' { level } else { level + 1 };
        match self.span(value) {
            Some(span) if self.is_block(span, inner) => {
                self.out.push(b'\n');
                self.push(value, span, inner, false);
            }
            _ => {
                self.out.push(b' ');
                self.line(value, level + 1);
            }
        }
    }

    /// A value that ends its line.
    fn line(&mut self, value: ValueAt, level: usize) {
        let (end, _) = self.after(value);
        if self.span(value).is_some() {
            return self.stack.push(Frame::Flow(value.at..end));
        }
        let scalar = json::read_value(self.text(value.at..end)).unwrap_or_default();
        writer::scalar(&mut self.out, &scalar, level);
        self.out.push(b'\n');
    }

    fn flow(&mut self, range: Range<usize>, most: usize) {
        let room = most.saturating_sub(self.out.len()).max(1);
        let end = range.end.min(range.start + room);
        let json = self.json.as_ref();
        self.out.extend_from_slice(json.get(range.start..end).unwrap_or_default());
        if end < range.end {
            self.stack.push(Frame::Flow(end..range.end));
        } else {
            self.out.push(b'\n');
        }
    }
}

/// The end of a string, or of another scalar.
fn scalar_end(json: &[u8], at: usize) -> usize {
    if json.get(at) == Some(&b'"') {
        return string_end(json, at + 1);
    }
    let rest = json.get(at..).unwrap_or_default();
    let is_end =
        |byte: &u8| matches!(byte, b',' | b']' | b'}' | b':') || byte.is_ascii_whitespace();
    at + rest.iter().position(is_end).unwrap_or(rest.len())
}

/// After the closing quote of a string.
fn string_end(json: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr::memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
        at += found + 1;
        if json[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
    json.len()
}

fn spans(json: &[u8]) -> Vec<TextSpan> {
    let (mut spans, mut open): (Vec<TextSpan>, Vec<usize>) = (Vec::new(), Vec::new());
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += 1;
        let is_content = !matches!(byte, b'}' | b']' | b',' | b':') && !byte.is_ascii_whitespace();
        if is_content && let Some(parent) = open.last() {
            let children = &mut spans[*parent].children;
            *children = (*children).max(1);
        }
        match byte {
            b'"' => at = string_end(json, at),
            b'{' | b'[' => {
                open.push(spans.len());
                spans.push(TextSpan::default());
            }
            b'}' | b']' => {
                let next = number(spans.len());
                if let Some(span) = open.pop().and_then(|opened| spans.get_mut(opened)) {
                    (span.end, span.next) = (number(at), next);
                }
            }
            b',' => {
                if let Some(parent) = open.last() {
                    spans[*parent].children += 1;
                }
            }
            _ => {}
        }
    }
    spans.shrink_to_fit();
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::json;

    fn streamed(json: &[u8], most: usize) -> (Vec<u8>, usize) {
        let (mut stream, mut all, mut longest) = (YamlStream::new(json), Vec::new(), 0);
        loop {
            let mut piece = Vec::new();
            let goes_on = stream.write(&mut piece, most);
            longest = longest.max(piece.len());
            all.append(&mut piece);
            if !goes_on {
                return (all, longest);
            }
        }
    }

    #[test]
    fn a_stream_is_what_is_written_of_the_value() {
        let long = "k".repeat(200);
        let lines = "a line\n".repeat(50);
        let values = [
            json!({"b": [1, {"x": "y", "a": [[], {}, [[2.5e3]]]}, "text"], "a": {"c": null}, long: 1}),
            json!({"z": lines, "escaped \"\n\u{e9}": "no", "yes": "0x1", "n": {"m": "a: b"}, "": ""}),
            json!([[1, [2]], {"b": 1, "a": 2}, [], {}, "x"]),
            json!({}),
            json!("x"),
            json!(true),
        ];
        for value in values {
            let want = super::super::to_vec(&value);
            let texts = [json::to_vec(&value), json::to_vec_pretty(&value)];
            for text in texts {
                for most in [1, 7, 100_000] {
                    let got = String::from_utf8(streamed(&text, most).0).expect("text");
                    assert_eq!(got.as_bytes(), want, "{got}");
                }
            }
        }
        let unsorted = br#"{"b":1,"a":{"d":[],"c":"\u0041"}}"#;
        assert_eq!(streamed(unsorted, 10).0, b"a:\n  c: A\n  d: []\nb: 1\n");
    }

    #[test]
    fn fault_41_a_deep_value_is_written_in_pieces() {
        let zeros = vec!["0"; 300_000].join(",");
        let deep = format!("{{\"spec\":{}{zeros}{}}}", "[".repeat(300), "]".repeat(300));
        let (yaml, longest) = streamed(deep.as_bytes(), 48 * 1024);
        assert!(yaml == super::super::to_vec(&json::read_value(deep.as_bytes()).expect("JSON")));
        assert!(longest < 50 * 1024, "{longest}");
        let stream = YamlStream::new(deep.as_bytes());
        assert_eq!(stream.spans.len(), 301, "its scalars take no memory");
    }

    #[test]
    fn an_item_may_leave_fields_out() {
        let json = br#"{"kind":"K","metadata":{"name":"a"},"apiVersion":"v1","data":{}}"#;
        let mut stream = YamlStream::item(&json[..], &["kind", "apiVersion"]);
        let mut out = b"items:\n".to_vec();
        while stream.write(&mut out, 1_000) {}
        assert_eq!(out, b"items:\n- data: {}\n  metadata:\n    name: a\n");
    }

    #[test]
    fn broken_text_ends() {
        for text in
            ["", "{", "[1", "{\"a\"", "{\"a\":", "]", "[,]", "\"", "{\"a\":1,}", "[[[[", "}{"]
        {
            let (yaml, _) = streamed(text.as_bytes(), 10);
            assert!(yaml.len() < 100);
        }
    }
}
