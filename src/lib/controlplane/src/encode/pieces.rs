//! gzip of large lists: one member made of deflate pieces of some 64 objects each, which are kept and used again while their objects stay.
//!
//! Pieces are ended at a byte boundary and refer to nothing outside, so that they can be joined in any order; the checksums are combined. Never several
//! gzip members: many clients stop after the first. The rival, compressing every answer anew, costs ten times the rest of a large list.

use bytes::Bytes;
use ferrokube_resource::Definition;
use ferrokube_storage::Entry;
use flate2::{Compress, Compression, FlushCompress};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

/// A piece ends after an object with a probability of one in so many, so that a change moves no boundary but its own.
const OBJECTS: u64 = 64;
/// No piece has more objects or bytes.
const MAX_OBJECTS: usize = 4 * OBJECTS as usize;
const MAX_BYTES: usize = 512 * 1024;
/// Compressed bytes that are kept; beyond it what the present list does not use is dropped.
const KEPT_BYTES: usize = 32 * 1024 * 1024;

/// A gzip header: magic, deflate, no flags, no time, fastest, unknown system.
const HEADER: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// What tells the pieces of one form of one resource from others.
#[derive(Clone)]
pub(crate) struct Scope {
    /// The resource.
    pub(crate) definition: Arc<Definition>,
    /// The form of its items.
    pub(crate) form: u8,
}

/// A compressed run of items.
#[derive(Clone)]
struct Piece {
    definition: Arc<Definition>,
    form: u8,
    first: bool,
    revisions: Arc<[u64]>,
    deflated: Bytes,
    checksum: crc32fast::Hasher,
    raw_bytes: u64,
    used: u64,
}

impl Piece {
    fn is(&self, scope: &Scope, first: bool, revisions: &[u64]) -> bool {
        self.form == scope.form && self.first == first && *self.revisions == *revisions && Arc::ptr_eq(&self.definition, &scope.definition)
    }
}

/// The pieces that are kept.
#[derive(Default)]
pub(crate) struct Pieces(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    pieces: HashMap<u64, Piece>,
    bytes: usize,
    lists: u64,
}

/// A list to compress: `write` writes one item.
pub(crate) struct Source<'a, W> {
    /// Whose items.
    pub(crate) scope: Scope,
    /// Before the first item.
    pub(crate) head: &'a [u8],
    /// The items' entries.
    pub(crate) entries: &'a [Arc<Entry>],
    /// After the last item.
    pub(crate) tail: &'a [u8],
    /// Writes an item.
    pub(crate) write: W,
}

impl Pieces {
    /// The frames of a gzip body.
    pub(crate) fn zip(&self, source: &Source<'_, impl Fn(&Entry, &mut Vec<u8>)>) -> Vec<Bytes> {
        let mut zipper = Zipper::new();
        let list = self.begin();
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(source.head);
        let mut frames = vec![Bytes::from_static(HEADER), zipper.deflate(source.head, FlushCompress::Sync)];
        let (mut raw, mut rest) = (Vec::new(), source.entries);
        let mut raw_bytes = (source.head.len() + source.tail.len()) as u64;
        while !rest.is_empty() {
            let (run, after) = rest.split_at(run_length(rest));
            let first = rest.len() == source.entries.len();
            let piece = self.piece(source, (run, first, list), &mut zipper, &mut raw);
            checksum.combine(&piece.checksum);
            raw_bytes += piece.raw_bytes;
            frames.push(piece.deflated);
            rest = after;
        }
        checksum.update(source.tail);
        frames.push(zipper.deflate(source.tail, FlushCompress::Finish));
        // The trailer holds the length modulo 2^32.
        let length = u32::try_from(raw_bytes & u64::from(u32::MAX)).expect("masked to 32 bits");
        frames.push([checksum.finalize().to_le_bytes(), length.to_le_bytes()].concat().into());
        frames
    }

    fn begin(&self) -> u64 {
        let mut kept = self.0.lock().expect("no panic while held");
        kept.lists += 1;
        kept.lists
    }

    fn piece(
        &self,
        source: &Source<'_, impl Fn(&Entry, &mut Vec<u8>)>,
        (run, first, list): (&[Arc<Entry>], bool, u64),
        zipper: &mut Zipper,
        raw: &mut Vec<u8>,
    ) -> Piece {
        let revisions: Vec<u64> = run.iter().map(|entry| entry.revision.0).collect();
        let key = key_of(&source.scope, first, &revisions);
        if let Some(piece) = self.0.lock().expect("no panic while held").pieces.get_mut(&key)
            && piece.is(&source.scope, first, &revisions)
        {
            piece.used = list;
            return piece.clone();
        }
        raw.clear();
        for (at, entry) in run.iter().enumerate() {
            if at > 0 || !first {
                raw.push(b',');
            }
            (source.write)(entry, raw);
        }
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(raw);
        let piece = Piece {
            definition: Arc::clone(&source.scope.definition),
            form: source.scope.form,
            first,
            revisions: revisions.into(),
            deflated: zipper.deflate(raw, FlushCompress::Sync),
            checksum,
            raw_bytes: raw.len() as u64,
            used: list,
        };
        self.keep(key, piece.clone());
        piece
    }

    fn keep(&self, key: u64, piece: Piece) {
        let mut kept = self.0.lock().expect("no panic while held");
        if kept.bytes + piece.deflated.len() > KEPT_BYTES {
            let list = piece.used;
            kept.pieces.retain(|_, other| other.used >= list);
            kept.bytes = kept.pieces.values().map(|other| other.deflated.len()).sum();
        }
        if kept.bytes + piece.deflated.len() > KEPT_BYTES {
            return;
        }
        kept.bytes += piece.deflated.len();
        if let Some(old) = kept.pieces.insert(key, piece) {
            kept.bytes -= old.deflated.len();
        }
    }
}

fn key_of(scope: &Scope, first: bool, revisions: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (scope.form, first, Arc::as_ptr(&scope.definition).addr(), revisions).hash(&mut hasher);
    hasher.finish()
}

/// How many entries the next piece has: its end depends on the last one's revision alone.
fn run_length(entries: &[Arc<Entry>]) -> usize {
    let mut bytes = 0;
    for (at, entry) in entries.iter().enumerate() {
        bytes += entry.bytes.len();
        let ends = entry.revision.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if ends.is_multiple_of(OBJECTS) || at + 1 >= MAX_OBJECTS || bytes >= MAX_BYTES {
            return at + 1;
        }
    }
    entries.len()
}

/// A compressor that is used for one piece after the other: its state is large.
struct Zipper(Compress);

impl Zipper {
    fn new() -> Self {
        Self(Compress::new(Compression::fast(), false))
    }

    /// Raw deflate of all of the input, independent of what came before.
    fn deflate(&mut self, input: &[u8], flush: FlushCompress) -> Bytes {
        self.0.reset();
        let mut out = Vec::with_capacity(input.len() / 4 + 256);
        loop {
            let read = usize::try_from(self.0.total_in()).unwrap_or(usize::MAX);
            let status = self.0.compress_vec(&input[read..], &mut out, flush).expect("deflating memory into memory cannot fail");
            let room = out.capacity() > out.len();
            if status == flate2::Status::StreamEnd || (room && self.0.total_in() == input.len() as u64 && !matches!(flush, FlushCompress::Finish)) {
                return out.into();
            }
            out.reserve(out.len() / 2 + 256);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::slices::tests::entry;
    use std::io::Read;

    fn definition() -> Arc<Definition> {
        ferrokube_resources::definitions(ferrokube_resources::tables()).remove(0)
    }

    fn entries(count: u64) -> Vec<Arc<Entry>> {
        let value = "some words that repeat ".repeat(20);
        let object = |n: u64| format!("}},\"data\":{{\"k\":\"{value}{n}\"}}}}");
        (0..count).map(|n| Arc::new(entry(1000 + n * 7, "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"", &object(n)))).collect()
    }

    fn zip(pieces: &Pieces, definition: &Arc<Definition>, entries: &[Arc<Entry>]) -> Vec<Bytes> {
        let scope = Scope { definition: Arc::clone(definition), form: 0 };
        let write = |entry: &Entry, out: &mut Vec<u8>| out.extend_from_slice(&entry.bytes);
        pieces.zip(&Source { scope, head: b"{\"items\":[", entries, tail: b"]}\n", write })
    }

    fn unzip(frames: &[Bytes]) -> Vec<u8> {
        let mut plain = Vec::new();
        let zipped = frames.concat();
        let mut decoder = flate2::bufread::GzDecoder::new(&zipped[..]);
        decoder.read_to_end(&mut plain).unwrap();
        assert!(decoder.into_inner().is_empty(), "one member and nothing after it");
        plain
    }

    #[test]
    fn joined_pieces_are_one_gzip_member() {
        let (pieces, definition) = (Pieces::default(), definition());
        for count in [0, 1, 2, 100, 1000] {
            let entries = entries(count);
            let frames = zip(&pieces, &definition, &entries);
            let items: Vec<String> = entries.iter().map(|entry| String::from_utf8(entry.bytes.to_vec()).unwrap()).collect();
            assert_eq!(String::from_utf8(unzip(&frames)).unwrap(), format!("{{\"items\":[{}]}}\n", items.join(",")));
            assert_eq!(unzip(&zip(&pieces, &definition, &entries)), unzip(&frames), "made of kept pieces");
        }
    }

    #[test]
    fn a_change_makes_only_its_own_piece_anew() {
        let (pieces, definition) = (Pieces::default(), definition());
        let mut entries = entries(2000);
        let before = zip(&pieces, &definition, &entries);
        assert!(before.len() > 12, "{} frames", before.len());
        let changed = entry(99_999, "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"b\"", "}}");
        entries[1000] = Arc::new(changed);
        let after = zip(&pieces, &definition, &entries);
        let shared = after.iter().filter(|frame| before.iter().any(|other| other.as_ptr() == frame.as_ptr())).count();
        assert!(shared + 8 >= after.len(), "{shared} of {} frames are the kept ones", after.len());
        assert!(String::from_utf8(unzip(&after)).unwrap().contains("\"name\":\"b\""));
    }
}
