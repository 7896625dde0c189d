//! A bound on the requests in flight: writes and reads are counted apart, watches are not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two counters with limits.
#[derive(Debug)]
pub(crate) struct Flow {
    readonly: Arc<AtomicUsize>,
    mutating: Arc<AtomicUsize>,
    limits: (usize, usize),
}

/// A counted request; dropping it makes room.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    /// With these limits.
    pub(crate) fn new(readonly: usize, mutating: usize) -> Self {
        Self { readonly: Arc::default(), mutating: Arc::default(), limits: (readonly, mutating) }
    }

    /// Counts a request, if there is room.
    pub(crate) fn enter(&self, read_only: bool) -> Option<Permit> {
        let (counter, limit) = if read_only { (&self.readonly, self.limits.0) } else { (&self.mutating, self.limits.1) };
        let permit = Permit(Arc::clone(counter));
        (counter.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }

    /// How many are in flight: reads, writes.
    pub(crate) fn inflight(&self) -> (usize, usize) {
        (self.readonly.load(Ordering::Relaxed), self.mutating.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_bounded_apart() {
        let flow = Flow::new(2, 1);
        let one = flow.enter(true).unwrap();
        let two = flow.enter(true).unwrap();
        assert!(flow.enter(true).is_none());
        let _write = flow.enter(false).unwrap();
        assert!(flow.enter(false).is_none());
        assert_eq!(flow.inflight(), (2, 1));
        drop((one, two));
        assert!(flow.enter(true).is_some());
    }
}
