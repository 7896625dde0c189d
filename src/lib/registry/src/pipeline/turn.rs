//! Turns: reading the pending head, computing and enqueueing while nobody else computes on the key;
//! then waiting for it to be durable.
//!
//! Within a turn nothing is awaited but a thread for a long computation, and the sync of the caller's
//! earlier large writes, which need no turn.

use super::{Registry, key};
use crate::context::Target;
use crate::failure::{lost, rejected};
use crate::offload::{self, is_costly, leave_worker};
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{
    CommitError, Confirmation, Entry, Key, Need, Rejected, Ticket, Turn, Txn, Write,
};
use ferrokube_trace::{Span, SpanInfo};
use std::sync::Arc;

/// A write computes again so often when another key that it guards (a quota, a namespace) has
/// changed.
pub(super) const ATTEMPTS: usize = 32;

/// What a step on the pending head came to.
pub(super) enum Plan<T> {
    /// Nothing to write.
    Done(T),
    /// Write; the answer is made of the first entry.
    Commit { txn: Txn, need: Need, answer: fn(&Target, Arc<Entry>) -> T },
    /// Delete; the answer is known.
    CommitThen { txn: Txn, answer: T },
}

/// The answer of an accepted transaction, once it is durable.
enum Answer<T> {
    Of(fn(&Target, Arc<Entry>) -> T),
    Known(T),
}

/// How a turn ended.
enum Ended<T> {
    Accepted(Ticket, Answer<T>),
    /// Without a write; goes out when what it was computed on is confirmed.
    Unwritten(Result<T, Failure>, Confirmation),
    /// By the store, at once.
    Refused(Failure),
    /// A guard on this key does not hold.
    Guard(Rejected),
}

impl Registry {
    /// Computes on the pending head of the target's key in its turn, commits and waits. Computes
    /// again when a guard of another key does not hold. `added`: the write is about this much
    /// larger than the head; `None` for a delete, which writes little.
    pub(super) async fn in_turn<T: Send>(
        &self,
        target: &Target,
        added: Option<usize>,
        mut compute: impl FnMut(&Key, Option<&Arc<Entry>>) -> Result<Plan<T>, Failure> + Send,
    ) -> Result<T, Failure> {
        let key = key(target, target.name.as_deref().unwrap_or_default())?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let turn = self.store().turn(&key).await.map_err(|error| rejected(&error))?;
            let head = turn.pending(&key);
            let replaced = head.as_ref().map_or(0, |head| head.bytes.len());
            let bytes = added.map_or(0, |added| replaced + added);
            let _share = self.parts.backlog.reserve(offload::caller(), bytes).await;
            self.leave_if_long(target, head.as_ref()).await;
            match one_turn(turn, (&key, head), |head| self.timed(target, || compute(&key, head))) {
                Ended::Accepted(ticket, answer) => {
                    return self.settled(target, ticket, answer).await;
                }
                Ended::Unwritten(result, confirmation) => match confirmed(confirmation).await? {
                    true => return result,
                    false => last = None,
                },
                Ended::Refused(failure) => return Err(failure),
                Ended::Guard(error) => last = Some(error),
            }
            tokio::task::yield_now().await;
        }
        Err(rejected(&last.unwrap_or(Rejected::Guard(key))))
    }

    /// Leaves the worker where a computation on a head may take long.
    pub(super) async fn leave_if_long(&self, target: &Target, head: Option<&Arc<Entry>>) {
        let definition = &target.served.definition;
        let by_head = head.is_some_and(|head| is_costly(&head.bytes));
        if by_head
            || definition.policy.computes_long
            || (definition.dialect.runs_user_rules() && self.offload().is_long(&definition.plural))
        {
            leave_worker().await;
        }
    }

    /// Runs the rules of a resource, and remembers how long they took. Those of native kinds do not
    /// depend on anybody.
    pub(super) fn timed<T>(&self, target: &Target, run: impl FnOnce() -> T) -> T {
        let definition = &target.served.definition;
        match definition.dialect.runs_user_rules() {
            true => self.offload().measured(&definition.plural, run),
            false => run(),
        }
    }

    async fn settled<T>(
        &self,
        target: &Target,
        ticket: Ticket,
        answer: Answer<T>,
    ) -> Result<T, Failure> {
        let definition = &target.served.definition;
        let mut span = Span::step(&SpanInfo {
            name: "store",
            resource: &definition.plural,
            namespace: "",
            object: "",
        });
        let mut committed =
            ticket.committed().await.map_err(|error| lost(&error)).inspect_err(|_| span.fail())?;
        span.number("k8s.revision", committed.revision.0);
        Ok(match answer {
            Answer::Known(answer) => answer,
            Answer::Of(answer) => answer(target, committed.entries.swap_remove(0)),
        })
    }

    /// Commits a plan that was computed outside the turn, at a base revision that its guards name.
    /// `None`: a guard does not hold.
    pub(super) async fn commit<T>(
        &self,
        target: &Target,
        plan: Plan<T>,
    ) -> Result<Option<T>, Failure> {
        let (txn, need, answer) = match plan {
            Plan::Done(answer) => return Ok(Some(answer)),
            Plan::Commit { txn, need, answer } => (txn, need, Answer::Of(answer)),
            Plan::CommitThen { txn, answer } => (txn, Need::Essential, Answer::Known(answer)),
        };
        let bytes = txn.writes.iter().map(Write::put_bytes).sum();
        let _share = self.parts.backlog.reserve(offload::caller(), bytes).await;
        match self.store().submit_needed(txn, need) {
            Ok(ticket) => self.settled(target, ticket, answer).await.map(Some),
            Err(Rejected::Guard(_)) => Ok(None),
            Err(error) => Err(rejected(&error)),
        }
    }

    /// The head of a key once it is durable: the base of a write that works outside the turn.
    ///
    /// # Errors
    /// As the client sees it.
    pub(super) async fn settled_head(&self, key: &Key) -> Result<Option<Arc<Entry>>, Failure> {
        for _ in 0..ATTEMPTS {
            let head = self.store().pending(key);
            if self.confirm(key, head.as_ref()).await? {
                return Ok(head);
            }
        }
        Err(rejected(&Rejected::Guard(key.clone())))
    }

    /// Waits until a head can be read by everybody. False: it is not the head any more.
    ///
    /// # Errors
    /// As the client sees it.
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

fn one_turn<T>(
    turn: Turn<'_>,
    (key, head): (&Key, Option<Arc<Entry>>),
    compute: impl FnOnce(Option<&Arc<Entry>>) -> Result<Plan<T>, Failure>,
) -> Ended<T> {
    let (txn, need, answer) = match compute(head.as_ref()) {
        Err(failure) => return unwritten(turn, key, head.as_ref(), Err(failure)),
        Ok(Plan::Done(answer)) => return unwritten(turn, key, head.as_ref(), Ok(answer)),
        Ok(Plan::Commit { txn, need, answer }) => (txn, need, Answer::Of(answer)),
        Ok(Plan::CommitThen { txn, answer }) => (txn, Need::Essential, Answer::Known(answer)),
    };
    match turn.submit_needed(txn, need) {
        Ok(ticket) => Ended::Accepted(ticket, answer),
        Err(error @ Rejected::Guard(_)) => Ended::Guard(error),
        Err(error) => Ended::Refused(rejected(&error)),
    }
}

/// An answer without a write tells of a head that may yet be lost: it is confirmed before the turn
/// ends.
fn unwritten<T>(
    turn: Turn<'_>,
    key: &Key,
    head: Option<&Arc<Entry>>,
    result: Result<T, Failure>,
) -> Ended<T> {
    match turn.confirm(key, head.map(|head| head.revision)) {
        Ok(confirmation) => Ended::Unwritten(result, confirmation),
        Err(error @ Rejected::Guard(_)) => Ended::Guard(error),
        Err(error) => Ended::Refused(rejected(&error)),
    }
}

/// False: it did not happen.
async fn confirmed(confirmation: Confirmation) -> Result<bool, Failure> {
    match confirmation.confirmed().await {
        Ok(()) => Ok(true),
        Err(CommitError::DiskFull) => Ok(false),
        Err(error) => Err(lost(&error)),
    }
}
