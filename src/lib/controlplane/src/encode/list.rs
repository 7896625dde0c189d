//! Lists: the choice of an encoding, and lists as JSON. Items are slices of stored bytes, streamed
//! in frames with a known total length; other styles are encoded while they are sent.

use super::chunk_cache::{ChunkCache, ChunkEncoding, ChunkScope, ChunkedList};
use super::rendered::{self, BATCH_BYTES, ItemText, LENT_BYTES, ListJson, Rendered, Style};
use super::slices::ItemSlice;
use super::stream::{self, Fill, OffloadedBody, SlicedItems, Streamed};
use super::table::{self, Table};
use super::vectored::ByteOwner;
use super::{Encoder, entry_document, partial_document, protobuf};
use crate::action::Include;
use crate::negotiate::{Accepted, Form, View};
use crate::{body, compress, status};
use bytes::Bytes;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json;
use ferrokube_registry::{ListPage, Served};
use ferrokube_serve::Response;
use ferrokube_storage::Entry;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec::IntoIter;

/// Part of an entry that is an item.
#[derive(Clone, Copy, Debug)]
enum ItemCut {
    /// Without kind and apiVersion.
    Untyped,
    /// The whole object.
    Whole,
    /// `PartialObjectMetadata` of this version.
    Metadata(&'static str),
}

impl ItemCut {
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

/// The requested form of a list.
#[derive(Clone, Copy)]
pub(crate) struct ListFormat {
    pub(crate) accepted: Accepted,
    /// Objects in the rows of a Table.
    pub(crate) include: Include,
    /// Base of the ages in a Table.
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
    /// The response, streamed unless it is short: a client that reads slowly holds one frame
    /// besides the stored objects.
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

    /// The list as plain JSON, regardless of what the client accepts.
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
                list.gzipped(self.chunks)
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
            status::with_type(200, media_type, OffloadedBody::new(stream).boxed_unsync())
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

fn cut_of(served: &Served, view: View) -> ItemCut {
    match view {
        View::MetadataList(version) => ItemCut::Metadata(version),
        _ if !served.definition.dialect.is_typed() => ItemCut::Whole,
        _ => ItemCut::Untyped,
    }
}

fn json_head(served: &Served, page: &ListPage, view: View) -> String {
    let (kind, api_version) = list_type(served, view);
    let mut meta = list_meta(page);
    if !served.definition.dialect.is_typed()
        && page.continue_token.is_empty()
        && !matches!(view, View::MetadataList(_))
    {
        // kube-apiserver's unstructured lists always have it.
        meta.insert_str(1, "\"continue\":\"\",");
    }
    // kube-apiserver encodes an empty metadata list as null, and no other list.
    let items =
        if page.items.is_empty() && matches!(view, View::MetadataList(_)) { "null" } else { "[" };
    format!(
        "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"items\":{items}"
    )
}

/// The part after the items.
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

/// A list as JSON, of any style.
struct JsonList {
    head: String,
    entries: Vec<Arc<Entry>>,
    cut: ItemCut,
    served: Served,
    /// Total length of the items, if all are slices of stored bytes.
    stored_bytes: Option<usize>,
}

impl JsonList {
    fn new(served: &Served, mut page: ListPage, view: View) -> Self {
        let head = json_head(served, &page, view);
        let cut = cut_of(served, view);
        let entries = std::mem::take(&mut page.items);
        let is_direct = served.direct();
        let is_stored = |entry: &Entry| match cut {
            ItemCut::Metadata(_) => served.has_stored_metadata(),
            _ => is_direct(entry),
        };
        let stored_bytes = entries
            .iter()
            .try_fold(0, |bytes, entry| is_stored(entry).then(|| bytes + cut.of(entry).len()));
        Self { head, entries, cut, served: served.clone(), stored_bytes }
    }

    /// All items are sliced.
    fn stored(self) -> SlicedItems<Arc<Entry>, impl Fn(&Arc<Entry>) -> ItemSlice> {
        let (tail, cut) = (tail(&self.head), self.cut);
        SlicedItems::new(
            self.head.into_bytes(),
            self.entries,
            tail,
            self.stored_bytes.unwrap_or(0),
            move |entry: &Arc<Entry>| cut.of(entry),
        )
    }

    /// Items are encoded.
    fn rendered(self, style: Style) -> Rendered<EncodedItems> {
        let tail = tail(&self.head);
        let source =
            EncodedItems { entries: self.entries.into_iter(), cut: self.cut, served: self.served };
        let list = ListJson {
            opening: self.head.into_bytes().into(),
            definitions: Bytes::new(),
            rest: Bytes::new(),
            tail,
            items: "items",
        };
        Rendered::new(list, source, style)
    }

    /// Compressed, from cached chunks.
    fn gzipped(self, chunks: &ChunkCache) -> Response {
        let cut = self.cut;
        let encoding = match cut {
            ItemCut::Untyped | ItemCut::Whole => ChunkEncoding::Json,
            ItemCut::Metadata(version) => ChunkEncoding::JsonMetadata(version),
        };
        let write = move |entry: &Entry, out: &mut Vec<u8>| cut.of(entry).write(entry, out);
        let scope = ChunkScope {
            definition: Arc::clone(&self.served.definition),
            version: self.served.version,
            encoding,
        };
        let source = ChunkedList {
            scope,
            head: self.head.into_bytes(),
            entries: self.entries,
            tail: TAIL,
            write,
        };
        let mut response = status::with_type(
            200,
            Form::Json.media_type(),
            OffloadedBody::new(chunks.gzip_chunks(source)).boxed_unsync(),
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

/// Encodes items in another version, with an outdated schema, or in another style.
struct EncodedItems {
    entries: IntoIter<Arc<Entry>>,
    cut: ItemCut,
    served: Served,
}

impl rendered::ItemSource for EncodedItems {
    fn next(&mut self) -> Option<ItemText> {
        let (mut out, is_direct) = (Vec::new(), self.served.direct());
        while let Some(entry) = self.entries.as_slice().first() {
            let is_whole = is_direct(entry) && !matches!(self.cut, ItemCut::Metadata(_));
            if is_whole && entry.bytes.len() >= LENT_BYTES {
                if !out.is_empty() {
                    break;
                }
                let ItemSlice { head, part, .. } = self.cut.of(entry);
                let bytes = entry.bytes.clone();
                self.entries.next();
                return Some(ItemText::Lent { bytes, head, from: part.start });
            }
            if !out.is_empty() {
                out.push(b',');
            }
            if match self.cut {
                ItemCut::Metadata(_) => self.served.has_stored_metadata(),
                _ => is_whole,
            } {
                self.cut.of(entry).write(entry, &mut out);
            } else {
                out.extend_from_slice(&encode_item(&self.served, entry, self.cut));
            }
            self.entries.next();
            if out.len() >= BATCH_BYTES {
                break;
            }
        }
        (!out.is_empty()).then_some(ItemText::Batch(out))
    }
}

fn encode_item(served: &Served, entry: &Entry, cut: ItemCut) -> Vec<u8> {
    let mut document = entry_document(served, entry);
    match cut {
        ItemCut::Untyped => {
            document.remove(&["kind"]);
            document.remove(&["apiVersion"]);
        }
        ItemCut::Metadata(version) => document = partial_document(served, &document, version),
        ItemCut::Whole => {}
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
    fn a_list_has_the_announced_length_and_is_valid_json() {
        for cut in [ItemCut::Untyped, ItemCut::Whole, ItemCut::Metadata("v1")] {
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
            let bytes = entries.iter().map(|entry| cut.of(entry).len()).sum();
            let head = format!("{{\"metadata\":{},\"items\":[", list_meta(&page)).into_bytes();
            let list = SlicedItems::new(head, entries, TAIL, bytes, move |entry: &Arc<Entry>| {
                cut.of(entry)
            });
            let said = list.left();
            let bytes = list.collect();
            assert_eq!(said, Some(bytes.len() as u64));
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(value["items"].as_array().unwrap().len(), 100);
            assert_eq!(value["metadata"]["remainingItemCount"], 4);
        }
    }
}
