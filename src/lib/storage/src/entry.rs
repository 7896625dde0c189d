//! Stored values.

use crate::key::{Key, Revision};
use bytes::Bytes;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, Ordering};

/// Data that a writer reads back without parsing the value. Kept in memory and in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    /// Offsets into the value, opaque to the store. (The codec keeps `type_end`, `metadata` and
    /// `labels`.)
    pub marks: [u32; 3],
    /// Offset at which `"resourceVersion":"<revision>"` is spliced in on publication.
    pub revision_at: u32,
    /// Whether the splice needs a leading comma.
    pub comma: bool,
    /// Values of the resource's selectable fields, in declaration order; empty for most resources.
    pub fields: FieldValues,
    /// Version of the schema the value was written with.
    pub schema_epoch: u32,
    /// The form in which it is stored.
    pub form: ValueForm,
}

/// The form in which a value is stored, next to the one in which this server would store it. Three
/// bytes, for which a [`Sidecar`] has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueForm([u8; 3]);

impl ValueForm {
    /// The server's own.
    pub const OWN: Self = Self([0, 0, 0]);
    /// That of an older version, codec or key: the next write is never a no-op.
    pub const STALE: Self = Self([1, 0, 0]);

    /// That of bytes in a storage with other writers: a digest, so that values are encoded for a
    /// comparison only when a write would change nothing. One of 16 million other encodings has the
    /// same, which is then kept until the object changes.
    pub fn of(stored: &[u8]) -> Self {
        let [a, b, c, d] = crc32fast::hash(stored).to_le_bytes();
        let digest = Self([a, b, c ^ d]);
        // Neither of the others.
        if matches!(digest, Self::OWN | Self::STALE) { Self([2, 0, 0]) } else { digest }
    }
}

/// A short list of texts that takes a single word of each entry, as most have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldValues(Option<Box<Box<[Box<str>]>>>);

impl Deref for FieldValues {
    type Target = [Box<str>];

    fn deref(&self) -> &[Box<str>] {
        self.0.as_ref().map_or(&[], |values| values)
    }
}

impl FromIterator<Box<str>> for FieldValues {
    fn from_iter<I: IntoIterator<Item = Box<str>>>(values: I) -> Self {
        let values: Box<[Box<str>]> = values.into_iter().collect();
        Self((!values.is_empty()).then(|| Box::new(values)))
    }
}

/// Version of the schema of which a reader found that the value meets it; 0: none yet. For values
/// that others wrote, whose [`Sidecar::schema_epoch`] is unknown.
#[derive(Debug, Default)]
pub struct CheckedEpoch(AtomicU32);

impl Clone for CheckedEpoch {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.0.load(Ordering::Relaxed)))
    }
}

impl CheckedEpoch {
    /// Records a reader's result.
    pub fn set(&self, epoch: u32) {
        self.0.store(epoch, Ordering::Relaxed);
    }

    /// Whether it was this version.
    pub fn is(&self, epoch: u32) -> bool {
        epoch != 0 && self.0.load(Ordering::Relaxed) == epoch
    }
}

/// One published or pending value, shared by the current state, the history and all readers.
#[derive(Debug)]
pub struct Entry {
    /// With the prefix of its resource.
    pub key: Key,
    /// Revision that wrote it, also spliced into `bytes`.
    pub revision: Revision,
    /// Revision that created the key.
    pub create_revision: Revision,
    /// The value with the revision spliced in.
    pub bytes: Bytes,
    /// Writer's sidecar; offsets beyond `revision_at` refer to the unspliced value.
    pub sidecar: Sidecar,
    /// Results of readers since then.
    pub checked: CheckedEpoch,
}

const FIELD: &[u8] = b"\"resourceVersion\":\"";

impl Entry {
    /// Range of the spliced revision (comma included) in `bytes`.
    pub fn spliced(&self) -> Range<usize> {
        let start = self.sidecar.revision_at as usize;
        start..start + splice_len(self.sidecar.comma, self.revision)
    }

    /// The value as written: the parts before and after the splice.
    pub fn value(&self) -> [&[u8]; 2] {
        let spliced = self.spliced();
        [&self.bytes[..spliced.start], &self.bytes[spliced.end..]]
    }

    /// The same revision with another value, such as the object in another version.
    /// `sidecar.revision_at` must lie within `value`.
    pub fn with_value(&self, value: &[u8], sidecar: Sidecar) -> Self {
        DraftEntry::new([value, &[]], sidecar, self.revision).finish(
            self.key.clone(),
            self.revision,
            self.create_revision,
        )
    }

    /// Length of the value as written, in bytes.
    pub fn value_len(&self) -> usize {
        self.bytes.len() - self.spliced().len()
    }
}

fn digits(revision: Revision) -> usize {
    revision.0.checked_ilog10().unwrap_or(0) as usize + 1
}

fn splice_len(comma: bool, revision: Revision) -> usize {
    usize::from(comma) + FIELD.len() + digits(revision) + 1
}

/// A value with a predicted revision spliced in. Built before taking the lock that assigns
/// revisions, so that only digits are left to patch there.
pub(crate) struct DraftEntry {
    buffer: Vec<u8>,
    sidecar: Sidecar,
    guess: Revision,
}

impl DraftEntry {
    /// `sidecar.revision_at` must lie within the value (checked by the caller).
    pub(crate) fn new(value: [&[u8]; 2], sidecar: Sidecar, guess: Revision) -> Self {
        let len = value[0].len() + value[1].len();
        let mut buffer = Vec::with_capacity(len + splice_len(sidecar.comma, guess));
        let at = sidecar.revision_at as usize;
        if at <= value[0].len() {
            buffer.extend_from_slice(&value[0][..at]);
            splice(&mut buffer, sidecar.comma, guess);
            buffer.extend_from_slice(&value[0][at..]);
            buffer.extend_from_slice(value[1]);
        } else {
            buffer.extend_from_slice(value[0]);
            let at = at - value[0].len();
            buffer.extend_from_slice(&value[1][..at]);
            splice(&mut buffer, sidecar.comma, guess);
            buffer.extend_from_slice(&value[1][at..]);
        }
        Self { buffer, sidecar, guess }
    }

    /// Finishes the entry with its actual revision.
    pub(crate) fn finish(
        mut self,
        key: Key,
        revision: Revision,
        create_revision: Revision,
    ) -> Entry {
        let start =
            self.sidecar.revision_at as usize + usize::from(self.sidecar.comma) + FIELD.len();
        let width = digits(self.guess);
        if width == digits(revision) {
            let mut rest = revision.0;
            for digit in self.buffer[start..start + width].iter_mut().rev() {
                *digit = b'0' + u8::try_from(rest % 10).expect("a decimal digit");
                rest /= 10;
            }
        } else {
            self.buffer.splice(start..start + width, revision.0.to_string().into_bytes());
            self.buffer.shrink_to_fit();
        }
        let (bytes, checked) = (self.buffer.into(), CheckedEpoch::default());
        Entry { key, revision, create_revision, bytes, sidecar: self.sidecar, checked }
    }
}

fn splice(buffer: &mut Vec<u8>, comma: bool, revision: Revision) {
    use std::io::Write as _;
    if comma {
        buffer.push(b',');
    }
    buffer.extend_from_slice(FIELD);
    write!(buffer, "{revision}\"").expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Prefix;

    #[test]
    fn an_entry_fills_its_allocation() {
        // With the two counts of its `Arc` 128 bytes; the allocator's next size is 160.
        assert!(size_of::<Entry>() <= 112, "{}", size_of::<Entry>());
    }

    #[test]
    fn field_values_are_equal_if_their_texts_are() {
        let values =
            |texts: &[&str]| -> FieldValues { texts.iter().map(|text| Box::from(*text)).collect() };
        assert_eq!(values(&[]), FieldValues::default());
        assert_eq!(*values(&["a", ""]), [Box::from("a"), Box::from("")]);
        assert_ne!(values(&[""]), values(&[]));
    }

    #[test]
    fn a_revision_is_spliced_whatever_was_guessed() {
        let key = Prefix::new("x").unwrap().key(None, "a").unwrap();
        for (guess, revision) in
            [(1, 1), (1, 9), (9, 10), (10, 99), (100, 7), (u64::MAX, 3), (1, u64::MAX)]
        {
            for (comma, text) in [
                (true, format!(r#"{{"a":1,"resourceVersion":"{revision}","b":2}}"#)),
                (false, format!(r#"{{"a":1"resourceVersion":"{revision}","b":2}}"#)),
            ] {
                let sidecar = Sidecar { revision_at: 6, comma, ..Sidecar::default() };
                let value = br#"{"a":1,"b":2}"#;
                let cut: [&[u8]; 2] = if comma { [value, b""] } else { [&value[..3], &value[3..]] };
                let entry = DraftEntry::new(cut, sidecar, Revision(guess)).finish(
                    key.clone(),
                    Revision(revision),
                    Revision(1),
                );
                assert_eq!(String::from_utf8_lossy(&entry.bytes), text);
                assert_eq!(entry.value().concat(), value);
                assert_eq!(entry.value_len(), value.len());
            }
        }
    }
}
