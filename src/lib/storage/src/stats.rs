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
    /// Zero before the first one, and for an engine without a journal.
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
    /// Whether writes rely on this process being the only writer of a remote engine.
    pub writes_alone: bool,
    /// Whether a journal file is known to be damaged and not replaced yet: the state served is
    /// intact, but a start would refuse the file.
    pub damaged: bool,
    /// An attempt to replace damaged files has failed; it is repeated.
    pub repair_failed: bool,
    /// Times that damaged files were replaced.
    pub repairs: u64,
    /// The last repair dropped the events up to this revision from the journal. Watches from
    /// before it work only as far as memory reaches.
    pub history_lost: Revision,
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
    repair_failed: AtomicBool,
    repairs: AtomicU64,
    history_lost: AtomicU64,
}

impl Counters {
    /// Records a segment that differs from what was written.
    pub(crate) fn damaged(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    /// Whether damage was found and its files are not replaced yet.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Records an attempt to replace damaged files that failed.
    pub(crate) fn repair_failed(&self, reason: &str) {
        self.repair_failed.store(true, Ordering::Relaxed);
        tracing::error!(
            reason,
            "cannot replace the damaged files of the journal yet: a start would refuse them"
        );
    }

    /// Whether the last attempt to replace damaged files failed.
    pub(crate) fn has_repair_failed(&self) -> bool {
        self.repair_failed.load(Ordering::Relaxed)
    }

    /// Records that no damaged file is left, at the cost of the events up to a revision.
    pub(crate) fn repaired(&self, history_lost: u64) {
        self.history_lost.store(history_lost, Ordering::Relaxed);
        self.repairs.fetch_add(1, Ordering::Relaxed);
        self.repair_failed.store(false, Ordering::Relaxed);
        self.damaged.store(false, Ordering::Relaxed);
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
            damaged: self.is_damaged(),
            repair_failed: self.has_repair_failed(),
            repairs: load(&self.repairs),
            history_lost: Revision(load(&self.history_lost)),
            ..Stats::default()
        }
    }
}
