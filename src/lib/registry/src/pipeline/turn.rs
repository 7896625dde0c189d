//! Turns: read the pending head, compute and enqueue while no other writer computes on the key,
//! then wait until the transaction is durable.
//!
//! Within a turn only a slot for a long computation is awaited.

use super::{Registry, key};
use crate::admission::Effects;
use crate::context::{RequestContext, Target};
use crate::failure::{lost, rejected};
use crate::offload::{self, is_costly, json_micros, leave_worker_for};
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{
    CommitError, Confirmation, Entry, Guard, Key, Need, Rejected, Ticket, Turn, Txn, Write,
};
use ferrokube_trace::{Span, SpanInfo};
use std::sync::Arc;
use std::time::Duration;

/// How long a create waits for its turn on what other creates change: the one that has it may wait
/// for a slot, in the queue of its caller.
const MAX_TURN_WAIT: Duration = Duration::from_millis(50);
/// The same where a turn lasts until its write is committed elsewhere, so that a long line is no
/// sign of a slow caller, and only one write at a time can succeed.
const MAX_SHARED_TURN_WAIT: Duration = Duration::from_secs(30);

/// Attempts of a write if another key that it guards (a quota, a namespace) keeps changing.
pub(super) const ATTEMPTS: usize = 32;

/// Result of computing a write on a head.
pub(super) enum Proposal<T> {
    /// Nothing to write.
    Done(T),
    /// Write; `reply` makes the result from the first entry.
    Commit { txn: Txn, need: Need, reply: fn(&Target, Arc<Entry>) -> T },
    /// Delete; the result is known.
    CommitThen { txn: Txn, reply: T },
}

impl<T> Proposal<T> {
    /// The write, if the request is admitted; `Err`: the result without a write.
    fn admitted(self, context: &RequestContext) -> Result<Admitted<T>, Result<T, Failure>> {
        let (txn, need, reply) = match self {
            Self::Done(reply) => return Err(Ok(reply)),
            Self::Commit { txn, need, reply } => (txn, need, CommitReply::FromEntry(reply)),
            Self::CommitThen { txn, reply } => (txn, Need::Essential, CommitReply::Known(reply)),
        };
        context.admit(need).map_err(Err)?;
        Ok(Admitted { txn, need, reply })
    }
}

/// A proposal that is to be committed.
struct Admitted<T> {
    txn: Txn,
    need: Need,
    reply: CommitReply<T>,
}

/// Result of an accepted transaction, once it is durable.
enum CommitReply<T> {
    FromEntry(fn(&Target, Arc<Entry>) -> T),
    Known(T),
}

/// A create, without the effects of its admission.
pub(super) struct NewEntry<T> {
    pub(super) txn: Txn,
    pub(super) need: Need,
    pub(super) reply: fn(&Target, Arc<Entry>) -> T,
}

enum TurnEnd<T> {
    Accepted(Ticket, CommitReply<T>),
    /// Nothing to write. Returned once the head is confirmed.
    Unwritten(Result<T, Failure>, Confirmation),
    /// Refused by the store.
    Refused(Failure),
    /// The head changed, or another key's guard failed.
    Guard(Rejected),
}

impl Registry {
    /// Computes on the pending head of the target's key in its turn, commits and waits. Retries if
    /// the guard of another key fails. `added`: bytes by which the write may exceed the head.
    pub(super) async fn in_turn<T: Send>(
        &self,
        context: &RequestContext,
        target: &Target,
        added: usize,
        mut compute: impl FnMut(&Key, Option<&Arc<Entry>>) -> Result<Proposal<T>, Failure> + Send,
    ) -> Result<T, Failure> {
        let key = key(target, target.name.as_deref().unwrap_or_default())?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            // Before the turn, which others wait for. A head that grows meanwhile is counted in its
            // writer's share.
            let replaced = self.store().pending(&key).map_or(0, |head| head.bytes.len());
            let _share = self.state.backlog.reserve(offload::caller(), replaced + added).await;
            let turn = self.store().turn(&key).await.map_err(|error| rejected(&error))?;
            let head = turn.pending(&key);
            self.leave_if_long(target, head.as_ref()).await;
            let compute = |head: Option<&Arc<Entry>>| {
                self.timed(target, || compute(&key, head)).map_err(Err)?.admitted(context)
            };
            match one_turn(turn, &key, head, compute) {
                TurnEnd::Accepted(ticket, reply) => {
                    match self.settled(target, ticket, reply).await? {
                        Some(result) => return Ok(result),
                        None => last = None,
                    }
                }
                TurnEnd::Unwritten(result, confirmation) => match confirmed(confirmation).await? {
                    true => return result,
                    false => last = None,
                },
                TurnEnd::Refused(failure) => return Err(failure),
                TurnEnd::Guard(error) => last = Some(error),
            }
            tokio::task::yield_now().await;
        }
        Err(rejected(&last.unwrap_or(Rejected::Guard(key))))
    }

    /// Leaves the worker if computing on this head may take long.
    pub(super) async fn leave_if_long(&self, target: &Target, head: Option<&Arc<Entry>>) {
        let definition = &target.served.definition;
        let by_head = head.is_some_and(|head| is_costly(&head.bytes));
        if by_head
            || definition.policy.computes_long
            || (head.is_none() && self.admission().create_takes_long(target))
            || (definition.dialect.runs_user_rules() && self.offload().is_long(&definition.plural))
        {
            let read = head.filter(|_| !offload::has_slot());
            leave_worker_for(read.map_or(0, |head| json_micros(&head.bytes))).await;
        }
    }

    /// Runs a computation, and records its duration if it runs rules of users.
    pub(super) fn timed<T>(&self, target: &Target, run: impl FnOnce() -> T) -> T {
        let definition = &target.served.definition;
        match definition.dialect.runs_user_rules() {
            true => self.offload().measured(&definition.plural, run),
            false => run(),
        }
    }

    /// `None`: another server's write came first.
    async fn settled<T>(
        &self,
        target: &Target,
        ticket: Ticket,
        reply: CommitReply<T>,
    ) -> Result<Option<T>, Failure> {
        let definition = &target.served.definition;
        let mut span = Span::step(&SpanInfo {
            name: "store",
            resource: &definition.plural,
            namespace: "",
            object: "",
        });
        let mut committed = match ticket.committed().await {
            Ok(committed) => committed,
            Err(CommitError::Conflict(_)) => return Ok(None),
            Err(error) => {
                span.fail();
                return Err(lost(&error));
            }
        };
        span.number("k8s.revision", committed.revision.0);
        Ok(Some(match reply {
            CommitReply::Known(reply) => reply,
            CommitReply::FromEntry(reply) => reply(target, committed.entries.swap_remove(0)),
        }))
    }

    /// Commits a proposal that was computed outside the turn, on the revision in its guards.
    /// `None`: a guard failed.
    pub(super) async fn commit<T>(
        &self,
        context: &RequestContext,
        target: &Target,
        proposal: Proposal<T>,
    ) -> Result<Option<T>, Failure> {
        let Admitted { txn, need, reply } = match proposal.admitted(context) {
            Ok(admitted) => admitted,
            Err(result) => return result.map(Some),
        };
        let _share = self.state.backlog.reserve(offload::caller(), put_bytes(&txn.writes)).await;
        self.finish(target, self.store().submit_needed(txn, need), reply).await
    }

    /// Commits a create with the effects of its admission, which `again` computes if they are
    /// outdated by then. `None`: a guard failed.
    ///
    /// Creates that change the same object, such as a quota, take turns on it. If each tried until
    /// its guards hold, one of them would succeed at a time, and all others would have computed in
    /// vain. That is all that the turn is for: a create that waited for long continues without.
    pub(super) async fn commit_new<T>(
        &self,
        target: &Target,
        new: &NewEntry<T>,
        effects: Effects,
        again: impl FnOnce() -> Result<Effects, Failure> + Send,
    ) -> Result<Option<T>, Failure> {
        let bytes = put_bytes(&new.txn.writes) + put_bytes(&effects.writes);
        let _share = self.state.backlog.reserve(offload::caller(), bytes).await;
        let turn = match effects.writes.first() {
            Some(shared) => {
                let turn = self.store().turn(shared.key());
                let wait = match self.store().is_shared() {
                    true => MAX_SHARED_TURN_WAIT,
                    false => MAX_TURN_WAIT,
                };
                tokio::time::timeout(wait, turn).await.ok()
            }
            None => None,
        };
        let turn = turn.transpose().map_err(|error| rejected(&error))?;
        let effects = if self.is_current(&effects) { effects } else { again()? };
        let mut txn = new.txn.clone();
        txn.guards.extend(effects.guards);
        txn.writes.extend(effects.writes);
        let submitted = match turn {
            Some(turn) => turn.submit_needed(txn, new.need),
            None => self.store().submit_needed(txn, new.need),
        };
        self.finish(target, submitted, CommitReply::FromEntry(new.reply)).await
    }

    /// Whether the guards hold now.
    fn is_current(&self, effects: &Effects) -> bool {
        effects.guards.iter().all(|guard| {
            let head = self.store().pending(guard.key()).map(|head| head.revision);
            match guard {
                Guard::Absent(_) => head.is_none(),
                Guard::At(_, revision) => head == Some(*revision),
            }
        })
    }

    /// `None`: a guard failed.
    async fn finish<T>(
        &self,
        target: &Target,
        submitted: Result<Ticket, Rejected>,
        reply: CommitReply<T>,
    ) -> Result<Option<T>, Failure> {
        match submitted {
            Ok(ticket) => self.settled(target, ticket, reply).await,
            Err(Rejected::Guard(_)) => Ok(None),
            Err(error) => Err(rejected(&error)),
        }
    }

    /// Head of a key once durable: the base of a write outside the turn.
    pub(super) async fn settled_head(&self, key: &Key) -> Result<Option<Arc<Entry>>, Failure> {
        for _ in 0..ATTEMPTS {
            let head = self.store().pending(key);
            if self.confirm(key, head.as_ref()).await? {
                return Ok(head);
            }
        }
        Err(rejected(&Rejected::Guard(key.clone())))
    }

    /// Waits until a head is durable and visible to readers. False: the head changed.
    pub(super) async fn confirm(
        &self,
        key: &Key,
        head: Option<&Arc<Entry>>,
    ) -> Result<bool, Failure> {
        match self.store().confirm(key, head.map(|head| head.revision)) {
            Ok(confirmation) => confirmed(confirmation).await,
            Err(Rejected::Guard(_)) => Ok(false),
            Err(error) => Err(rejected(&error)),
        }
    }
}

fn put_bytes(writes: &[Write]) -> usize {
    writes.iter().map(Write::put_bytes).sum()
}

fn one_turn<T>(
    turn: Turn<'_>,
    key: &Key,
    head: Option<Arc<Entry>>,
    compute: impl FnOnce(Option<&Arc<Entry>>) -> Result<Admitted<T>, Result<T, Failure>>,
) -> TurnEnd<T> {
    let Admitted { txn, need, reply } = match compute(head.as_ref()) {
        Ok(admitted) => admitted,
        Err(result) => return unwritten(turn, key, head.as_ref(), result),
    };
    match turn.submit_needed(txn, need) {
        Ok(ticket) => TurnEnd::Accepted(ticket, reply),
        Err(error @ Rejected::Guard(_)) => TurnEnd::Guard(error),
        Err(error) => TurnEnd::Refused(rejected(&error)),
    }
}

/// A result without a write reveals a head that may still be lost: it is confirmed before the turn
/// ends.
fn unwritten<T>(
    turn: Turn<'_>,
    key: &Key,
    head: Option<&Arc<Entry>>,
    result: Result<T, Failure>,
) -> TurnEnd<T> {
    match turn.confirm(key, head.map(|head| head.revision)) {
        Ok(confirmation) => TurnEnd::Unwritten(result, confirmation),
        Err(error @ Rejected::Guard(_)) => TurnEnd::Guard(error),
        Err(error) => TurnEnd::Refused(rejected(&error)),
    }
}

/// False if the head was refused for lack of disk space, or is outdated.
async fn confirmed(confirmation: Confirmation) -> Result<bool, Failure> {
    match confirmation.confirmed().await {
        Ok(()) => Ok(true),
        Err(CommitError::DiskFull | CommitError::Conflict(_)) => Ok(false),
        Err(error) => Err(lost(&error)),
    }
}
