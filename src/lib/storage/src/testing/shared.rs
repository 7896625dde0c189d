//! A remote engine in memory for several stores. Its revisions have gaps, and its replies get lost
//! as requested.

use crate::remote::{
    BoxFuture, FeedItem, ProposalOutcome, RemoteChange, RemoteEngine, RemoteFeed, SoleClaim,
    ValueCodec,
};
use crate::{Guard, Key, Revision, Sidecar, Txn, Write};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The engine; a [`SharedClient`] connects a store with it.
#[derive(Clone, Default)]
pub struct SharedEngine(Arc<EngineInner>);

#[derive(Default)]
struct EngineInner {
    state: Mutex<State>,
    moved: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    revision: u64,
    values: BTreeMap<Box<str>, RemoteChange>,
    history: Vec<RemoteChange>,
    /// Compacted or not.
    everything: Vec<RemoteChange>,
    /// Feeds from before this revision start over.
    cut: u64,
    /// Revision of the claim that stands; 0: none.
    claim: u64,
    faults: VecDeque<SharedFault>,
    proposals: usize,
}

/// A fault of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedFault {
    /// It is applied, but the reply is lost.
    LoseReply,
    /// It does not arrive.
    LoseRequest,
    /// It is refused for lack of space.
    Full,
    /// It is applied, but refused for lack of space.
    FullAtLast,
    /// It is refused as one that the engine cannot take.
    Invalid,
    /// The engine does not answer.
    Unavailable,
}

/// One store's connection.
#[derive(Clone)]
pub struct SharedClient {
    engine: SharedEngine,
    held: watch::Sender<bool>,
    held_probes: watch::Sender<bool>,
    is_down: Arc<AtomicBool>,
    barriers: Arc<AtomicU64>,
    /// The own claim, as far as its feed tells; 0: none.
    claimed: Arc<AtomicU64>,
    leaves_claims: Arc<AtomicBool>,
    delay: Duration,
}

impl SharedEngine {
    /// A connection.
    pub fn client(&self) -> SharedClient {
        SharedClient {
            engine: self.clone(),
            held: watch::Sender::new(false),
            held_probes: watch::Sender::new(false),
            is_down: Arc::default(),
            barriers: Arc::default(),
            claimed: Arc::default(),
            leaves_claims: Arc::default(),
            delay: Duration::ZERO,
        }
    }

    /// Lets the next proposals, of any store, fail.
    pub fn fail_next(&self, faults: &[SharedFault]) {
        self.0.state.lock().faults.extend(faults);
    }

    /// Forgets the faults that have not happened yet.
    pub fn heal(&self) {
        self.0.state.lock().faults.clear();
    }

    /// A revision of keys that are not the store's.
    pub fn foreign_revision(&self) -> Revision {
        let mut state = self.0.state.lock();
        state.revision += 1;
        Revision(state.revision)
    }

    /// Writes bytes, whatever they are.
    pub fn write_foreign(&self, key: &str, value: Option<&str>) -> Revision {
        let mut state = self.0.state.lock();
        state.revision += 1;
        let revision = state.revision;
        state.write(key, value.map(|text| Bytes::from(text.to_owned())), revision);
        self.0.moved.send_replace(revision);
        Revision(revision)
    }

    /// Compacts all history: feeds that lag start over.
    pub fn compact(&self) {
        let mut state = self.0.state.lock();
        state.history.clear();
        state.cut = state.revision;
        self.0.moved.send_modify(|_| {});
    }

    /// Number of events ever kept for a key since the last compaction.
    pub fn events_of(&self, key: &Key) -> usize {
        let state = self.0.state.lock();
        state.history.iter().filter(|change| *change.key == *key.as_str()).count()
    }

    /// Number of proposals ever made, those included that met a conflict.
    pub fn proposals(&self) -> usize {
        self.0.state.lock().proposals
    }

    /// All that ever happened, in order.
    pub fn everything(&self) -> Vec<RemoteChange> {
        self.0.state.lock().everything.clone()
    }

    /// `None`: deleted, or never written.
    pub fn value(&self, key: &Key) -> Option<Bytes> {
        self.0.state.lock().values.get(key.as_str()).and_then(|change| change.value.clone())
    }
}

impl State {
    fn write(&mut self, key: &str, value: Option<Bytes>, revision: u64) {
        let created = self.values.get(key).map_or(Revision(revision), |old| old.create_revision);
        let change = RemoteChange {
            key: key.into(),
            revision: Revision(revision),
            create_revision: created,
            value,
        };
        if change.value.is_some() {
            self.values.insert(key.into(), change.clone());
        } else {
            self.values.remove(key);
        }
        self.history.push(change.clone());
        self.everything.push(change);
    }

    fn apply(&mut self, txn: &Txn) -> ProposalOutcome {
        for guard in &txn.guards {
            let present = self.values.get(guard.key().as_str()).map(|change| change.revision);
            let required = match guard {
                Guard::Absent(_) => None,
                Guard::At(_, revision) => Some(*revision),
            };
            if present != required {
                return ProposalOutcome::Conflict(guard.key().clone(), Revision(self.revision));
            }
        }
        self.revision += 3;
        let revision = self.revision;
        for write in &txn.writes {
            let value = match write {
                Write::Put(put) => Some(put.value.clone()),
                Write::Delete { .. } => None,
            };
            self.write(write.key().as_str(), value, revision);
        }
        ProposalOutcome::Committed(Revision(revision))
    }
}

impl SharedClient {
    /// With a feed that gives everything this much later.
    #[must_use]
    pub fn with_late_feed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Pauses or resumes the feed.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Holds the replies of probes back, or lets them arrive.
    pub fn hold_probes(&self, held: bool) {
        self.held_probes.send_replace(held);
    }

    /// Cuts the connection for probes and proposals, or restores it.
    pub fn cut(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// From now on it writes without revoking the claims of others.
    pub fn leave_claims(&self) {
        self.leaves_claims.store(true, Ordering::Relaxed);
    }

    /// Number of probes.
    pub fn barriers(&self) -> u64 {
        self.barriers.load(Ordering::Relaxed)
    }
}

impl RemoteEngine for SharedClient {
    fn open(&self) -> Box<dyn RemoteFeed> {
        Box::new(SharedFeed {
            engine: self.engine.clone(),
            held: self.held.subscribe(),
            moved: self.engine.0.moved.subscribe(),
            claimed: Arc::clone(&self.claimed),
            delay: self.delay,
            position: None,
        })
    }

    fn propose<'a>(
        &'a self,
        txn: &'a Txn,
        relies_on: Option<SoleClaim>,
    ) -> BoxFuture<'a, ProposalOutcome> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if self.is_down.load(Ordering::Relaxed) {
                return ProposalOutcome::Unavailable("cut".to_owned());
            }
            let mut state = self.engine.0.state.lock();
            state.proposals += 1;
            let fault = state.faults.pop_front();
            let lost = || ProposalOutcome::Unknown("a reply was lost".to_owned());
            match fault {
                Some(SharedFault::Full) => return ProposalOutcome::Full,
                Some(SharedFault::Invalid) => {
                    return ProposalOutcome::Invalid("refused".to_owned());
                }
                Some(SharedFault::Unavailable) => {
                    return ProposalOutcome::Unavailable("down".to_owned());
                }
                Some(SharedFault::LoseRequest) => return lost(),
                Some(SharedFault::LoseReply | SharedFault::FullAtLast) | None => {}
            }
            let (claim, own) = (state.claim, self.claimed.load(Ordering::Acquire));
            let is_refused = relies_on.is_some_and(|relied| relied.0 != claim || relied.0 != own);
            if claim != own {
                self.claimed.store(0, Ordering::Release);
            }
            if is_refused {
                return ProposalOutcome::NotSole;
            }
            if claim != own && !self.leaves_claims.load(Ordering::Relaxed) {
                state.claim = 0;
            }
            let outcome = state.apply(txn);
            self.engine.0.moved.send_replace(state.revision);
            match (fault, outcome) {
                (None, outcome) => outcome,
                (Some(SharedFault::FullAtLast), ProposalOutcome::Committed(_)) => {
                    ProposalOutcome::Full
                }
                (Some(SharedFault::FullAtLast), outcome) => outcome,
                _ => lost(),
            }
        })
    }

    /// Nothing is on its way here.
    fn settle(&self) -> BoxFuture<'_, Result<Revision, String>> {
        Box::pin(async { Ok(Revision(self.engine.0.state.lock().revision)) })
    }

    fn barrier(&self) -> BoxFuture<'_, Result<Revision, String>> {
        Box::pin(async move {
            self.barriers.fetch_add(1, Ordering::Relaxed);
            if self.is_down.load(Ordering::Relaxed) {
                return Err("cut".to_owned());
            }
            let revision = Revision(self.engine.0.state.lock().revision);
            let _ = self.held_probes.subscribe().wait_for(|held| !held).await;
            Ok(revision)
        })
    }

    fn claim(&self) -> BoxFuture<'_, Result<Option<(SoleClaim, Revision)>, String>> {
        Box::pin(async {
            let mut state = self.engine.0.state.lock();
            state.revision += 1;
            state.claim = state.revision;
            self.claimed.store(state.claim, Ordering::Release);
            Ok(Some((SoleClaim(state.claim), Revision(state.revision))))
        })
    }

    fn revoke(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            self.engine.0.state.lock().claim = 0;
            Ok(())
        })
    }

    fn claimed(&self) -> Option<SoleClaim> {
        let claimed = self.claimed.load(Ordering::Acquire);
        (claimed > 0).then_some(SoleClaim(claimed))
    }

    fn hurry(&self) {
        self.engine.0.moved.send_modify(|_| {});
    }
}

struct SharedFeed {
    engine: SharedEngine,
    held: watch::Receiver<bool>,
    moved: watch::Receiver<u64>,
    claimed: Arc<AtomicU64>,
    delay: Duration,
    position: Option<u64>,
}

impl SharedFeed {
    fn take(&mut self) -> FeedItem {
        let state = self.engine.0.state.lock();
        if self.claimed.load(Ordering::Acquire) != state.claim {
            self.claimed.store(0, Ordering::Release);
        }
        let revision = Revision(state.revision);
        let item = match self.position.filter(|position| *position >= state.cut) {
            None => FeedItem::State {
                revision,
                values: state.values.values().cloned().collect(),
                is_first: true,
                is_last: true,
            },
            Some(position) => {
                let new = state.history.iter().filter(|change| change.revision.0 > position);
                FeedItem::Changes { revision, changes: new.cloned().collect() }
            }
        };
        drop(state);
        self.position = Some(revision.0);
        item
    }
}

impl RemoteFeed for SharedFeed {
    fn next(&mut self) -> BoxFuture<'_, FeedItem> {
        Box::pin(async move {
            if self.position.is_some() {
                let _ = self.moved.changed().await;
                // Even no time at all would not pass while a clock is stopped.
                if !self.delay.is_zero() {
                    tokio::time::sleep(self.delay).await;
                }
            }
            let _ = self.held.wait_for(|held| !held).await;
            self.take()
        })
    }
}

/// The values of [`super::put`], stored as an equals sign and their text. Reads both.
#[derive(Debug, Default)]
pub struct TextValues;

/// The text of a value.
fn inner(value: &str) -> Option<&str> {
    value.strip_prefix("{\"v\":\"")?.strip_suffix("\",\"z\":1}")
}

/// The text of a value as it is stored, in either form.
pub(super) fn stored_text(value: &str) -> Option<&str> {
    value.strip_prefix('=').or_else(|| inner(value))
}

impl ValueCodec for TextValues {
    fn prefix<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix("/registry/")?;
        let mut ends = rest.match_indices('/').map(|(at, _)| at);
        let first = ends.next()?;
        let end = if rest[..first].contains('.') { ends.next()? } else { first };
        Some(&key[..key.len() - rest.len() + end + 1])
    }

    fn read(&self, key: &Key, value: &Bytes) -> Result<(Bytes, Sidecar), String> {
        let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
        let put = super::put(key, stored_text(text).ok_or("it is no value of the tests")?);
        Ok((put.value, put.sidecar))
    }

    fn write(&self, _key: &Key, value: &Bytes) -> Bytes {
        let text = std::str::from_utf8(value).ok().and_then(inner);
        text.map_or_else(|| value.clone(), |text| format!("={text}").into())
    }
}
