//! Finished spans on their way to the collector: bounded and counted.

use super::collector::Collector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT, SpanData, SpanProcessor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// `OTEL_BSP_MAX_QUEUE_SIZE` is cut to this.
const MAX_CAPACITY: usize = 1 << 16;

/// Spans since the start; the counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Spans that the collector took.
    pub exported: u64,
    /// Spans that found the queue full, or that the collector did not take.
    pub dropped: u64,
}

/// Shared by the queue and the collector behind it.
#[derive(Debug, Default)]
pub(super) struct Counts {
    queued: AtomicUsize,
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    /// A batch left the queue.
    pub(super) fn dequeue(&self, spans: usize) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
    }

    pub(super) fn exported(&self, spans: usize) {
        self.exported.fetch_add(spans as u64, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// The SDK's batch processor behind a gate of the same size. The processor does not say which spans
/// it drops, so it never gets one too many.
#[derive(Debug)]
pub(super) struct Queue {
    processor: BatchSpanProcessor,
    capacity: usize,
    counts: Arc<Counts>,
}

impl Queue {
    pub(super) fn new(
        collector: Collector,
        batching: BatchConfigBuilder,
        counts: Arc<Counts>,
    ) -> Self {
        let capacity = capacity(std::env::var(OTEL_BSP_MAX_QUEUE_SIZE).ok().as_deref());
        let batching = batching.with_max_queue_size(capacity).build();
        Self {
            processor: BatchSpanProcessor::builder(collector).with_batch_config(batching).build(),
            capacity,
            counts,
        }
    }

    /// Never waits: a span that finds the queue full is dropped.
    pub(super) fn push(&self, span: SpanData) {
        if self.counts.queued.fetch_add(1, Ordering::Relaxed) < self.capacity {
            self.processor.on_end(span);
        } else {
            self.counts.dequeue(1);
            self.counts.dropped(1);
        }
    }

    /// Sends what is queued, within the bound.
    pub(super) fn shut_down(&self, bound: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(bound) {
            tracing::debug!(target: "ferrokube::spans", %error, "last spans not exported");
        }
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            exported: self.counts.exported.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
        }
    }
}

/// Spans that may wait.
fn capacity(variable: Option<&str>) -> usize {
    variable
        .and_then(|text| text.trim().parse().ok())
        .filter(|capacity| *capacity > 0)
        .unwrap_or(OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT)
        .min(MAX_CAPACITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_whatever_the_environment_says() {
        for (variable, want) in [
            (None, 2048),
            (Some("7"), 7),
            (Some("0"), 2048),
            (Some("many"), 2048),
            (Some("99999999999"), MAX_CAPACITY),
        ] {
            assert_eq!(capacity(variable), want, "{variable:?}");
        }
    }
}
