//! The pending head: what preconditions see. It assigns revisions and holds the queue of the committer, under one short lock.

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

/// How a transaction ended, for its ticket.
pub(crate) type CommitResult = Result<(), CommitError>;

/// What a transaction costs in the queue beside its bytes.
const JOB_OVERHEAD: usize = 256;

/// An accepted transaction on its way to the journal.
pub(crate) struct QueuedTxn {
    pub(crate) revision: Revision,
    /// None in what only waits for those before it ([`Head::confirm`]).
    pub(crate) changes: Vec<TxnEvent>,
    pub(crate) bytes: usize,
    /// Its transaction makes the state larger.
    pub(crate) grows: bool,
    /// Keys that the transaction was computed on, beside those that it changes.
    guards: Vec<Guard>,
    /// Accepted together with the next one: both are in one batch.
    joins_next: bool,
    ticket: oneshot::Sender<CommitResult>,
}

impl QueuedTxn {
    fn is_computed_on(&self, keys: &HashSet<Key>) -> bool {
        let changed = self.changes.iter().map(|change| &change.event.entry.key);
        !keys.is_empty() && self.guards.iter().map(Guard::key).chain(changed).any(|key| keys.contains(key))
    }

    /// Tells its ticket. The ticket may be gone.
    pub(crate) fn end(self, outcome: CommitResult) {
        let _ = self.ticket.send(outcome);
    }
}

struct Pending {
    revision: Revision,
    entry: Option<Arc<Entry>>,
}

/// What the lock of the head protects.
pub(crate) struct Head {
    next: Revision,
    /// Keys that are written by transactions which are not published yet.
    overlay: HashMap<Key, Pending>,
    queue: VecDeque<QueuedTxn>,
    queue_bytes: usize,
    /// Why no more is accepted.
    pub(crate) closed: Option<String>,
    /// Puts are refused for lack of space.
    pub(crate) full: bool,
    /// A put was refused: look whether there is space again.
    pub(crate) probe: bool,
    /// The clock was changed by hand.
    pub(crate) tick: bool,
    /// The committer takes nothing: for tests that gather batches.
    pub(crate) held: bool,
    /// The committer waits, with nothing to do that it knows of.
    pub(crate) idle: bool,
}

/// What [`Head::accept`] hands back.
pub(crate) struct AcceptedTxn {
    pub(crate) revision: Revision,
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) outcome: oneshot::Receiver<CommitResult>,
}

/// The queue's part of one transaction.
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

    /// The revision that the next transaction gets.
    pub(crate) fn next(&self) -> Revision {
        self.next
    }

    /// Transactions that wait, and their bytes.
    pub(crate) fn queued(&self) -> (usize, usize) {
        (self.queue.len(), self.queue_bytes)
    }

    /// The pending value of a key. Looks at what is pending first: a key leaves the overlay only after it was published.
    pub(crate) fn pending(&self, published: &Published, key: &Key) -> Option<Arc<Entry>> {
        match self.overlay.get(key) {
            Some(pending) => pending.entry.clone(),
            None => published.get(key),
        }
    }

    /// Checks a transaction, assigns its revision and enqueues it; on a full disk its ticket says so at once. Without `limits` the queue has none.
    pub(crate) fn accept(&mut self, plan: PreparedTxn, limits: Option<&StoreLimits>, published: &Published) -> Result<AcceptedTxn, Rejected> {
        if let Some(reason) = &self.closed {
            return Err(Rejected::Closed(reason.clone()));
        }
        let is_over = |limits: &StoreLimits| self.queue.len() >= limits.queue_txns || self.queue_bytes + plan.bytes > limits.queue_bytes;
        if !self.queue.is_empty() && limits.is_some_and(is_over) {
            return Err(Rejected::Busy);
        }
        self.check(&plan, published)?;
        let jobs = self.jobs(plan, published)?;
        if self.full && jobs.last.grows {
            self.probe = true;
            // Whoever holds the ticket has seen the revision: nothing else ever gets it.
            self.next = Revision(jobs.revision.0 + 1);
            jobs.early.into_iter().chain([jobs.last]).for_each(|job| job.end(Err(CommitError::DiskFull)));
        } else {
            jobs.early.into_iter().for_each(|job| self.enqueue(job));
            self.enqueue(jobs.last);
        }
        Ok(AcceptedTxn { revision: jobs.revision, entries: jobs.entries, outcome: jobs.outcome })
    }

    /// Whether a key's pending head is this (`None`: no value). What is not published yet is awaited with the receiver, in a place of its own in the queue:
    /// it fails with what was computed on a batch that fails.
    pub(crate) fn confirm(
        &mut self,
        (key, head): (&Key, Option<Revision>),
        limits: &StoreLimits,
        published: &Published,
    ) -> Result<Option<oneshot::Receiver<CommitResult>>, Rejected> {
        if self.pending(published, key).map(|entry| entry.revision) != head {
            return Err(Rejected::Guard(key.clone()));
        }
        if !self.overlay.contains_key(key) {
            return Ok(None);
        }
        // Also when the store is closing: the batch that it waits for is still on its way.
        if self.queue.len() >= limits.queue_txns {
            return Err(Rejected::Busy);
        }
        let (ticket, outcome) = oneshot::channel();
        self.queue_bytes += JOB_OVERHEAD;
        let guard = head.map_or(Guard::Absent(key.clone()), |revision| Guard::At(key.clone(), revision));
        let (changes, guards) = (Vec::new(), vec![guard]);
        self.queue.push_back(QueuedTxn { revision: self.next, changes, bytes: JOB_OVERHEAD, grows: false, guards, joins_next: false, ticket });
        Ok(Some(outcome))
    }

    /// What a transaction becomes in the queue; the queue is as it was.
    fn jobs(&self, plan: PreparedTxn, published: &Published) -> Result<EnqueuedTxn, Rejected> {
        let change = |write: PreparedWrite, revision| {
            let previous = self.pending(published, write.key());
            write.change(revision, previous).map_err(Rejected::Guard)
        };
        let revision = Revision(self.next.0 + plan.early.len() as u64);
        let mut changes = Vec::with_capacity(plan.writes.len());
        for write in plan.writes {
            changes.push(change(write, revision)?);
        }
        let mut entries: Vec<_> = changes.iter().map(|change| change.event.entry.clone()).collect();
        let mut early = Vec::new();
        for (at, write) in (self.next.0..).zip(plan.early) {
            let change = change(write.planned, Revision(at))?;
            entries.insert(write.index, change.event.entry.clone());
            // Nobody waits for it: what follows has the ticket.
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
        let grows = grows(early.iter().flat_map(|job| &job.changes).chain(&changes), plan.growth_allowance);
        early.iter_mut().for_each(|job| job.grows = grows);
        let last = QueuedTxn { revision, changes, bytes: plan.bytes, grows, guards: plan.guards, joins_next: false, ticket };
        Ok(EnqueuedTxn { revision, early, last, entries, outcome })
    }

    fn check(&self, plan: &PreparedTxn, published: &Published) -> Result<(), Rejected> {
        for guard in &plan.guards {
            let holds = match (guard, self.pending(published, guard.key())) {
                (Guard::Absent(_), present) => present.is_none(),
                (Guard::At(_, revision), present) => present.is_some_and(|entry| entry.revision == *revision),
            };
            if !holds {
                return Err(Rejected::Guard(guard.key().clone()));
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, job: QueuedTxn) {
        self.next = Revision(job.revision.0 + 1);
        self.overlay_changes(&job);
        self.queue_bytes += job.bytes;
        self.queue.push_back(job);
    }

    /// Lays what a transaction changes over what is published.
    fn overlay_changes(&mut self, job: &QueuedTxn) {
        for TxnEvent { event, .. } in &job.changes {
            let entry = (!event.deleted).then(|| event.entry.clone());
            self.overlay.insert(event.entry.key.clone(), Pending { revision: job.revision, entry });
        }
    }

    /// The next batch, in order; empty when nothing waits.
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

    /// A batch was published: readers find its values there.
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

    /// For tests: goes back to right after a revision.
    pub(crate) fn rewind(&mut self, revision: Revision) {
        self.next = Revision(revision.0 + 1);
    }

    /// There is no space for a batch: takes out of it, and out of what waits, what is to be refused, and every transaction that was computed on that. The
    /// others stay, with their revisions: first the rest of the batch, second what goes. Revisions are not given again: a guard may still name one.
    pub(crate) fn split_refused(&mut self, batch: Vec<QueuedTxn>, goes: impl Fn(&QueuedTxn) -> bool) -> (Vec<QueuedTxn>, Vec<QueuedTxn>) {
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
                gone.extend(together.iter().flat_map(|job| &job.changes).map(|change| change.event.entry.key.clone()));
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

    /// The first transaction of a batch.
    pub(crate) fn first_group(batch: &mut Vec<QueuedTxn>) -> Vec<QueuedTxn> {
        let count = batch.iter().take_while(|job| job.joins_next).count() + 1;
        batch.drain(..count.min(batch.len())).collect()
    }

    /// A batch failed: everything that was computed on it goes with it. Its revisions are not given again: a guard may still name one. Returns what waited.
    pub(crate) fn reset(&mut self) -> VecDeque<QueuedTxn> {
        self.overlay.clear();
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}

/// A transaction as far as it can be prepared before the lock is taken.
pub(crate) struct PreparedTxn {
    guards: Vec<Guard>,
    writes: Vec<PreparedWrite>,
    early: Vec<EarlyWrite>,
    bytes: usize,
    /// By so many bytes it may make the state larger when nothing else may.
    growth_allowance: usize,
}

/// A further change of a resource that the transaction changes already.
struct EarlyWrite {
    /// Its place in the transaction.
    index: usize,
    planned: PreparedWrite,
    bytes: usize,
}

enum PreparedWrite {
    Put { key: Key, draft: DraftEntry, expires: Option<Expires> },
    Delete { key: Key, last: Option<DraftEntry> },
}

impl PreparedTxn {
    /// Checks the form of a transaction and builds its values with `guess` as their revision.
    pub(crate) fn new((txn, need): (Txn, Need), limits: &StoreLimits, clock: &dyn Clock, guess: Revision) -> Result<Self, Rejected> {
        let Txn { guards, writes } = txn;
        let others = check_keys(&writes)?;
        let growth_allowance = if need == Need::Essential { limits.essential_bytes } else { 0 };
        let mut plan = Self { guards, writes: Vec::with_capacity(writes.len()), early: Vec::new(), bytes: JOB_OVERHEAD, growth_allowance };
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

/// Which writes are not the first of their resource; no key may be there twice.
fn check_keys(writes: &[Write]) -> Result<Vec<usize>, Rejected> {
    if writes.is_empty() {
        return Err(Rejected::Invalid("it changes nothing"));
    }
    let mut others = Vec::new();
    for (index, write) in writes.iter().enumerate() {
        let mut of_resource = writes[..index].iter().filter(|other| other.key().prefix() == write.key().prefix()).peekable();
        if of_resource.peek().is_some() {
            others.push(index);
        }
        if of_resource.any(|other| other.key() == write.key()) {
            return Err(Rejected::Invalid("two changes of one key"));
        }
    }
    Ok(others)
}

impl PreparedWrite {
    fn new(write: Write, limits: &StoreLimits, clock: &dyn Clock, guess: Revision, bytes: &mut usize) -> Result<Self, Rejected> {
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
            Write::Delete { .. } => return Err(Rejected::Invalid("the last state of another key")),
        })
    }

    fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// The change at its revision; a delete of nothing gives the key back.
    fn change(self, revision: Revision, previous: Option<Arc<Entry>>) -> Result<TxnEvent, Key> {
        match self {
            Self::Put { key, draft, expires } => {
                let created = previous.as_ref().map_or(revision, |previous| previous.create_revision);
                let entry = Arc::new(draft.finish(key, revision, created));
                Ok(TxnEvent { event: Event { entry, previous, deleted: false }, own_last: false, expires })
            }
            Self::Delete { key, last } => {
                let Some(previous) = previous else { return Err(key) };
                let own_last = last.is_some();
                let last = last.unwrap_or_else(|| DraftEntry::new(previous.value(), previous.sidecar.clone(), revision));
                let entry = Arc::new(last.finish(key, revision, previous.create_revision));
                Ok(TxnEvent { event: Event { entry, previous: Some(previous), deleted: true }, own_last, expires: None })
            }
        }
    }
}

/// Whether changes together make the state larger, by more than may be.
fn grows<'a>(changes: impl Iterator<Item = &'a TxnEvent>, growth_allowance: usize) -> bool {
    let (mut before, mut after) = (growth_allowance, 0);
    for TxnEvent { event, .. } in changes {
        before += event.previous.as_ref().map_or(0, |previous| previous.value_len());
        after += if event.deleted { 0 } else { event.entry.value_len() };
    }
    after > before
}

fn draft(value: &[u8], sidecar: Sidecar, limits: &StoreLimits, guess: Revision) -> Result<DraftEntry, Rejected> {
    if value.len() > limits.value_bytes {
        return Err(Rejected::Invalid("a value over the limit"));
    }
    if sidecar.revision_at as usize > value.len() {
        return Err(Rejected::Invalid("a splice outside of its value"));
    }
    Ok(DraftEntry::new([value, b""], sidecar, guess))
}

fn expires(clock: &dyn Clock, ttl: Duration) -> Expires {
    let ttl_ms = clock::millis(ttl);
    Expires { ttl_ms, wall_ms: clock::wall_ms(clock).saturating_add(ttl_ms) }
}
