//! Finished spans on their way to the exporter's thread: encoded, bounded, counted.

use super::otlp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Spans that wait; more are dropped.
const MAX_SPANS: usize = 4096;
/// Bytes that wait; more are dropped.
const MAX_BYTES: usize = 4 << 20;
/// From here on the exporter does not wait for more.
const HURRY_SPANS: usize = MAX_SPANS / 4;

/// What became of spans; the counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Spans that the collector took.
    pub exported: u64,
    /// Spans that did not fit, or that the collector did not take.
    pub dropped: u64,
}

/// Spans as they stand in a request: each a field of `ScopeSpans`.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) spans: usize,
}

/// The spans that wait.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    waiting: Mutex<Batch>,
    /// There is something to send, or (a second time) a lot of it.
    pub(super) filled: Notify,
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl Buffer {
    /// Adds an encoded span. Never waits longer than it takes another thread to copy one.
    pub(super) fn push(&self, span: &[u8]) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.spans >= MAX_SPANS || waiting.bytes.len() + span.len() > MAX_BYTES {
            drop(waiting);
            self.count_dropped(1);
            return;
        }
        otlp::add_span(&mut waiting.bytes, span);
        waiting.spans += 1;
        let spans = waiting.spans;
        drop(waiting);
        if spans == 1 || spans == HURRY_SPANS {
            self.filled.notify_one();
        }
    }

    /// What waits now.
    pub(super) fn take(&self) -> Batch {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it is more than a quarter full.
    pub(super) fn is_filling(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).spans >= HURRY_SPANS
    }

    pub(super) fn count_exported(&self, spans: usize) {
        self.exported.fetch_add(spans as u64, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> Stats {
        Stats { exported: self.exported.load(Ordering::Relaxed), dropped: self.dropped.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let buffer = Buffer::default();
        for _ in 0..MAX_SPANS + 7 {
            buffer.push(b"span");
        }
        assert_eq!(buffer.stats(), Stats { exported: 0, dropped: 7 });
        let batch = buffer.take();
        assert_eq!(batch.spans, MAX_SPANS);
        let large = vec![0; MAX_BYTES / 2];
        for _ in 0..3 {
            buffer.push(&large);
        }
        assert_eq!((buffer.take().spans, buffer.stats().dropped), (1, 9));
        assert_eq!(buffer.take().spans, 0);
    }
}
