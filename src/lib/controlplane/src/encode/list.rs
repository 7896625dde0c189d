//! Lists: items are slices of stored bytes, streamed in frames of some size with the length known beforehand.

use super::pieces::{Pieces, Scope, Source};
use super::slices::{metadata, partial_head, untyped};
use super::{Encoder, META, entry_document};
use crate::negotiate::{Accepted, Form, View};
use crate::{body, compress, status};
use bytes::{Bytes, BytesMut};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_registry::{ListPage, Served};
use ferrokube_serve::Response;
use ferrokube_storage::Entry;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A frame is sent when it has grown to this.
const FRAME_BYTES: usize = 64 * 1024;
/// After so many bytes another task gets its turn.
const YIELD_BYTES: usize = 256 * 1024;

/// How an item is cut out of its entry.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Without kind and apiVersion.
    Untyped,
    /// Everything.
    Whole,
    /// `PartialObjectMetadata` of a version.
    Metadata(&'static str),
}

impl Shape {
    fn len(self, entry: &Entry) -> usize {
        match self {
            Self::Untyped => 1 + untyped(entry).len(),
            Self::Whole => entry.bytes.len(),
            Self::Metadata(version) => partial_head(version).len() + metadata(entry).len() + 1,
        }
    }

    fn write(self, entry: &Entry, out: &mut Vec<u8>) {
        match self {
            Self::Untyped => {
                out.push(b'{');
                out.extend_from_slice(untyped(entry));
            }
            Self::Whole => out.extend_from_slice(&entry.bytes),
            Self::Metadata(version) => {
                out.extend_from_slice(partial_head(version).as_bytes());
                out.extend_from_slice(metadata(entry));
                out.push(b'}');
            }
        }
    }
}

/// One item.
enum Item {
    /// Cut from stored bytes.
    Stored(Arc<Entry>),
    /// Written for this answer (another version, an old schema).
    Made(Vec<u8>),
}

/// `metadata` of a list, as JSON.
pub(crate) fn list_meta(page: &ListPage) -> String {
    let mut text = format!("{{\"resourceVersion\":\"{}\"", page.revision);
    if !page.continue_token.is_empty() {
        let token = json::to_vec(&Value::from(page.continue_token.as_str()));
        text.push_str(",\"continue\":");
        text.push_str(&String::from_utf8_lossy(&token));
    }
    if let Some(remaining) = page.remaining.filter(|remaining| *remaining > 0) {
        text.push_str(",\"remainingItemCount\":");
        text.push_str(itoa::Buffer::new().format(remaining));
    }
    text.push('}');
    text
}

/// The answer to a list that is no Table.
pub(crate) fn respond(encoder: &Encoder, served: &Served, page: ListPage, accepted: Accepted) -> Response {
    match accepted.form {
        Form::Json => {
            let list = json_list(served, page, accepted.view);
            if accepted.pretty {
                return status::with_type(200, Form::Json.media_type(), body::full(super::pretty::indent(&list.collect())));
            }
            status::with_type(200, Form::Json.media_type(), list.boxed_unsync())
        }
        Form::Yaml => {
            let bytes = json_list(served, page, accepted.view).collect();
            let value = json::read_value(&bytes).unwrap_or_default();
            status::with_form(200, yaml::to_vec(&value), Form::Yaml)
        }
        Form::Protobuf => status::with_form(200, protobuf_list(encoder, served, &page, accepted.view), Form::Protobuf),
    }
}

/// The same compressed, from pieces that are kept; `None` when the list is small, or of a form that has no pieces.
pub(crate) fn zipped(pieces: &Pieces, served: &Served, page: &ListPage, accepted: Accepted) -> Option<Response> {
    let shape = shape_of(served, accepted.view);
    let large = page.items.iter().map(|entry| shape.len(entry)).sum::<usize>() >= compress::MIN_BYTES;
    let is_direct = served.direct();
    let sliced = matches!(shape, Shape::Metadata(_)) || page.items.iter().all(|entry| is_direct(entry));
    if accepted.form != Form::Json || accepted.pretty || !large || !sliced {
        return None;
    }
    let form = match shape {
        Shape::Untyped | Shape::Whole => 0,
        Shape::Metadata("v1") => 1,
        Shape::Metadata(_) => 2,
    };
    let head = json_head(served, page, accepted.view);
    let write = |entry: &Entry, out: &mut Vec<u8>| shape.write(entry, out);
    let scope = Scope { definition: Arc::clone(&served.definition), form };
    let frames = pieces.zip(&Source { scope, head: head.as_bytes(), entries: &page.items, tail: TAIL, write });
    let mut response = status::with_type(200, Form::Json.media_type(), body::frames(frames));
    compress::mark(response.headers_mut());
    Some(response)
}

fn shape_of(served: &Served, view: View) -> Shape {
    match view {
        View::MetadataList(version) => Shape::Metadata(version),
        _ if served.definition.custom => Shape::Whole,
        _ => Shape::Untyped,
    }
}

fn json_head(served: &Served, page: &ListPage, view: View) -> String {
    let (kind, api_version) = list_type(served, view);
    let mut meta = list_meta(page);
    if served.definition.custom && page.continue_token.is_empty() && !matches!(view, View::MetadataList(_)) {
        // Upstream's untyped lists have it in any case.
        meta.insert_str(1, "\"continue\":\"\",");
    }
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"items\":[")
}

fn list_type(served: &Served, view: View) -> (String, String) {
    match view {
        View::MetadataList(version) => ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}")),
        _ => (served.definition.list_kind.clone(), served.definition.gvk(served.version).api_version()),
    }
}

fn json_list(served: &Served, page: ListPage, view: View) -> ListBody {
    let head = json_head(served, &page, view);
    let shape = shape_of(served, view);
    let is_direct = served.direct();
    let items: Vec<Item> = page.items.into_iter().map(|entry| item(served, entry, shape, &is_direct)).collect();
    ListBody::new(head, items, shape)
}

fn item(served: &Served, entry: Arc<Entry>, shape: Shape, is_direct: &impl Fn(&Entry) -> bool) -> Item {
    if matches!(shape, Shape::Metadata(_)) || is_direct(&entry) {
        return Item::Stored(entry);
    }
    let mut document = entry_document(served, &entry);
    if matches!(shape, Shape::Untyped) {
        document.remove(&["kind"]);
        document.remove(&["apiVersion"]);
    }
    Item::Made(json::to_vec(&document.into_value()))
}

/// The body of a JSON list.
struct ListBody {
    head: Option<String>,
    items: std::vec::IntoIter<Item>,
    shape: Shape,
    first: bool,
    /// Bytes that are still to be sent.
    left: u64,
    since_yield: usize,
    buffer: Vec<u8>,
    done: bool,
}

impl ListBody {
    fn new(head: String, items: Vec<Item>, shape: Shape) -> Self {
        let sum: usize = items.iter().map(|item| item.len(shape) + 1).sum();
        let left = head.len() + sum.saturating_sub(usize::from(!items.is_empty())) + TAIL.len();
        let capacity = left.min(FRAME_BYTES + 16 * 1024);
        Self {
            head: Some(head),
            items: items.into_iter(),
            shape,
            first: true,
            left: left as u64,
            since_yield: 0,
            buffer: Vec::with_capacity(capacity),
            done: false,
        }
    }

    /// The next frame's bytes.
    fn fill(&mut self) -> Option<Vec<u8>> {
        if self.done {
            return None;
        }
        if let Some(head) = self.head.take() {
            self.buffer.extend_from_slice(head.as_bytes());
        }
        while self.buffer.len() < FRAME_BYTES {
            let Some(item) = self.items.next() else {
                self.buffer.extend_from_slice(TAIL);
                self.done = true;
                break;
            };
            if !std::mem::take(&mut self.first) {
                self.buffer.push(b',');
            }
            match item {
                Item::Stored(entry) => self.shape.write(&entry, &mut self.buffer),
                Item::Made(bytes) => self.buffer.extend_from_slice(&bytes),
            }
        }
        self.left = self.left.saturating_sub(self.buffer.len() as u64);
        let next = if self.done { Vec::new() } else { Vec::with_capacity(FRAME_BYTES + 16 * 1024) };
        Some(std::mem::replace(&mut self.buffer, next))
    }

    /// All of it.
    fn collect(mut self) -> Vec<u8> {
        let mut all = Vec::with_capacity(usize::try_from(self.left).unwrap_or(0));
        while let Some(frame) = self.fill() {
            all.extend_from_slice(&frame);
        }
        all
    }
}

const TAIL: &[u8] = b"]}\n";

impl Item {
    fn len(&self, shape: Shape) -> usize {
        match self {
            Self::Stored(entry) => shape.len(entry),
            Self::Made(bytes) => bytes.len(),
        }
    }
}

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if this.since_yield >= YIELD_BYTES {
            this.since_yield = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = this.fill();
        this.since_yield += frame.as_ref().map_or(0, Vec::len);
        Poll::Ready(frame.map(|bytes| Ok(Frame::data(bytes.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A list message: `ListMeta` in field 1, each item in field 2.
fn protobuf_list(encoder: &Encoder, served: &Served, page: &ListPage, view: View) -> Vec<u8> {
    let messages = encoder.messages();
    let (kind, api_version) = list_type(served, view);
    let mut raw = BytesMut::new();
    let meta = json::read_value(list_meta(page).as_bytes()).unwrap_or_default();
    put_message(&mut raw, 1, &messages.write_bare(&format!("{META}.ListMeta"), &meta).unwrap_or_default());
    let partial = format!("{META}.PartialObjectMetadata");
    let message = match view {
        View::MetadataList(_) => partial.as_str(),
        _ => served.version().message.as_deref().unwrap_or_default(),
    };
    for entry in &page.items {
        let document = entry_document(served, entry);
        match messages.write_bare(message, &document.into_value()) {
            Ok(bytes) => put_message(&mut raw, 2, &bytes),
            Err(error) => tracing::warn!(message, error = %error, "an object does not fit its protobuf message"),
        }
    }
    envelope(&kind, &api_version, &raw)
}

/// `k8s\0` and a `runtime.Unknown` around a message.
pub(crate) fn envelope(kind: &str, api_version: &str, raw: &[u8]) -> Vec<u8> {
    let mut type_meta = BytesMut::new();
    put_message(&mut type_meta, 1, api_version.as_bytes());
    put_message(&mut type_meta, 2, kind.as_bytes());
    let mut unknown = BytesMut::with_capacity(raw.len() + type_meta.len() + 32);
    unknown.extend_from_slice(b"k8s\0");
    put_message(&mut unknown, 1, &type_meta);
    put_message(&mut unknown, 2, raw);
    put_message(&mut unknown, 3, b"");
    put_message(&mut unknown, 4, b"");
    unknown.to_vec()
}

/// A length-delimited field.
pub(crate) fn put_message(out: &mut BytesMut, field: u8, bytes: &[u8]) {
    out.extend_from_slice(&[field << 3 | 2]);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.extend_from_slice(&[(length & 0x7f) as u8 | 0x80]);
        length >>= 7;
    }
    out.extend_from_slice(&[length as u8]);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::slices::tests::entry;
    use ferrokube_storage::Revision;

    fn items(count: u64) -> Vec<Item> {
        let value = "v".repeat(700);
        (0..count)
            .map(|at| {
                let before = format!("{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"c{at}\"");
                Item::Stored(Arc::new(entry(100 + at, &before, &format!("}},\"data\":{{\"k\":\"{value}\"}}}}"))))
            })
            .collect()
    }

    #[test]
    fn a_list_is_as_long_as_it_said_and_well_formed() {
        for shape in [Shape::Untyped, Shape::Whole, Shape::Metadata("v1")] {
            for count in [0, 1, 3, 500] {
                let page = ListPage { revision: Revision(999), items: Vec::new(), continue_token: "a\"b".into(), remaining: Some(4) };
                let list = ListBody::new(format!("{{\"metadata\":{},\"items\":[", list_meta(&page)), items(count), shape);
                let said = list.left;
                let bytes = list.collect();
                assert_eq!(said, bytes.len() as u64);
                let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                assert_eq!(value["items"].as_array().unwrap().len() as u64, count);
                assert_eq!(value["metadata"]["remainingItemCount"], 4);
            }
        }
    }

    #[test]
    fn frames_are_large_and_others_get_their_turn() {
        let mut list = ListBody::new("[".into(), items(1000), Shape::Whole);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut sizes, mut yields) = (Vec::new(), 0);
        loop {
            match http_body::Body::poll_frame(Pin::new(&mut list), &mut context) {
                Poll::Ready(Some(frame)) => sizes.push(frame.unwrap().into_data().unwrap().len()),
                Poll::Ready(None) => break,
                Poll::Pending => yields += 1,
            }
        }
        assert!(sizes[..sizes.len() - 1].iter().all(|size| *size >= 16 * 1024), "{sizes:?}");
        assert!(yields >= 2);
    }

    #[test]
    fn lengths_are_varints() {
        let mut out = BytesMut::new();
        put_message(&mut out, 2, &[7; 300]);
        assert_eq!(&out[..4], [0x12, 0xac, 0x02, 7]);
        assert!(envelope("K", "v1", b"xy").starts_with(b"k8s\0\x0a\x07\x0a\x02v1\x12\x01K\x12\x02xy"));
    }
}
