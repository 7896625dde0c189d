//! Readers that stall: what waits on a connection's client, and since when.
//!
//! Neither protocol asks a body for more while its client takes nothing (HTTP/2: gives no window),
//! so a body cannot see that itself, and a client that answers pings looks alive. Here every answer
//! that waits to be asked, and every piece of one that waits to be sent, is counted in the slot of
//! the time at which its wait began. Time is a coarse tick of the connection: no clock is read for
//! a frame.

use crate::body::Chunk;
use crate::held::{Holding, Holdings};
use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

/// Ticks to a limit.
pub(crate) const TICKS: u32 = 4;
/// More than the ticks after which a wait is found, so that none is taken for a younger one.
const SLOTS: usize = 8;
/// A piece that is sent counts as moving when this much of it went: less in a whole limit is as
/// good as nothing.
const PROGRESS_BYTES: usize = 4096;

/// What waits on one connection's client.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    now: AtomicUsize,
    /// How many waits began at each of the last ticks.
    begun: [AtomicUsize; SLOTS],
    /// What they hold.
    holding: Holding,
}

impl Waits {
    pub(crate) fn new(holdings: Holdings) -> Self {
        Self { holding: Holding::new(holdings), ..Self::default() }
    }

    /// Counts bytes that are held whether or not the client takes any, until [`Self::release`].
    pub(crate) fn hold(&self, bytes: usize) {
        self.holding.add(bytes);
    }

    /// The end of [`Self::hold`].
    pub(crate) fn release(&self, bytes: usize) {
        self.holding.remove(bytes);
    }

    /// What is held for the client, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.holding.bytes()
    }

    /// Time goes on. True when something has waited for at least [`TICKS`] whole ticks.
    pub(crate) fn tick(&self) -> bool {
        let now = self.now.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let late = now.wrapping_sub(TICKS as usize + 1) % SLOTS;
        self.begun[late].load(Ordering::Relaxed) > 0
    }
}

/// One thing that may wait for the client. Ends its wait when it is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    waits: Arc<Waits>,
    /// The slot in which it is counted, while it waits.
    since: Option<usize>,
    /// What it holds while it waits.
    bytes: usize,
}

impl Wait {
    /// What may wait, and then holds so many bytes, but does not yet.
    pub(crate) fn idle(waits: &Arc<Waits>, bytes: usize) -> Self {
        Self { waits: Arc::clone(waits), since: None, bytes }
    }

    /// A wait that begins now.
    pub(crate) fn begin(waits: &Arc<Waits>, bytes: usize) -> Self {
        let mut wait = Self::idle(waits, bytes);
        wait.restart();
        wait
    }

    /// Waits from now on.
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

    /// Waits, since when it began to, or waits not.
    pub(crate) fn set(&mut self, is_waiting: bool) {
        match (is_waiting, self.since) {
            (true, None) => self.restart(),
            (false, Some(_)) => self.end(),
            _ => {}
        }
    }

    /// Waits no more: it is the server's turn.
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

/// What a stream holds besides its pieces: the library's state of it, its task and its body.
pub(crate) const STREAM_BYTES: usize = 2 * 1024;
/// What a piece holds besides its bytes.
const PIECE_BYTES: usize = 128;

/// No further piece of a body is made while so many bytes of it wait to be sent: one is under way,
/// and a stalled reader holds no more. hyper alone would take pieces until it has 16 of them, or as
/// many bytes as the longest head may have.
const UNDER_WAY_BYTES: usize = 8 * 1024;

/// Bytes of one body that were given to hyper and not sent yet.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    bytes: AtomicUsize,
    body: AtomicWaker,
}

impl UnderWay {
    /// Whether the next piece has to wait. The task is woken when it need not any more.
    pub(crate) fn is_full(&self, task: &Context<'_>) -> bool {
        let full = || self.bytes.load(Ordering::Acquire) >= UNDER_WAY_BYTES;
        if !full() {
            return false;
        }
        self.body.register(task.waker());
        full()
    }

    fn sent(&self, count: usize) {
        let before = self.bytes.fetch_sub(count, Ordering::AcqRel);
        if before >= UNDER_WAY_BYTES && before - count < UNDER_WAY_BYTES {
            self.body.wake();
        }
    }
}

/// A piece of a body until its last byte is on its way.
pub(crate) struct Piece {
    chunk: Chunk,
    /// Bytes sent since the wait began.
    moved: usize,
    wait: Wait,
    /// None for a body of one piece.
    under_way: Option<Arc<UnderWay>>,
}

impl Piece {
    pub(crate) fn new(chunk: Chunk, waits: &Arc<Waits>, under_way: Option<&Arc<UnderWay>>) -> Self {
        if let Some(under_way) = under_way {
            under_way.bytes.fetch_add(chunk.remaining(), Ordering::AcqRel);
        }
        let wait = Wait::begin(waits, PIECE_BYTES + chunk.remaining());
        Self { chunk, moved: 0, wait, under_way: under_way.cloned() }
    }

    fn moved(&mut self, count: usize) {
        if let Some(under_way) = &self.under_way {
            under_way.sent(count);
        }
        self.moved += count;
        if self.moved >= PROGRESS_BYTES {
            self.moved = 0;
            self.wait.restart();
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(under_way) = &self.under_way {
            under_way.sent(self.chunk.remaining());
        }
    }
}

impl Buf for Piece {
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

    /// Ticks until something is found late; at most 20.
    fn ticks(waits: &Waits) -> u32 {
        (1..=20).find(|_| waits.tick()).unwrap_or(0)
    }

    #[test]
    fn a_wait_is_found_after_the_limit_and_not_before() {
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
    fn the_next_piece_waits_until_the_one_before_is_sent() {
        let (waits, under_way) = (Arc::default(), Arc::<UnderWay>::default());
        let (waker, wakes) = counting_waker();
        let task = Context::from_waker(&waker);
        let small = Piece::new(vec![0; UNDER_WAY_BYTES / 2].into(), &waits, Some(&under_way));
        assert!(!under_way.is_full(&task), "small ones go together");
        let mut large = Piece::new(vec![0; 10 * UNDER_WAY_BYTES].into(), &waits, Some(&under_way));
        assert!(under_way.is_full(&task));
        large.advance(9 * UNDER_WAY_BYTES);
        assert_eq!((under_way.is_full(&task), wakes.load(Ordering::Relaxed)), (true, 0));
        large.advance(UNDER_WAY_BYTES);
        assert_eq!((under_way.is_full(&task), wakes.load(Ordering::Relaxed)), (false, 1));
        drop((small, large));
        assert_eq!(under_way.bytes.load(Ordering::Relaxed), 0);
        drop(Piece::new(vec![0; 100].into(), &waits, Some(&under_way)));
        assert_eq!(
            under_way.bytes.load(Ordering::Relaxed),
            0,
            "what is dropped unsent waits no more"
        );
    }

    #[test]
    fn what_waits_holds_its_bytes_until_it_ends() {
        let waits = Arc::new(Waits::default());
        let mut wait = Wait::begin(&waits, 100);
        assert!(!waits.tick());
        wait.restart();
        assert_eq!(waits.bytes(), 100);
        let piece = Piece::new(vec![0; 1000].into(), &waits, None);
        assert_eq!(waits.bytes(), 1100 + PIECE_BYTES);
        wait.end();
        wait.end();
        assert_eq!(waits.bytes(), 1000 + PIECE_BYTES);
        drop((wait, piece, Wait::idle(&waits, 5)));
        assert_eq!(waits.bytes(), 0);
    }

    fn counting_waker() -> (std::task::Waker, Arc<AtomicUsize>) {
        #[derive(Default)]
        struct Count(Arc<AtomicUsize>);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Count::default();
        let wakes = Arc::clone(&count.0);
        (Arc::new(count).into(), wakes)
    }

    #[test]
    fn a_piece_waits_until_it_is_gone_and_crumbs_are_no_progress() {
        let waits = Arc::default();
        let mut piece = Piece::new(vec![0; 3 * PROGRESS_BYTES].into(), &waits, None);
        for _ in 0..TICKS {
            assert!(!waits.tick());
            piece.advance(1);
        }
        assert!(waits.tick());
        drop(piece);
        let mut piece = Piece::new(vec![0; 3 * PROGRESS_BYTES].into(), &waits, None);
        for _ in 0..TICKS {
            assert!(!waits.tick());
        }
        assert_eq!(piece.copy_to_bytes(PROGRESS_BYTES).len(), PROGRESS_BYTES);
        assert_eq!((piece.remaining(), ticks(&waits)), (2 * PROGRESS_BYTES, TICKS + 1));
        drop(piece);
        assert_eq!(ticks(&waits), 0);
    }
}
