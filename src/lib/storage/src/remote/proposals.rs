//! Writes: proposed until their outcome is known, acknowledged once they are published.

use super::sole::{NOT_SOLE, Reliance, reliance};
use super::{ProposalOutcome, Remote};
use crate::entry::{DraftEntry, Entry, Sidecar};
use crate::head::check_keys;
use crate::key::{Key, Revision};
use crate::turns::TurnHandoff;
use crate::txn::{CommitError, Committed, Event, Guard, Put, Rejected, Txn, Write};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a proposal is repeated while the engine is unavailable.
const PROPOSE_FOR: Duration = Duration::from_secs(10);
/// The same for one whose outcome is unknown: an attempt at a member that hangs takes as long as
/// [`PROPOSE_FOR`], and only another one tells.
const RESOLVE_FOR: Duration = Duration::from_secs(20);
/// First pause between two attempts; doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// How long a committed write waits for its event, and one of unknown outcome for the history that
/// tells it. Without the event a write is not acknowledged: its client would read an older state
/// here, and a right that it revoked would still hold.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a conflict waits for what it met.
const CONFLICT_TIMEOUT: Duration = Duration::from_secs(3);

/// Own writes in flight, by key.
#[derive(Default)]
pub(super) struct OwnWrites {
    next: u64,
    /// More than one where writes of the same head were made without a turn.
    writes: HashMap<Key, Vec<OwnWrite>>,
}

struct OwnWrite {
    id: u64,
    /// The value, or the last state of a delete, if given.
    put: Option<Put>,
    /// The value as it is proposed.
    sent: Bytes,
    /// Revision of the value that is deleted.
    deletes: Option<Revision>,
}

impl OwnWrites {
    fn add(&mut self, txn: &Txn, sent: &[Write]) -> u64 {
        self.next += 1;
        for (write, sent) in txn.writes.iter().zip(sent) {
            let (put, deletes) = match write {
                Write::Put(put) => (Some(put), None),
                Write::Delete { key, last } => {
                    (last.as_ref(), guard(txn, key).and_then(Guard::revision))
                }
            };
            let sent = match sent {
                Write::Put(put) => put.value.clone(),
                Write::Delete { .. } => Bytes::new(),
            };
            let own = OwnWrite { id: self.next, put: put.cloned(), sent, deletes };
            self.writes.entry(write.key().clone()).or_default().push(own);
        }
        self.next
    }

    fn remove(&mut self, txn: &Txn, id: u64) {
        for write in &txn.writes {
            let Some(writes) = self.writes.get_mut(write.key()) else { continue };
            writes.retain(|own| own.id != id);
            if writes.is_empty() {
                self.writes.remove(write.key());
            }
        }
    }

    /// The value that is being written as these bytes, and its sidecar.
    pub(super) fn written(&self, key: &Key, sent: &Bytes) -> Option<(Bytes, Sidecar)> {
        let is_it = |own: &&OwnWrite| own.deletes.is_none() && own.sent == *sent;
        let put = self.writes.get(key)?.iter().find(is_it)?.put.as_ref()?;
        Some((put.value.clone(), put.sidecar.clone()))
    }

    /// The delete of a value of this revision, if it is this store's: with the last state to show.
    pub(super) fn deleted(&self, key: &Key, revision: Revision) -> Option<Option<Put>> {
        let own = self.writes.get(key)?.iter().find(|own| own.deletes == Some(revision))?;
        Some(own.put.clone())
    }
}

/// A transaction in flight.
struct OpenProposal {
    txn: Txn,
    /// The same with its values in the form for the engine's other writers.
    sent: Txn,
    /// Number of guards that the caller gave; the others are of keys that it writes unguarded.
    given: usize,
    /// The heads that it was computed on, by write.
    heads: Vec<Option<Arc<Entry>>>,
    /// Published when it was computed.
    since: Revision,
    own: u64,
    /// That of the request that writes it.
    reliance: Option<Arc<Reliance>>,
}

impl OpenProposal {
    /// Whether its guards can hold again after it was applied: once its objects are deleted.
    fn is_repeatable(&self) -> bool {
        let absent =
            |write: &Write| matches!(guard(&self.txn, write.key()), Some(Guard::Absent(_)));
        self.txn.writes.iter().all(absent)
    }

    /// The write whose event tells best whether it was this proposal's.
    fn telling(&self) -> &Write {
        let writes = &self.txn.writes;
        writes.iter().find(|write| self.is_told_by(write)).unwrap_or(&writes[0])
    }

    /// Whether the value in an event tells that it was this proposal's. A created object has its
    /// uid. Others may replace the same head by the same value, such as a counter, which matters to
    /// a caller that gave guards: theirs may not have held. A delete has no value.
    fn is_told_by(&self, write: &Write) -> bool {
        let creates = matches!(guard(&self.txn, write.key()), Some(Guard::Absent(_)));
        matches!(write, Write::Put(_)) && (creates || self.given == 0)
    }
}

/// Outcome of an attempt.
enum ProposalAttempt {
    Written(Revision),
    /// Why there has to be another one.
    Failed(String),
    /// The same, if the engine did not take it.
    Refused(String),
}

/// Outcome of attempts whose replies were lost, by the history.
enum Fate {
    Applied(Revision),
    NotApplied,
    /// With the reason.
    Unknown(&'static str),
}

impl Fate {
    /// The revision of the attempt that was applied, if any was.
    fn known(self) -> Result<Option<Revision>, CommitError> {
        match self {
            Self::Applied(at) => Ok(Some(at)),
            Self::NotApplied => Ok(None),
            Self::Unknown(why) => Err(CommitError::Unknown(why.to_owned())),
        }
    }
}

impl Remote {
    /// Starts a transaction. `turn` is held until it has ended.
    pub(crate) fn submit(
        self: &Arc<Self>,
        txn: Txn,
        turn: Option<TurnHandoff>,
    ) -> Result<oneshot::Receiver<Result<Committed, CommitError>>, Rejected> {
        if let Some(reason) = &self.core.head().closed {
            return Err(Rejected::Closed(reason.clone()));
        }
        check_keys(&txn.writes)?;
        for write in &txn.writes {
            self.check_value(write)?;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| Rejected::Busy)?;
        let mut proposal = self.prepare(txn)?;
        let (sender, outcome) = oneshot::channel();
        let remote = Arc::clone(self);
        self.runtime.spawn(async move {
            let ended = remote.run(&mut proposal).await;
            remote.own.lock().remove(&proposal.txn, proposal.own);
            drop((permit, turn));
            // The caller may be gone.
            let _ = sender.send(ended);
        });
        Ok(outcome)
    }

    fn check_value(&self, write: &Write) -> Result<(), Rejected> {
        let put = match write {
            Write::Put(put) => put,
            Write::Delete { last: None, .. } => return Ok(()),
            Write::Delete { key, last: Some(last) } if last.key == *key => last,
            Write::Delete { .. } => return Err(Rejected::Invalid("last state of another key")),
        };
        if put.value.len() > self.core.limits.value_bytes {
            return Err(Rejected::Invalid("value over the limit"));
        }
        if put.sidecar.revision_at as usize > put.value.len() {
            return Err(Rejected::Invalid("splice outside of the value"));
        }
        Ok(())
    }

    /// Refuses what is known to be outdated, and guards what is written.
    fn prepare(&self, mut txn: Txn) -> Result<OpenProposal, Rejected> {
        let published = &self.core.published;
        let since = published.revision();
        for guard in &txn.guards {
            let present = published.get(guard.key()).map(|entry| entry.revision);
            // A guard ahead of what is published here is decided at the engine.
            if guard.revision() != present && guard.revision() <= present.max(Some(since)) {
                return Err(Rejected::Guard(guard.key().clone()));
            }
        }
        let given = txn.guards.len();
        let heads = self.guard_writes(&mut txn, given)?;
        let sent = self.form_for_others(&txn);
        let own = self.own.lock().add(&txn, &sent.writes);
        Ok(OpenProposal { txn, sent, given, heads, since, own, reliance: reliance() })
    }

    fn form_for_others(&self, txn: &Txn) -> Txn {
        let writes = txn.writes.iter().map(|write| match write {
            Write::Put(put) => {
                let value = self.codec.write(&put.key, &put.value);
                Write::Put(Put { value, ..put.clone() })
            }
            delete @ Write::Delete { .. } => delete.clone(),
        });
        Txn { guards: txn.guards.clone(), writes: writes.collect() }
    }

    /// Guards keys that are written unguarded with their current heads.
    fn guard_writes(
        &self,
        txn: &mut Txn,
        given: usize,
    ) -> Result<Vec<Option<Arc<Entry>>>, Rejected> {
        txn.guards.truncate(given);
        let mut heads = Vec::with_capacity(txn.writes.len());
        for write in &txn.writes {
            let key = write.key();
            let head = self.core.published.get(key);
            if head.is_none() && matches!(write, Write::Delete { .. }) {
                return Err(Rejected::Guard(key.clone()));
            }
            if !txn.guards.iter().any(|guard| guard.key() == key) {
                txn.guards.push(match &head {
                    Some(head) => Guard::At(key.clone(), head.revision),
                    None => Guard::Absent(key.clone()),
                });
            }
            heads.push(head);
        }
        Ok(heads)
    }

    async fn run(&self, proposal: &mut OpenProposal) -> Result<Committed, CommitError> {
        let began = Instant::now();
        let (mut pause, mut may_be_applied) = (FIRST_PAUSE, false);
        loop {
            let (why, is_refused) = match self.attempt(proposal, &mut may_be_applied).await? {
                ProposalAttempt::Written(revision) => {
                    return self.committed(proposal, revision).await;
                }
                ProposalAttempt::Failed(why) => (why, false),
                ProposalAttempt::Refused(why) => (why, true),
            };
            let limit = if may_be_applied { RESOLVE_FOR } else { PROPOSE_FOR };
            let is_over = self.core.failure().is_some();
            if is_over || began.elapsed() + pause > limit {
                if is_refused && !is_over {
                    self.reach.refused(&why, began);
                }
                return Err(match may_be_applied {
                    true => CommitError::Unknown(why),
                    false => CommitError::Unavailable(why),
                });
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        }
    }

    /// `may_be_applied`: an earlier attempt may be, now or later.
    async fn attempt(
        &self,
        proposal: &mut OpenProposal,
        may_be_applied: &mut bool,
    ) -> Result<ProposalAttempt, CommitError> {
        if *may_be_applied && proposal.is_repeatable() {
            let settled = match self.engine.settle().await {
                Ok(revision) => revision,
                Err(why) => return Ok(ProposalAttempt::Failed(why)),
            };
            if let Some(at) = self.resolve(proposal, settled).await? {
                return Ok(ProposalAttempt::Written(at));
            }
            *may_be_applied = false;
        }
        let claim = proposal.reliance.as_deref().map(Reliance::claim);
        let why = match self.engine.propose(&proposal.sent, claim).await {
            ProposalOutcome::Committed(revision) => return Ok(ProposalAttempt::Written(revision)),
            ProposalOutcome::Full => match self.found_full(proposal).await? {
                Some(at) => return Ok(ProposalAttempt::Written(at)),
                // What an earlier attempt did is not known by that.
                None if *may_be_applied => "it is full".to_owned(),
                None => return Err(CommitError::DiskFull),
            },
            ProposalOutcome::Invalid(why) if *may_be_applied => why,
            ProposalOutcome::Invalid(why) => return Err(CommitError::Invalid(why)),
            ProposalOutcome::Conflict(key, revision) if *may_be_applied => {
                if let Some(at) = self.resolve(proposal, revision).await? {
                    return Ok(ProposalAttempt::Written(at));
                }
                *may_be_applied = false;
                self.renew(proposal, key)?
            }
            ProposalOutcome::Conflict(key, revision) => {
                let _ = tokio::time::timeout(CONFLICT_TIMEOUT, self.reach(revision)).await;
                self.renew(proposal, key)?
            }
            ProposalOutcome::Unavailable(why) => return Ok(ProposalAttempt::Refused(why)),
            ProposalOutcome::NotSole => {
                if let Some(reliance) = &proposal.reliance {
                    reliance.refute();
                }
                // An earlier attempt required the claim, too, so it is not applied from now on.
                if *may_be_applied {
                    let settled = match self.engine.settle().await {
                        Ok(revision) => revision,
                        Err(why) => return Ok(ProposalAttempt::Failed(why)),
                    };
                    if let Some(at) = self.resolve(proposal, settled).await? {
                        return Ok(ProposalAttempt::Written(at));
                    }
                }
                return Err(CommitError::Unavailable(NOT_SOLE.to_owned()));
            }
            ProposalOutcome::Unknown(why) => {
                *may_be_applied = true;
                why
            }
        };
        Ok(ProposalAttempt::Failed(why))
    }

    /// The revision at which an attempt was applied, if any was. None is applied after `settled`.
    async fn resolve(
        &self,
        proposal: &OpenProposal,
        settled: Revision,
    ) -> Result<Option<Revision>, CommitError> {
        let reached = tokio::time::timeout(PUBLISH_TIMEOUT, self.reach(settled)).await;
        let late = Fate::Unknown("its event has not arrived");
        reached.map_or(late, |()| self.fate(proposal)).known()
    }

    /// The revision at which an attempt was applied that was refused for lack of space, if it was.
    async fn found_full(&self, proposal: &OpenProposal) -> Result<Option<Revision>, CommitError> {
        if !std::mem::replace(&mut self.core.head().full, true) {
            tracing::warn!(
                "the storage is full: only deletes and changes that need no space are taken"
            );
        }
        let passed = async {
            let now = loop {
                match self.probed().await {
                    Ok(now) => break now,
                    Err(_) => tokio::time::sleep(MAX_PAUSE).await,
                }
            };
            // Not asked at once: an old etcd that is full may tell its progress only by its state,
            // without the history.
            let published = self.core.published.wait_for(now);
            if tokio::time::timeout(CONFLICT_TIMEOUT, published).await.is_err() {
                self.reach(now).await;
            }
        };
        if tokio::time::timeout(RESOLVE_FOR, passed).await.is_err() {
            return Err(CommitError::Unknown("it is full, and cannot be read".to_owned()));
        }
        match self.fate(proposal) {
            Fate::Unknown(_) if self.is_untouched(proposal) => Ok(None),
            fate => fate.known(),
        }
    }

    /// Whether a head still is there that the proposal would have replaced, which tells without the
    /// history. Absence does not: what was created may be deleted.
    fn is_untouched(&self, proposal: &OpenProposal) -> bool {
        proposal.txn.writes.iter().any(|write| {
            let key = write.key();
            let replaced = guard(&proposal.txn, key).and_then(Guard::revision);
            let present = self.core.published.get(key).map(|head| head.revision);
            replaced.is_some() && replaced == present
        })
    }

    /// Guards again what the caller did not guard; a guard of the caller fails. Returns what to say
    /// if that persists.
    fn renew(&self, proposal: &mut OpenProposal, key: Key) -> Result<String, CommitError> {
        let OpenProposal { txn, given, .. } = proposal;
        if txn.guards[..*given].iter().any(|guard| *guard.key() == key) {
            return Err(CommitError::Conflict(key));
        }
        proposal.since = self.core.published.revision();
        let heads = self.guard_writes(&mut proposal.txn, proposal.given);
        proposal.heads = heads.map_err(|_| CommitError::Conflict(key))?;
        proposal.sent.guards.clone_from(&proposal.txn.guards);
        Ok("the heads keep changing".to_owned())
    }

    /// Whether an event is this proposal's: it consumed the guard of one of the writes, and has its
    /// value.
    fn fate(&self, proposal: &OpenProposal) -> Fate {
        let write = proposal.telling();
        let Some(guard) = guard(&proposal.txn, write.key()) else {
            return Fate::Unknown("it has no guard");
        };
        let resource = self.core.published.resource(&write.key().to_prefix());
        let state = resource.state.read();
        if state.log.floor() > proposal.since {
            return Fate::Unknown("its history is gone");
        }
        let mut events = state.log.after(proposal.since).filter(|event| {
            event.entry.key == *write.key()
                && event.previous.as_ref().map(|previous| previous.revision) == guard.revision()
        });
        let is_own = |event: &&Event| match write {
            Write::Put(put) => !event.deleted && event.entry.value().concat() == put.value,
            Write::Delete { .. } => event.deleted,
        };
        match events.find(is_own) {
            None => Fate::NotApplied,
            Some(_) if !proposal.is_told_by(write) => {
                Fate::Unknown("it happened, by this or by another request")
            }
            Some(own) => Fate::Applied(own.revision()),
        }
    }

    async fn committed(
        &self,
        proposal: &OpenProposal,
        revision: Revision,
    ) -> Result<Committed, CommitError> {
        if tokio::time::timeout(PUBLISH_TIMEOUT, self.shown(revision)).await.is_err() {
            let why = format!("it is committed at {revision}, which the watch has not reached");
            return Err(CommitError::Unknown(why));
        }
        // A delete is taken by a full engine, too.
        let needs_space = proposal.txn.writes.iter().any(|write| matches!(write, Write::Put(_)));
        if needs_space && std::mem::take(&mut self.core.head().full) {
            tracing::info!("the storage has space again");
        }
        if let Some(reliance) = &proposal.reliance {
            reliance.prove();
        }
        self.reach.wrote();
        self.core.counters.published(1);
        let writes = proposal.txn.writes.iter().zip(&proposal.heads);
        let entries = writes.map(|(write, head)| self.written(write, head.as_ref(), revision));
        Ok(Committed { revision, entries: entries.collect() })
    }

    /// The entry of a write, shared with its event.
    fn written(&self, write: &Write, head: Option<&Arc<Entry>>, revision: Revision) -> Arc<Entry> {
        let key = write.key();
        let resource = self.core.published.resource(&key.to_prefix());
        let event = {
            let state = resource.state.read();
            state.log.at(revision).find(|event| event.entry.key == *key).cloned()
        };
        if let Some(event) = event {
            return event.entry;
        }
        let draft = match (write, head) {
            (Write::Put(put) | Write::Delete { last: Some(put), .. }, _) => {
                DraftEntry::new([&put.value, b""], put.sidecar.clone(), revision)
            }
            (_, Some(head)) => DraftEntry::new(head.value(), head.sidecar.clone(), revision),
            (_, None) => DraftEntry::new([b"", b""], Sidecar::default(), revision),
        };
        let created = head.map_or(revision, |head| head.create_revision);
        Arc::new(draft.finish(key.clone(), revision, created))
    }
}

fn guard<'a>(txn: &'a Txn, key: &Key) -> Option<&'a Guard> {
    txn.guards.iter().find(|guard| guard.key() == key)
}
