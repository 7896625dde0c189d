//! Lists and objects whose text is made for one response, a piece at a time while it is sent: items
//! in another version, indented, or as YAML. A client that takes nothing holds one piece, besides
//! stored bytes, which are shared.

use super::pretty::Indenter;
use super::stream::Fill;
use crate::negotiate::{Accepted, Form};
use bytes::{Buf, Bytes};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::yaml::{self, YamlStream};
use ferrokube_serve::Chunk;
use std::collections::VecDeque;

/// Approximate bytes of a batch of items.
pub(super) const BATCH_BYTES: usize = 8 * 1024;
/// A frame ends with the piece that reaches this.
const FRAME_BYTES: usize = 48 * 1024;
/// Bytes that are indented at once, each to at most about a KiB.
const INDENTED_BYTES: usize = 64;
/// Items from this size on are lent.
pub(super) const LENT_BYTES: usize = 16 * 1024;

/// Items of a list as JSON.
pub(crate) enum ItemText {
    /// A batch, separated by commas.
    Batch(Vec<u8>),
    /// One item: its kind, apiVersion and the rest, or `head` followed by the bytes at `from`.
    Lent { bytes: Bytes, head: &'static [u8], from: usize },
}

/// The items of a list.
pub(crate) trait ItemSource: Unpin + Send + 'static {
    /// The next ones, if there are any left.
    fn next(&mut self) -> Option<ItemText>;
}

pub(crate) struct NoItems;

impl ItemSource for NoItems {
    fn next(&mut self) -> Option<ItemText> {
        None
    }
}

/// Text style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Compact JSON.
    Plain,
    /// Indented JSON.
    Indented,
    Yaml,
}

impl Style {
    /// For a client that accepts JSON or YAML.
    pub(crate) fn of(accepted: Accepted) -> Self {
        match accepted.form {
            Form::Yaml => Self::Yaml,
            _ if accepted.pretty => Self::Indented,
            _ => Self::Plain,
        }
    }
}

/// A list as JSON, without its items.
pub(super) struct ListJson {
    /// Up to the first item, in three parts: long definitions of columns are shared.
    pub(super) opening: Bytes,
    pub(super) definitions: Bytes,
    pub(super) rest: Bytes,
    /// Text after the last item.
    pub(super) tail: &'static [u8],
    /// The array's name.
    pub(super) items: &'static str,
}

/// Text to be sent.
enum TextPart {
    /// As it is.
    Plain(Bytes),
    Indented(Bytes),
    Yaml(Box<YamlStream<Bytes>>),
}

/// A list or an object being encoded.
pub(crate) struct Rendered<S> {
    queue: VecDeque<TextPart>,
    source: S,
    /// `None` once queued.
    tail: Option<Bytes>,
    style: Style,
    indenter: Indenter,
    is_first: bool,
    is_done: bool,
}

impl Rendered<NoItems> {
    /// Text that is JSON already, on one line.
    pub(crate) fn whole(json: Bytes, style: Style) -> Self {
        let tail = if style == Style::Yaml { Bytes::new() } else { Bytes::from_static(b"\n") };
        let mut this = Self::with(NoItems, tail, style);
        this.queue.push_back(match style {
            Style::Plain => TextPart::Plain(json),
            Style::Indented => TextPart::Indented(json),
            Style::Yaml => TextPart::Yaml(Box::new(YamlStream::new(json))),
        });
        this
    }
}

impl<S: ItemSource> Rendered<S> {
    pub(super) fn new(list: ListJson, source: S, style: Style) -> Self {
        let ListJson { opening, definitions, rest, tail, items } = list;
        if style == Style::Yaml {
            let texts = YamlTexts::new(&[&opening, &rest], tail, !definitions.is_empty(), items);
            let mut this = Self::with(source, texts.after.into(), style);
            this.queue.push_back(TextPart::Plain(texts.before.into()));
            if !definitions.is_empty() {
                this.queue.push_back(TextPart::Yaml(Box::new(YamlStream::new(definitions))));
            }
            this.queue.push_back(TextPart::Plain(texts.between.into()));
            return this;
        }
        let mut this = Self::with(source, Bytes::from_static(tail), style);
        [opening, definitions, rest].into_iter().for_each(|part| this.push(part));
        this
    }

    fn with(source: S, tail: Bytes, style: Style) -> Self {
        let (queue, indenter) = (VecDeque::new(), Indenter::default());
        Self { queue, source, tail: Some(tail), style, indenter, is_first: true, is_done: false }
    }

    /// JSON, in this style.
    fn push(&mut self, json: Bytes) {
        self.queue.push_back(match self.style {
            Style::Indented => TextPart::Indented(json),
            _ => TextPart::Plain(json),
        });
    }

    /// Queues the next items, or the tail. False at the end.
    fn refill(&mut self) -> bool {
        let Some(items) = self.source.next() else {
            let Some(tail) = self.tail.take() else { return false };
            self.push(tail);
            if self.style == Style::Indented {
                self.queue.push_back(TextPart::Plain(Bytes::from_static(b"\n")));
            }
            return true;
        };
        if self.style == Style::Yaml {
            let stream = match items {
                ItemText::Batch(items) => YamlStream::new([b"[", &items[..], b"]"].concat().into()),
                ItemText::Lent { bytes, from: 0, .. } => YamlStream::item(bytes, &[]),
                ItemText::Lent { bytes, .. } => YamlStream::item(bytes, &["kind", "apiVersion"]),
            };
            self.queue.push_back(TextPart::Yaml(Box::new(stream)));
            return true;
        }
        if !std::mem::take(&mut self.is_first) {
            self.push(Bytes::from_static(b","));
        }
        match items {
            ItemText::Batch(items) => self.push(items.into()),
            ItemText::Lent { bytes, head, from } => {
                self.push(Bytes::from_static(head));
                self.push(bytes.slice(from..));
            }
        }
        true
    }
}

impl TextPart {
    /// Appends a piece; false once nothing is left.
    fn write(&mut self, indenter: &mut Indenter, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Plain(bytes) => {
                let length = bytes.len().min(FRAME_BYTES.saturating_sub(out.len()));
                out.extend_from_slice(&bytes[..length]);
                bytes.advance(length);
                !bytes.is_empty()
            }
            Self::Indented(bytes) => {
                while out.len() < FRAME_BYTES && !bytes.is_empty() {
                    let length = bytes.len().min(INDENTED_BYTES);
                    indenter.write(&bytes[..length], out);
                    bytes.advance(length);
                }
                !bytes.is_empty()
            }
            Self::Yaml(stream) => stream.write(out, FRAME_BYTES),
        }
    }
}

impl<S: ItemSource> Fill for Rendered<S> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.is_done {
            return None;
        }
        let mut out = Vec::new();
        while out.len() < FRAME_BYTES {
            if let Some(part) = self.queue.front_mut() {
                if !part.write(&mut self.indenter, &mut out) {
                    self.queue.pop_front();
                }
            } else if !self.refill() {
                self.is_done = true;
                break;
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    /// Items are parsed, converted or encoded.
    fn is_cheap(&mut self) -> bool {
        false
    }
}

/// The YAML before the definitions of columns, from there to the items, and after them.
struct YamlTexts {
    before: Vec<u8>,
    between: Vec<u8>,
    after: Vec<u8>,
}

impl YamlTexts {
    /// Text around the items, from a list's head without the definitions, and its tail.
    fn new(head: &[&[u8]; 2], tail: &[u8], has_definitions: bool, field: &str) -> Self {
        let definitions = if has_definitions { b"0".as_slice() } else { b"" };
        let list = [head[0], definitions, head[1], b"0", tail].concat();
        let text = yaml::to_vec(&json::read_value(&list).unwrap_or_default());
        // No other line starts like this: nested fields are indented, or part of another item.
        let split = |text: &[u8], key: &str, value: &str| {
            let line = format!("{key}{value}");
            let at = memchr::memmem::find(text, line.as_bytes())
                .expect("a list has its items, and a field before them");
            (text[..at + key.len()].to_vec(), text[at + line.len()..].to_vec())
        };
        let (head, after) = split(&text, &format!("\n{field}:\n"), "- 0\n");
        if !has_definitions {
            return Self { before: Vec::new(), between: head, after };
        }
        let (mut before, between) = split(&head, "\ncolumnDefinitions:", " 0\n");
        before.push(b'\n');
        Self { before, between, after }
    }
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
        fn next(&mut self) -> Option<ItemText> {
            let (mut out, begin) = (Vec::new(), 0);
            let first = self.next;
            while self.next < self.count && out.len() - begin < BATCH_BYTES {
                let comma = if self.next > first { "," } else { "" };
                let text = "x\\n\"y:".repeat(20).replace('"', "\\\"");
                out.extend_from_slice(format!("{comma}{{\"name\":\"n{}\",\"list\":[],\"map\":{{\"a\":[1,{{}}]}},\"text\":\"{text}\"}}", self.next).as_bytes());
                self.next += 1;
            }
            (self.next > first).then_some(ItemText::Batch(out))
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
                let (opening, definitions) = (head.clone().into(), Bytes::new());
                let rest = Bytes::new();
                let list = ListJson { opening, definitions, rest, tail, items: "items" };
                Rendered::new(list, Numbers { next: 0, count }, style)
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

    #[test]
    fn fault_41_a_long_item_is_lent_and_written_in_pieces() {
        struct One(Option<ItemText>);
        impl ItemSource for One {
            fn next(&mut self) -> Option<ItemText> {
                self.0.take()
            }
        }
        let zeros = vec!["0"; 100_000].join(",");
        let value = format!("{}{zeros}{}", "[".repeat(300), "]".repeat(300));
        let item = format!("{{\"kind\":\"K\",\"apiVersion\":\"v1\",\"spec\":{value}}}");
        let definitions =
            format!("[{}]", vec!["{\"name\":\"c\",\"type\":\"string\"}"; 9_000].join(","));
        for (from, head) in [(0, ""), (item.find("\"spec").unwrap(), "{")] {
            let whole = format!(
                "{{\"kind\":\"L\",\"apiVersion\":\"v1\",\"columnDefinitions\":{definitions},\"rows\":[{head}{}]}}\n",
                &item[from..]
            );
            for style in [Style::Plain, Style::Indented, Style::Yaml] {
                let bytes = Bytes::from(item.clone());
                let source = One(Some(ItemText::Lent {
                    bytes,
                    head: if from > 0 { b"{" } else { b"" },
                    from,
                }));
                let opening = Bytes::from_static(
                    b"{\"kind\":\"L\",\"apiVersion\":\"v1\",\"columnDefinitions\":",
                );
                let (definitions, rest) =
                    (definitions.clone().into(), b",\"rows\":[".as_slice().into());
                let (tail, items) = (b"]}\n".as_slice(), "rows");
                let list = ListJson { opening, definitions, rest, tail, items };
                let mut list = Rendered::new(list, source, style);
                let mut all = Vec::new();
                while let Some(frame) = list.fill() {
                    let frame = frame.into_bytes();
                    assert!(frame.len() < 3 * FRAME_BYTES, "{style:?}: {}", frame.len());
                    all.extend_from_slice(&frame);
                }
                let want = Rendered::whole(whole.trim_end().to_owned().into(), style).collect();
                assert!(all == want, "{style:?}");
                if style == Style::Yaml {
                    assert!(all == yaml::to_vec(&json::read_value(whole.as_bytes()).unwrap()));
                }
            }
        }
    }
}
