//! Figures for metrics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of histograms of durations, in seconds.
pub const BUCKETS: [f64; 13] =
    [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectReason {
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
    Cancelled,
}

/// In the order of the enum.
const REASONS: [&str; 4] = ["concurrency-limit", "queue-full", "time-out", "cancelled"];

/// Counters of a schema in a level.
#[derive(Debug, Default)]
pub(crate) struct FlowStats {
    pub(crate) dispatched: AtomicU64,
    rejected: [AtomicU64; 4],
    /// Requests and seats.
    pub(crate) waiting: [AtomicUsize; 2],
    pub(crate) executing: [AtomicUsize; 2],
    waits: [HistogramCounters; 2],
    executions: HistogramCounters,
}

#[derive(Debug, Default)]
struct HistogramCounters {
    /// The last one counts all above the bounds.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanoseconds: AtomicU64,
}

impl HistogramCounters {
    fn observe(&self, time: Duration) {
        let bucket = BUCKETS.partition_point(|bound| *bound < time.as_secs_f64());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn read(&self) -> FlowHistogram {
        FlowHistogram {
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Relaxed)),
            seconds: Duration::from_nanos(self.nanoseconds.load(Relaxed)).as_secs_f64(),
        }
    }
}

impl FlowStats {
    pub(crate) fn reject(&self, reason: RejectReason) {
        self.rejected[reason as usize].fetch_add(1, Relaxed);
    }

    /// A wait ended.
    pub(crate) fn waited(&self, time: Duration, is_executed: bool) {
        self.waits[usize::from(is_executed)].observe(time);
    }

    /// A request was worked on.
    pub(crate) fn executed(&self, time: Duration) {
        self.executions.observe(time);
    }

    pub(crate) fn read(&self, level: &str, schema: &str) -> FlowFigures {
        let pair = |pair: &[AtomicUsize; 2]| pair.each_ref().map(|count| count.load(Relaxed));
        let reasons = REASONS.into_iter().zip(&self.rejected);
        FlowFigures {
            level: level.to_owned(),
            schema: schema.to_owned(),
            dispatched: self.dispatched.load(Relaxed),
            rejected: reasons.map(|(reason, count)| (reason, count.load(Relaxed))).collect(),
            waiting: pair(&self.waiting),
            executing: pair(&self.executing),
            waits: self.waits.each_ref().map(HistogramCounters::read),
            executions: self.executions.read(),
        }
    }
}

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct FlowHistogram {
    /// Counts between [`BUCKETS`], then of all above.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum.
    pub seconds: f64,
}

/// Of a schema in a level.
#[derive(Clone, Debug)]
pub struct FlowFigures {
    /// Name of the level.
    pub level: String,
    /// Name of the schema.
    pub schema: String,
    /// Requests that got their seats.
    pub dispatched: u64,
    /// By reason.
    pub rejected: Vec<(&'static str, u64)>,
    /// Requests and seats.
    pub waiting: [usize; 2],
    /// Requests and seats.
    pub executing: [usize; 2],
    /// Of requests that were rejected, and of those that were not.
    pub waits: [FlowHistogram; 2],
    /// Time that seats were held.
    pub executions: FlowHistogram,
}

/// Of a level.
#[derive(Clone, Debug)]
pub struct LevelFigures {
    /// Its name.
    pub name: String,
    /// Seats: nominal, at least, at most, now.
    pub limits: [usize; 4],
    /// Demand of the last period: highest, average, standard deviation, smoothed, and what it was
    /// last divided by.
    pub demand: [f64; 5],
}
