//! Large lists in forms that cost much to make: written in pieces of some 64 objects each, which are kept and used again while their objects stay and
//! somebody lists them.
//!
//! Protobuf items are simply joined. gzip is one member made of deflate pieces: they end at a byte boundary and refer to nothing outside, so that they can be
//! joined in any order; the checksums are combined. Never several gzip members: many clients stop after the first. The rivals, compressing or transcoding
//! every answer anew, cost ten times the rest of a large list.

use super::rows::{Draft, Rows};
use super::stream::WARMED;
use super::table::Include;
use bytes::Bytes;
use ferrokube_resource::Definition;
use ferrokube_storage::Entry;
use flate2::{Compress, Compression, FlushCompress};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A piece ends after an object with a probability of one in so many, so that a change moves no boundary but its own.
const OBJECTS: u64 = 64;
/// No piece has more objects or bytes.
const MAX_OBJECTS: usize = 4 * OBJECTS as usize;
const MAX_BYTES: usize = 512 * 1024;
/// Bytes that are kept; beyond it what the present list does not use is dropped.
const KEPT_BYTES: usize = 32 * 1024 * 1024;
/// A piece that no list used for so long is dropped.
const COLD: Duration = Duration::from_secs(6);
/// How often is looked for them.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// How many of the last lists are remembered, to know what is listed again and again.
const RECENT: usize = 32;

/// A gzip header: magic, deflate, no flags, no time, fastest, unknown system.
const HEADER: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// How items are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// JSON of the objects.
    Json,
    /// JSON of their metadata, as `PartialObjectMetadata` of a version.
    JsonMetadata(&'static str),
    /// Protobuf of the objects.
    Protobuf,
    /// Protobuf of their metadata.
    ProtobufMetadata,
    /// Rows of a Table of a version.
    Rows(&'static str, Include),
}

/// What tells the pieces of one form of one resource from others: objects have other bytes under one revision when they are converted.
#[derive(Clone)]
pub(crate) struct Scope {
    /// The resource.
    pub(crate) definition: Arc<Definition>,
    /// In which of its versions.
    pub(crate) version: usize,
    /// The form of its items.
    pub(crate) form: Form,
}

impl Scope {
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.form, self.version, Arc::as_ptr(&self.definition).addr()).hash(&mut hasher);
        hasher.finish()
    }

    fn is(&self, other: &Self) -> bool {
        self.form == other.form && self.version == other.version && Arc::ptr_eq(&self.definition, &other.definition)
    }
}

/// A run of items, written.
#[derive(Clone)]
struct Piece {
    /// What is sent, with gaps if it is rows of a Table.
    rows: Rows,
    /// Of the bytes before they were compressed.
    checksum: crc32fast::Hasher,
    raw_bytes: u64,
}

impl Piece {
    fn plain(rows: Rows) -> Self {
        Self { raw_bytes: rows.bytes.len() as u64, rows, checksum: crc32fast::Hasher::new() }
    }
}

/// A list whose pieces are looked for.
pub(crate) struct Listing {
    scope: Scope,
    number: u64,
    /// The same was listed a moment ago.
    again: bool,
}

impl Listing {
    /// What the next piece is made of.
    fn run<'a>(&'a self, entries: &'a [Arc<Entry>], first: bool) -> Run<'a> {
        let entries = &entries[..run_length(entries)];
        Run { scope: &self.scope, entries, revisions: entries.iter().map(|entry| entry.revision.0).collect(), first, list: self.number }
    }
}

/// A piece and what it was made of.
struct Kept {
    scope: Scope,
    first: bool,
    revisions: Arc<[u64]>,
    piece: Piece,
    /// The last list that used it, and when.
    used: u64,
    used_at: Instant,
}

impl Kept {
    fn is(&self, run: &Run<'_>) -> bool {
        self.scope.is(run.scope) && self.first == run.first && *self.revisions == *run.revisions
    }
}

/// A run of entries in a list.
struct Run<'a> {
    scope: &'a Scope,
    entries: &'a [Arc<Entry>],
    revisions: Arc<[u64]>,
    /// No comma comes before it.
    first: bool,
    list: u64,
}

/// The pieces that are kept. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Pieces(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pieces: HashMap<u64, Kept>,
    bytes: usize,
    lists: u64,
    /// A task looks for cold ones.
    swept: bool,
    /// What was listed last, and when.
    recent: VecDeque<(u64, Instant)>,
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
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(source.head);
        let mut frames = vec![Bytes::from_static(HEADER), zipper.deflate(source.head, FlushCompress::Sync)];
        let mut raw = Vec::new();
        let mut raw_bytes = (source.head.len() + source.tail.len()) as u64;
        let make = |run: &Run<'_>| {
            raw.clear();
            for (at, entry) in run.entries.iter().enumerate() {
                if at > 0 || !run.first {
                    raw.push(b',');
                }
                (source.write)(entry, &mut raw);
            }
            let mut checksum = crc32fast::Hasher::new();
            checksum.update(&raw);
            let rows = Rows { bytes: zipper.deflate(&raw, FlushCompress::Sync), ..Rows::default() };
            Piece { rows, checksum, raw_bytes: raw.len() as u64 }
        };
        for piece in self.pieces(source.scope.clone(), source.entries, true, make) {
            checksum.combine(&piece.checksum);
            raw_bytes += piece.raw_bytes;
            frames.push(piece.rows.bytes);
        }
        checksum.update(source.tail);
        frames.push(Zipper::new().deflate(source.tail, FlushCompress::Finish));
        // The trailer holds the length modulo 2^32.
        let length = u32::try_from(raw_bytes & u64::from(u32::MAX)).expect("masked to 32 bits");
        frames.push([checksum.finalize().to_le_bytes(), length.to_le_bytes()].concat().into());
        frames
    }

    /// The frames of items that need nothing between them, as they are written.
    pub(crate) fn join(&self, scope: Scope, entries: &[Arc<Entry>], write: impl Fn(&Entry, &mut Vec<u8>)) -> Vec<Bytes> {
        let make = |run: &Run<'_>| {
            let mut bytes = Vec::with_capacity(run.entries.iter().map(|entry| entry.bytes.len()).sum());
            run.entries.iter().for_each(|entry| write(entry, &mut bytes));
            // What is kept is counted by its length.
            bytes.shrink_to_fit();
            Piece::plain(Rows { bytes: bytes.into(), ..Rows::default() })
        };
        self.pieces(scope, entries, false, make).into_iter().map(|piece| piece.rows.bytes).collect()
    }

    /// Rows of a Table for the first of some entries, and for how many of them: kept ones, or what `write` writes. They are kept when the same is listed
    /// again and again, and not dated: it costs a list half as much again to keep its rows.
    pub(crate) fn rows<'d>(&self, listing: &Listing, entries: &[Arc<Entry>], write: impl FnOnce(&[Arc<Entry>]) -> &'d mut Draft) -> (usize, Rows) {
        if !listing.again {
            // As many as are touched together: they are in the nearest cache when they are sent.
            let run = &entries[..run_length(entries).min(WARMED)];
            return (run.len(), write(run).take());
        }
        let run = listing.run(entries, true);
        let key = key_of(&run);
        if let Some(piece) = self.kept(key, &run) {
            return (run.entries.len(), piece.rows);
        }
        let draft = write(run.entries);
        if draft.is_dated {
            return (run.entries.len(), draft.take());
        }
        let rows = draft.rows();
        self.keep(key, &run, Piece::plain(rows.clone()));
        (run.entries.len(), rows)
    }

    /// The pieces of a list: those that are kept, and those that `make` has to make.
    fn pieces(&self, scope: Scope, entries: &[Arc<Entry>], commas: bool, mut make: impl FnMut(&Run<'_>) -> Piece) -> Vec<Piece> {
        let listing = self.begin(scope);
        let (mut pieces, mut rest) = (Vec::new(), entries);
        while !rest.is_empty() {
            let run = listing.run(rest, !commas || rest.len() == entries.len());
            let key = key_of(&run);
            pieces.push(self.kept(key, &run).unwrap_or_else(|| {
                let piece = make(&run);
                self.keep(key, &run, piece.clone());
                piece
            }));
            rest = &rest[run.entries.len()..];
        }
        pieces
    }

    /// Whether none is kept.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().pieces.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while held")
    }

    /// A list begins.
    pub(crate) fn begin(&self, scope: Scope) -> Listing {
        let what = scope.key();
        let mut state = self.lock();
        state.lists += 1;
        state.recent.retain(|(_, at)| at.elapsed() < COLD);
        let again = state.recent.iter().any(|(recent, _)| *recent == what);
        state.recent.retain(|(recent, _)| *recent != what);
        state.recent.truncate(RECENT - 1);
        state.recent.push_front((what, Instant::now()));
        Listing { scope, number: state.lists, again }
    }

    fn kept(&self, key: u64, run: &Run<'_>) -> Option<Piece> {
        let mut state = self.lock();
        let kept = state.pieces.get_mut(&key).filter(|kept| kept.is(run))?;
        (kept.used, kept.used_at) = (run.list, Instant::now());
        Some(kept.piece.clone())
    }

    fn keep(&self, key: u64, run: &Run<'_>, piece: Piece) {
        let mut state = self.lock();
        let length = piece.rows.cost();
        if state.bytes + length > KEPT_BYTES {
            state.retain(|kept| kept.used >= run.list);
        }
        if state.bytes + length > KEPT_BYTES {
            return;
        }
        let (scope, revisions) = (run.scope.clone(), Arc::clone(&run.revisions));
        let kept = Kept { scope, first: run.first, revisions, piece, used: run.list, used_at: Instant::now() };
        state.bytes += length;
        if let Some(old) = state.pieces.insert(key, kept) {
            state.bytes -= old.piece.rows.cost();
        }
        if !state.swept
            && let Ok(runtime) = Handle::try_current()
        {
            state.swept = true;
            runtime.spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

impl State {
    fn retain(&mut self, stays: impl Fn(&Kept) -> bool) {
        self.pieces.retain(|_, kept| stays(kept));
        self.bytes = self.pieces.values().map(|kept| kept.piece.rows.cost()).sum();
    }
}

/// Drops cold pieces until there are none, or nobody has them any more.
async fn sweep(state: Weak<Mutex<State>>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = state.lock().expect("no panic while held");
        state.retain(|kept| kept.used_at.elapsed() < COLD);
        if state.pieces.is_empty() {
            state.pieces = HashMap::new();
            state.swept = false;
            return;
        }
    }
}

fn key_of(run: &Run<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (run.scope.key(), run.first, &run.revisions).hash(&mut hasher);
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
        let scope = Scope { definition: Arc::clone(definition), version: 0, form: Form::Json };
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
    fn items_that_need_nothing_between_them_are_joined() {
        let (pieces, scope) = (Pieces::default(), Scope { definition: definition(), version: 0, form: Form::Protobuf });
        let entries = entries(1000);
        let join = || pieces.join(scope.clone(), &entries, |entry, out| out.extend_from_slice(&entry.bytes));
        let (first, second) = (join(), join());
        assert_eq!(first.concat(), entries.iter().flat_map(|entry| entry.bytes.to_vec()).collect::<Vec<u8>>());
        assert!(first.len() > 4 && first.iter().zip(&second).all(|(one, other)| one.as_ptr() == other.as_ptr()), "kept");
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_that_nobody_lists_are_dropped() {
        let (pieces, definition) = (Pieces::default(), definition());
        zip(&pieces, &definition, &entries(1000));
        assert!(pieces.lock().bytes > 0);
        tokio::time::sleep(COLD - SWEEP_EVERY).await;
        assert!(pieces.lock().bytes > 0);
        tokio::time::sleep(COLD).await;
        assert_eq!(pieces.lock().bytes, 0);
        assert!(!pieces.lock().swept);
        zip(&pieces, &definition, &entries(1000));
        assert!(pieces.lock().swept, "and watched over again");
    }

    #[test]
    fn versions_and_forms_share_no_pieces() {
        let (pieces, definition) = (Pieces::default(), definition());
        let entries = entries(300);
        for version in 0..3_u8 {
            for form in [Form::Protobuf, Form::ProtobufMetadata, Form::JsonMetadata("v1"), Form::JsonMetadata("v1beta1")] {
                let scope = Scope { definition: Arc::clone(&definition), version: version.into(), form };
                let letter = format!("{form:?}");
                let joined = pieces.join(scope.clone(), &entries, |_, out| out.extend([letter.as_bytes(), &[version]].concat()));
                assert_eq!(joined.concat(), [letter.as_bytes(), &[version]].concat().repeat(300));
            }
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
