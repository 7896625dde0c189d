//! Other forms of an object as slices of its canonical bytes, without parsing or encoding.
//!
//! `bytes` are canonical bytes with the revision spliced in. `layout` has positions in the
//! unspliced bytes: those after the splice need its length.

use super::writer::{FIRST, comma, plain};
use super::{Layout, scan};

const REVISION_KEY: &[u8] = b"\"resourceVersion\":\"";

/// Appends `,"resourceVersion":"N"`, without the comma if metadata is empty.
pub fn append_revision(out: &mut Vec<u8>, comma: bool, revision: u64) {
    if comma {
        out.push(b',');
    }
    out.extend_from_slice(REVISION_KEY);
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.push(b'"');
}

/// Length of what [`append_revision`] appends.
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

/// Canonical bytes, without a revision, of the object with annotations merged into its own, as by
/// [`super::write_with`]; with their layout.
///
/// `splice_length` is that of the revision in `bytes`. `None` if copying cannot produce them:
/// annotations with escapes or of another type, or metadata without fields after the annotations.
pub fn with_annotations(
    bytes: &[u8],
    layout: &Layout,
    splice_length: usize,
    annotations: &[(&str, &str)],
) -> Option<(Vec<u8>, Layout)> {
    let metadata = layout.metadata as usize;
    let mut fields = scan::fields(bytes.get(metadata..)?);
    let (start, end, own) = loop {
        let at = metadata + fields.position();
        let (key, value) = fields.next()?;
        match key {
            b"annotations" => break (at, metadata + fields.position() - 1, value),
            // The same if only the spliced revision follows: its comma is not part of the object.
            _ if at >= layout.revision_at as usize => return None,
            _ if key > b"annotations" && !FIRST.iter().any(|name| name.as_bytes() == key) => {
                break (at, at, b"{}".as_slice());
            }
            _ => {}
        }
    };
    let mut out = Vec::with_capacity(bytes.len() + 256);
    out.extend_from_slice(&bytes[..start]);
    out.extend_from_slice(b"\"annotations\":{");
    merge(&mut out, own, annotations)?;
    out.push(b'}');
    if start == end {
        out.push(b',');
    }
    let revision_at = layout.revision_at as usize;
    out.extend_from_slice(bytes.get(end..revision_at)?);
    let moved = u32::try_from(out.len()).ok()? - layout.revision_at;
    out.extend_from_slice(bytes.get(revision_at + splice_length..)?);
    let labels = if layout.labels == 0 { 0 } else { layout.labels + moved };
    Some((out, Layout { labels, revision_at: layout.revision_at + moved, ..*layout }))
}

/// Merges sorted fields; of equal keys the added one wins.
fn merge(out: &mut Vec<u8>, own: &[u8], added: &[(&str, &str)]) -> Option<()> {
    if own.first() != Some(&b'{') {
        return None;
    }
    let mut added = added.iter().peekable();
    for (key, value) in scan::fields(own) {
        if key.contains(&b'\\') {
            return None;
        }
        while let Some((before, text)) = added.next_if(|(added, _)| added.as_bytes() < key) {
            plain(out, before, text);
        }
        match added.next_if(|(added, _)| added.as_bytes() == key) {
            Some((key, text)) => plain(out, key, text),
            None => {
                comma(out);
                out.push(b'"');
                out.extend_from_slice(key);
                out.extend_from_slice(b"\":");
                out.extend_from_slice(value);
            }
        }
    }
    added.for_each(|(key, text)| plain(out, key, text));
    Some(())
}

/// The metadata object, with its resourceVersion.
pub fn metadata<'a>(bytes: &'a [u8], layout: &Layout, splice_length: usize) -> &'a [u8] {
    bytes
        .get(layout.metadata as usize..layout.revision_at as usize + splice_length + 1)
        .unwrap_or_default()
}

/// The object as an item of a native list, without kind and apiVersion. The caller writes the
/// opening brace.
pub fn item<'a>(bytes: &'a [u8], layout: &Layout) -> &'a [u8] {
    bytes.get(layout.type_end as usize..).unwrap_or_default()
}

/// The bytes from the labels object on, for [`scan`]; `None` without labels.
pub fn labels<'a>(bytes: &'a [u8], layout: &Layout) -> Option<&'a [u8]> {
    if layout.labels == 0 { None } else { bytes.get(layout.labels as usize..) }
}

/// Value of a label.
pub fn label<'a>(bytes: &'a [u8], layout: &Layout, key: &str) -> Option<std::borrow::Cow<'a, str>> {
    scan::label(labels(bytes, layout)?, key)
}
