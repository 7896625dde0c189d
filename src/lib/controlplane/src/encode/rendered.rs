//! Lists whose items are encoded for one response, a batch at a time while they are sent: in
//! another version, indented, or as YAML.

use super::pretty::Indenter;
use super::stream::Fill;
use crate::negotiate::{Accepted, Form};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_serve::Chunk;

/// Approximate bytes of a batch of items.
pub(super) const BATCH_BYTES: usize = 8 * 1024;
/// A frame ends with the batch that reaches this.
const FRAME_BYTES: usize = 48 * 1024;

/// The items of a list.
pub(super) trait ItemSource: Unpin + Send + 'static {
    /// Appends the next batch of items as JSON, separated by commas. False if there are none left.
    fn next(&mut self, out: &mut Vec<u8>) -> bool;
}

/// Text style of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Compact JSON.
    Plain,
    /// Indented JSON.
    Indented,
    Yaml,
}

impl Style {
    /// For a client that accepts JSON or YAML.
    pub(super) fn of(accepted: Accepted) -> Self {
        match accepted.form {
            Form::Yaml => Self::Yaml,
            _ if accepted.pretty => Self::Indented,
            _ => Self::Plain,
        }
    }
}

enum StyleWriter {
    Plain,
    Indented(Indenter),
    Yaml,
}

/// A list as JSON, without its items.
pub(super) struct ListJson<'a> {
    /// Up to the first item.
    pub(super) head: Vec<u8>,
    /// What follows the last one.
    pub(super) tail: &'a [u8],
    /// The array's name.
    pub(super) items: &'static str,
}

/// A list being encoded.
pub(super) struct Rendered<S> {
    head: Vec<u8>,
    source: S,
    tail: Vec<u8>,
    writer: StyleWriter,
    first: bool,
    done: bool,
}

impl<S: ItemSource> Rendered<S> {
    pub(super) fn new(list: ListJson<'_>, source: S, style: Style) -> Self {
        let ListJson { head, tail, items } = list;
        let (head, tail, writer) = match style {
            Style::Plain => (head, tail.to_vec(), StyleWriter::Plain),
            Style::Indented => (head, tail.to_vec(), StyleWriter::Indented(Indenter::default())),
            Style::Yaml => {
                let (head, tail) = yaml_around(&head, tail, items);
                (head, tail, StyleWriter::Yaml)
            }
        };
        Self { head, source, tail, writer, first: true, done: false }
    }

    fn write(&mut self, json: &[u8], out: &mut Vec<u8>) {
        match &mut self.writer {
            StyleWriter::Plain => out.extend_from_slice(json),
            StyleWriter::Indented(indenter) => indenter.write(json, out),
            StyleWriter::Yaml => {
                let items = [b"[", json, b"]"].concat();
                out.extend_from_slice(&yaml::to_vec(&json::read_value(&items).unwrap_or_default()));
            }
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let head = std::mem::take(&mut self.head);
        match &mut self.writer {
            StyleWriter::Indented(indenter) => indenter.write(&head, out),
            _ => out.extend_from_slice(&head),
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.done = true;
        let tail = std::mem::take(&mut self.tail);
        match &mut self.writer {
            StyleWriter::Indented(indenter) => {
                indenter.write(&tail, out);
                out.push(b'\n');
            }
            _ => out.extend_from_slice(&tail),
        }
    }
}

impl<S: ItemSource> Fill for Rendered<S> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let (mut out, mut items) = (Vec::new(), Vec::new());
        self.begin(&mut out);
        while out.len() < FRAME_BYTES {
            items.clear();
            if !std::mem::take(&mut self.first) && !matches!(self.writer, StyleWriter::Yaml) {
                items.push(b',');
            }
            let comma = items.len();
            if !self.source.next(&mut items) {
                self.end(&mut out);
                break;
            }
            debug_assert!(items.len() > comma, "a batch has an item");
            self.write(&items, &mut out);
        }
        Some(out.into())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    /// Items are parsed, converted or encoded.
    fn is_cheap(&mut self) -> bool {
        false
    }
}

/// The YAML before and after the items of a list.
fn yaml_around(head: &[u8], tail: &[u8], field: &str) -> (Vec<u8>, Vec<u8>) {
    let list = json::read_value(&[head, b"0", tail].concat()).unwrap_or_default();
    let text = yaml::to_vec(&list);
    let key = format!("\n{field}:\n");
    let item = format!("{key}- 0\n");
    // No other line starts like this: nested fields are indented, or part of another item.
    let at = memchr::memmem::find(&text, item.as_bytes())
        .expect("a list has its items, and a field before them");
    (text[..at + key.len()].to_vec(), text[at + item.len()..].to_vec())
}

/// A list without items, in a style.
pub(super) fn empty(json: &[u8], style: Style) -> Vec<u8> {
    match style {
        Style::Plain => json.to_vec(),
        Style::Indented => super::pretty::indent(json),
        Style::Yaml => yaml::to_vec(&json::read_value(json).unwrap_or(Value::Null)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers {
        next: usize,
        count: usize,
    }

    impl ItemSource for Numbers {
        fn next(&mut self, out: &mut Vec<u8>) -> bool {
            let begin = out.len();
            let first = self.next;
            while self.next < self.count && out.len() - begin < BATCH_BYTES {
                let comma = if self.next > first { "," } else { "" };
                let text = "x\\n\"y:".repeat(20).replace('"', "\\\"");
                out.extend_from_slice(format!("{comma}{{\"name\":\"n{}\",\"list\":[],\"map\":{{\"a\":[1,{{}}]}},\"text\":\"{text}\"}}", self.next).as_bytes());
                self.next += 1;
            }
            self.next > first
        }
    }

    #[test]
    fn every_style_equals_the_list_encoded_at_once() {
        let (head, tail) = (
            br#"{"kind":"L","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":["#
                .to_vec(),
            b"]}\n".as_slice(),
        );
        for count in [1, 2, 100, 2000] {
            let list = |style| {
                Rendered::new(
                    ListJson { head: head.clone(), tail, items: "items" },
                    Numbers { next: 0, count },
                    style,
                )
            };
            let plain = list(Style::Plain).collect();
            let value = json::read_value(&plain).unwrap();
            assert_eq!(value["items"].as_array().unwrap().len(), count);
            assert!(
                list(Style::Indented).collect() == super::super::pretty::indent(&plain),
                "{count}"
            );
            assert!(list(Style::Yaml).collect() == yaml::to_vec(&value), "{count}");
            for style in [Style::Plain, Style::Indented, Style::Yaml] {
                let mut list = list(style);
                while let Some(frame) = list.fill() {
                    assert!(frame.into_bytes().len() < 2 * FRAME_BYTES, "{style:?}");
                }
            }
        }
    }
}
