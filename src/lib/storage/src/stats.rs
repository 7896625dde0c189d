//! Store metrics.

use crate::key::{Prefix, Revision};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Counters since the store was opened, and current gauges.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Published revision.
    pub revision: Revision,
    /// Transactions published.
    pub commits: u64,
    /// Accepted transactions that failed.
    pub failures: u64,
    /// Batches published.
    pub batches: u64,
    /// Transactions in the largest batch.
    pub largest_batch: u64,
    /// Successful journal syncs.
    pub syncs: u64,
    /// Duration of the last sync.
    pub last_sync: Duration,
    /// Total duration of all syncs.
    pub sync_time: Duration,
    /// Transactions queued for the committer.
    pub queue: usize,
    /// Bytes queued for the committer.
    pub queue_bytes: usize,
    /// Bytes of events in memory.
    pub history_bytes: usize,
    /// Events in memory.
    pub history_events: usize,
    /// Times that archived events were decoded for resuming watches.
    pub replay_cache: u64,
    /// Bytes of archived events cached for other watches.
    pub replay_bytes: usize,
    /// Number of entries per resource.
    pub entries: Vec<(Prefix, usize)>,
    /// Bytes of all live values.
    pub live_bytes: u64,
    /// Entries with a deadline.
    pub deadlines: u64,
    /// Bytes of the journal's files.
    pub journal_bytes: u64,
    /// Completed segment rewrites.
    pub rewrites: u64,
    /// Whether growth is refused for lack of space.
    pub disk_full: bool,
    /// Whether a journal file is known to be damaged: the state served is intact, but the next
    /// start will refuse the file.
    pub damaged: bool,
}

/// Counters behind [`Stats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) largest_batch: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) last_sync_ns: AtomicU64,
    pub(crate) sync_ns: AtomicU64,
    pub(crate) deadlines: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) rewrites: AtomicU64,
    damaged: AtomicBool,
}

impl Counters {
    /// Records a closed segment that differs from what was written.
    pub(crate) fn damaged(&self, reason: &str) {
        if !self.damaged.swap(true, Ordering::Relaxed) {
            tracing::error!(
                reason,
                "the journal is damaged on disk: back up what is served now, the next start will refuse it"
            );
        }
    }

    /// Records a sync.
    pub(crate) fn synced(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.last_sync_ns.store(ns, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Records a published batch of `txns` transactions.
    pub(crate) fn published(&self, txns: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.commits.fetch_add(txns as u64, Ordering::Relaxed);
        self.largest_batch.fetch_max(txns as u64, Ordering::Relaxed);
    }

    /// The counter part of [`Stats`].
    pub(crate) fn stats(&self) -> Stats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: load(&self.commits),
            failures: load(&self.failures),
            batches: load(&self.batches),
            largest_batch: load(&self.largest_batch),
            syncs: load(&self.syncs),
            last_sync: Duration::from_nanos(load(&self.last_sync_ns)),
            sync_time: Duration::from_nanos(load(&self.sync_ns)),
            deadlines: load(&self.deadlines),
            journal_bytes: load(&self.journal_bytes),
            rewrites: load(&self.rewrites),
            damaged: self.damaged.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}
