//! The store: turns, transactions, snapshots and cursors over one history.

use crate::clock;
use crate::committer::{self, JournalWriter, NullJournal};
use crate::config::{Config, Engine, Environment, OpenError};
use crate::core::StoreCore;
use crate::cursor::{Cursor, WatchError};
use crate::entry::{Entry, ValueForm};
use crate::expiry::Expiry;
use crate::head::{AcceptedTxn, CommitResult};
use crate::journal::{Journal, JournalSetup, RecoveryVisitor};
use crate::key::{Key, Prefix, Revision};
use crate::loader::StateLoader;
use crate::published::{HistoryBounds, Presence, Published};
use crate::remote::{
    self, BoxFuture, Reliance, Remote, RemoteEngine, Unavailable, ValueCodec, WaitReport,
};
use crate::snapshot::Snapshot;
use crate::stats::{Counters, Stats};
use crate::topic::Topic;
use crate::turns::{Acquired, KeyTurns, TurnHandoff};
use crate::txn::{CommitError, Committed, Event, Expires, Need, Rejected, Txn};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;

/// An accepted transaction; resolves once it is durable and published, or failed. Dropping the
/// ticket does not cancel the transaction.
pub struct Ticket(TicketState);

enum TicketState {
    Local { revision: Revision, entries: Vec<Arc<Entry>>, outcome: oneshot::Receiver<CommitResult> },
    Remote(oneshot::Receiver<Result<Committed, CommitError>>),
}

impl Ticket {
    /// Local engines: entries as they will be published; their revisions are final if the commit
    /// succeeds. Remote engines know none before the commit.
    pub fn entries(&self) -> &[Arc<Entry>] {
        match &self.0 {
            TicketState::Local { entries, .. } => entries,
            TicketState::Remote(_) => &[],
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// [`CommitError`].
    pub async fn committed(self) -> Result<Committed, CommitError> {
        let ended = || CommitError::Failed("the committer ended".to_owned());
        match self.0 {
            TicketState::Local { revision, entries, outcome } => {
                outcome.await.unwrap_or_else(|_| Err(ended()))?;
                Ok(Committed { revision, entries })
            }
            TicketState::Remote(outcome) => outcome.await.unwrap_or_else(|_| Err(ended())),
        }
    }
}

impl From<AcceptedTxn> for Ticket {
    fn from(accepted: AcceptedTxn) -> Self {
        let AcceptedTxn { revision, entries, outcome } = accepted;
        Self(TicketState::Local { revision, entries, outcome })
    }
}

/// Resolves once the head that a response was computed on is published, or lost.
pub struct Confirmation(ConfirmationState);

enum ConfirmationState {
    Published,
    Pending(oneshot::Receiver<CommitResult>),
    Remote(BoxFuture<'static, Result<(), CommitError>>),
}

impl Confirmation {
    /// Waits for publication; returns at once if the head is published already.
    ///
    /// # Errors
    /// [`CommitError::DiskFull`]: the head was dropped, compute again. [`CommitError::Conflict`]:
    /// it was outdated, compute again. [`CommitError::Failed`], [`CommitError::Unavailable`].
    pub async fn confirmed(self) -> Result<(), CommitError> {
        match self.0 {
            ConfirmationState::Published => Ok(()),
            ConfirmationState::Pending(outcome) => outcome
                .await
                .unwrap_or_else(|_| Err(CommitError::Failed("the committer ended".to_owned()))),
            ConfirmationState::Remote(outcome) => outcome.await,
        }
    }
}

/// The right to compute on a key's pending head; writers of one key take turns. A task may hold
/// only one, and while holding it may wait only for a compute thread.
///
/// Turns order only each other. A transaction submitted without one is ordered by its guards alone,
/// so a turn's transaction must guard its key too.
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

    /// Enqueues a transaction and ends the turn. Does not wait.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit(self, txn: Txn) -> Result<Ticket, Rejected> {
        self.submit_needed(txn, Need::Ordinary)
    }

    /// Like [`Self::submit`], stating how much the transaction is needed on a full disk.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit_needed(self, txn: Txn, need: Need) -> Result<Ticket, Rejected> {
        match &self.store.0.remote {
            None => self.store.submit_needed(txn, need),
            Some(remote) => {
                let turn = TurnHandoff::new(&self.store.0.turns, self.key);
                std::mem::forget(self);
                remote.submit(txn, Some(turn)).map(|outcome| Ticket(TicketState::Remote(outcome)))
            }
        }
    }
}

/// How far back a resource's history reaches; older revisions are [`WatchError::Compacted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Lowest revision that can be listed.
    pub listed: Revision,
    /// Lowest revision that can be watched from.
    pub watched: Revision,
}

/// The store. Cheap to clone. Dropping the last clone closes it without waiting; [`Store::close`]
/// waits.
#[derive(Clone)]
pub struct Store(Arc<Handle>);

struct Handle {
    core: Arc<StoreCore>,
    turns: Arc<KeyTurns>,
    /// `None`: a local engine.
    remote: Option<Arc<Remote>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.refuse("the store is closed");
        if let Some(remote) = &self.remote {
            remote.stop();
        }
    }
}

impl Store {
    /// Opens or creates a store and recovers its state.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Self::open_with(config, Environment::default())
    }

    /// Opens a store with injected clocks, disks and limits.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(config: Config, parts: Environment) -> Result<Self, OpenError> {
        let published =
            Arc::new(Published::new(bounds(&config, &parts), parts.limits.replay_events));
        let counters = Arc::new(Counters::default());
        let mut expiry = Expiry::default();
        let (sink, next): (Box<dyn JournalWriter>, Revision) = match &config.engine {
            Engine::Memory => {
                let origin = config.origin.unwrap_or_else(|| now(&parts));
                published.set_origin(origin);
                (Box::new(NullJournal), Revision(origin.0 + 1))
            }
            Engine::Embedded(dir) => {
                let (journal, next) =
                    open_journal(dir, &config, &parts, &published, &counters, &mut expiry)?;
                (Box::new(journal), next)
            }
        };
        let core = Arc::new(StoreCore::new(published, next, counters, &parts));
        listen_to_clock(&core);
        start(&core, sink, expiry)?;
        Ok(Self(Arc::new(Handle { core, turns: KeyTurns::new(), remote: None })))
    }

    /// Opens a store whose state is in a remote engine, and waits for the state, for as long as the
    /// engine cannot be reached. Its tasks run on the current runtime. `history_bytes`: see
    /// [`Config::history_bytes`]. Dropping the future ends everything.
    ///
    /// # Errors
    /// [`OpenError::Remote`]: what no wait helps against.
    pub async fn attach(
        engine: Arc<dyn RemoteEngine>,
        codec: Arc<dyn ValueCodec>,
        history_bytes: usize,
        parts: Environment,
    ) -> Result<Self, OpenError> {
        Self::attach_reporting(engine, codec, history_bytes, parts, &|_| {}).await
    }

    /// [`Self::attach`], with what it waits for.
    ///
    /// # Errors
    /// [`OpenError::Remote`].
    pub async fn attach_reporting(
        engine: Arc<dyn RemoteEngine>,
        codec: Arc<dyn ValueCodec>,
        history_bytes: usize,
        parts: Environment,
        waits: WaitReport<'_>,
    ) -> Result<Self, OpenError> {
        let config = Config { history_bytes, ..Config::memory() };
        let published =
            Arc::new(Published::new(bounds(&config, &parts), parts.limits.replay_events));
        let core = remote::core(published, &parts);
        let remote = Remote::open(Arc::clone(&core), engine, codec, waits).await?;
        Ok(Self(Arc::new(Handle { core, turns: KeyTurns::new(), remote: Some(remote) })))
    }

    /// Resolves once the published state contains every acknowledged write; `None` if it always
    /// does, as with local engines.
    pub fn barrier(&self) -> Option<BoxFuture<'static, Result<(), Unavailable>>> {
        self.0.remote.as_ref().map(|remote| remote.barrier())
    }

    /// A reliance for a request, instead of a barrier at its beginning: see [`remote::relying`].
    /// `None`: this process may not be the only writer.
    pub fn rely(&self) -> Option<Arc<Reliance>> {
        self.0.remote.as_ref()?.rely()
    }

    /// Confirms the result of a request whose reliance no write has proven. On an error it may be
    /// outdated.
    pub fn uphold(
        &self,
        reliance: Arc<Reliance>,
    ) -> Option<BoxFuture<'static, Result<(), Unavailable>>> {
        self.0.remote.as_ref().map(|remote| remote.uphold(reliance))
    }

    /// Whether the state may have other writers than this process.
    pub fn is_shared(&self) -> bool {
        self.0.remote.is_some()
    }

    /// Why a remote engine cannot be reached, if it cannot. For readiness probes.
    pub fn trouble(&self) -> Option<String> {
        self.0.remote.as_ref()?.trouble()
    }

    /// Why a remote engine takes no writes, if it answers and takes none. For readiness probes.
    pub fn refusal(&self) -> Option<String> {
        self.0.remote.as_ref()?.refusal()
    }

    /// Tests only.
    pub(crate) fn core(&self) -> &StoreCore {
        &self.0.core
    }

    /// Waits for the turn on a key, first come, first served. Cancel safe.
    ///
    /// # Errors
    /// [`Rejected::Busy`] if a thousand writers are waiting.
    pub async fn turn(&self, key: &Key) -> Result<Turn<'_>, Rejected> {
        let key = match self.0.turns.acquire(key.as_str()) {
            Acquired::Taken(key) => key,
            Acquired::Queued(next) => next.await.expect("a queue outlives its waiters").take(),
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

    /// Like [`Self::submit`], stating how much the transaction is needed on a full disk.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit_needed(&self, txn: Txn, need: Need) -> Result<Ticket, Rejected> {
        match &self.0.remote {
            None => self.0.core.submit(txn, need).map(Ticket::from),
            Some(remote) => {
                remote.submit(txn, None).map(|outcome| Ticket(TicketState::Remote(outcome)))
            }
        }
    }

    /// Confirms the pending head of a key (`None`: no value) for a response that was computed on it
    /// without writing. Free if the head is published.
    ///
    /// # Errors
    /// [`Rejected::Guard`]: no longer the head, compute again. [`Rejected::Busy`].
    pub fn confirm(&self, key: &Key, head: Option<Revision>) -> Result<Confirmation, Rejected> {
        let pending = self.0.core.confirm(key, head)?;
        Ok(Confirmation(match (&self.0.remote, pending) {
            (Some(remote), _) => ConfirmationState::Remote(remote.confirm(key.clone(), head)),
            (None, None) => ConfirmationState::Published,
            (None, Some(outcome)) => ConfirmationState::Pending(outcome),
        }))
    }

    /// Whether an entry, as it is here and not converted, is stored in the form in which a write of
    /// its value would store it.
    pub fn is_fresh(&self, entry: &Entry) -> bool {
        match &self.0.remote {
            Some(remote) => remote.is_fresh(entry),
            None => entry.sidecar.form != ValueForm::STALE,
        }
    }

    /// The published value of a key.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.core.published.get(key)
    }

    /// The pending head of a key, without a turn. Guards are compared with it; admission reads
    /// namespaces and quotas this way.
    pub fn pending(&self, key: &Key) -> Option<Arc<Entry>> {
        self.0.core.pending(key)
    }

    /// The published revision.
    pub fn revision(&self) -> Revision {
        self.0.core.published.revision()
    }

    /// Waits until the published revision reaches `revision`; never resolves if it does not.
    pub async fn wait_for(&self, revision: Revision) {
        self.0.core.published.wait_for(revision).await;
    }

    /// Published state of a resource; empty if it was never written.
    pub fn snapshot(&self, prefix: &Prefix) -> Snapshot {
        self.0.core.published.snapshot(prefix)
    }

    /// Revision of a resource's last published change, or a later one.
    pub fn latest(&self, prefix: &Prefix) -> Revision {
        self.0.core.published.resource(prefix).latest()
    }

    /// Whether a resource has published objects, now and later. Cheaper than a snapshot.
    pub fn presence(&self, prefix: &Prefix) -> Presence {
        Presence(self.0.core.published.resource(prefix))
    }

    /// State of a resource at a revision. A future revision yields the current state, at its own
    /// revision (see [`Self::wait_for`]).
    ///
    /// # Errors
    /// [`WatchError::Compacted`] if the in-memory history does not reach back that far, or the
    /// revision was lost.
    pub fn snapshot_at(&self, prefix: &Prefix, revision: Revision) -> Result<Snapshot, WatchError> {
        self.0.core.published.snapshot_at(prefix, revision)
    }

    /// A cursor over the events after a revision. The revision may lie in the future; events up to
    /// it are skipped.
    ///
    /// # Errors
    /// [`WatchError::Compacted`].
    pub fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Cursor, WatchError> {
        self.watch_topic(prefix, Topic::everything(), after)
    }

    /// [`Self::watch`] of the events of one topic. Others cost it nothing: it is neither woken for
    /// them nor, once it has read everything, compacted with them.
    ///
    /// # Errors
    /// [`WatchError::Compacted`].
    pub fn watch_topic(
        &self,
        prefix: &Prefix,
        topic: Topic,
        after: Revision,
    ) -> Result<Cursor, WatchError> {
        Cursor::new(&self.0.core.published, prefix, topic, after)
    }

    /// How far back the history of a resource reaches.
    pub fn history(&self, prefix: &Prefix) -> History {
        let published = &self.0.core.published;
        let resource = published.resource(prefix);
        let (listed, in_memory) = {
            let log = &resource.state.read().log;
            (log.floor(), log.watched())
        };
        let watched = published
            .replay_cache()
            .archive()
            .map_or(in_memory, |archive| archive.floor().min(in_memory));
        History { listed, watched }
    }

    /// Metrics. Iterates over resources, not over entries.
    pub fn stats(&self) -> Stats {
        let writes_alone = self.rely().is_some();
        Stats { writes_alone, ..self.0.core.stats() }
    }

    /// Bytes of all live values. Cheap, lock-free.
    pub fn live_bytes(&self) -> u64 {
        self.0.core.published.live_bytes()
    }

    /// How long accepted writes have waited without committer progress; zero if none wait. For
    /// liveness probes: cheap, lock-free.
    pub fn stalled_for(&self) -> Duration {
        self.0.core.stalled_for()
    }

    /// Why the journal failed, if it did. Like [`Self::failed`], without waiting.
    pub fn failure(&self) -> Option<String> {
        self.0.core.failure()
    }

    /// Whether the state may grow. While it may not, each call triggers a new check, whose result
    /// the next call sees. For readiness probes.
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

    /// Whether a file of the journal is damaged and could not be replaced yet: what is served is
    /// whole, but a start would be refused. For readiness probes.
    pub fn has_repair_failed(&self) -> bool {
        self.0.core.counters.has_repair_failed()
    }

    /// Resolves with the reason once the journal has failed: the process must then exit with an
    /// error.
    pub async fn failed(&self) -> String {
        self.0.core.failed().await
    }

    /// Refuses new writes, waits for accepted ones, stops the committer. Watches get
    /// [`WatchError::Closed`].
    pub async fn close(&self) {
        self.0.core.refuse("the store is closed");
        match &self.0.remote {
            None => self.0.core.ended().await,
            Some(remote) => remote.close().await,
        }
    }
}

fn bounds(config: &Config, parts: &Environment) -> HistoryBounds {
    let most = config.history_bytes;
    HistoryBounds {
        most,
        quiet: parts.limits.quiet_history_bytes.min(most),
        young_ms: clock::millis(parts.limits.young),
    }
}

/// The time as a revision, in microseconds since 1970. No store assigns a million revisions per
/// second of its life, so a store that starts here is above everything that an earlier one of the
/// same name has shown, whatever became of it, unless the wall clock is behind.
fn now(parts: &Environment) -> Revision {
    let since = parts.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Revision(u64::try_from(since.as_micros()).unwrap_or(u64::MAX).min(Revision::MAX.0 / 2))
}

/// Opens the journal. Also returns the next revision.
fn open_journal(
    dir: &Path,
    config: &Config,
    parts: &Environment,
    published: &Arc<Published>,
    counters: &Arc<Counters>,
    expiry: &mut Expiry,
) -> Result<(Journal, Revision), OpenError> {
    let live = published.clone();
    let setup = JournalSetup {
        dir: dir.to_owned(),
        must_exist: config.must_exist,
        floor: now(parts),
        origin: config.origin.unwrap_or_default(),
        io: parts.io.clone(),
        transformer: parts.transformer.clone(),
        limits: parts.journal.clone(),
        counters: counters.clone(),
        live_bytes: Box::new(move || live.live_bytes()),
    };
    let (now_ms, wall_ms) = (clock::monotonic_ms(&*parts.clock), clock::wall_ms(&*parts.clock));
    let (journal, next) = Journal::open(
        setup,
        &mut Recovery { published, loader: published.loader(), expiry, now_ms, wall_ms },
    )?;
    published.replay_cache().set_archive(journal.archive());
    Ok((journal, next))
}

/// Loads what a journal holds.
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
        self.expiry.recovered(
            &event.entry.key,
            expires.filter(|_| !event.deleted),
            self.now_ms,
            self.wall_ms,
        );
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
            core.wake();
        }
    }));
}

fn start(
    core: &Arc<StoreCore>,
    sink: Box<dyn JournalWriter>,
    expiry: Expiry,
) -> Result<(), OpenError> {
    let shared = core.clone();
    let spawned = std::thread::Builder::new()
        .name("storage-commit".to_owned())
        .spawn(move || committer::run(&shared, sink, expiry));
    spawned.map(drop).map_err(|source| OpenError::Io {
        what: "start the committer thread of",
        path: "the store".into(),
        source,
    })
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
            let ticket = turn
                .submit(Txn {
                    guards: vec![Guard::Absent(key.clone())],
                    writes: vec![Write::Put(put)],
                })
                .unwrap();
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
