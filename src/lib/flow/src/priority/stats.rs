//! Values for metrics.

use super::level::Utilization;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of histograms of durations, in seconds.
pub const BUCKETS: [f64; 13] =
    [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
/// Upper bounds of the lengths of queues.
pub const LENGTH_BOUNDS: [u64; 8] = [0, 10, 25, 50, 100, 250, 500, 1000];
/// Upper bounds of the seats of a request.
pub const WORK_BOUNDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 100];

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
    /// Execution times of other requests, and of watches.
    executions: [HistogramCounters; 2],
    lengths: CountCounters,
    work: CountCounters,
    /// Times that its request was the next one and needed more seats than were free.
    unaccommodated: AtomicU64,
}

/// A histogram of counts with eight bounds.
#[derive(Debug, Default)]
struct CountCounters {
    /// The last one counts all above the bounds.
    buckets: [AtomicU64; 9],
    sum: AtomicU64,
}

impl CountCounters {
    fn observe(&self, bounds: &[u64; 8], count: usize) {
        let count = count as u64;
        self.buckets[bounds.partition_point(|bound| *bound < count)].fetch_add(1, Relaxed);
        self.sum.fetch_add(count, Relaxed);
    }

    fn read(&self) -> CountHistogram {
        let buckets = self.buckets.each_ref().map(|bucket| bucket.load(Relaxed));
        CountHistogram { buckets, sum: self.sum.load(Relaxed) }
    }
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
    pub(crate) fn executed(&self, time: Duration, is_watch: bool) {
        self.executions[usize::from(is_watch)].observe(time);
    }

    /// A request arrived that needs these seats.
    pub(crate) fn estimated(&self, seats: usize) {
        self.work.observe(&WORK_BOUNDS, seats);
    }

    /// A request has joined a queue, which now has this length.
    pub(crate) fn enqueued(&self, length: usize) {
        self.lengths.observe(&LENGTH_BOUNDS, length);
    }

    /// The next request has to wait for more seats.
    pub(crate) fn not_accommodated(&self) {
        self.unaccommodated.fetch_add(1, Relaxed);
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
            executions: self.executions.each_ref().map(HistogramCounters::read),
            lengths: self.lengths.read(),
            work: self.work.read(),
            unaccommodated: self.unaccommodated.load(Relaxed),
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

/// Counts of seats or requests; each observation weighs the same.
#[derive(Clone, Debug, Default)]
pub struct CountHistogram {
    /// Counts between its bounds, then of all above.
    pub buckets: [u64; 9],
    /// Sum of all observations.
    pub sum: u64,
}

/// A histogram of ratios, weighted by how long they lasted.
#[derive(Clone, Debug, Default)]
pub struct RatioHistogram {
    /// Nanoseconds between its bounds, of which there may be fewer, then above all of them.
    pub weights: [u64; 14],
    /// Sum of the products.
    pub sum: f64,
}

impl RatioHistogram {
    pub(super) fn observe(&mut self, bounds: &[f64], ratio: f64, nanoseconds: u64) {
        // Most ratios are small.
        let bucket = bounds.iter().position(|bound| ratio <= *bound).unwrap_or(bounds.len());
        self.weights[bucket] += nanoseconds;
        self.sum += ratio * nanoseconds as f64;
    }
}

/// Counters of a schema in a level.
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
    /// Waiting times of rejected and of executed requests.
    pub waits: [FlowHistogram; 2],
    /// Time that seats were held, by other requests and by watches.
    pub executions: [FlowHistogram; 2],
    /// Lengths of queues, by [`LENGTH_BOUNDS`].
    pub lengths: CountHistogram,
    /// Seats of requests, by [`WORK_BOUNDS`].
    pub work: CountHistogram,
    /// Times that the next request needed more seats than were free.
    pub unaccommodated: u64,
}

/// A level as its metrics show it.
#[derive(Clone, Debug)]
pub struct LevelFigures {
    /// Name of the PriorityLevelConfiguration.
    pub name: String,
    /// Seats: nominal, at least, at most, now.
    pub limits: [usize; 4],
    /// Demand of the last period: maximum, average, standard deviation, smoothed value, and last
    /// divisor.
    pub demand: [f64; 5],
    /// Over time.
    pub utilization: Utilization,
    /// Virtual time of its fair queuing.
    pub virtual_time: VirtualTime,
}

/// The virtual time of a level.
#[derive(Clone, Copy, Debug, Default)]
pub struct VirtualTime {
    /// Now, and when a request last left its queue.
    pub now: [f64; 2],
    /// When the request started that left its queue last.
    pub last_start: f64,
    /// Least and greatest start of a next request; the same without the work in progress.
    pub next: [[f64; 2]; 2],
}
