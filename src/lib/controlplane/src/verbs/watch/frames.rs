//! Encodes the events of one watch.

use crate::action::Include;
use crate::encode::protobuf::put_message;
use crate::encode::slices::ItemSlice;
use crate::encode::table::Table;
use crate::encode::vectored::SliceFrame;
use crate::encode::{Encoded, Encoder, document_of, partial_document};
use crate::negotiate::{Accepted, Form, View};
use crate::status;
use bytes::{Buf, Bytes, BytesMut};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Object, Served};
use ferrokube_resource::encoding;
use ferrokube_serve::Chunk;
use ferrokube_storage::{Entry, Revision};
use std::sync::Arc;
use std::time::SystemTime;

/// Longer objects are referenced instead of copied: every slow client would hold a copy.
pub(super) const REFERENCED_BYTES: usize = 8 * 1024;

/// Encodes the events of one watch.
pub(super) struct EventEncoder {
    pub(super) served: Served,
    pub(super) accepted: Accepted,
    pub(super) include: Include,
    pub(super) columns_sent: bool,
}

impl EventEncoder {
    /// Whether a conversion webhook converts the objects.
    pub(super) fn needs_webhook(&self) -> bool {
        !matches!(self.accepted.view, View::Metadata(_))
            && self.served.definition.hooks.converter().is_some()
    }

    pub(super) fn object(
        &self,
        encoder: &Encoder,
        kind: &'static str,
        entry: &Arc<Entry>,
    ) -> Bytes {
        if let Some(bytes) = self.sliced(kind, entry) {
            return bytes;
        }
        let object = Object::Stored(Arc::clone(entry));
        let document = match self.accepted.view {
            View::Metadata(version) => {
                partial_document(&self.served, &document_of(&self.served, &object), version)
            }
            _ => document_of(&self.served, &object),
        };
        self.document(encoder, kind, &document, self.message())
    }

    /// The slice of the stored bytes that is the object, if they need no change.
    fn slice_of(&self, entry: &Entry) -> Option<ItemSlice> {
        match (self.accepted.form, self.accepted.view) {
            (Form::Json, View::Metadata(version)) if self.served.has_stored_metadata() => {
                Some(ItemSlice::partial(entry, version))
            }
            (Form::Json, View::Whole) if self.served.is_direct(entry) => {
                Some(ItemSlice::whole(entry))
            }
            _ => None,
        }
    }

    /// An event that references the stored bytes; `None` if they are short or need a change.
    pub(super) fn referenced(&self, kind: &str, entry: &Arc<Entry>) -> Option<Chunk> {
        if entry.bytes.len() < REFERENCED_BYTES {
            return None;
        }
        let ItemSlice { head, part, tail } = self.slice_of(entry)?;
        let head = [head_of(kind).as_bytes(), head].concat();
        let mut lent = SliceFrame::new(head.len() + tail.len() + TAIL.len(), REFERENCED_BYTES);
        lent.reference(Arc::clone(entry), &head, part, tail);
        lent.copy(TAIL);
        Some(Chunk::lent(lent))
    }

    /// An event with a copy of the stored bytes.
    fn sliced(&self, kind: &str, entry: &Entry) -> Option<Bytes> {
        let slice = self.slice_of(entry)?;
        let mut out = Vec::with_capacity(slice.len() + kind.len() + 24);
        out.extend_from_slice(head_of(kind).as_bytes());
        slice.write(entry, &mut out);
        out.extend_from_slice(TAIL);
        Some(out.into())
    }

    fn message(&self) -> &str {
        match self.accepted.view {
            View::Metadata(_) => "k8s.io.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata",
            _ => self.served.version().message.as_deref().unwrap_or_default(),
        }
    }

    fn document(&self, encoder: &Encoder, kind: &str, document: &Document, message: &str) -> Bytes {
        let plain = Accepted { form: self.accepted.form, view: View::Whole, pretty: false };
        let Encoded { bytes, form } = encoder.document(document, plain, Some(message));
        match form {
            Form::Protobuf => protobuf_event(kind, &bytes),
            // Without the newline.
            _ => wrap(kind, &bytes[..bytes.len() - 1]).into(),
        }
    }

    fn table_frames(&mut self, object: &Object) -> [Bytes; 3] {
        let View::Table(version) = self.accepted.view else { return Default::default() };
        let revision = match object {
            Object::Stored(entry) => entry.revision.to_string(),
            Object::Computed(document) => document.meta("resourceVersion").to_owned(),
        };
        let meta = format!("{{\"resourceVersion\":\"{revision}\"}}");
        let mut table = Table::new(&self.served, version, self.include, SystemTime::now());
        let with_columns = !std::mem::replace(&mut self.columns_sent, true);
        let mut frames = table.frames(&meta, with_columns, object);
        let [_, _, rest] = &mut frames;
        rest.truncate(rest.len().saturating_sub(1));
        frames
    }

    pub(super) fn table(&mut self, kind: &str, object: &Object) -> Bytes {
        wrap(kind, &self.table_frames(object).concat()).into()
    }

    /// The first event of a Table with long definitions of columns, which stay where they are.
    pub(super) fn lent_table(&mut self, kind: &str, object: &Object) -> Chunk {
        let [opening, definitions, rest] = self.table_frames(object);
        let head = Bytes::from([head_of(kind).as_bytes(), &opening].concat());
        let tail = Bytes::from([&rest, TAIL].concat());
        Chunk::lent(head.chain(definitions).chain(tail))
    }

    /// The cost of column definitions in the next event.
    pub(super) fn columns_cost(&self) -> usize {
        match self.accepted.view {
            View::Table(_) => self.served.version().columns.cost(),
            _ => 0,
        }
    }

    /// A bookmark: only kind, apiVersion and resourceVersion, and for native kinds the fields that
    /// are always encoded.
    pub(super) fn bookmark(
        &mut self,
        encoder: &Encoder,
        revision: Revision,
        initial_events_end: bool,
    ) -> Bytes {
        let mut document = self.bookmark_document(revision, initial_events_end);
        match self.accepted.view {
            View::Table(_) => self.table("BOOKMARK", &Object::Computed(document)),
            View::Metadata(version) => self.document(
                encoder,
                "BOOKMARK",
                &partial_document(&self.served, &document, version),
                self.message(),
            ),
            _ => {
                encoding::complete(&self.served.version().schema, &mut document);
                self.document(encoder, "BOOKMARK", &document, self.message())
            }
        }
    }

    pub(super) fn bookmark_document(
        &self,
        revision: Revision,
        initial_events_end: bool,
    ) -> Document {
        let mut document = Document::new();
        let gvk = self.served.definition.gvk(self.served.version);
        document.set(&["kind"], gvk.kind.as_str());
        document.set(&["apiVersion"], gvk.api_version());
        document.set(&["metadata", "resourceVersion"], revision.to_string());
        if initial_events_end {
            document
                .set(&["metadata", "annotations"], json!({"k8s.io/initial-events-end": "true"}));
        }
        document
    }

    pub(super) fn error(&self, encoder: &Encoder, failure: &Failure) -> Bytes {
        self.document(encoder, "ERROR", &failure.to_document(), status::message())
    }
}

/// The part head_of an event's object.
fn head_of(kind: &str) -> String {
    ["{\"type\":\"", kind, "\",\"object\":"].concat()
}

/// The part after it.
const TAIL: &[u8] = b"}\n";

/// `{"type":"ADDED","object":...}` and a newline.
fn wrap(kind: &str, object: &[u8]) -> Vec<u8> {
    [head_of(kind).as_bytes(), object, TAIL].concat()
}

/// A length-delimited `WatchEvent` message.
fn protobuf_event(kind: &str, object: &[u8]) -> Bytes {
    let mut raw = BytesMut::with_capacity(object.len() + 8);
    put_message(&mut raw, 1, object);
    let mut event = BytesMut::with_capacity(raw.len() + 24);
    put_message(&mut event, 1, kind.as_bytes());
    put_message(&mut event, 2, &raw);
    let mut frame = BytesMut::with_capacity(event.len() + 4);
    frame.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend_from_slice(&event);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_or_length_delimited() {
        assert_eq!(wrap("ADDED", b"{}"), b"{\"type\":\"ADDED\",\"object\":{}}\n");
        let frame = protobuf_event("ADDED", b"k8s\0");
        assert_eq!(
            usize::try_from(u32::from_be_bytes(frame[..4].try_into().unwrap())).unwrap(),
            frame.len() - 4
        );
        assert_eq!(&frame[4..11], b"\x0a\x05ADDED");
    }
}
