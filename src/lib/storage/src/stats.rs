//! Figures for `/metrics`.

use crate::key::{Prefix, Revision};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What a store did since it was opened, and what it holds.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The published revision.
    pub revision: Revision,
    /// Transactions published.
    pub commits: u64,
    /// Transactions that failed after they were accepted.
    pub failures: u64,
    /// Batches published.
    pub batches: u64,
    /// Transactions of the largest batch.
    pub largest_batch: u64,
    /// Syncs of the journal that succeeded.
    pub syncs: u64,
    /// How long the last one took.
    pub last_sync: Duration,
    /// How long all of them took.
    pub sync_time: Duration,
    /// Transactions that wait for the committer.
    pub queue: usize,
    /// Their bytes.
    pub queue_bytes: usize,
    /// Bytes of events in memory.
    pub history_bytes: usize,
    /// Events in memory.
    pub history_events: usize,
    /// Times that older events were decoded from the journal, for watches that resume.
    pub replay_cache: u64,
    /// Bytes of such events that are kept for other watches.
    pub replay_bytes: usize,
    /// Entries of each resource.
    pub entries: Vec<(Prefix, usize)>,
    /// Bytes of all present values.
    pub live_bytes: u64,
    /// Entries with a deadline.
    pub deadlines: u64,
    /// Bytes of the journal's files.
    pub journal_bytes: u64,
    /// Times that space was regained by rewriting segments.
    pub rewrites: u64,
    /// Whether puts are refused for lack of space.
    pub disk_full: bool,
    /// Whether a file of the journal was found to be damaged: what is served is whole, but the next start will refuse it.
    pub damaged: bool,
}

/// The counters behind [`Stats`].
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
    /// A closed segment does not hold what was written to it.
    pub(crate) fn damaged(&self, reason: &str) {
        if !self.damaged.swap(true, Ordering::Relaxed) {
            tracing::error!(reason, "the journal is damaged on disk: back up what is served now, the next start will refuse it");
        }
    }

    /// Counts a sync.
    pub(crate) fn synced(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.last_sync_ns.store(ns, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts a published batch.
    pub(crate) fn published(&self, txns: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.commits.fetch_add(txns as u64, Ordering::Relaxed);
        self.largest_batch.fetch_max(txns as u64, Ordering::Relaxed);
    }

    /// The part of [`Stats`] that is counted.
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
