//! A common limit on the unfinished heads of all connections, whose users are not known yet. Above
//! it the oldest connections are closed: an honest head completes soon, one that is held back ages.

use futures::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

/// Bytes of a head that do not count, and need no lock: a connection costs more, and nearly every
/// head is smaller.
pub(crate) const FREE_BYTES: usize = 4 << 10;

/// The unfinished heads of a listener.
#[derive(Debug)]
pub(crate) struct Heads {
    bound: usize,
    state: Mutex<HeadsState>,
}

#[derive(Debug, Default)]
struct HeadsState {
    bytes: usize,
    tickets: u64,
    /// By the order in which they began to count.
    unfinished: BTreeMap<u64, UnfinishedHead>,
}

#[derive(Debug)]
struct UnfinishedHead {
    bytes: usize,
    cut: Arc<CutHead>,
}

#[derive(Debug, Default)]
struct CutHead {
    is_cut: AtomicBool,
    task: AtomicWaker,
}

/// One connection's unfinished head; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct HeadBytes {
    heads: Arc<Heads>,
    counted: usize,
    ticket: u64,
    cut: Arc<CutHead>,
}

impl Heads {
    /// `bound` in bytes.
    pub(crate) fn new(bound: usize) -> Arc<Self> {
        Arc::new(Self { bound, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HeadsState> {
        self.state.lock()
    }
}

impl HeadsState {
    fn remove(&mut self, ticket: u64) {
        if let Some(gone) = self.unfinished.remove(&ticket) {
            self.bytes -= gone.bytes;
        }
    }

    /// Makes room. Bytes of a cut connection count as free.
    fn cut_oldest(&mut self, bound: usize) {
        while self.bytes > bound
            && let Some((_, oldest)) = self.unfinished.pop_first()
        {
            self.bytes -= oldest.bytes;
            oldest.cut.is_cut.store(true, Ordering::Release);
            oldest.cut.task.wake();
        }
    }
}

impl HeadBytes {
    pub(crate) fn new(heads: &Arc<Heads>) -> Self {
        Self { heads: Arc::clone(heads), counted: 0, ticket: 0, cut: Arc::default() }
    }

    /// Sets the bytes of the connection's unfinished head; 0 for none.
    pub(crate) fn set(&mut self, bytes: usize) {
        let counted = bytes.saturating_sub(FREE_BYTES);
        let before = std::mem::replace(&mut self.counted, counted);
        if counted == before {
            return;
        }
        let mut state = self.heads.lock();
        if counted < before {
            // Another head, or none.
            state.remove(self.ticket);
        }
        if counted == 0 || self.cut.is_cut.load(Ordering::Acquire) {
            return;
        }
        if before == 0 || counted < before {
            state.tickets += 1;
            self.ticket = state.tickets;
            state
                .unfinished
                .insert(self.ticket, UnfinishedHead { bytes: 0, cut: Arc::clone(&self.cut) });
        }
        if let Some(unfinished) = state.unfinished.get_mut(&self.ticket) {
            let more = counted - std::mem::replace(&mut unfinished.bytes, counted);
            state.bytes += more;
        }
        state.cut_oldest(self.heads.bound);
    }

    /// Whether the connection was cut; else `waker` is woken when it is.
    pub(crate) fn is_cut(&self, waker: &Waker) -> bool {
        if self.counted == 0 {
            return false;
        }
        self.cut.task.register(waker);
        self.cut.is_cut.load(Ordering::Acquire)
    }
}

impl Drop for HeadBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_share_a_limit_and_the_oldest_are_cut() {
        const BOUND: usize = 1 << 20;
        let heads = Heads::new(BOUND);
        let begin = |bytes| {
            let mut head = HeadBytes::new(&heads);
            head.set(1000);
            head.set(bytes);
            head
        };
        let is_cut = |head: &HeadBytes| head.is_cut(Waker::noop());
        let mut all: Vec<HeadBytes> = (0..40).map(|_| begin(64 << 10)).collect();
        let left = BOUND / ((64 << 10) - FREE_BYTES);
        assert_eq!(
            all.iter().map(is_cut).collect::<Vec<_>>(),
            (0..40).map(|at| at < 40 - left).collect::<Vec<_>>()
        );
        assert!(heads.lock().bytes <= BOUND);
        // A growing head keeps its age; a new one is young.
        all[40 - left].set(65 << 10);
        all[40 - left + 1].set(0);
        all[40 - left + 1].set(64 << 10);
        all.push(begin(64 << 10));
        assert_eq!([40 - left, 40 - left + 1, 40].map(|at| is_cut(&all[at])), [true, false, false]);
        let small: Vec<HeadBytes> = (0..1000).map(|_| begin(FREE_BYTES)).collect();
        assert!(!is_cut(&all[40]) && !small.iter().any(is_cut), "small ones cost nobody his");
        assert!(
            is_cut(&begin(BOUND + FREE_BYTES + 1)),
            "what is larger than all may be goes itself"
        );
        drop((all, small));
        assert_eq!(heads.lock().bytes, 0);
        assert!(heads.lock().unfinished.is_empty());
    }
}
