//! Cached chunks of large lists in expensive encodings: about 64 objects each, reused while the
//! objects are unchanged and the list is requested again.
//!
//! Protobuf items are concatenated. A gzip response is one member of deflate chunks, each ending at
//! a byte boundary and referring to nothing before it, so that they can be joined in any order;
//! their checksums are combined. Never several members: many clients stop after the first. Encoding
//! or compressing every response from scratch costs ten times the rest of a large list.

use super::gzip::{GzipSum, HEADER};
use super::rows::{RowDraft, Rows};
use super::stream::{Fill, PREFETCHED_ITEMS};
use super::vectored::SliceFrame;
use crate::action::Include;
use bytes::{Buf, Bytes};
use ferrokube_resource::Definition;
use ferrokube_serve::{Chunk, WRITE_BYTES};
use ferrokube_storage::Entry;
use flate2::FlushCompress;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A chunk ends after an object with a probability of 1 in 64, by its revision alone: a change
/// moves no other chunk's boundary.
const MEAN_OBJECTS: u64 = 64;
/// Bounds of a chunk.
const MAX_OBJECTS: usize = 4 * MEAN_OBJECTS as usize;
const MAX_BYTES: usize = 64 * 1024;
/// Bytes of cached chunks; beyond it, those that the current list does not use are dropped.
const MAX_CACHED_BYTES: usize = 32 * 1024 * 1024;
/// Unused chunks are dropped after this.
const UNUSED_AFTER: Duration = Duration::from_secs(6);
/// Interval of the sweep for unused chunks.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// Number of recent lists remembered, to detect repeated ones.
const MAX_RECENT: usize = 32;

/// Encoding of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChunkEncoding {
    Json,
    /// `PartialObjectMetadata` of this version.
    JsonMetadata(&'static str),
    Protobuf,
    ProtobufMetadata(&'static str),
    /// Rows of a Table of this version.
    Rows(&'static str, Include),
}

/// Cache key part: chunks are never shared between definitions, versions or encodings. (One
/// revision has other bytes in another version.)
#[derive(Clone)]
pub(crate) struct ChunkScope {
    pub(crate) definition: Arc<Definition>,
    /// Index of the served version.
    pub(crate) version: usize,
    pub(crate) encoding: ChunkEncoding,
}

impl ChunkScope {
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.encoding, self.version, Arc::as_ptr(&self.definition).addr()).hash(&mut hasher);
        hasher.finish()
    }

    fn is(&self, other: &Self) -> bool {
        self.encoding == other.encoding
            && self.version == other.version
            && Arc::ptr_eq(&self.definition, &other.definition)
    }
}

/// Encoded items.
#[derive(Clone)]
pub(crate) struct EncodedChunk {
    /// The encoded rows; Table rows have gaps for ages.
    rows: Rows,
    /// Checksum of the uncompressed bytes; only for compressed items.
    sum: GzipSum,
}

impl EncodedChunk {
    fn plain(rows: Rows) -> Self {
        Self { rows, sum: GzipSum::default() }
    }
}

/// A list that looks for its chunks.
pub(crate) struct ChunkedListing {
    scope: ChunkScope,
    number: u64,
    /// The same list was requested a moment ago.
    is_repeated: bool,
}

impl ChunkedListing {
    /// Max rows that are encoded at once.
    pub(crate) fn max_rows(&self) -> usize {
        if self.is_repeated { MAX_OBJECTS } else { PREFETCHED_ITEMS }
    }

    /// The entries of the next chunk.
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

/// A chunk and its key.
struct CachedChunk {
    scope: ChunkScope,
    first: bool,
    revisions: Arc<[u64]>,
    chunk: EncodedChunk,
    /// The last list that used it, and when.
    used: u64,
    used_at: Instant,
}

impl CachedChunk {
    fn is(&self, run: &Run<'_>) -> bool {
        self.scope.is(run.scope) && self.first == run.first && *self.revisions == *run.revisions
    }
}

/// The entries of one chunk of a list.
struct Run<'a> {
    scope: &'a ChunkScope,
    entries: &'a [Arc<Entry>],
    revisions: Arc<[u64]>,
    /// No comma precedes it.
    first: bool,
    list: u64,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ChunkCache(Arc<Mutex<CacheState>>);

#[derive(Default)]
struct CacheState {
    chunks: HashMap<u64, CachedChunk>,
    bytes: usize,
    lists: u64,
    /// A sweep task is running.
    is_swept: bool,
    /// The last lists, and when they were requested.
    recent: VecDeque<(u64, Instant)>,
}

/// A list to encode in chunks.
pub(crate) struct ChunkedList<W> {
    pub(crate) scope: ChunkScope,
    /// Before the first item.
    pub(crate) head: Vec<u8>,
    pub(crate) entries: Vec<Arc<Entry>>,
    /// After the last item.
    pub(crate) tail: &'static [u8],
    /// Appends one item.
    pub(crate) write: W,
}

/// Iterates over the chunks of a list; holds only the next one.
struct ChunkIter<M> {
    chunks: ChunkCache,
    listing: ChunkedListing,
    entries: Vec<Arc<Entry>>,
    at: usize,
    commas: bool,
    make: M,
    /// The next chunk with its number of entries, if it was looked up and is cached.
    peeked: Option<(usize, EncodedChunk)>,
}

impl<M: FnMut(&[Arc<Entry>], bool) -> EncodedChunk> ChunkIter<M> {
    /// With `commas` the first chunk of a list differs, as no comma precedes it; `make` gets
    /// whether it makes that one.
    fn new(
        chunks: &ChunkCache,
        scope: ChunkScope,
        entries: Vec<Arc<Entry>>,
        commas: bool,
        make: M,
    ) -> Self {
        Self {
            listing: chunks.begin(scope),
            chunks: chunks.clone(),
            entries,
            at: 0,
            commas,
            make,
            peeked: None,
        }
    }

    fn is_at_end(&self) -> bool {
        self.at == self.entries.len()
    }

    /// The next chunk, if it is cached.
    fn peeked(&mut self) -> Option<&EncodedChunk> {
        if self.peeked.is_none() && !self.is_at_end() {
            let run = self.listing.run(&self.entries[self.at..], !self.commas || self.at == 0);
            self.peeked =
                self.chunks.kept(key_of(&run), &run).map(|chunk| (run.entries.len(), chunk));
        }
        self.peeked.as_ref().map(|(_, chunk)| chunk)
    }

    fn next(&mut self) -> Option<EncodedChunk> {
        if self.is_at_end() {
            return None;
        }
        if self.peeked().is_none() {
            let run = self.listing.run(&self.entries[self.at..], !self.commas || self.at == 0);
            let chunk = (self.make)(run.entries, run.first);
            self.chunks.keep(key_of(&run), &run, chunk.clone());
            self.peeked = Some((run.entries.len(), chunk));
        }
        let (count, chunk) = self.peeked.take()?;
        self.at += count;
        Some(chunk)
    }

    /// A frame of the next cached chunks, or of one that is made; `None` at the end.
    fn frame(&mut self, mut each: impl FnMut(&EncodedChunk)) -> Option<SliceFrame<Bytes>> {
        let mut frame = SliceFrame::new(0, WRITE_BYTES);
        while frame.is_empty()
            || self.peeked().is_some_and(|chunk| frame.fits(chunk.rows.bytes.len()))
        {
            let Some(chunk) = self.next() else { break };
            each(&chunk);
            let bytes = chunk.rows.bytes;
            let all = 0..bytes.len();
            frame.reference(bytes, b"", all, b"");
        }
        (!frame.is_empty()).then_some(frame)
    }
}

/// A gzip body.
pub(crate) struct Zipped<M> {
    walk: ChunkIter<M>,
    head: Vec<u8>,
    tail: &'static [u8],
    sum: GzipSum,
    done: bool,
}

impl<M: FnMut(&[Arc<Entry>], bool) -> EncodedChunk + Unpin + Send + 'static> Fill for Zipped<M> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        if !self.head.is_empty() {
            let head = std::mem::take(&mut self.head);
            return Some([HEADER, &self.sum.deflate(&head, FlushCompress::Sync)].concat().into());
        }
        let sum = &mut self.sum;
        if let Some(frame) = self.walk.frame(|chunk| sum.combine(&chunk.sum)) {
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
        self.walk.is_at_end() || self.walk.peeked().is_some()
    }
}

/// Concatenated items between a head and a tail.
pub(crate) struct Joined<M> {
    walk: ChunkIter<M>,
    head: Vec<u8>,
    tail: &'static [u8],
    left: u64,
}

impl<M: FnMut(&[Arc<Entry>], bool) -> EncodedChunk + Unpin + Send + 'static> Fill for Joined<M> {
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
        self.head.is_empty() && self.walk.is_at_end() && self.tail.is_empty()
    }

    fn left(&self) -> Option<u64> {
        Some(self.left)
    }

    fn is_cheap(&mut self) -> bool {
        self.walk.is_at_end() || self.walk.peeked().is_some()
    }
}

impl ChunkCache {
    /// A gzip body of items separated by commas.
    pub(crate) fn gzip_chunks<W: Fn(&Entry, &mut Vec<u8>) + Unpin + Send + 'static>(
        &self,
        source: ChunkedList<W>,
    ) -> Zipped<impl FnMut(&[Arc<Entry>], bool) -> EncodedChunk + use<W>> {
        let ChunkedList { scope, head, entries, tail, write } = source;
        let make = move |entries: &[Arc<Entry>], first: bool| {
            let mut raw =
                Vec::with_capacity(entries.iter().map(|entry| entry.bytes.len() + 1).sum());
            for (at, entry) in entries.iter().enumerate() {
                if at > 0 || !first {
                    raw.push(b',');
                }
                write(entry, &mut raw);
            }
            let mut sum = GzipSum::default();
            let rows = Rows { bytes: sum.deflate(&raw, FlushCompress::Sync), ..Rows::default() };
            EncodedChunk { rows, sum }
        };
        Zipped {
            walk: ChunkIter::new(self, scope, entries, true, make),
            head,
            tail,
            sum: GzipSum::default(),
            done: false,
        }
    }

    /// Concatenated items. `head` gets their total length, for which all items are encoded once
    /// (off the workers if there are many); chunks cached meanwhile are not made again.
    pub(crate) fn join<W: Fn(&Entry, &mut Vec<u8>) + Clone + Unpin + Send + 'static>(
        &self,
        scope: ChunkScope,
        entries: Vec<Arc<Entry>>,
        tail: &'static [u8],
        write: W,
        head: &dyn Fn(usize) -> Vec<u8>,
    ) -> Joined<impl FnMut(&[Arc<Entry>], bool) -> EncodedChunk + use<W>> {
        let make = move |entries: &[Arc<Entry>], _: bool| {
            let mut bytes = Vec::with_capacity(entries.iter().map(|entry| entry.bytes.len()).sum());
            entries.iter().for_each(|entry| write(entry, &mut bytes));
            // The budget counts lengths, not capacities.
            bytes.shrink_to_fit();
            EncodedChunk::plain(Rows { bytes: bytes.into(), ..Rows::default() })
        };
        let mut measured = ChunkIter::new(self, scope.clone(), entries, false, make.clone());
        let mut items = 0;
        while let Some(chunk) = measured.next() {
            items += chunk.rows.bytes.len();
        }
        let head = head(items);
        let left = (head.len() + items + tail.len()) as u64;
        Joined {
            walk: ChunkIter::new(self, scope, measured.entries, false, make),
            head,
            tail,
            left,
        }
    }

    /// Rows for a prefix of `entries`, and its length. They are only cached for repeated lists, as
    /// caching costs half as much as encoding, and never if they depend on the time.
    pub(crate) fn rows<'d>(
        &self,
        listing: &ChunkedListing,
        entries: &[Arc<Entry>],
        write: impl FnOnce(&[Arc<Entry>]) -> &'d mut RowDraft,
    ) -> (usize, Rows) {
        if !listing.is_repeated {
            return uncached_rows(entries, write);
        }
        let run = listing.run(entries, true);
        let key = key_of(&run);
        if let Some(chunk) = self.kept(key, &run) {
            return (run.entries.len(), chunk.rows);
        }
        let draft = write(run.entries);
        if draft.is_dated {
            return (run.entries.len(), draft.take());
        }
        let rows = draft.rows();
        self.keep(key, &run, EncodedChunk::plain(rows.clone()));
        (run.entries.len(), rows)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().chunks.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock()
    }

    /// Registers a list.
    pub(crate) fn begin(&self, scope: ChunkScope) -> ChunkedListing {
        let what = scope.key();
        let mut state = self.lock();
        state.lists += 1;
        state.recent.retain(|(_, at)| at.elapsed() < UNUSED_AFTER);
        let is_repeated = state.recent.iter().any(|(recent, _)| *recent == what);
        state.recent.retain(|(recent, _)| *recent != what);
        state.recent.truncate(MAX_RECENT - 1);
        state.recent.push_front((what, Instant::now()));
        ChunkedListing { scope, number: state.lists, is_repeated }
    }

    fn kept(&self, key: u64, run: &Run<'_>) -> Option<EncodedChunk> {
        let mut state = self.lock();
        let kept = state.chunks.get_mut(&key).filter(|kept| kept.is(run))?;
        (kept.used, kept.used_at) = (run.list, Instant::now());
        Some(kept.chunk.clone())
    }

    fn keep(&self, key: u64, run: &Run<'_>, chunk: EncodedChunk) {
        let mut state = self.lock();
        let length = chunk.rows.cost();
        if state.bytes + length > MAX_CACHED_BYTES {
            state.retain(|kept| kept.used >= run.list);
        }
        if state.bytes + length > MAX_CACHED_BYTES {
            return;
        }
        let (scope, revisions) = (run.scope.clone(), Arc::clone(&run.revisions));
        let kept = CachedChunk {
            scope,
            first: run.first,
            revisions,
            chunk,
            used: run.list,
            used_at: Instant::now(),
        };
        state.bytes += length;
        if let Some(old) = state.chunks.insert(key, kept) {
            state.bytes -= old.chunk.rows.cost();
        }
        if !state.is_swept
            && let Ok(runtime) = Handle::try_current()
        {
            state.is_swept = true;
            runtime.spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

impl CacheState {
    fn retain(&mut self, stays: impl Fn(&CachedChunk) -> bool) {
        self.chunks.retain(|_, kept| stays(kept));
        self.bytes = self.chunks.values().map(|kept| kept.chunk.rows.cost()).sum();
    }
}

/// Drops unused chunks until none are left or the cache is dropped.
async fn sweep(state: Weak<Mutex<CacheState>>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = state.lock();
        state.retain(|kept| kept.used_at.elapsed() < UNUSED_AFTER);
        if state.chunks.is_empty() {
            state.chunks = HashMap::new();
            state.is_swept = false;
            return;
        }
    }
}

/// Rows that are not cached.
pub(crate) fn uncached_rows<'d>(
    entries: &[Arc<Entry>],
    write: impl FnOnce(&[Arc<Entry>]) -> &'d mut RowDraft,
) -> (usize, Rows) {
    // As many as are prefetched together: still in the nearest cache when sent.
    let run = &entries[..run_length(entries).min(PREFETCHED_ITEMS)];
    (run.len(), write(run).take())
}

fn key_of(run: &Run<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (run.scope.key(), run.first, &run.revisions).hash(&mut hasher);
    hasher.finish()
}

/// Number of entries in the next chunk. Its end depends on the last entry's revision alone, or the
/// bounds.
fn run_length(entries: &[Arc<Entry>]) -> usize {
    let mut bytes = 0;
    for (at, entry) in entries.iter().enumerate() {
        bytes += entry.bytes.len();
        let ends = entry.revision.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if ends.is_multiple_of(MEAN_OBJECTS) || at + 1 >= MAX_OBJECTS || bytes >= MAX_BYTES {
            return at + 1;
        }
    }
    entries.len()
}

#[cfg(test)]
mod tests;
