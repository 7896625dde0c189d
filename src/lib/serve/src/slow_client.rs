//! Detects clients that stop reading.
//!
//! Neither protocol polls a body while its client reads nothing (HTTP/2: grants no window), so a
//! body cannot notice, and a client that acknowledges pings looks alive. Here every response
//! waiting to be polled, and every chunk waiting to be sent, is counted in the slot of the tick in
//! which its wait began. Time is a coarse tick of the connection: no clock is read per frame.

use crate::body::Chunk;
use crate::held::{ConnectionBytes, Holdings};
use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

/// Ticks until a wait is too long.
pub(crate) const TICKS: u32 = 4;
/// Exceeds the ticks until a wait is found, so that no slot is reused too early.
const SLOTS: usize = 8;
/// A chunk makes progress whenever this many bytes of it were sent.
const PROGRESS_BYTES: usize = 4096;

/// Counts waits for one connection's client, by their start.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    now: AtomicUsize,
    /// Number of waits by the tick in which they began.
    begun: [AtomicUsize; SLOTS],
    /// Bytes they hold.
    holding: ConnectionBytes,
}

impl Waits {
    pub(crate) fn new(holdings: Holdings) -> Self {
        Self { holding: ConnectionBytes::new(holdings), ..Self::default() }
    }

    /// Counts bytes until [`Self::release`], whether or not the client reads.
    pub(crate) fn hold(&self, bytes: usize) {
        self.holding.add(bytes);
    }

    /// Ends [`Self::hold`].
    pub(crate) fn release(&self, bytes: usize) {
        self.holding.remove(bytes);
    }

    /// Bytes held for the client.
    pub(crate) fn bytes(&self) -> usize {
        self.holding.bytes()
    }

    /// Advances the time. True if something has waited for at least [`TICKS`] whole ticks.
    pub(crate) fn tick(&self) -> bool {
        let now = self.now.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let late = now.wrapping_sub(TICKS as usize + 1) % SLOTS;
        self.begun[late].load(Ordering::Relaxed) > 0
    }
}

/// Something that may wait for the client; ends its wait when dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    waits: Arc<Waits>,
    /// The slot that counts it while it waits.
    since: Option<usize>,
    /// Bytes it holds while it waits.
    bytes: usize,
}

impl Wait {
    /// Not waiting yet; will hold `bytes`.
    pub(crate) fn idle(waits: &Arc<Waits>, bytes: usize) -> Self {
        Self { waits: Arc::clone(waits), since: None, bytes }
    }

    /// Waiting from now on.
    pub(crate) fn begin(waits: &Arc<Waits>, bytes: usize) -> Self {
        let mut wait = Self::idle(waits, bytes);
        wait.restart();
        wait
    }

    /// Starts the wait again.
    pub(crate) fn restart(&mut self) {
        let now = self.waits.now.load(Ordering::Relaxed) % SLOTS;
        if self.since == Some(now) {
            return;
        }
        self.waits.begun[now].fetch_add(1, Ordering::Relaxed);
        match self.since.replace(now) {
            Some(since) => _ = self.waits.begun[since].fetch_sub(1, Ordering::Relaxed),
            None => self.waits.holding.add(self.bytes),
        }
    }

    /// Continues or starts the wait, or ends it.
    pub(crate) fn set(&mut self, is_waiting: bool) {
        match (is_waiting, self.since) {
            (true, None) => self.restart(),
            (false, Some(_)) => self.end(),
            _ => {}
        }
    }

    /// Ends the wait: it is the server's turn.
    pub(crate) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.waits.begun[since].fetch_sub(1, Ordering::Relaxed);
            self.waits.holding.remove(self.bytes);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.end();
    }
}

tokio::task_local! {
    /// Those of the connection whose body is polled.
    static POLLED: Arc<Waits>;
}

/// Polls a body, as that of a connection's response.
pub(crate) fn polling<T>(waits: &Arc<Waits>, poll: impl FnOnce() -> T) -> T {
    POLLED.sync_scope(Arc::clone(waits), poll)
}

/// A chunk that another task makes than that of its connection. If its client closes the HTTP/2
/// window meanwhile, nothing polls the body that would send it. Counted until dropped.
#[derive(Debug)]
pub struct UntakenChunk(Wait);

impl UntakenChunk {
    /// For the body that is polled; `None` outside of its connection.
    pub fn of_polled() -> Option<Self> {
        POLLED.try_with(|waits| Self(Wait::idle(waits, 0))).ok()
    }

    /// It is made, and waits for the client as chunks do that are passed to hyper.
    pub fn begin(&mut self, bytes: usize) {
        self.0.end();
        self.0.bytes = STREAM_BYTES + CHUNK_OVERHEAD + bytes;
        self.0.restart();
    }

    /// Polls a body as that of a connection whose bytes count in `holdings`.
    pub fn polled_in<T>(holdings: &Holdings, poll: impl FnOnce() -> T) -> T {
        polling(&Arc::new(Waits::new(holdings.clone())), poll)
    }
}

/// Approximate bytes per stream besides its chunks: hyper's state, the task, the body.
pub(crate) const STREAM_BYTES: usize = 2 * 1024;
/// Overhead per chunk.
const CHUNK_OVERHEAD: usize = 128;

/// No further chunk of a body is made while this many bytes wait to be sent, so that a stalled
/// client holds no more. hyper alone would take 16 chunks, or as many bytes as the longest head.
const MAX_UNSENT_BYTES: usize = 8 * 1024;

/// Bytes of one body that hyper has and has not sent yet.
#[derive(Debug, Default)]
pub(crate) struct UnsentBytes {
    bytes: AtomicUsize,
    body: AtomicWaker,
}

impl UnsentBytes {
    /// Whether the next chunk has to wait; then the task is woken later.
    pub(crate) fn is_full(&self, task: &Context<'_>) -> bool {
        let full = || self.bytes.load(Ordering::Acquire) >= MAX_UNSENT_BYTES;
        if !full() {
            return false;
        }
        self.body.register(task.waker());
        full()
    }

    fn sent(&self, count: usize) {
        let before = self.bytes.fetch_sub(count, Ordering::AcqRel);
        if before >= MAX_UNSENT_BYTES && before - count < MAX_UNSENT_BYTES {
            self.body.wake();
        }
    }
}

/// A chunk of a body until its last byte is sent.
pub(crate) struct CountedChunk {
    chunk: Chunk,
    /// Bytes sent since the wait began.
    moved: usize,
    wait: Wait,
    /// `None` for a body of one chunk.
    unsent: Option<Arc<UnsentBytes>>,
}

impl CountedChunk {
    pub(crate) fn new(chunk: Chunk, waits: &Arc<Waits>, unsent: Option<&Arc<UnsentBytes>>) -> Self {
        if let Some(unsent) = unsent {
            unsent.bytes.fetch_add(chunk.remaining(), Ordering::AcqRel);
        }
        let wait = Wait::begin(waits, CHUNK_OVERHEAD + chunk.remaining());
        Self { chunk, moved: 0, wait, unsent: unsent.cloned() }
    }

    fn moved(&mut self, count: usize) {
        if let Some(unsent) = &self.unsent {
            unsent.sent(count);
        }
        self.moved += count;
        if self.moved >= PROGRESS_BYTES {
            self.moved = 0;
            self.wait.restart();
        }
    }
}

impl Drop for CountedChunk {
    fn drop(&mut self) {
        if let Some(unsent) = &self.unsent {
            unsent.sent(self.chunk.remaining());
        }
    }
}

impl Buf for CountedChunk {
    fn remaining(&self) -> usize {
        self.chunk.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.chunk.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.chunk.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.chunk.advance(count);
        self.moved(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let bytes = self.chunk.copy_to_bytes(count);
        self.moved(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks until the wait is found; at most 20.
    fn ticks(waits: &Waits) -> u32 {
        (1..=20).find(|_| waits.tick()).unwrap_or(0)
    }

    #[test]
    fn a_wait_is_found_at_the_limit_and_not_before() {
        let waits = Arc::default();
        let mut wait = Wait::begin(&waits, 100);
        assert_eq!(ticks(&waits), TICKS + 1);
        wait.restart();
        assert_eq!(ticks(&waits), TICKS + 1);
        wait.end();
        assert_eq!(ticks(&waits), 0);
        wait.restart();
        drop(wait);
        assert_eq!(ticks(&waits), 0);
    }

    #[test]
    fn the_next_chunk_waits_until_the_previous_is_sent() {
        let (waits, unsent) = (Arc::default(), Arc::<UnsentBytes>::default());
        let (waker, wakes) = counting_waker();
        let task = Context::from_waker(&waker);
        let small = CountedChunk::new(vec![0; MAX_UNSENT_BYTES / 2].into(), &waits, Some(&unsent));
        assert!(!unsent.is_full(&task), "small chunks go together");
        let mut large =
            CountedChunk::new(vec![0; 10 * MAX_UNSENT_BYTES].into(), &waits, Some(&unsent));
        assert!(unsent.is_full(&task));
        large.advance(9 * MAX_UNSENT_BYTES);
        assert_eq!((unsent.is_full(&task), wakes.load(Ordering::Relaxed)), (true, 0));
        large.advance(MAX_UNSENT_BYTES);
        assert_eq!((unsent.is_full(&task), wakes.load(Ordering::Relaxed)), (false, 1));
        drop((small, large));
        assert_eq!(unsent.bytes.load(Ordering::Relaxed), 0);
        drop(CountedChunk::new(vec![0; 100].into(), &waits, Some(&unsent)));
        assert_eq!(unsent.bytes.load(Ordering::Relaxed), 0, "a chunk dropped unsent waits no more");
    }

    #[test]
    fn a_wait_holds_its_bytes_until_it_ends() {
        let waits = Arc::new(Waits::default());
        let mut wait = Wait::begin(&waits, 100);
        assert!(!waits.tick());
        wait.restart();
        assert_eq!(waits.bytes(), 100);
        let piece = CountedChunk::new(vec![0; 1000].into(), &waits, None);
        assert_eq!(waits.bytes(), 1100 + CHUNK_OVERHEAD);
        wait.end();
        wait.end();
        assert_eq!(waits.bytes(), 1000 + CHUNK_OVERHEAD);
        drop((wait, piece, Wait::idle(&waits, 5)));
        assert_eq!(waits.bytes(), 0);
    }

    fn counting_waker() -> (std::task::Waker, Arc<AtomicUsize>) {
        #[derive(Default)]
        struct WakeCounter(Arc<AtomicUsize>);
        impl std::task::Wake for WakeCounter {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = WakeCounter::default();
        let wakes = Arc::clone(&count.0);
        (Arc::new(count).into(), wakes)
    }

    #[test]
    fn a_chunk_waits_until_it_is_sent_and_few_bytes_are_no_progress() {
        let waits = Arc::default();
        let mut piece = CountedChunk::new(vec![0; 3 * PROGRESS_BYTES].into(), &waits, None);
        for _ in 0..TICKS {
            assert!(!waits.tick());
            piece.advance(1);
        }
        assert!(waits.tick());
        drop(piece);
        let mut piece = CountedChunk::new(vec![0; 3 * PROGRESS_BYTES].into(), &waits, None);
        for _ in 0..TICKS {
            assert!(!waits.tick());
        }
        assert_eq!(piece.copy_to_bytes(PROGRESS_BYTES).len(), PROGRESS_BYTES);
        assert_eq!((piece.remaining(), ticks(&waits)), (2 * PROGRESS_BYTES, TICKS + 1));
        drop(piece);
        assert_eq!(ticks(&waits), 0);
    }
}
