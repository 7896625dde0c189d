//! Protobuf framing: envelopes, lengths, lists.

use super::chunk_cache::{ChunkCache, ChunkEncoding, ChunkScope};
use super::stream::Fill;
use super::{Encoder, META, entry_document, list, partial_document};
use crate::negotiate::View;
use bytes::BufMut;
use ferrokube_apimachinery::json;
use ferrokube_registry::{ListPage, Served};
use ferrokube_storage::Entry;
use std::sync::Arc;

/// After the message in an envelope: empty content encoding and content type.
const ENVELOPE_TAIL: &[u8] = &[0x1a, 0, 0x22, 0];

/// Numbers of the metadata and of the items in a list message.
const NUMBERS: [u8; 2] = [1, 2];
/// Those in `meta.k8s.io/v1beta1`'s `PartialObjectMetadataList`.
const OLD_NUMBERS: [u8; 2] = [2, 1];

/// A list message from cached chunks. The envelope starts
/// with the list's length, so all items are encoded before the first frame: call it off the workers
/// for large lists.
pub(super) fn list(
    encoder: &Encoder,
    chunks: &ChunkCache,
    served: &Served,
    mut page: ListPage,
    view: View,
) -> impl Fill + use<> {
    let (kind, api_version) = list::list_type(served, view);
    let meta = json::read_value(list::list_meta(&page).as_bytes()).unwrap_or_default();
    let [of_metadata, of_items] = match view {
        View::MetadataList("v1beta1") => OLD_NUMBERS,
        _ => NUMBERS,
    };
    let mut raw = Vec::new();
    put_message(
        &mut raw,
        of_metadata,
        &encoder.messages().write_bare(&format!("{META}.ListMeta"), &meta).unwrap_or_default(),
    );
    let (message, encoding) = match view {
        View::MetadataList(version) => {
            (format!("{META}.PartialObjectMetadata"), ChunkEncoding::ProtobufMetadata(version))
        }
        _ => (served.version().message.clone().unwrap_or_default(), ChunkEncoding::Protobuf),
    };
    let (encoder, of) = (encoder.clone(), served.clone());
    let write = move |entry: &Entry, out: &mut Vec<u8>| {
        let document = entry_document(&of, entry);
        let item = match view {
            View::MetadataList(version) => partial_document(&of, &document, version),
            _ => document,
        };
        match encoder.messages().write_bare(&message, &item.into_value()) {
            Ok(bytes) => put_message(out, of_items, &bytes),
            Err(error) => {
                tracing::warn!(message, error = %error, "an object does not fit its protobuf message")
            }
        }
    };
    let scope = ChunkScope {
        definition: Arc::clone(&served.definition),
        version: served.version,
        encoding,
    };
    chunks.join(scope, std::mem::take(&mut page.items), ENVELOPE_TAIL, write, &|items| {
        let mut head = envelope_head(&kind, &api_version, raw.len() + items);
        head.extend_from_slice(&raw);
        head
    })
}

/// `k8s\0` and a `runtime.Unknown` up to its message of `length` bytes; [`ENVELOPE_TAIL`] follows
/// it.
fn envelope_head(kind: &str, api_version: &str, length: usize) -> Vec<u8> {
    let mut type_meta = Vec::new();
    put_message(&mut type_meta, 1, api_version.as_bytes());
    put_message(&mut type_meta, 2, kind.as_bytes());
    let mut head = Vec::with_capacity(type_meta.len() + 32);
    head.put_slice(b"k8s\0");
    put_message(&mut head, 1, &type_meta);
    put_length(&mut head, 2, length);
    head
}

/// Writes a length-delimited field.
pub(crate) fn put_message(out: &mut impl BufMut, field: u8, bytes: &[u8]) {
    put_length(out, field, bytes.len());
    out.put_slice(bytes);
}

/// Writes the tag and length of one.
fn put_length(out: &mut impl BufMut, field: u8, mut length: usize) {
    out.put_u8(field << 3 | 2);
    while length >= 0x80 {
        out.put_u8((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.put_u8(length as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_varints() {
        let mut out = Vec::new();
        put_message(&mut out, 2, &[7; 300]);
        assert_eq!(&out[..4], [0x12, 0xac, 0x02, 7]);
        assert_eq!(envelope_head("K", "v1", 300), b"k8s\0\x0a\x07\x0a\x02v1\x12\x01K\x12\xac\x02");
    }
}
