//! Large lists in forms that cost much to make: written in pieces of some 64 objects each, which
//! are kept and used again while their objects stay and somebody lists them.
//!
//! Protobuf items are simply joined. gzip is one member made of deflate pieces: they end at a byte
//! boundary and refer to nothing outside, so that they can be joined in any order; the checksums
//! are combined. Never several gzip members: many clients stop after the first. The rivals,
//! compressing or transcoding every answer anew, cost ten times the rest of a large list.

use super::rows::{Draft, Rows};
use super::stream::{Fill, WARMED};
use super::table::Include;
use super::vectored::Lent;
use bytes::{Buf, Bytes};
use ferrokube_resource::Definition;
use ferrokube_serve::{Chunk, WRITE_BYTES};
use ferrokube_storage::Entry;
use flate2::{Compress, Compression, FlushCompress};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A piece ends after an object with a probability of one in so many, so that a change moves no
/// boundary but its own.
const OBJECTS: u64 = 64;
/// No piece has more objects or bytes.
const MAX_OBJECTS: usize = 4 * OBJECTS as usize;
const MAX_BYTES: usize = 64 * 1024;
/// Bytes that are kept; beyond it what the present list does not use is dropped.
const KEPT_BYTES: usize = 32 * 1024 * 1024;
/// A piece that no list used for so long is dropped.
const COLD: Duration = Duration::from_secs(6);
/// How often is looked for them.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// How many of the last lists are remembered, to know what is listed again and again.
const RECENT: usize = 32;

/// A gzip header: magic, deflate, no flags, no time, fastest, unknown system.
pub(crate) const HEADER: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

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

/// What tells the pieces of one form of one resource from others: objects have other bytes under
/// one revision when they are converted.
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
        self.form == other.form
            && self.version == other.version
            && Arc::ptr_eq(&self.definition, &other.definition)
    }
}

/// A run of items, written.
#[derive(Clone)]
pub(crate) struct Piece {
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
    /// No more rows of it are written at once.
    pub(crate) fn most_rows(&self) -> usize {
        if self.again { MAX_OBJECTS } else { WARMED }
    }

    /// What the next piece is made of.
    fn run<'a>(&'a self, entries: &'a [Arc<Entry>], first: bool) -> Run<'a> {
        let entries = &entries[..run_length(entries)];
        Run {
            scope: &self.scope,
            entries,
            revisions: entries.iter().map(|entry| entry.revision.0).collect(),
            first,
            list: self.number,
        }
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
pub(crate) struct ChunkCache(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    chunks: HashMap<u64, Kept>,
    bytes: usize,
    lists: u64,
    /// A task looks for cold ones.
    swept: bool,
    /// What was listed last, and when.
    recent: VecDeque<(u64, Instant)>,
}

/// A list to write in pieces: `write` writes one item.
pub(crate) struct Source<W> {
    /// Whose items.
    pub(crate) scope: Scope,
    /// Before the first item.
    pub(crate) head: Vec<u8>,
    /// The items' entries.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// After the last item.
    pub(crate) tail: &'static [u8],
    /// Writes an item.
    pub(crate) write: W,
}

/// A list on its way through its pieces. It holds none but the next one.
struct Walk<M> {
    chunks: ChunkCache,
    listing: Listing,
    entries: Vec<Arc<Entry>>,
    at: usize,
    commas: bool,
    make: M,
    /// The next piece and how many entries it is made of, if it was found to be kept.
    found: Option<(usize, Piece)>,
}

impl<M: FnMut(&[Arc<Entry>], bool) -> Piece> Walk<M> {
    /// With `commas` the first piece is another than it would be elsewhere in a list; `make` is
    /// told whether it makes that one.
    fn new(
        chunks: &ChunkCache,
        scope: Scope,
        entries: Vec<Arc<Entry>>,
        (commas, make): (bool, M),
    ) -> Self {
        Self {
            listing: chunks.begin(scope),
            chunks: chunks.clone(),
            entries,
            at: 0,
            commas,
            make,
            found: None,
        }
    }

    fn is_over(&self) -> bool {
        self.at == self.entries.len()
    }

    /// The next piece, if it is kept.
    fn found(&mut self) -> Option<&Piece> {
        if self.found.is_none() && !self.is_over() {
            let run = self.listing.run(&self.entries[self.at..], !self.commas || self.at == 0);
            self.found =
                self.chunks.kept(key_of(&run), &run).map(|piece| (run.entries.len(), piece));
        }
        self.found.as_ref().map(|(_, piece)| piece)
    }

    fn next(&mut self) -> Option<Piece> {
        if self.is_over() {
            return None;
        }
        if self.found().is_none() {
            let run = self.listing.run(&self.entries[self.at..], !self.commas || self.at == 0);
            let piece = (self.make)(run.entries, run.first);
            self.chunks.keep(key_of(&run), &run, piece.clone());
            self.found = Some((run.entries.len(), piece));
        }
        let (count, piece) = self.found.take()?;
        self.at += count;
        Some(piece)
    }

    /// The next pieces that need not be made, or else one that is, as a frame; `None` at the end.
    fn frame(&mut self, mut each: impl FnMut(&Piece)) -> Option<Lent<Bytes>> {
        let mut frame = Lent::new(0, WRITE_BYTES);
        while frame.is_empty()
            || self.found().is_some_and(|piece| frame.fits(piece.rows.bytes.len()))
        {
            let Some(piece) = self.next() else { break };
            each(&piece);
            let bytes = piece.rows.bytes;
            let all = 0..bytes.len();
            frame.lend(bytes, b"", all, b"");
        }
        (!frame.is_empty()).then_some(frame)
    }
}

/// A gzip body.
pub(crate) struct Zipped<M> {
    walk: Walk<M>,
    head: Vec<u8>,
    tail: &'static [u8],
    sum: Sum,
    done: bool,
}

impl<M: FnMut(&[Arc<Entry>], bool) -> Piece + Unpin + Send + 'static> Fill for Zipped<M> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        if !self.head.is_empty() {
            let head = std::mem::take(&mut self.head);
            return Some([HEADER, &self.sum.deflate(&head, FlushCompress::Sync)].concat().into());
        }
        let sum = &mut self.sum;
        if let Some(frame) = self.walk.frame(|piece| sum.combine(piece)) {
            return Some(Chunk::lent(frame));
        }
        self.done = true;
        let tail = self.sum.deflate(self.tail, FlushCompress::Finish);
        Some([&tail[..], &self.sum.trailer()].concat().into())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_cheap(&mut self) -> bool {
        self.walk.is_over() || self.walk.found().is_some()
    }
}

/// Items that need nothing between them, between a head and a tail.
pub(crate) struct Joined<M> {
    walk: Walk<M>,
    head: Vec<u8>,
    tail: &'static [u8],
    left: u64,
}

impl<M: FnMut(&[Arc<Entry>], bool) -> Piece + Unpin + Send + 'static> Fill for Joined<M> {
    fn fill(&mut self) -> Option<Chunk> {
        let chunk: Chunk = if !self.head.is_empty() {
            std::mem::take(&mut self.head).into()
        } else if let Some(frame) = self.walk.frame(|_| ()) {
            Chunk::lent(frame)
        } else if !self.tail.is_empty() {
            Bytes::from_static(std::mem::take(&mut self.tail)).into()
        } else {
            return None;
        };
        self.left = self.left.saturating_sub(chunk.remaining() as u64);
        Some(chunk)
    }

    fn is_done(&self) -> bool {
        self.head.is_empty() && self.walk.is_over() && self.tail.is_empty()
    }

    fn left(&self) -> Option<u64> {
        Some(self.left)
    }

    fn is_cheap(&mut self) -> bool {
        self.walk.is_over() || self.walk.found().is_some()
    }
}

/// Checksum and length of what a gzip member holds.
#[derive(Default)]
pub(crate) struct Sum {
    checksum: crc32fast::Hasher,
    raw_bytes: u64,
}

impl Sum {
    /// Compresses what comes next, independent of what came before.
    pub(crate) fn deflate(&mut self, raw: &[u8], flush: FlushCompress) -> Bytes {
        self.checksum.update(raw);
        self.raw_bytes += raw.len() as u64;
        deflate(raw, flush)
    }

    fn combine(&mut self, piece: &Piece) {
        self.checksum.combine(&piece.checksum);
        self.raw_bytes += piece.raw_bytes;
    }

    /// The end of the member.
    pub(crate) fn trailer(&self) -> [u8; 8] {
        // The trailer holds the length modulo 2^32.
        let length =
            u32::try_from(self.raw_bytes & u64::from(u32::MAX)).expect("masked to 32 bits");
        let mut trailer = [0; 8];
        trailer[..4].copy_from_slice(&self.checksum.clone().finalize().to_le_bytes());
        trailer[4..].copy_from_slice(&length.to_le_bytes());
        trailer
    }
}

impl ChunkCache {
    /// A gzip body of items that are separated by commas.
    pub(crate) fn zip<W: Fn(&Entry, &mut Vec<u8>) + Unpin + Send + 'static>(
        &self,
        source: Source<W>,
    ) -> Zipped<impl FnMut(&[Arc<Entry>], bool) -> Piece + use<W>> {
        let Source { scope, head, entries, tail, write } = source;
        let make = move |entries: &[Arc<Entry>], first: bool| {
            let mut raw =
                Vec::with_capacity(entries.iter().map(|entry| entry.bytes.len() + 1).sum());
            for (at, entry) in entries.iter().enumerate() {
                if at > 0 || !first {
                    raw.push(b',');
                }
                write(entry, &mut raw);
            }
            let mut sum = Sum::default();
            let rows = Rows { bytes: sum.deflate(&raw, FlushCompress::Sync), ..Rows::default() };
            Piece { rows, checksum: sum.checksum, raw_bytes: sum.raw_bytes }
        };
        Zipped {
            walk: Walk::new(self, scope, entries, (true, make)),
            head,
            tail,
            sum: Sum::default(),
            done: false,
        }
    }

    /// Items that need nothing between them, as they are written. `head` gets the length of all
    /// items; to know that, all are made once: off the workers if there are many. What is kept
    /// meanwhile is not made again when it is sent.
    pub(crate) fn join<W: Fn(&Entry, &mut Vec<u8>) + Clone + Unpin + Send + 'static>(
        &self,
        (scope, tail): (Scope, &'static [u8]),
        entries: Vec<Arc<Entry>>,
        write: W,
        head: &dyn Fn(usize) -> Vec<u8>,
    ) -> Joined<impl FnMut(&[Arc<Entry>], bool) -> Piece + use<W>> {
        let make = move |entries: &[Arc<Entry>], _: bool| {
            let mut bytes = Vec::with_capacity(entries.iter().map(|entry| entry.bytes.len()).sum());
            entries.iter().for_each(|entry| write(entry, &mut bytes));
            // What is kept is counted by its length.
            bytes.shrink_to_fit();
            Piece::plain(Rows { bytes: bytes.into(), ..Rows::default() })
        };
        let mut measured = Walk::new(self, scope.clone(), entries, (false, make.clone()));
        let mut items = 0;
        while let Some(piece) = measured.next() {
            items += piece.rows.bytes.len();
        }
        let head = head(items);
        let left = (head.len() + items + tail.len()) as u64;
        Joined { walk: Walk::new(self, scope, measured.entries, (false, make)), head, tail, left }
    }

    /// Rows of a Table for the first of some entries, and for how many of them: kept ones, or what
    /// `write` writes. They are kept when the same is listed again and again, and not dated: it
    /// costs a list half as much again to keep its rows.
    pub(crate) fn rows<'d>(
        &self,
        listing: &Listing,
        entries: &[Arc<Entry>],
        write: impl FnOnce(&[Arc<Entry>]) -> &'d mut Draft,
    ) -> (usize, Rows) {
        if !listing.again {
            return rows_once(entries, write);
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

    /// Whether none is kept.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().chunks.is_empty()
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
        let kept = state.chunks.get_mut(&key).filter(|kept| kept.is(run))?;
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
        let kept = Kept {
            scope,
            first: run.first,
            revisions,
            piece,
            used: run.list,
            used_at: Instant::now(),
        };
        state.bytes += length;
        if let Some(old) = state.chunks.insert(key, kept) {
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
        self.chunks.retain(|_, kept| stays(kept));
        self.bytes = self.chunks.values().map(|kept| kept.piece.rows.cost()).sum();
    }
}

/// Drops cold pieces until there are none, or nobody has them any more.
async fn sweep(state: Weak<Mutex<State>>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = state.lock().expect("no panic while held");
        state.retain(|kept| kept.used_at.elapsed() < COLD);
        if state.chunks.is_empty() {
            state.chunks = HashMap::new();
            state.swept = false;
            return;
        }
    }
}

/// The same, never kept.
pub(crate) fn rows_once<'d>(
    entries: &[Arc<Entry>],
    write: impl FnOnce(&[Arc<Entry>]) -> &'d mut Draft,
) -> (usize, Rows) {
    // As many as are touched together: they are in the nearest cache when they are sent.
    let run = &entries[..run_length(entries).min(WARMED)];
    (run.len(), write(run).take())
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

thread_local! {
    /// A compressor for one piece after the other: its state is large.
    static COMPRESS: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

/// Raw deflate of all of the input, independent of what came before.
fn deflate(input: &[u8], flush: FlushCompress) -> Bytes {
    COMPRESS.with_borrow_mut(|compress| {
        compress.reset();
        let mut out = Vec::with_capacity(input.len() / 4 + 256);
        loop {
            let read = usize::try_from(compress.total_in()).unwrap_or(usize::MAX);
            let status = compress
                .compress_vec(&input[read..], &mut out, flush)
                .expect("deflating memory into memory cannot fail");
            let room = out.capacity() > out.len();
            if status == flate2::Status::StreamEnd
                || (room
                    && compress.total_in() == input.len() as u64
                    && !matches!(flush, FlushCompress::Finish))
            {
                out.shrink_to_fit();
                return out.into();
            }
            out.reserve(out.len() / 2 + 256);
        }
    })
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
        (0..count)
            .map(|n| {
                Arc::new(entry(
                    1000 + n * 7,
                    "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"",
                    &object(n),
                ))
            })
            .collect()
    }

    fn zip(
        chunks: &ChunkCache,
        definition: &Arc<Definition>,
        entries: &[Arc<Entry>],
    ) -> Vec<Bytes> {
        let scope = Scope { definition: Arc::clone(definition), version: 0, form: Form::Json };
        let write = |entry: &Entry, out: &mut Vec<u8>| out.extend_from_slice(&entry.bytes);
        frames(chunks.zip(Source {
            scope,
            head: b"{\"items\":[".to_vec(),
            entries: entries.to_vec(),
            tail: b"]}\n",
            write,
        }))
    }

    fn frames(mut fill: impl Fill) -> Vec<Bytes> {
        std::iter::from_fn(|| fill.fill().map(Chunk::into_bytes)).collect()
    }

    /// Addresses of what is kept.
    fn kept(chunks: &ChunkCache) -> Vec<*const u8> {
        chunks.lock().chunks.values().map(|kept| kept.piece.rows.bytes.as_ptr()).collect()
    }

    fn join(
        chunks: &ChunkCache,
        scope: &Scope,
        entries: &[Arc<Entry>],
        write: impl Fn(&Entry, &mut Vec<u8>) + Clone + Unpin + Send + 'static,
    ) -> Vec<Bytes> {
        frames(chunks.join((scope.clone(), b"tail"), entries.to_vec(), write, &|length| {
            format!("{length};").into_bytes()
        }))
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
        let (chunks, definition) = (ChunkCache::default(), definition());
        for count in [0, 1, 2, 100, 1000] {
            let entries = entries(count);
            let frames = zip(&chunks, &definition, &entries);
            let items: Vec<String> = entries
                .iter()
                .map(|entry| String::from_utf8(entry.bytes.to_vec()).unwrap())
                .collect();
            assert_eq!(
                String::from_utf8(unzip(&frames)).unwrap(),
                format!("{{\"items\":[{}]}}\n", items.join(","))
            );
            assert_eq!(
                unzip(&zip(&chunks, &definition, &entries)),
                unzip(&frames),
                "made of kept chunks"
            );
        }
    }

    #[test]
    fn items_that_need_nothing_between_them_are_joined() {
        let (chunks, scope) = (
            ChunkCache::default(),
            Scope { definition: definition(), version: 0, form: Form::Protobuf },
        );
        let entries = entries(1000);
        let items: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes.to_vec()).collect();
        let want = [format!("{};", items.len()).as_bytes(), &items, b"tail"].concat();
        let first =
            join(&chunks, &scope, &entries, |entry, out| out.extend_from_slice(&entry.bytes));
        assert!(first.concat() == want);
        let before = kept(&chunks);
        let mut second = chunks.join(
            (scope, b"tail"),
            entries,
            |_, _| panic!("all chunks are kept"),
            &|length| format!("{length};").into_bytes(),
        );
        assert_eq!(second.left(), Some(want.len() as u64));
        assert!(second.is_cheap() && frames(second).concat() == want);
        assert!(before.len() > 4 && before == kept(&chunks));
    }

    #[test]
    fn a_list_in_pieces_holds_one_frame_whatever_is_kept() {
        let (chunks, definition, entries) = (ChunkCache::default(), definition(), entries(4000));
        let scope = |form| Scope { definition: Arc::clone(&definition), version: 0, form };
        let write = |entry: &Entry, out: &mut Vec<u8>| out.extend_from_slice(&entry.bytes);
        for _ in 0..2 {
            let zipped = chunks.zip(Source {
                scope: scope(Form::Json),
                head: b"[".to_vec(),
                entries: entries.clone(),
                tail: b"]",
                write,
            });
            let joined = join(&chunks, &scope(Form::Protobuf), &entries, write);
            for frame in frames(zipped).iter().chain(&joined) {
                assert!(frame.len() <= MAX_BYTES + entries[0].bytes.len(), "{} bytes", frame.len());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_that_nobody_lists_are_dropped() {
        let (chunks, definition) = (ChunkCache::default(), definition());
        zip(&chunks, &definition, &entries(1000));
        assert!(chunks.lock().bytes > 0);
        tokio::time::sleep(COLD - SWEEP_EVERY).await;
        assert!(chunks.lock().bytes > 0);
        tokio::time::sleep(COLD).await;
        assert_eq!(chunks.lock().bytes, 0);
        assert!(!chunks.lock().swept);
        zip(&chunks, &definition, &entries(1000));
        assert!(chunks.lock().swept, "and watched over again");
    }

    #[test]
    fn versions_and_forms_share_no_pieces() {
        let (chunks, definition) = (ChunkCache::default(), definition());
        let entries = entries(300);
        for version in 0..3_u8 {
            for form in [
                Form::Protobuf,
                Form::ProtobufMetadata,
                Form::JsonMetadata("v1"),
                Form::JsonMetadata("v1beta1"),
            ] {
                let scope =
                    Scope { definition: Arc::clone(&definition), version: version.into(), form };
                let letter = format!("{form:?}");
                let joined = chunks.join(
                    (scope, b""),
                    entries.clone(),
                    move |_, out| out.extend([letter.as_bytes(), &[version]].concat()),
                    &|_| Vec::new(),
                );
                let letter = format!("{form:?}");
                assert_eq!(joined.collect(), [letter.as_bytes(), &[version]].concat().repeat(300));
            }
        }
    }

    #[test]
    fn a_change_makes_only_its_own_piece_anew() {
        let (chunks, definition) = (ChunkCache::default(), definition());
        let mut entries = entries(2000);
        let before = zip(&chunks, &definition, &entries);
        let before_kept = kept(&chunks);
        assert!(before_kept.len() > 12 && !before.is_empty(), "{} chunks", before_kept.len());
        let changed = entry(
            99_999,
            "{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"b\"",
            "}}",
        );
        entries[1000] = Arc::new(changed);
        let after = zip(&chunks, &definition, &entries);
        let added = kept(&chunks).len() - before_kept.len();
        assert!((1..=3).contains(&added), "{added} chunks were made for one change");
        assert!(String::from_utf8(unzip(&after)).unwrap().contains("\"name\":\"b\""));
    }
}
