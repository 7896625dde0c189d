//! What the unfinished heads of all connections hold together: before a head is whole nobody knows whose it is, so large ones are bounded by one sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So much of a head does not count: nearly every head is smaller, and connections are bounded in number.
const FREE_BYTES: usize = 64 << 10;
/// What the others may hold together.
const SHARED_BYTES: usize = 64 << 20;

/// The sum over a listener's connections.
#[derive(Debug, Default)]
pub(crate) struct Heads(AtomicUsize);

/// One connection's part of the sum, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct HeadBytes {
    heads: Arc<Heads>,
    counted: usize,
}

impl HeadBytes {
    pub(crate) fn new(heads: &Arc<Heads>) -> Self {
        Self { heads: Arc::clone(heads), counted: 0 }
    }

    /// The connection's unfinished head holds so many bytes now. False: there is no room for it.
    #[must_use]
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let counted = bytes.saturating_sub(FREE_BYTES);
        let before = std::mem::replace(&mut self.counted, counted);
        if counted <= before {
            if counted < before {
                self.heads.0.fetch_sub(before - counted, Ordering::Relaxed);
            }
            return true;
        }
        let more = counted - before;
        self.heads.0.fetch_add(more, Ordering::Relaxed) + more <= SHARED_BYTES
    }
}

impl Drop for HeadBytes {
    fn drop(&mut self) {
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_heads_share_a_bound_and_small_ones_do_not_count() {
        let heads = Arc::default();
        let mut all: Vec<HeadBytes> = Vec::new();
        while {
            let mut one = HeadBytes::new(&heads);
            let fits = one.set(1000) && one.set(1 << 20);
            all.push(one);
            fits
        } {}
        assert_eq!(all.len(), SHARED_BYTES / ((1 << 20) - FREE_BYTES) + 1);
        let mut small = HeadBytes::new(&heads);
        assert!(small.set(FREE_BYTES) && !small.set(FREE_BYTES + 1));
        all.clear();
        assert!(small.set(1 << 20));
        assert!(small.set(0));
        assert_eq!(heads.0.load(Ordering::Relaxed), 0);
    }
}
