//! The pending head, which preconditions are checked against. Assigns revisions and holds the
//! committer's queue under one short lock.

use crate::clock::{self, Clock};
use crate::config::StoreLimits;
use crate::entry::{DraftEntry, Entry, Sidecar};
use crate::key::{Key, Revision};
use crate::published::Published;
use crate::txn::{CommitError, Event, Expires, Guard, Need, Put, Rejected, Txn, TxnEvent, Write};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

pub(crate) type CommitResult = Result<(), CommitError>;

/// Bytes charged to the queue per transaction on top of its values.
const JOB_OVERHEAD: usize = 256;
/// Guards that are searched for the key of a write; with more, the key is looked up.
const SEARCHED_GUARDS: usize = 8;

/// An accepted transaction on its way to the journal.
pub(crate) struct QueuedTxn {
    pub(crate) revision: Revision,
    /// Empty for jobs that only wait for earlier ones ([`Head::confirm`]).
    pub(crate) changes: Vec<TxnEvent>,
    pub(crate) bytes: usize,
    /// Whether the transaction makes the state larger.
    pub(crate) grows: bool,
    /// Keys the transaction was computed on, besides those it changes.
    guards: Vec<Guard>,
    /// Must be in the same batch as the next job.
    joins_next: bool,
    ticket: oneshot::Sender<CommitResult>,
}

impl QueuedTxn {
    fn is_computed_on(&self, keys: &HashSet<Key>) -> bool {
        let changed = self.changes.iter().map(|change| &change.event.entry.key);
        !keys.is_empty()
            && self.guards.iter().map(Guard::key).chain(changed).any(|key| keys.contains(key))
    }

    /// Resolves the ticket, which may be gone.
    pub(crate) fn end(self, outcome: CommitResult) {
        let _ = self.ticket.send(outcome);
    }
}

struct Pending {
    revision: Revision,
    entry: Option<Arc<Entry>>,
}

/// State under the head lock.
pub(crate) struct Head {
    next: Revision,
    /// Keys written by unpublished transactions.
    overlay: HashMap<Key, Pending>,
    queue: VecDeque<QueuedTxn>,
    queue_bytes: usize,
    /// Why no more transactions are accepted.
    pub(crate) closed: Option<String>,
    /// Growth is refused for lack of space.
    pub(crate) full: bool,
    /// A put was refused: check for free space again.
    pub(crate) probe: bool,
    /// The clock was changed by hand.
    pub(crate) tick: bool,
    /// Makes the committer take nothing, for tests that gather batches.
    pub(crate) held: bool,
    /// The committer is waiting with nothing scheduled.
    pub(crate) idle: bool,
}

/// Result of [`Head::accept`].
pub(crate) struct AcceptedTxn {
    pub(crate) revision: Revision,
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) outcome: oneshot::Receiver<CommitResult>,
}

/// A transaction as queued.
struct EnqueuedTxn {
    revision: Revision,
    early: Vec<QueuedTxn>,
    last: QueuedTxn,
    entries: Vec<Arc<Entry>>,
    outcome: oneshot::Receiver<CommitResult>,
}

impl Head {
    pub(crate) fn new(next: Revision) -> Self {
        Self {
            next,
            overlay: HashMap::new(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            closed: None,
            full: false,
            probe: false,
            tick: false,
            held: false,
            idle: false,
        }
    }

    /// Revision of the next transaction.
    pub(crate) fn next(&self) -> Revision {
        self.next
    }

    /// Queued transactions, and their bytes.
    pub(crate) fn queued(&self) -> (usize, usize) {
        (self.queue.len(), self.queue_bytes)
    }

    /// The pending value of a key. Checks the overlay first: a key leaves it only after
    /// publication.
    pub(crate) fn pending(&self, published: &Published, key: &Key) -> Option<Arc<Entry>> {
        match self.overlay.get(key) {
            Some(pending) => pending.entry.clone(),
            None => published.get(key),
        }
    }

    /// Checks a transaction, assigns its revision and enqueues it. On a full disk the ticket fails
    /// at once. Without `limits` the queue is unbounded.
    pub(crate) fn accept(
        &mut self,
        plan: PreparedTxn,
        limits: Option<&StoreLimits>,
        published: &Published,
    ) -> Result<AcceptedTxn, Rejected> {
        if let Some(reason) = &self.closed {
            return Err(Rejected::Closed(reason.clone()));
        }
        let is_over = |limits: &StoreLimits| {
            self.queue.len() >= limits.queue_txns
                || self.queue_bytes + plan.bytes > limits.queue_bytes
        };
        if !self.queue.is_empty() && limits.is_some_and(is_over) {
            return Err(Rejected::Busy);
        }
        let guarded = self.check(&plan, published)?;
        let jobs = self.jobs(plan, &guarded, published)?;
        if self.full && jobs.last.grows {
            self.probe = true;
            // The ticket holder has seen the revision: never assign it again.
            self.next = Revision(jobs.revision.0 + 1);
            jobs.early
                .into_iter()
                .chain([jobs.last])
                .for_each(|job| job.end(Err(CommitError::DiskFull)));
        } else {
            jobs.early.into_iter().for_each(|job| self.enqueue(job));
            self.enqueue(jobs.last);
        }
        Ok(AcceptedTxn { revision: jobs.revision, entries: jobs.entries, outcome: jobs.outcome })
    }

    /// Checks that `head` is the pending head of a key (`None`: no value). If it is unpublished,
    /// returns a receiver with a queue slot of its own, which fails along with everything computed
    /// on a failed batch.
    pub(crate) fn confirm(
        &mut self,
        key: &Key,
        head: Option<Revision>,
        limits: &StoreLimits,
        published: &Published,
    ) -> Result<Option<oneshot::Receiver<CommitResult>>, Rejected> {
        if self.pending(published, key).map(|entry| entry.revision) != head {
            return Err(Rejected::Guard(key.clone()));
        }
        if !self.overlay.contains_key(key) {
            return Ok(None);
        }
        // Allowed while closing: the batch it waits for is still in flight.
        if self.queue.len() >= limits.queue_txns {
            return Err(Rejected::Busy);
        }
        let (ticket, outcome) = oneshot::channel();
        self.queue_bytes += JOB_OVERHEAD;
        let guard =
            head.map_or(Guard::Absent(key.clone()), |revision| Guard::At(key.clone(), revision));
        let (changes, guards) = (Vec::new(), vec![guard]);
        self.queue.push_back(QueuedTxn {
            revision: self.next,
            changes,
            bytes: JOB_OVERHEAD,
            grows: false,
            guards,
            joins_next: false,
            ticket,
        });
        Ok(Some(outcome))
    }

    /// Splits a transaction into jobs without queueing them. `guarded`: see [`Self::check`].
    fn jobs(
        &self,
        plan: PreparedTxn,
        guarded: &[Option<Arc<Entry>>],
        published: &Published,
    ) -> Result<EnqueuedTxn, Rejected> {
        let PreparedTxn { guards, writes, early: earlier, bytes, growth_allowance } = plan;
        // The lock is held meanwhile: not each guard for each write.
        let searched = if guards.len() <= SEARCHED_GUARDS { &guards[..] } else { &[] };
        let change = |write: PreparedWrite, revision| {
            let previous = match searched.iter().position(|guard| guard.key() == write.key()) {
                Some(at) => guarded[at].clone(),
                None => self.pending(published, write.key()),
            };
            write.change(revision, previous).map_err(Rejected::Guard)
        };
        let revision = Revision(self.next.0 + earlier.len() as u64);
        let mut changes = Vec::with_capacity(writes.len());
        for write in writes {
            changes.push(change(write, revision)?);
        }
        let mut entries: Vec<_> = changes.iter().map(|change| change.event.entry.clone()).collect();
        let mut early = Vec::new();
        for (at, write) in (self.next.0..).zip(earlier) {
            let change = change(write.planned, Revision(at))?;
            entries.insert(write.index, change.event.entry.clone());
            // Dropped receiver: the ticket belongs to the last job.
            let ticket = oneshot::channel().0;
            early.push(QueuedTxn {
                revision: Revision(at),
                changes: vec![change],
                bytes: write.bytes,
                grows: false,
                guards: Vec::new(),
                joins_next: true,
                ticket,
            });
        }
        let (ticket, outcome) = oneshot::channel();
        let grows =
            grows(early.iter().flat_map(|job| &job.changes).chain(&changes), growth_allowance);
        early.iter_mut().for_each(|job| job.grows = grows);
        let last = QueuedTxn { revision, changes, bytes, grows, guards, joins_next: false, ticket };
        Ok(EnqueuedTxn { revision, early, last, entries, outcome })
    }

    /// Checks the guards; returns the pending values of their keys, in order.
    fn check(
        &self,
        plan: &PreparedTxn,
        published: &Published,
    ) -> Result<Vec<Option<Arc<Entry>>>, Rejected> {
        let checked = plan.guards.iter().map(|guard| {
            let present = self.pending(published, guard.key());
            let expected = match guard {
                Guard::Absent(_) => None,
                Guard::At(_, revision) => Some(*revision),
            };
            match present.as_ref().map(|entry| entry.revision) == expected {
                true => Ok(present),
                false => Err(Rejected::Guard(guard.key().clone())),
            }
        });
        checked.collect()
    }

    fn enqueue(&mut self, job: QueuedTxn) {
        self.next = Revision(job.revision.0 + 1);
        self.overlay_changes(&job);
        self.queue_bytes += job.bytes;
        self.queue.push_back(job);
    }

    /// Records the changes in the overlay.
    fn overlay_changes(&mut self, job: &QueuedTxn) {
        for TxnEvent { event, .. } in &job.changes {
            let entry = (!event.deleted).then(|| event.entry.clone());
            self.overlay.insert(event.entry.key.clone(), Pending { revision: job.revision, entry });
        }
    }

    /// Takes the next batch, in order; empty if the queue is.
    pub(crate) fn take(&mut self, batch_bytes: usize) -> Vec<QueuedTxn> {
        let (mut bytes, mut count, mut joins_next) = (0, 0, false);
        for job in &self.queue {
            if bytes >= batch_bytes && !joins_next {
                break;
            }
            bytes += job.bytes;
            count += 1;
            joins_next = job.joins_next;
        }
        let batch: Vec<QueuedTxn> = self.queue.drain(..count).collect();
        self.queue_bytes -= bytes;
        batch
    }

    /// Removes a published batch from the overlay.
    pub(crate) fn settle(&mut self, batch: &[QueuedTxn]) {
        for job in batch {
            for change in &job.changes {
                let key = &change.event.entry.key;
                if self.overlay.get(key).is_some_and(|pending| pending.revision == job.revision) {
                    self.overlay.remove(key);
                }
            }
        }
    }

    /// Resumes right after `revision`. Tests only.
    pub(crate) fn rewind(&mut self, revision: Revision) {
        self.next = Revision(revision.0 + 1);
    }

    /// Removes from a batch and from the queue every transaction that `goes` selects, and those
    /// computed on one of them. Returns the rest of the batch and the removed ones; the others keep
    /// their revisions. Freed revisions are not reused: a guard may still name one.
    pub(crate) fn split_refused(
        &mut self,
        batch: Vec<QueuedTxn>,
        goes: impl Fn(&QueuedTxn) -> bool,
    ) -> (Vec<QueuedTxn>, Vec<QueuedTxn>) {
        self.full = true;
        let count = batch.len();
        let (mut rest, mut refused, mut gone) = (Vec::new(), Vec::new(), HashSet::new());
        let mut together = Vec::new();
        let waiting = self.reset();
        for (index, job) in batch.into_iter().chain(waiting).enumerate() {
            let is_joined = job.joins_next;
            together.push(job);
            if is_joined {
                continue;
            }
            if together.iter().any(|job| goes(job) || job.is_computed_on(&gone)) {
                gone.extend(
                    together
                        .iter()
                        .flat_map(|job| &job.changes)
                        .map(|change| change.event.entry.key.clone()),
                );
                refused.append(&mut together);
                continue;
            }
            for job in together.drain(..) {
                self.overlay_changes(&job);
                if index < count {
                    rest.push(job);
                } else {
                    self.queue_bytes += job.bytes;
                    self.queue.push_back(job);
                }
            }
        }
        (rest, refused)
    }

    /// Takes the first transaction of a batch, with the jobs joined to it.
    pub(crate) fn first_group(batch: &mut Vec<QueuedTxn>) -> Vec<QueuedTxn> {
        let count = batch.iter().take_while(|job| job.joins_next).count() + 1;
        batch.drain(..count.min(batch.len())).collect()
    }

    /// Drops the overlay and returns the queue: everything in it was computed on the failed batch.
    /// Freed revisions are not reused: a guard may still name one.
    pub(crate) fn reset(&mut self) -> VecDeque<QueuedTxn> {
        self.overlay.clear();
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}

/// A transaction, prepared as far as possible without the lock.
pub(crate) struct PreparedTxn {
    guards: Vec<Guard>,
    writes: Vec<PreparedWrite>,
    early: Vec<EarlyWrite>,
    bytes: usize,
    /// Bytes by which it may grow the state on a full disk.
    growth_allowance: usize,
}

/// A second or later change to a resource within a transaction.
struct EarlyWrite {
    /// Index in the transaction.
    index: usize,
    planned: PreparedWrite,
    bytes: usize,
}

enum PreparedWrite {
    Put { key: Key, draft: DraftEntry, expires: Option<Expires> },
    Delete { key: Key, last: Option<DraftEntry> },
}

impl PreparedTxn {
    /// Validates a transaction and builds its values with `guess` as their revision.
    pub(crate) fn new(
        txn: Txn,
        need: Need,
        limits: &StoreLimits,
        clock: &dyn Clock,
        guess: Revision,
    ) -> Result<Self, Rejected> {
        let Txn { guards, writes } = txn;
        let others = check_keys(&writes)?;
        let growth_allowance = if need == Need::Essential { limits.essential_bytes } else { 0 };
        let mut plan = Self {
            guards,
            writes: Vec::with_capacity(writes.len()),
            early: Vec::new(),
            bytes: JOB_OVERHEAD,
            growth_allowance,
        };
        for (index, write) in writes.into_iter().enumerate() {
            if others.contains(&index) {
                let mut bytes = JOB_OVERHEAD;
                let planned = PreparedWrite::new(write, limits, clock, guess, &mut bytes)?;
                plan.early.push(EarlyWrite { index, planned, bytes });
            } else {
                plan.writes.push(PreparedWrite::new(write, limits, clock, guess, &mut plan.bytes)?);
            }
        }
        Ok(plan)
    }
}

/// Indexes of writes that are not the first of their resource. Rejects duplicate keys.
pub(crate) fn check_keys(writes: &[Write]) -> Result<Vec<usize>, Rejected> {
    if writes.is_empty() {
        return Err(Rejected::Invalid("no changes"));
    }
    let mut others = Vec::new();
    for (index, write) in writes.iter().enumerate() {
        let mut of_resource = writes[..index]
            .iter()
            .filter(|other| other.key().prefix() == write.key().prefix())
            .peekable();
        if of_resource.peek().is_some() {
            others.push(index);
        }
        if of_resource.any(|other| other.key() == write.key()) {
            return Err(Rejected::Invalid("two changes to one key"));
        }
    }
    Ok(others)
}

impl PreparedWrite {
    fn new(
        write: Write,
        limits: &StoreLimits,
        clock: &dyn Clock,
        guess: Revision,
        bytes: &mut usize,
    ) -> Result<Self, Rejected> {
        *bytes += JOB_OVERHEAD + write.key().as_str().len();
        Ok(match write {
            Write::Put(Put { key, value, sidecar, ttl }) => {
                *bytes += value.len();
                let draft = draft(&value, sidecar, limits, guess)?;
                Self::Put { key, draft, expires: ttl.map(|ttl| expires(clock, ttl)) }
            }
            Write::Delete { key, last: None } => Self::Delete { key, last: None },
            Write::Delete { key, last: Some(last) } if last.key == key => {
                *bytes += last.value.len();
                Self::Delete { key, last: Some(draft(&last.value, last.sidecar, limits, guess)?) }
            }
            Write::Delete { .. } => return Err(Rejected::Invalid("last state of another key")),
        })
    }

    fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// The change at its revision. Returns the key if it deletes nothing.
    fn change(self, revision: Revision, previous: Option<Arc<Entry>>) -> Result<TxnEvent, Key> {
        match self {
            Self::Put { key, draft, expires } => {
                let created =
                    previous.as_ref().map_or(revision, |previous| previous.create_revision);
                let entry = Arc::new(draft.finish(key, revision, created));
                Ok(TxnEvent {
                    event: Event { entry, previous, deleted: false },
                    own_last: false,
                    expires,
                })
            }
            Self::Delete { key, last } => {
                let Some(previous) = previous else { return Err(key) };
                let own_last = last.is_some();
                let last = last.unwrap_or_else(|| {
                    DraftEntry::new(previous.value(), previous.sidecar.clone(), revision)
                });
                let entry = Arc::new(last.finish(key, revision, previous.create_revision));
                Ok(TxnEvent {
                    event: Event { entry, previous: Some(previous), deleted: true },
                    own_last,
                    expires: None,
                })
            }
        }
    }
}

/// Whether the changes grow the state by more than the allowance.
fn grows<'a>(changes: impl Iterator<Item = &'a TxnEvent>, growth_allowance: usize) -> bool {
    let (mut before, mut after) = (growth_allowance, 0);
    for TxnEvent { event, .. } in changes {
        before += event.previous.as_ref().map_or(0, |previous| previous.value_len());
        after += if event.deleted { 0 } else { event.entry.value_len() };
    }
    after > before
}

fn draft(
    value: &[u8],
    sidecar: Sidecar,
    limits: &StoreLimits,
    guess: Revision,
) -> Result<DraftEntry, Rejected> {
    if value.len() > limits.value_bytes {
        return Err(Rejected::Invalid("value over the limit"));
    }
    if sidecar.revision_at as usize > value.len() {
        return Err(Rejected::Invalid("splice outside of the value"));
    }
    Ok(DraftEntry::new([value, b""], sidecar, guess))
}

fn expires(clock: &dyn Clock, ttl: Duration) -> Expires {
    let ttl_ms = clock::millis(ttl);
    Expires { ttl_ms, wall_ms: clock::wall_ms(clock).saturating_add(ttl_ms) }
}
