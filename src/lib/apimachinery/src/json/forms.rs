//! Other forms of an object as slices of its canonical bytes: nothing is parsed or written again.
//!
//! `bytes` are canonical bytes with the revision spliced in; `layout` holds positions of the unspliced bytes, so that what lies behind the splice needs its length.

use super::{Layout, scan};

const REVISION_KEY: &[u8] = b"\"resourceVersion\":\"";

/// Appends what is spliced into an object's metadata: `,"resourceVersion":"N"`, without the comma when metadata is empty.
pub fn append_revision(out: &mut Vec<u8>, comma: bool, revision: u64) {
    if comma {
        out.push(b',');
    }
    out.extend_from_slice(REVISION_KEY);
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.push(b'"');
}

/// How many bytes [`append_revision`] appends.
pub fn revision_length(comma: bool, revision: u64) -> usize {
    usize::from(comma) + REVISION_KEY.len() + itoa::Buffer::new().format(revision).len() + 1
}

/// Canonical bytes with the revision spliced in.
pub fn splice_revision(bytes: &[u8], layout: &Layout, revision: u64) -> Vec<u8> {
    let (head, tail) = bytes.split_at(layout.revision_at as usize);
    let mut out = Vec::with_capacity(bytes.len() + revision_length(layout.comma(), revision));
    out.extend_from_slice(head);
    append_revision(&mut out, layout.comma(), revision);
    out.extend_from_slice(tail);
    out
}

/// The metadata object, with its resourceVersion.
pub fn metadata<'a>(bytes: &'a [u8], layout: &Layout, splice_length: usize) -> &'a [u8] {
    bytes.get(layout.metadata as usize..layout.revision_at as usize + splice_length + 1).unwrap_or_default()
}

/// The object as a list item of a native kind, which carries no kind and apiVersion: everything but the opening brace, which the caller writes before it.
pub fn item<'a>(bytes: &'a [u8], layout: &Layout) -> &'a [u8] {
    bytes.get(layout.type_end as usize..).unwrap_or_default()
}

/// The bytes that begin with the labels object (and go on behind it), for [`scan`]; `None` without labels.
pub fn labels<'a>(bytes: &'a [u8], layout: &Layout) -> Option<&'a [u8]> {
    if layout.labels == 0 { None } else { bytes.get(layout.labels as usize..) }
}

/// One label's value.
pub fn label<'a>(bytes: &'a [u8], layout: &Layout, key: &str) -> Option<std::borrow::Cow<'a, str>> {
    scan::label(labels(bytes, layout)?, key)
}
