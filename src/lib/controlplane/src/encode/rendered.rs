//! Lists whose items are written for this answer, a few at a time while they are sent: in another
//! version, indented, or as YAML.

use super::pretty::Indenter;
use super::stream::Fill;
use crate::negotiate::{Accepted, Form};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_serve::Chunk;

/// Items are written until there are so many bytes of them.
pub(super) const BATCH_BYTES: usize = 8 * 1024;
/// And a frame ends with the batch that fills it up to this.
const FRAME_BYTES: usize = 48 * 1024;

/// What has items.
pub(super) trait Source: Unpin + Send + 'static {
    /// Appends the next items as JSON, separated by commas: some [`BATCH_BYTES`]. False when there
    /// are none.
    fn next(&mut self, out: &mut Vec<u8>) -> bool;
}

/// How they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// As they are.
    Plain,
    /// Indented for people.
    Indented,
    /// As YAML.
    Yaml,
}

impl Style {
    /// What a client of JSON or YAML accepts.
    pub(super) fn of(accepted: Accepted) -> Self {
        match accepted.form {
            Form::Yaml => Self::Yaml,
            _ if accepted.pretty => Self::Indented,
            _ => Self::Plain,
        }
    }
}

enum Writer {
    Plain,
    Indented(Indenter),
    Yaml,
}

/// A list on its way out.
pub(super) struct Rendered<S> {
    head: Vec<u8>,
    source: S,
    tail: Vec<u8>,
    writer: Writer,
    first: bool,
    done: bool,
}

impl<S: Source> Rendered<S> {
    /// `head` is the list as JSON up to its first item, `tail` what follows the last one; `field`
    /// has the items.
    pub(super) fn new(
        head: Vec<u8>,
        source: S,
        (tail, field): (&[u8], &str),
        style: Style,
    ) -> Self {
        let (head, tail, writer) = match style {
            Style::Plain => (head, tail.to_vec(), Writer::Plain),
            Style::Indented => (head, tail.to_vec(), Writer::Indented(Indenter::default())),
            Style::Yaml => {
                let (head, tail) = yaml_around(&head, tail, field);
                (head, tail, Writer::Yaml)
            }
        };
        Self { head, source, tail, writer, first: true, done: false }
    }

    fn write(&mut self, json: &[u8], out: &mut Vec<u8>) {
        match &mut self.writer {
            Writer::Plain => out.extend_from_slice(json),
            Writer::Indented(indenter) => indenter.write(json, out),
            Writer::Yaml => {
                let items = [b"[", json, b"]"].concat();
                out.extend_from_slice(&yaml::to_vec(&json::read_value(&items).unwrap_or_default()));
            }
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let head = std::mem::take(&mut self.head);
        match &mut self.writer {
            Writer::Indented(indenter) => indenter.write(&head, out),
            _ => out.extend_from_slice(&head),
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.done = true;
        let tail = std::mem::take(&mut self.tail);
        match &mut self.writer {
            Writer::Indented(indenter) => {
                indenter.write(&tail, out);
                out.push(b'\n');
            }
            _ => out.extend_from_slice(&tail),
        }
    }
}

impl<S: Source> Fill for Rendered<S> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let (mut out, mut items) = (Vec::new(), Vec::new());
        self.begin(&mut out);
        while out.len() < FRAME_BYTES {
            items.clear();
            if !std::mem::take(&mut self.first) && !matches!(self.writer, Writer::Yaml) {
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

    /// Items are parsed, converted or written anew.
    fn is_cheap(&mut self) -> bool {
        false
    }
}

/// The YAML before and after the items of a list that has some.
fn yaml_around(head: &[u8], tail: &[u8], field: &str) -> (Vec<u8>, Vec<u8>) {
    let list = json::read_value(&[head, b"0", tail].concat()).unwrap_or_default();
    let text = yaml::to_vec(&list);
    let key = format!("\n{field}:\n");
    let item = format!("{key}- 0\n");
    // No other line begins so: what is nested is indented, or an item of another list.
    let at = memchr::memmem::find(&text, item.as_bytes())
        .expect("a list has its items, and a field before them");
    (text[..at + key.len()].to_vec(), text[at + item.len()..].to_vec())
}

/// A list without items in a style.
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

    impl Source for Numbers {
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
    fn every_style_is_what_the_whole_list_would_be() {
        let (head, tail) = (
            br#"{"kind":"L","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":["#
                .to_vec(),
            b"]}\n".as_slice(),
        );
        for count in [1, 2, 100, 2000] {
            let list = |style| {
                Rendered::new(head.clone(), Numbers { next: 0, count }, (tail, "items"), style)
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
