//! The store: turns, transactions, snapshots and cursors over one history.

use crate::clock;
use crate::committer::{self, JournalWriter, NullJournal};
use crate::config::{Config, Engine, Environment, OpenError};
use crate::core::StoreCore;
use crate::cursor::{Cursor, WatchError};
use crate::entry::Entry;
use crate::expiry::Expiry;
use crate::head::{AcceptedTxn, CommitResult};
use crate::journal::{Journal, JournalSetup, RecoveryVisitor};
use crate::key::{Key, Prefix, Revision};
use crate::loader::StateLoader;
use crate::published::{HistoryBounds, Published};
use crate::snapshot::Snapshot;
use crate::stats::{Counters, Stats};
use crate::sync;
use crate::turns::{Acquired, KeyTurns};
use crate::txn::{CommitError, Committed, Event, Expires, Need, Rejected, Txn};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;

/// Resolves when a transaction is durable and published, or failed. Dropping it changes nothing: the transaction goes on.
pub struct Ticket {
    revision: Revision,
    entries: Vec<Arc<Entry>>,
    outcome: oneshot::Receiver<CommitResult>,
}

impl Ticket {
    /// The entries as they will be published (revisions are already final if the commit succeeds).
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Waits.
    ///
    /// # Errors
    /// [`CommitError`].
    pub async fn committed(self) -> Result<Committed, CommitError> {
        let outcome = self.outcome.await;
        outcome.unwrap_or_else(|_| Err(CommitError::Failed("the committer ended".to_owned())))?;
        Ok(Committed { revision: self.revision, entries: self.entries })
    }
}

impl From<AcceptedTxn> for Ticket {
    fn from(accepted: AcceptedTxn) -> Self {
        Self { revision: accepted.revision, entries: accepted.entries, outcome: accepted.outcome }
    }
}

/// Resolves when what an answer was computed on can be read by everybody, or was lost.
pub struct Confirmation(Option<oneshot::Receiver<CommitResult>>);

impl Confirmation {
    /// Waits; not at all for what is published.
    ///
    /// # Errors
    /// [`CommitError::DiskFull`]: it did not happen, compute again. [`CommitError::Failed`].
    pub async fn confirmed(self) -> Result<(), CommitError> {
        match self.0 {
            None => Ok(()),
            Some(outcome) => outcome.await.unwrap_or_else(|_| Err(CommitError::Failed("the committer ended".to_owned()))),
        }
    }
}

/// The right to compute on a key's pending head: writers of one key take turns. A task holds one at a time, and waits for nobody meanwhile but for a thread
/// to compute on.
///
/// It orders those who take turns. Who submits without one is stopped by guards alone, so a turn's transaction guards its key too.
pub struct Turn<'a> {
    store: &'a Store,
    key: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.store.0.turns.release(self.key);
    }
}

impl Turn<'_> {
    /// The pending head of any key.
    pub fn pending(&self, key: &Key) -> Option<Arc<Entry>> {
        self.store.0.core.pending(key)
    }

    /// Ends the turn without a transaction; see [`Store::confirm`].
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn confirm(self, key: &Key, head: Option<Revision>) -> Result<Confirmation, Rejected> {
        self.store.confirm(key, head)
    }

    /// Enqueues a transaction and ends the turn; does not wait.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit(self, txn: Txn) -> Result<Ticket, Rejected> {
        self.store.submit(txn)
    }

    /// The same, with how much it is needed when the disk is full.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit_needed(self, txn: Txn, need: Need) -> Result<Ticket, Rejected> {
        self.store.submit_needed(txn, need)
    }
}

/// How far back a resource can be asked for; earlier revisions are [`WatchError::Compacted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// The lowest revision that can be listed.
    pub listed: Revision,
    /// The lowest revision that can be watched from.
    pub watched: Revision,
}

/// The store. Cheap to clone. Dropping the last clone closes it, without waiting; [`Store::close`] waits.
#[derive(Clone)]
pub struct Store(Arc<Handle>);

struct Handle {
    core: Arc<StoreCore>,
    turns: Arc<KeyTurns>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.refuse("the store is closed");
    }
}

impl Store {
    /// Opens or makes a store; recovers what the engine holds.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Self::open_with(config, Environment::default())
    }

    /// Opens a store on other parts than the system's.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(config: Config, parts: Environment) -> Result<Self, OpenError> {
        let published = Arc::new(Published::new(bounds(&config, &parts), parts.limits.replay_events));
        let counters = Arc::new(Counters::default());
        let mut expiry = Expiry::default();
        let (sink, next): (Box<dyn JournalWriter>, Revision) = match &config.engine {
            Engine::Memory => {
                let origin = config.origin.unwrap_or_else(|| now(&parts));
                published.set_origin(origin);
                (Box::new(NullJournal), Revision(origin.0 + 1))
            }
            Engine::Embedded(dir) => {
                let (journal, next) = open_journal((dir, config.must_exist), &parts, &published, &counters, &mut expiry)?;
                (Box::new(journal), next)
            }
        };
        let core = Arc::new(StoreCore::new(published, next, counters, &parts));
        listen_to_clock(&core);
        start(&core, sink, expiry)?;
        Ok(Self(Arc::new(Handle { core, turns: KeyTurns::new() })))
    }

    /// For tests.
    pub(crate) fn core(&self) -> &StoreCore {
        &self.0.core
    }

    /// Waits for the turn on a key, after those who came before. Dropped while it waits, it leaves the line.
    ///
    /// # Errors
    /// [`Rejected::Busy`] when a thousand wait already.
    pub async fn turn(&self, key: &Key) -> Result<Turn<'_>, Rejected> {
        let key = match self.0.turns.acquire(key.as_str()) {
            Acquired::Taken(key) => key,
            Acquired::Queued(next) => next.await.expect("a line ends with its last waiter").take(),
            Acquired::Full => return Err(Rejected::Busy),
        };
        Ok(Turn { store: self, key })
    }

    /// Submits without a turn: compare-and-swap by guards.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit(&self, txn: Txn) -> Result<Ticket, Rejected> {
        self.submit_needed(txn, Need::Ordinary)
    }

    /// The same, with how much it is needed when the disk is full.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit_needed(&self, txn: Txn, need: Need) -> Result<Ticket, Rejected> {
        self.0.core.submit(txn, need).map(Ticket::from)
    }

    /// Confirms the pending head of a key (`None`: it has no value) for an answer that was computed on it and writes nothing. Free when it is published.
    ///
    /// # Errors
    /// [`Rejected::Guard`]: it is not the head any more, compute again. [`Rejected::Busy`].
    pub fn confirm(&self, key: &Key, head: Option<Revision>) -> Result<Confirmation, Rejected> {
        self.0.core.confirm(key, head).map(Confirmation)
    }

    /// The published value of a key.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.core.published.get(key)
    }

    /// The pending head of a key, without a turn: what a guard of the next transaction is compared with (admission reads namespaces and quotas so).
    pub fn pending(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.core.pending(key)
    }

    /// The published revision.
    pub fn revision(&self) -> Revision {
        self.0.core.published.revision()
    }

    /// Waits until the published revision is at least this; for ever when it never is.
    pub async fn wait_for(&self, revision: Revision) {
        self.0.core.published.wait_for(revision).await;
    }

    /// The published state of a resource; empty when it was never written.
    pub fn snapshot(&self, prefix: &Prefix) -> Snapshot {
        self.0.core.published.snapshot(prefix)
    }

    /// The state of a resource as it was at a revision. For one that is not published yet: the present state, with its own revision (see [`Self::wait_for`]).
    ///
    /// # Errors
    /// [`WatchError::Compacted`] when the history in memory does not reach back that far, and for a revision that was lost.
    pub fn snapshot_at(&self, prefix: &Prefix, revision: Revision) -> Result<Snapshot, WatchError> {
        self.0.core.published.snapshot_at(prefix, revision)
    }

    /// A cursor that gives the events after a revision (which may lie in the future: earlier events are then not given).
    ///
    /// # Errors
    /// [`WatchError::Compacted`].
    pub fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Cursor, WatchError> {
        Cursor::new(&self.0.core.published, prefix, after)
    }

    /// Where the history of a resource begins.
    pub fn history(&self, prefix: &Prefix) -> History {
        let published = &self.0.core.published;
        let listed = sync::read(&published.resource(prefix).state).log.floor();
        let watched = published.replay_cache().archive().map_or(listed, |archive| archive.floor().min(listed));
        History { listed, watched }
    }

    /// Figures for `/metrics`. Walks the resources, not their entries.
    pub fn stats(&self) -> Stats {
        self.0.core.stats()
    }

    /// Bytes of the values of all present entries. Cheap, takes no lock.
    pub fn live_bytes(&self) -> u64 {
        self.0.core.published.live_bytes()
    }

    /// How long accepted writes have waited without progress of the committer; zero when nothing waits. For liveness probes: cheap, takes no lock.
    pub fn stalled_for(&self) -> Duration {
        self.0.core.stalled_for()
    }

    /// Why the journal failed, if it did: the same as [`Self::failed`], without waiting.
    pub fn failure(&self) -> Option<String> {
        self.0.core.failure()
    }

    /// Whether there is space for what makes the state larger. While there is none, each call has it looked at again, for the next one. For readiness probes.
    pub fn has_space(&self) -> bool {
        let core = &self.0.core;
        let mut head = core.head();
        let is_full = head.full;
        head.probe |= is_full;
        drop(head);
        if is_full {
            core.work.notify_one();
        }
        !is_full
    }

    /// Resolves with the reason when the journal has failed: the process must then end with an error.
    pub async fn failed(&self) -> String {
        self.0.core.failed().await
    }

    /// Refuses new writes, waits for accepted ones, ends the committer. Watches get [`WatchError::Closed`].
    pub async fn close(&self) {
        self.0.core.refuse("the store is closed");
        self.0.core.ended().await;
    }
}

fn bounds(config: &Config, parts: &Environment) -> HistoryBounds {
    let most = config.history_bytes;
    HistoryBounds { most, quiet: parts.limits.quiet_history_bytes.min(most), young_ms: clock::millis(parts.limits.young) }
}

/// The time as a revision: microseconds since 1970. No store gives a million revisions in each second of its life, so that one that begins there is above all
/// that an earlier one of the same name has shown, whatever became of it. Not so if the wall clock is behind.
fn now(parts: &Environment) -> Revision {
    let since = parts.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Revision(u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2))
}

/// The journal, and the first revision for what follows.
fn open_journal(
    (dir, must_exist): (&Path, bool),
    parts: &Environment,
    published: &Arc<Published>,
    counters: &Arc<Counters>,
    expiry: &mut Expiry,
) -> Result<(Journal, Revision), OpenError> {
    let live = published.clone();
    let setup = JournalSetup {
        dir: dir.to_owned(),
        must_exist,
        floor: now(parts),
        io: parts.io.clone(),
        transformer: parts.transformer.clone(),
        limits: parts.journal.clone(),
        counters: counters.clone(),
        live_bytes: Box::new(move || live.live_bytes()),
    };
    let (now_ms, wall_ms) = (clock::monotonic_ms(&*parts.clock), clock::wall_ms(&*parts.clock));
    let (journal, next) = Journal::open(setup, &mut Recovery { published, loader: published.loader(), expiry, now_ms, wall_ms })?;
    published.replay_cache().set_archive(journal.archive());
    Ok((journal, next))
}

/// Takes what a journal holds.
struct Recovery<'a> {
    published: &'a Published,
    loader: StateLoader<'a>,
    expiry: &'a mut Expiry,
    now_ms: u64,
    wall_ms: u64,
}

impl RecoveryVisitor for Recovery<'_> {
    fn origin(&mut self, revision: Revision) {
        self.loader.origin(revision);
    }

    fn entry(&mut self, entry: Arc<Entry>, expires: Option<Expires>) {
        self.expiry.recovered(&entry.key, expires, self.now_ms, self.wall_ms);
        self.loader.entry(entry);
    }

    fn absent(&mut self, key: &Key) {
        self.expiry.recovered(key, None, self.now_ms, self.wall_ms);
        self.loader.absent(key);
    }

    fn present(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.loader.present(key)
    }

    fn event(&mut self, event: Event, expires: Option<Expires>) -> bool {
        self.expiry.recovered(&event.entry.key, expires.filter(|_| !event.deleted), self.now_ms, self.wall_ms);
        self.loader.event(&event)
    }

    fn gap(&mut self, after: Revision, before: Revision) {
        self.published.add_gap(after, before);
    }

    fn end(&mut self, revision: Revision) {
        self.loader.end(revision);
    }
}

fn listen_to_clock(core: &Arc<StoreCore>) {
    let weak = Arc::downgrade(core);
    core.clock.on_leap(Arc::new(move || {
        if let Some(core) = weak.upgrade() {
            core.head().tick = true;
            core.work.notify_one();
        }
    }));
}

fn start(core: &Arc<StoreCore>, sink: Box<dyn JournalWriter>, expiry: Expiry) -> Result<(), OpenError> {
    let shared = core.clone();
    let spawned = std::thread::Builder::new().name("storage-commit".to_owned()).spawn(move || committer::run(&shared, sink, expiry));
    spawned.map(drop).map_err(|source| OpenError::Io { what: "start the committer of", path: "the store".into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Guard, Put, Sidecar, Write};

    async fn smoke(config: Config) {
        let store = Store::open(config).unwrap();
        let prefix = Prefix::new("configmaps").unwrap();
        let mut cursor = store.watch(&prefix, Revision(0)).unwrap();
        for n in 1..=100u64 {
            let key = prefix.key(Some("ns"), &format!("n{n}")).unwrap();
            let turn = store.turn(&key).await.unwrap();
            assert!(turn.pending(&key).is_none());
            let sidecar = Sidecar { revision_at: 1, ..Sidecar::default() };
            let put = Put { key: key.clone(), value: "{}".into(), sidecar, ttl: None };
            let ticket = turn.submit(Txn { guards: vec![Guard::Absent(key.clone())], writes: vec![Write::Put(put)] }).unwrap();
            let done = ticket.committed().await.unwrap();
            assert_eq!(done.revision, Revision(n));
            assert_eq!(store.get(&key).unwrap().bytes, format!("{{\"resourceVersion\":\"{n}\"}}"));
            assert_eq!(cursor.next(10).await.unwrap().len(), 1);
            assert_eq!(cursor.bookmark(), Some(Revision(n)));
        }
        assert_eq!(store.snapshot(&prefix).range(Some("ns"), Some("ns/n5")).count(), 54);
        assert_eq!(store.snapshot_at(&prefix, Revision(7)).unwrap().count(None, None), 7);
        store.close().await;
    }

    #[tokio::test]
    async fn smoke_memory() {
        smoke(Config { origin: Some(Revision(0)), ..Config::memory() }).await;
    }

    #[tokio::test]
    async fn smoke_embedded() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::embedded(dir.path().join("storage"));
        smoke(config.clone()).await;
        let store = Store::open(config).unwrap();
        assert_eq!(store.revision(), Revision(100));
        let prefix = Prefix::new("configmaps").unwrap();
        assert_eq!(store.snapshot(&prefix).count(None, None), 100);
        assert_eq!(store.watch(&prefix, Revision(90)).unwrap().next(100).await.unwrap().len(), 10);
        store.close().await;
    }
}
