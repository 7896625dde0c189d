//! The committer thread: journals, publishes and acknowledges batches, and deletes expired entries.

use crate::clock;
use crate::core::StoreCore;
use crate::expiry::Expiry;
use crate::head::{Head, QueuedTxn};
use crate::image::LiveState;
use crate::txn::{CommitError, Guard, Txn, TxnEvent, Write};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Expired entries deleted per pass.
const MAX_DUE: usize = 1024;

/// Delay before [`JournalWriter::rest`] is retried.
const REST_RETRY: Duration = Duration::from_millis(250);

/// Why a batch was not journaled.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// No space. Nothing of the batch is in the journal.
    Full,
    /// The journal can no longer be trusted.
    Fatal(String),
}

/// Makes batches durable. Used by the committer thread only.
pub(crate) trait JournalWriter: Send {
    /// Makes a batch durable: returns only after a sync that followed the batch's last write.
    fn append(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError>;

    /// Whether the state may grow. Called after each batch, and with `probe` set after a put was
    /// refused.
    fn has_space(&mut self, probe: bool) -> bool;

    /// Called after a batch was published with an empty queue: the time for cheap bookkeeping that
    /// delays no write.
    fn acknowledged(&mut self) {}

    /// The store is closing; the last call.
    fn close(&mut self) {}

    /// Called when idle, and occasionally under load while there is damage: releases buffers and
    /// space needed only by bursts, and repairs damage. Returns false if more remains to be done.
    /// `state` is the journal's content.
    fn rest(&mut self, _state: &LiveState<'_>) -> bool {
        true
    }

    /// Sets the callback that wakes the committer when damage is found.
    fn on_damage(&self, _wake: Box<dyn Fn() + Send + Sync>) {}

    /// Whether [`Self::rest`] has damage to repair. Cheap.
    fn is_damaged(&self) -> bool {
        false
    }
}

/// The memory engine's journal: keeps nothing.
pub(crate) struct NullJournal;

impl JournalWriter for NullJournal {
    fn append(&mut self, _batch: &[QueuedTxn]) -> Result<(), AppendError> {
        Ok(())
    }

    fn has_space(&mut self, _probe: bool) -> bool {
        true
    }
}

/// Runs until the store is closed or the journal fails.
pub(crate) fn run(core: &Arc<StoreCore>, sink: Box<dyn JournalWriter>, expiry: Expiry) {
    let waker = Arc::downgrade(core);
    sink.on_damage(Box::new(move || {
        if let Some(core) = waker.upgrade() {
            core.wake();
        }
    }));
    let mut committer = Committer { core, sink, expiry, rest_at: None };
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| committer.work()));
    if let Err(reason) = outcome.unwrap_or_else(|_| Err("the committer panicked".to_owned())) {
        tracing::error!(reason, "the journal failed: no more writes are accepted");
        core.fail(&reason);
    }
    // Unlock the directory before `closed()` resolves.
    drop(committer);
    core.end();
}

struct Committer<'a> {
    core: &'a Arc<StoreCore>,
    sink: Box<dyn JournalWriter>,
    expiry: Expiry,
    /// When to call [`JournalWriter::rest`] again, in monotonic milliseconds.
    rest_at: Option<u64>,
}

enum Work {
    Batch(Vec<QueuedTxn>),
    Probe,
    Due,
    Trim,
    Rest,
    End,
}

impl Committer<'_> {
    fn work(&mut self) -> Result<(), String> {
        self.check_space(false);
        loop {
            match self.wait() {
                Work::Batch(batch) => self.commit(batch)?,
                Work::Probe => self.check_space(true),
                Work::Due => self.delete_due(),
                Work::Trim => {
                    self.core.published.trim(clock::monotonic_ms(&*self.core.clock));
                    self.rest();
                }
                Work::Rest => self.rest(),
                Work::End => {
                    self.sink.close();
                    return Ok(());
                }
            }
        }
    }

    fn wait(&self) -> Work {
        let core = self.core;
        let mut head = core.head();
        loop {
            head.idle = false;
            if head.held && head.closed.is_none() {
                core.work.wait(&mut head);
                continue;
            }
            let batch = head.take(core.limits.batch_bytes);
            if !batch.is_empty() {
                core.progressed(true);
                return Work::Batch(batch);
            }
            core.progressed(false);
            if std::mem::take(&mut head.probe) {
                return Work::Probe;
            }
            if head.closed.is_some() {
                return Work::End;
            }
            head.tick = false;
            let now_ms = clock::monotonic_ms(&*core.clock);
            let (due, trim) = (self.expiry.wait(now_ms), core.published.trim_in(now_ms));
            if due == Some(Duration::ZERO) {
                return Work::Due;
            }
            if trim == Some(Duration::ZERO) {
                return Work::Trim;
            }
            let rest = self.rest_in(now_ms);
            if rest == Some(Duration::ZERO) {
                return Work::Rest;
            }
            let wait = due.into_iter().chain(trim).chain(rest).min();
            head.idle = true;
            match wait {
                None => core.work.wait(&mut head),
                Some(wait) => {
                    core.work.wait_for(&mut head, wait);
                }
            }
        }
    }

    /// Skips the journal for batches without changes: their jobs only wait for earlier ones.
    fn append(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        if batch.iter().all(|job| job.changes.is_empty()) {
            Ok(())
        } else {
            self.sink.append(batch)
        }
    }

    fn commit(&mut self, batch: Vec<QueuedTxn>) -> Result<(), String> {
        match self.append(&batch) {
            Ok(()) => {
                self.publish(batch);
                self.check_space(false);
            }
            Err(AppendError::Full) => self.refuse(batch)?,
            Err(AppendError::Fatal(reason)) => return Err(self.fail(batch, reason)),
        }
        Ok(())
    }

    /// Publishes a durable batch, then acknowledges it.
    fn publish(&mut self, batch: Vec<QueuedTxn>) {
        let core = self.core;
        let writes = || batch.iter().filter(|job| !job.changes.is_empty());
        let last = writes().next_back().map_or(core.published.revision(), |job| job.revision);
        let changes = || writes().flat_map(|job| &job.changes);
        let now_ms = clock::monotonic_ms(&*core.clock);
        let woken = core.published.publish(changes(), last, now_ms);
        let nothing_waits = {
            let mut head = core.head();
            head.settle(&batch);
            head.queued().0 == 0
        };
        self.note_deadlines(changes());
        core.counters.published(writes().count());
        for job in batch {
            job.end(Ok(()));
        }
        core.published.wake(&woken);
        if nothing_waits {
            self.sink.acknowledged();
        } else if self.expiry.wait(now_ms) == Some(Duration::ZERO) {
            // Under sustained load the queue never drains, so `Due` would never be reached.
            self.delete_due();
        }
        // Likewise.
        if self.sink.is_damaged() && !nothing_waits && self.rest_in(now_ms) == Some(Duration::ZERO)
        {
            self.rest();
        }
    }

    /// Time until the next [`JournalWriter::rest`].
    fn rest_in(&self, now_ms: u64) -> Option<Duration> {
        match self.rest_at {
            Some(at) => Some(Duration::from_millis(at.saturating_sub(now_ms))),
            None => self.sink.is_damaged().then_some(Duration::ZERO),
        }
    }

    fn note_deadlines<'a>(&mut self, changes: impl Iterator<Item = &'a TxnEvent>) {
        let mut now = None;
        for change in changes {
            let now_ms = if change.expires.is_some() {
                *now.get_or_insert_with(|| clock::monotonic_ms(&*self.core.clock))
            } else {
                0
            };
            self.expiry.published(change, now_ms);
        }
        self.core.counters.deadlines.store(self.expiry.len() as u64, Ordering::Relaxed);
    }

    /// Handles a full disk: refuses transactions that grow the state, and those computed on them,
    /// then retries the rest, together first and one by one if that fails.
    fn refuse(&mut self, batch: Vec<QueuedTxn>) -> Result<(), String> {
        let (rest, refused) = self.core.head().split_refused(batch, |job| job.grows);
        self.check_space(false);
        self.reject_disk_full(refused);
        if rest.is_empty() {
            return Ok(());
        }
        match self.append(&rest) {
            Ok(()) => self.publish(rest),
            Err(AppendError::Full) => self.commit_one_by_one(rest)?,
            Err(AppendError::Fatal(reason)) => return Err(self.fail(rest, reason)),
        }
        self.check_space(false);
        Ok(())
    }

    fn commit_one_by_one(&mut self, mut rest: Vec<QueuedTxn>) -> Result<(), String> {
        while !rest.is_empty() {
            let first = Head::first_group(&mut rest);
            match self.append(&first) {
                Ok(()) => self.publish(first),
                Err(AppendError::Full) => {
                    let last = first.last().map(|job| job.revision);
                    let batch = first.into_iter().chain(rest).collect();
                    let (others, refused) =
                        self.core.head().split_refused(batch, |job| Some(job.revision) <= last);
                    self.reject_disk_full(refused);
                    rest = others;
                }
                Err(AppendError::Fatal(reason)) => {
                    return Err(self.fail(first.into_iter().chain(rest).collect(), reason));
                }
            }
        }
        Ok(())
    }

    fn reject_disk_full(&self, refused: impl IntoIterator<Item = QueuedTxn>) {
        for job in refused {
            self.core.counters.failures.fetch_add(1, Ordering::Relaxed);
            job.end(Err(CommitError::DiskFull));
        }
    }

    fn fail(&self, batch: Vec<QueuedTxn>, reason: String) -> String {
        for job in batch {
            self.core.counters.failures.fetch_add(1, Ordering::Relaxed);
            job.end(Err(CommitError::Failed(reason.clone())));
        }
        reason
    }

    fn rest(&mut self) {
        let state = LiveState {
            published: &self.core.published,
            expiry: &self.expiry,
            clock: &*self.core.clock,
        };
        let is_done = self.sink.rest(&state);
        self.rest_at =
            (!is_done).then(|| clock::monotonic_ms(&*self.core.clock) + clock::millis(REST_RETRY));
    }

    fn check_space(&mut self, probe: bool) {
        let full = !self.sink.has_space(probe);
        let mut head = self.core.head();
        if std::mem::replace(&mut head.full, full) != full {
            drop(head);
            tracing::warn!(full, "disk space state changed");
        }
    }

    /// Deletes expired entries, each guarded by the revision that carries the deadline. Failed
    /// deletes are retried on a later pass.
    fn delete_due(&mut self) {
        let now = clock::monotonic_ms(&*self.core.clock);
        for key in self.expiry.due(now, MAX_DUE) {
            let Some(entry) = self.core.published.get(&key) else { continue };
            let txn = Txn {
                guards: vec![Guard::At(key.clone(), entry.revision)],
                writes: vec![Write::Delete { key, last: None }],
            };
            if let Err(error) = self.core.submit_own(txn) {
                tracing::debug!(%error, "deferring the delete of an expired entry");
            }
        }
    }
}
