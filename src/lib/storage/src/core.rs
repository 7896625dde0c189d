//! State shared by the store handle, its turns and the committer.

use crate::clock::{self, Clock};
use crate::config::{Environment, StoreLimits};
use crate::head::{AcceptedTxn, CommitResult, Head, PreparedTxn};
use crate::key::{Key, Revision};
use crate::published::Published;
use crate::stats::{Counters, Stats};
use crate::txn::{CommitError, Need, Rejected, Txn};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// A store without its handle.
pub(crate) struct StoreCore {
    pub(crate) published: Arc<Published>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: StoreLimits,
    head: Mutex<Head>,
    /// Wakes the committer.
    pub(crate) work: Condvar,
    /// Predicted revision of the next transaction.
    guess: AtomicU64,
    /// When the oldest unfinished transaction was queued, in monotonic milliseconds plus one; 0 if
    /// none.
    waiting_since: AtomicU64,
    /// Why the journal failed.
    failure: watch::Sender<Option<String>>,
    /// Whether the committer has ended.
    ended: watch::Sender<bool>,
}

impl StoreCore {
    /// `next` is the first revision to assign.
    pub(crate) fn new(
        published: Arc<Published>,
        next: Revision,
        counters: Arc<Counters>,
        parts: &Environment,
    ) -> Self {
        let head = Head::new(next);
        Self {
            guess: AtomicU64::new(head.next().0),
            head: Mutex::new(head),
            published,
            counters,
            clock: parts.clock.clone(),
            limits: parts.limits.clone(),
            work: Condvar::new(),
            waiting_since: AtomicU64::new(0),
            failure: watch::Sender::new(None),
            ended: watch::Sender::new(false),
        }
    }

    pub(crate) fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock()
    }

    pub(crate) fn pending(&self, key: &Key) -> Option<Arc<crate::Entry>> {
        self.head().pending(&self.published, key)
    }

    pub(crate) fn submit(&self, txn: Txn, need: Need) -> Result<AcceptedTxn, Rejected> {
        self.enqueue(txn, need, Some(&self.limits))
    }

    /// Submits an internal transaction, exempt from the queue limits.
    pub(crate) fn submit_own(&self, txn: Txn) -> Result<AcceptedTxn, Rejected> {
        self.enqueue(txn, Need::Essential, None)
    }

    /// See [`Head::confirm`]. Does not lock the head if the revision is published.
    pub(crate) fn confirm(
        &self,
        key: &Key,
        revision: Option<Revision>,
    ) -> Result<Option<oneshot::Receiver<CommitResult>>, Rejected> {
        if self.published.get(key).map(|entry| entry.revision) == revision {
            return Ok(None);
        }
        let mut head = self.head();
        let was_idle = head.queued().0 == 0;
        let outcome = head.confirm(key, revision, &self.limits, &self.published)?;
        if outcome.is_some() {
            self.enqueued(head, was_idle);
        }
        Ok(outcome)
    }

    fn enqueue(
        &self,
        txn: Txn,
        need: Need,
        queue: Option<&StoreLimits>,
    ) -> Result<AcceptedTxn, Rejected> {
        let plan = PreparedTxn::new(
            txn,
            need,
            &self.limits,
            &*self.clock,
            Revision(self.guess.load(Ordering::Relaxed)),
        )?;
        let mut head = self.head();
        let was_idle = head.queued().0 == 0;
        let accepted = head.accept(plan, queue, &self.published)?;
        self.guess.store(head.next().0, Ordering::Relaxed);
        self.enqueued(head, was_idle);
        Ok(accepted)
    }

    /// Wakes the committer if it was idle.
    fn enqueued(&self, head: MutexGuard<'_, Head>, was_idle: bool) {
        if was_idle || head.probe {
            if self.waiting_since.load(Ordering::Relaxed) == 0 {
                self.progressed(true);
            }
            drop(head);
            self.work.notify_one();
        }
    }

    /// Wakes the committer.
    pub(crate) fn wake(&self) {
        self.head().tick = true;
        self.work.notify_one();
    }

    /// Restarts or clears the stall timer. Called with the head locked, when the committer starts a
    /// batch or finds none.
    pub(crate) fn progressed(&self, more: bool) {
        let since = if more { clock::monotonic_ms(&*self.clock).saturating_add(1) } else { 0 };
        self.waiting_since.store(since, Ordering::Relaxed);
    }

    /// How long the committer has made no progress on queued work.
    pub(crate) fn stalled_for(&self) -> Duration {
        let since = self.waiting_since.load(Ordering::Relaxed);
        if since == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(clock::monotonic_ms(&*self.clock).saturating_sub(since - 1))
    }

    /// Rejects further transactions with `reason`.
    pub(crate) fn refuse(&self, reason: &str) {
        self.head().closed.get_or_insert_with(|| reason.to_owned());
        self.work.notify_one();
    }

    /// Marks the journal as failed: rejects new transactions and fails the queued ones.
    pub(crate) fn fail(&self, reason: &str) {
        let mut head = self.head();
        head.closed = Some(reason.to_owned());
        let waiting = head.reset();
        drop(head);
        for job in waiting {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
            job.end(Err(CommitError::Failed(reason.to_owned())));
        }
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| reason.to_owned());
            first
        });
    }

    /// Why the journal failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Resolves once the journal has failed.
    pub(crate) async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|it| it.clone());
        match reason {
            Some(reason) => reason,
            // Unreachable: `self` owns the sender.
            None => std::future::pending().await,
        }
    }

    /// Marks the committer, and with it the journal, as gone.
    pub(crate) fn end(&self) {
        self.refuse("the store is closed");
        self.published.close();
        self.ended.send_replace(true);
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // Cannot fail: `self` owns the sender.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    pub(crate) fn stats(&self) -> Stats {
        let (queue, queue_bytes, disk_full) = {
            let head = self.head();
            (head.queued().0, head.queued().1, head.full)
        };
        let mut stats = Stats {
            revision: self.published.revision(),
            queue,
            queue_bytes,
            disk_full,
            ..self.counters.stats()
        };
        stats.history_bytes = self.published.retained_bytes();
        (stats.replay_cache, stats.replay_bytes) = self.published.replay_cache().stats();
        stats.live_bytes = self.published.live_bytes();
        for resource in self.published.resources().values() {
            let state = resource.state.read();
            stats.history_events += state.log.len();
            stats.entries.push((resource.prefix.clone(), state.map.len()));
        }
        stats.entries.sort();
        stats
    }
}
