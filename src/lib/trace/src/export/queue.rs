//! The bounded, counted queue of finished spans.

use super::collector::Collector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE_DEFAULT, SpanData, SpanProcessor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Max `OTEL_BSP_MAX_QUEUE_SIZE`.
const MAX_CAPACITY: usize = 1 << 16;

/// Span counters since the start; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanStats {
    /// Spans accepted by the collector.
    pub exported: u64,
    /// Spans dropped because the queue was full or the collector refused them.
    pub dropped: u64,
}

/// Shared by the queue and the collector.
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

/// Limits what enters the SDK's batch processor to its queue size: the processor does not report
/// dropped spans, so it must never drop any.
#[derive(Debug)]
pub(super) struct SpanQueue {
    processor: BatchSpanProcessor,
    capacity: usize,
    counts: Arc<Counts>,
}

impl SpanQueue {
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

    /// Never waits; drops the span if the queue is full.
    pub(super) fn push(&self, span: SpanData) {
        if self.counts.queued.fetch_add(1, Ordering::Relaxed) < self.capacity {
            self.processor.on_end(span);
        } else {
            self.counts.dequeue(1);
            self.counts.dropped(1);
        }
    }

    /// Sends queued spans, for at most `bound`.
    pub(super) fn shut_down(&self, bound: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(bound) {
            tracing::debug!(target: "ferrokube::spans", %error, "last spans not exported");
        }
    }

    pub(super) fn stats(&self) -> SpanStats {
        SpanStats {
            exported: self.counts.exported.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
        }
    }
}

/// Max queued spans.
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
    fn the_queue_is_bounded_regardless_of_the_environment() {
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
