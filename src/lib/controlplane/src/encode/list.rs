//! Lists: which encoding a client gets, and lists as JSON. Items are slices of stored bytes, streamed in frames of some size with the length known
//! beforehand; in other forms they are written while they are sent.

use super::chunk_cache::{self, ChunkCache, Scope, Source};
use super::rendered::{self, BATCH_BYTES, Rendered, Style};
use super::slices::ItemSlice;
use super::stream::{self, Fill, Items, Offloaded, Streamed};
use super::table::{self, Include, Table};
use super::vectored::ByteOwner;
use super::{Encoder, entry_document, protobuf};
use crate::negotiate::{Accepted, Form, View};
use crate::{body, compress, status};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json;
use ferrokube_registry::{ListPage, Served};
use ferrokube_serve::Response;
use ferrokube_storage::Entry;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec::IntoIter;

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
    fn of(self, entry: &Entry) -> ItemSlice {
        match self {
            Self::Untyped => ItemSlice::untyped(entry),
            Self::Whole => ItemSlice::whole(entry),
            Self::Metadata(version) => ItemSlice::partial(entry, version),
        }
    }
}

/// `metadata` of a list, as JSON.
pub(super) fn list_meta(page: &ListPage) -> String {
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

/// How a client wants a list.
#[derive(Clone, Copy)]
pub(crate) struct ListFormat {
    pub(crate) accepted: Accepted,
    /// What the rows of a Table carry.
    pub(crate) include: Include,
    /// What ages in a Table are relative to.
    pub(crate) now: SystemTime,
}

/// Encodes lists of one resource. The only place that chooses the encoding of a list.
pub(crate) struct ListEncoder<'a> {
    pub(crate) encoder: &'a Encoder,
    pub(crate) chunks: &'a ChunkCache,
    pub(crate) served: &'a Served,
    pub(crate) format: ListFormat,
}

impl ListEncoder<'_> {
    /// The response, streamed unless it is short: a client that reads slowly holds one frame besides
    /// the stored objects.
    pub(crate) fn respond(&self, page: ListPage, gzip: bool) -> Response {
        let accepted = self.format.accepted;
        match (accepted.view, accepted.form) {
            (View::Table(version), _) => self.table(version, page, gzip),
            (view, Form::Protobuf) => {
                let list = protobuf::list(self.encoder, self.chunks, self.served, page, view);
                stream::respond(list, Form::Protobuf.media_type(), gzip)
            }
            (view, Form::Json | Form::Yaml) => self.json(view, page, gzip),
        }
    }

    /// The list as plain JSON, whatever the client accepts.
    pub(crate) fn collect_json(&self, mut page: ListPage) -> Vec<u8> {
        match self.format.accepted.view {
            View::Table(version) => {
                let entries = std::mem::take(&mut page.items);
                let table = Table::new(self.served, version, self.format.include, self.format.now);
                table.stream(&list_meta(&page), self.chunks, entries).collect()
            }
            view => JsonList::new(self.served, page, view).collect(),
        }
    }

    fn json(&self, view: View, page: ListPage, gzip: bool) -> Response {
        let style = Style::of(self.format.accepted);
        let media_type = self.format.accepted.form.media_type();
        let list = JsonList::new(self.served, page, view);
        if list.entries.is_empty() {
            return whole(media_type, rendered::empty(&list.collect(), style));
        }
        match list.stored_bytes {
            Some(bytes) if style == Style::Plain && gzip && bytes >= compress::MIN_BYTES => {
                list.zipped(self.chunks)
            }
            Some(_) if style == Style::Plain => streamed(media_type, list.stored()),
            _ => stream::respond(list.rendered(style), media_type, gzip),
        }
    }

    fn table(&self, version: &'static str, mut page: ListPage, gzip: bool) -> Response {
        let style = Style::of(self.format.accepted);
        let media_type = self.format.accepted.form.media_type();
        let entries = std::mem::take(&mut page.items);
        let table = Table::new(self.served, version, self.format.include, self.format.now);
        let meta = list_meta(&page);
        if entries.is_empty() {
            match style {
                Style::Plain => {
                    status::with_type(200, media_type, body::frames(table.empty(&meta)))
                }
                _ => whole(media_type, rendered::empty(&table.empty(&meta).concat(), style)),
            }
        } else if style != Style::Plain {
            stream::respond(table.rendered(&meta, entries, style), media_type, gzip)
        } else if table.is_wide() && !gzip {
            let stream = table.stream(&meta, self.chunks, entries);
            status::with_type(200, media_type, Offloaded::new(stream).boxed_unsync())
        } else if gzip || table::is_short(&entries) {
            stream::respond(table.stream(&meta, self.chunks, entries), media_type, gzip)
        } else {
            streamed(media_type, table.stream(&meta, self.chunks, entries))
        }
    }
}

fn whole(media_type: &'static str, bytes: Vec<u8>) -> Response {
    status::with_type(200, media_type, body::full(bytes))
}

/// Encoded on the connection's task, as its frames are cheap to make.
fn streamed(media_type: &'static str, fill: impl Fill) -> Response {
    status::with_type(200, media_type, Streamed::new(fill).boxed_unsync())
}

fn shape_of(served: &Served, view: View) -> Shape {
    match view {
        View::MetadataList(version) => Shape::Metadata(version),
        _ if !served.definition.dialect.is_typed() => Shape::Whole,
        _ => Shape::Untyped,
    }
}

fn json_head(served: &Served, page: &ListPage, view: View) -> String {
    let (kind, api_version) = list_type(served, view);
    let mut meta = list_meta(page);
    if !served.definition.dialect.is_typed()
        && page.continue_token.is_empty()
        && !matches!(view, View::MetadataList(_))
    {
        // Upstream's untyped lists have it in any case.
        meta.insert_str(1, "\"continue\":\"\",");
    }
    // Upstream's metadata list has null for no items, and no other list does.
    let items =
        if page.items.is_empty() && matches!(view, View::MetadataList(_)) { "null" } else { "[" };
    format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"items\":{items}"
    )
}

/// What follows the items that a head announces.
fn tail(head: &str) -> &'static [u8] {
    if head.ends_with('[') { TAIL } else { &TAIL[1..] }
}

/// Kind and apiVersion of a list.
pub(super) fn list_type(served: &Served, view: View) -> (String, String) {
    match view {
        View::MetadataList(version) => {
            ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}"))
        }
        _ => (
            served.definition.list_kind.clone(),
            served.definition.gvk(served.version).api_version(),
        ),
    }
}

const TAIL: &[u8] = b"]}\n";

/// A list as JSON, of some style.
struct JsonList {
    head: String,
    entries: Vec<Arc<Entry>>,
    shape: Shape,
    served: Served,
    /// How long the items are, if all are cut from stored bytes.
    stored_bytes: Option<usize>,
}

impl JsonList {
    fn new(served: &Served, mut page: ListPage, view: View) -> Self {
        let head = json_head(served, &page, view);
        let shape = shape_of(served, view);
        let entries = std::mem::take(&mut page.items);
        let is_direct = served.direct();
        let is_stored = |entry: &Entry| matches!(shape, Shape::Metadata(_)) || is_direct(entry);
        let stored_bytes = entries
            .iter()
            .try_fold(0, |bytes, entry| is_stored(entry).then(|| bytes + shape.of(entry).len()));
        Self { head, entries, shape, served: served.clone(), stored_bytes }
    }

    /// All items are lent.
    fn stored(self) -> Items<Arc<Entry>, impl Fn(&Arc<Entry>) -> ItemSlice> {
        let (tail, shape) = (tail(&self.head), self.shape);
        Items::new(
            self.head.into_bytes(),
            self.entries,
            tail,
            self.stored_bytes.unwrap_or(0),
            move |entry: &Arc<Entry>| shape.of(entry),
        )
    }

    /// Items are written.
    fn rendered(self, style: Style) -> Rendered<Written> {
        let tail = tail(&self.head);
        let source =
            Written { entries: self.entries.into_iter(), shape: self.shape, served: self.served };
        Rendered::new(self.head.into_bytes(), source, (tail, "items"), style)
    }

    /// Compressed, from pieces that are kept.
    fn zipped(self, chunks: &ChunkCache) -> Response {
        let shape = self.shape;
        let form = match shape {
            Shape::Untyped | Shape::Whole => chunk_cache::Form::Json,
            Shape::Metadata(version) => chunk_cache::Form::JsonMetadata(version),
        };
        let write = move |entry: &Entry, out: &mut Vec<u8>| shape.of(entry).write(entry, out);
        let scope = Scope {
            definition: Arc::clone(&self.served.definition),
            version: self.served.version,
            form,
        };
        let source = Source {
            scope,
            head: self.head.into_bytes(),
            entries: self.entries,
            tail: TAIL,
            write,
        };
        let mut response = status::with_type(
            200,
            Form::Json.media_type(),
            Offloaded::new(chunks.zip(source)).boxed_unsync(),
        );
        compress::mark(response.headers_mut());
        response
    }

    fn collect(self) -> Vec<u8> {
        if self.stored_bytes.is_some() {
            self.stored().collect()
        } else {
            self.rendered(Style::Plain).collect()
        }
    }
}

/// Items that are written for this list: of another version, an old schema, or in another style.
struct Written {
    entries: IntoIter<Arc<Entry>>,
    shape: Shape,
    served: Served,
}

impl rendered::Source for Written {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let (begin, is_direct) = (out.len(), self.served.direct());
        for entry in self.entries.by_ref() {
            if out.len() > begin {
                out.push(b',');
            }
            if matches!(self.shape, Shape::Metadata(_)) || is_direct(&entry) {
                self.shape.of(&entry).write(&entry, out);
            } else {
                out.extend_from_slice(&made_item(&self.served, &entry, self.shape));
            }
            if out.len() - begin >= BATCH_BYTES {
                break;
            }
        }
        out.len() > begin
    }
}

fn made_item(served: &Served, entry: &Entry, shape: Shape) -> Vec<u8> {
    let mut document = entry_document(served, entry);
    if matches!(shape, Shape::Untyped) {
        document.remove(&["kind"]);
        document.remove(&["apiVersion"]);
    }
    json::to_vec(&document.into_value())
}

impl ByteOwner for Arc<Entry> {
    fn bytes(&self) -> &[u8] {
        &self.bytes
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
            let before =
                "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"c\"";
            let entries: Vec<_> = (0..100)
                .map(|at| Arc::new(entry(98 + at, before, "},\"data\":{\"k\":\"v\"}}")))
                .collect();
            let page = ListPage {
                revision: Revision(999),
                items: Vec::new(),
                continue_token: "a\"b".into(),
                remaining: Some(4),
                reading: None,
            };
            let bytes = entries.iter().map(|entry| shape.of(entry).len()).sum();
            let head = format!("{{\"metadata\":{},\"items\":[", list_meta(&page)).into_bytes();
            let list =
                Items::new(head, entries, TAIL, bytes, move |entry: &Arc<Entry>| shape.of(entry));
            let said = list.left();
            let bytes = list.collect();
            assert_eq!(said, Some(bytes.len() as u64));
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(value["items"].as_array().unwrap().len(), 100);
            assert_eq!(value["metadata"]["remainingItemCount"], 4);
        }
    }
}
