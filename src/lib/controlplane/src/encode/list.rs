//! Lists: items are slices of stored bytes, streamed in frames of some size with the length known beforehand.

use super::lent::Lender;
use super::pieces::{self, Pieces, Scope, Source};
use super::slices::Cut;
use super::stream::{Fill, Items, Streamed};
use super::{Encoder, entry_document, protobuf};
use crate::negotiate::{Accepted, Form, View};
use crate::{body, compress, status};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_registry::{ListPage, Served};
use ferrokube_serve::{Body, Response};
use ferrokube_storage::Entry;
use http_body_util::BodyExt;
use std::sync::Arc;

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
    fn of(self, entry: &Entry) -> Cut {
        match self {
            Self::Untyped => Cut::untyped(entry),
            Self::Whole => Cut::whole(entry),
            Self::Metadata(version) => Cut::partial(entry, version),
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
pub(crate) fn respond(encoder: &Encoder, pieces: &Pieces, served: &Served, page: ListPage, accepted: Accepted) -> Response {
    match accepted.form {
        Form::Json => {
            let list = JsonList::new(served, page, accepted.view);
            let body = if accepted.pretty { body::full(super::pretty::indent(&list.collect())) } else { list.into_body() };
            status::with_type(200, Form::Json.media_type(), body)
        }
        Form::Yaml => {
            let bytes = self::json(served, page, accepted.view);
            let value = json::read_value(&bytes).unwrap_or_default();
            status::with_form(200, yaml::to_vec(&value), Form::Yaml)
        }
        Form::Protobuf => {
            let frames = protobuf::list(encoder, pieces, served, &page, accepted.view);
            status::with_type(200, Form::Protobuf.media_type(), body::frames(frames))
        }
    }
}

/// A list that is no Table as JSON, whole.
pub(crate) fn json(served: &Served, page: ListPage, view: View) -> Vec<u8> {
    JsonList::new(served, page, view).collect()
}

/// The same compressed, from pieces that are kept; `None` when the list is small, or of a form that has no pieces.
pub(crate) fn zipped(kept: &Pieces, served: &Served, page: &ListPage, accepted: Accepted) -> Option<Response> {
    let shape = shape_of(served, accepted.view);
    let large = page.items.iter().map(|entry| shape.of(entry).len()).sum::<usize>() >= compress::MIN_BYTES;
    let is_direct = served.direct();
    let sliced = matches!(shape, Shape::Metadata(_)) || page.items.iter().all(|entry| is_direct(entry));
    if accepted.form != Form::Json || accepted.pretty || !large || !sliced {
        return None;
    }
    let form = match shape {
        Shape::Untyped | Shape::Whole => pieces::Form::Json,
        Shape::Metadata(version) => pieces::Form::JsonMetadata(version),
    };
    let head = json_head(served, page, accepted.view);
    let write = |entry: &Entry, out: &mut Vec<u8>| shape.of(entry).write(entry, out);
    let scope = Scope { definition: Arc::clone(&served.definition), version: served.version, form };
    let frames = kept.zip(&Source { scope, head: head.as_bytes(), entries: &page.items, tail: TAIL, write });
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
    // Upstream's metadata list has null for no items, and no other list does.
    let items = if page.items.is_empty() && matches!(view, View::MetadataList(_)) { "null" } else { "[" };
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"items\":{items}")
}

/// What follows the items that a head announces.
fn tail(head: &str) -> &'static [u8] {
    if head.ends_with('[') { TAIL } else { &TAIL[1..] }
}

/// Kind and apiVersion of a list.
pub(super) fn list_type(served: &Served, view: View) -> (String, String) {
    match view {
        View::MetadataList(version) => ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}")),
        _ => (served.definition.list_kind.clone(), served.definition.gvk(served.version).api_version()),
    }
}

const TAIL: &[u8] = b"]}\n";

/// A body that can be sent, or taken whole.
enum JsonList {
    /// Every item is cut from stored bytes.
    Stored { head: String, entries: Vec<Arc<Entry>>, shape: Shape, bytes: usize },
    /// Some are not.
    Mixed { head: String, items: Vec<Item>, shape: Shape, bytes: usize },
}

impl JsonList {
    fn new(served: &Served, page: ListPage, view: View) -> Self {
        let head = json_head(served, &page, view);
        let shape = shape_of(served, view);
        let is_direct = served.direct();
        let is_stored = |entry: &Entry| matches!(shape, Shape::Metadata(_)) || is_direct(entry);
        let stored = page.items.iter().try_fold(0, |bytes, entry| is_stored(entry).then(|| bytes + shape.of(entry).len()));
        if let Some(bytes) = stored {
            return Self::Stored { head, entries: page.items, shape, bytes };
        }
        let made = |entry: Arc<Entry>| if is_direct(&entry) { Item::Stored(entry) } else { Item::Made(made_item(served, &entry, shape)) };
        let items: Vec<Item> = page.items.into_iter().map(made).collect();
        let bytes = items.iter().map(|item| item.cut(shape).len()).sum();
        Self::Mixed { head, items, shape, bytes }
    }

    fn into_body(self) -> Body {
        match self {
            Self::Stored { head, entries, shape, bytes } => Streamed::new(stored_items(head, entries, shape, bytes)).boxed_unsync(),
            Self::Mixed { head, items, shape, bytes } => Streamed::new(mixed_items(head, items, shape, bytes)).boxed_unsync(),
        }
    }

    fn collect(self) -> Vec<u8> {
        match self {
            Self::Stored { head, entries, shape, bytes } => stored_items(head, entries, shape, bytes).collect(),
            Self::Mixed { head, items, shape, bytes } => mixed_items(head, items, shape, bytes).collect(),
        }
    }
}

fn stored_items(head: String, entries: Vec<Arc<Entry>>, shape: Shape, bytes: usize) -> Items<Arc<Entry>, impl Fn(&Arc<Entry>) -> Cut> {
    let tail = tail(&head);
    Items::new(head.into_bytes(), entries, tail, bytes, move |entry: &Arc<Entry>| shape.of(entry))
}

fn mixed_items(head: String, items: Vec<Item>, shape: Shape, bytes: usize) -> Items<Item, impl Fn(&Item) -> Cut> {
    let tail = tail(&head);
    Items::new(head.into_bytes(), items, tail, bytes, move |item: &Item| item.cut(shape))
}

fn made_item(served: &Served, entry: &Entry, shape: Shape) -> Vec<u8> {
    let mut document = entry_document(served, entry);
    if matches!(shape, Shape::Untyped) {
        document.remove(&["kind"]);
        document.remove(&["apiVersion"]);
    }
    json::to_vec(&document.into_value())
}

impl Item {
    fn cut(&self, shape: Shape) -> Cut {
        match self {
            Self::Stored(entry) => shape.of(entry),
            Self::Made(bytes) => Cut { head: b"", part: 0..bytes.len(), tail: b"" },
        }
    }
}

impl Lender for Arc<Entry> {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Lender for Item {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Stored(entry) => &entry.bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::slices::tests::entry;
    use ferrokube_storage::Revision;

    #[test]
    fn a_list_is_as_long_as_it_said_and_well_formed() {
        for shape in [Shape::Untyped, Shape::Whole, Shape::Metadata("v1")] {
            let before = "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"c\"";
            let entries: Vec<_> = (0..100).map(|at| Arc::new(entry(98 + at, before, "},\"data\":{\"k\":\"v\"}}"))).collect();
            let page = ListPage { revision: Revision(999), items: Vec::new(), continue_token: "a\"b".into(), remaining: Some(4) };
            let bytes = entries.iter().map(|entry| shape.of(entry).len()).sum();
            let list = stored_items(format!("{{\"metadata\":{},\"items\":[", list_meta(&page)), entries, shape, bytes);
            let said = list.left();
            let bytes = list.collect();
            assert_eq!(said, Some(bytes.len() as u64));
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(value["items"].as_array().unwrap().len(), 100);
            assert_eq!(value["metadata"]["remainingItemCount"], 4);
        }
    }
}
