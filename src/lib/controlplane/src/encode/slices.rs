//! Views of a stored entry as slices of its bytes, found by the layout of the canonical encoding.

use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_resource::Printable;
use ferrokube_storage::Entry;
use std::ops::Range;

fn layout(entry: &Entry) -> Layout {
    Layout::from_marks(entry.sidecar.marks, entry.sidecar.revision_at)
}

/// A view as JSON: a slice of the stored bytes between constants.
pub(crate) struct ItemSlice {
    pub(crate) head: &'static [u8],
    /// Range in the entry's bytes.
    pub(crate) part: Range<usize>,
    pub(crate) tail: &'static [u8],
}

impl ItemSlice {
    /// Without kind and apiVersion, as items of native lists are.
    pub(crate) fn untyped(entry: &Entry) -> Self {
        let length = forms::item(&entry.bytes, &layout(entry)).len();
        Self { head: b"{", part: entry.bytes.len() - length..entry.bytes.len(), tail: b"" }
    }

    pub(crate) fn whole(entry: &Entry) -> Self {
        Self { head: b"", part: 0..entry.bytes.len(), tail: b"" }
    }

    /// `PartialObjectMetadata` of a version, without a newline.
    pub(crate) fn partial(entry: &Entry, version: &str) -> Self {
        let start = layout(entry).metadata as usize;
        let head = if version == "v1beta1" { PARTIAL_V1BETA1 } else { PARTIAL_V1 };
        Self { head, part: start..start + metadata(entry).len(), tail: b"}" }
    }

    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.part.len() + self.tail.len()
    }

    pub(crate) fn write(&self, entry: &Entry, out: &mut Vec<u8>) {
        out.extend_from_slice(self.head);
        out.extend_from_slice(&entry.bytes[self.part.clone()]);
        out.extend_from_slice(self.tail);
    }
}

const PARTIAL_V1: &[u8] =
    br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;
const PARTIAL_V1BETA1: &[u8] =
    br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":"#;

pub(crate) fn metadata(entry: &Entry) -> &[u8] {
    let splice = forms::revision_length(entry.sidecar.comma, entry.revision.0);
    forms::metadata(&entry.bytes, &layout(entry), splice)
}

/// For Table rows.
pub(crate) fn printable(entry: &Entry) -> Printable<'_> {
    Printable::new(
        &entry.bytes,
        &layout(entry),
        forms::revision_length(entry.sidecar.comma, entry.revision.0),
    )
}

/// The canonical encoding puts the uid after nothing but names, which cannot contain a quote.
pub(crate) fn uid(entry: &Entry) -> &str {
    const KEY: &[u8] = b"\"uid\":\"";
    let metadata = metadata(entry);
    let Some(at) = memchr::memmem::find(metadata, KEY) else { return "" };
    let rest = &metadata[at + KEY.len()..];
    let end = memchr::memchr(b'"', rest).unwrap_or(0);
    std::str::from_utf8(&rest[..end]).unwrap_or_default()
}

/// `PartialObjectMetadata`, without a newline.
pub(crate) fn partial(entry: &Entry, version: &str) -> Vec<u8> {
    let cut = ItemSlice::partial(entry, version);
    let mut out = Vec::with_capacity(cut.len() + 1);
    cut.write(entry, &mut out);
    out
}

pub(crate) fn with_newline(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 1);
    out.extend_from_slice(bytes);
    out.push(b'\n');
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ferrokube_storage::{CheckedEpoch, Prefix, Revision, Sidecar};

    /// An entry as the store publishes it; `before` and `after` surround the resource version.
    pub(crate) fn entry(revision: u64, before: &str, after: &str) -> Entry {
        let comma = !before.ends_with('{');
        let bytes = format!(
            "{before}{}\"resourceVersion\":\"{revision}\"{after}",
            if comma { "," } else { "" }
        );
        let type_end = before.find("\"metadata\"").unwrap();
        let marks = [type_end, type_end + 11, 0].map(|mark| u32::try_from(mark).unwrap());
        Entry {
            key: Prefix::new("configmaps").unwrap().key(Some("n"), "a").unwrap(),
            revision: Revision(revision),
            create_revision: Revision(1),
            bytes: bytes.into_bytes().into(),
            sidecar: Sidecar {
                marks,
                revision_at: u32::try_from(before.len()).unwrap(),
                comma,
                ..Sidecar::default()
            },
            checked: CheckedEpoch::default(),
        }
    }

    #[test]
    fn every_view_is_a_slice() {
        let entry = entry(
            123,
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","uid":"u-1","labels":{"uid":"no"}"#,
            r#"},"data":{"k":"v"}}"#,
        );
        let mut untyped = Vec::new();
        ItemSlice::untyped(&entry).write(&entry, &mut untyped);
        assert_eq!(untyped, br#"{"metadata":{"name":"a","uid":"u-1","labels":{"uid":"no"},"resourceVersion":"123"},"data":{"k":"v"}}"#);
        let want = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","uid":"u-1","labels":{"uid":"no"},"resourceVersion":"123"}}"#;
        assert_eq!(partial(&entry, "v1"), want.as_bytes());
        assert_eq!(uid(&entry), "u-1");
    }

    #[test]
    fn an_empty_metadata_has_no_comma() {
        let entry = entry(9, r#"{"kind":"T","apiVersion":"g/v1","metadata":{"#, "}}");
        assert_eq!(partial(&entry, "v1beta1"), br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","metadata":{"resourceVersion":"9"}}"#);
        assert_eq!(uid(&entry), "");
    }
}
