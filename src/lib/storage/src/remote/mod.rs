//! State that lives in another process and may have other writers: the seam for engines like etcd.
//!
//! The local engines own their state: `head` assigns revisions before the commit, and the
//! committer publishes what it journaled. A remote engine owns nothing here, so the same [`Store`]
//! facade works differently behind it:
//!
//! - **One feed publishes.** [`RemoteFeed::next`] gives batches ordered by revision, the store's
//!   own writes among those of others, and nothing else changes the published state
//!   (`follower.rs`). Revisions are compared, never computed with: they have gaps, and a watch can
//!   resume at each.
//! - **Writes are proposals** (`proposals.rs`). There is no pending head: a write is computed on
//!   the published state, and its guards decide at the engine. [`ProposalOutcome::Conflict`]
//!   becomes [`CommitError::Conflict`] once the feed has shown what the guard met; then the caller
//!   computes again, from its patch. A transaction guards every key that it writes, if need be with
//!   the head that it saw, so it can be proposed twice but applied once. That resolves
//!   [`ProposalOutcome::Unknown`]: the event that consumed the guard has the value of whose write
//!   it was. That tells nothing of a delete, which has no value, and of an update of a head that
//!   the caller gave, of which another store may have made the same value: if there was such an
//!   event, it is [`CommitError::Unknown`]. A create's guard holds again once its object is
//!   deleted, so it is resolved before it is proposed again ([`RemoteEngine::settle`]).
//! - **A write is acknowledged after it is published here**, so that clients read their writes.
//!   The turn on its key lasts until then: writers of a hot key queue here instead of
//!   conflicting there.
//! - **Reads wait for a barrier** (`barrier.rs`), a revision that is not older than the call. Calls
//!   join a probe that starts after they arrived. So does every result that was computed without a
//!   write, such as 404 or a no-op: what it was computed on may be outdated ([`Store::confirm`]).
//! - **A request that writes waits for no barrier while this process is the only writer**
//!   (`sole.rs`).
//! - **Values have the form of their other writers.** A [`ValueCodec`] writes them so, and derives
//!   this store's form and the sidecar when it reads them. Own writes find both in a table of
//!   proposals in flight, which saves parsing them.
//! - **A lost history is never papered over.** After a gap the feed gives the whole state; cursors
//!   from before it get [`WatchError::Compacted`](crate::WatchError::Compacted).
//!
//! Values that cannot be read are logged by key (at a limited rate), neither served nor deleted; a
//! create under such a key conflicts. Resources that are not served are logged once each, and left
//! alone. All writes of a transaction share one revision here, also those of one resource: a read
//! never splits a revision, and a cursor after such a revision gives it again, or is compacted once
//! a part of it was evicted. Of the revision at which a state was read, it gives the objects that
//! are left, if there are several; its deletes are unknown.
//!
//! TTLs are the engine's: what expires arrives as a delete.
//!
//! [`Store`]: crate::Store
//! [`Store::confirm`]: crate::Store::confirm
//! [`CommitError::Conflict`]: crate::CommitError::Conflict
//! [`CommitError::Unknown`]: crate::CommitError::Unknown

mod barrier;
mod decoded;
mod follower;
mod line_budget;
mod proposals;
mod reach;
mod sole;
#[cfg(test)]
mod tests;
mod unserved;

use crate::config::{Environment, OpenError};
use crate::core::StoreCore;
use crate::entry::{Entry, Sidecar, ValueForm};
use crate::key::{Key, Revision};
use crate::txn::Txn;
use barrier::Probe;
use bytes::Bytes;
use decoded::MAX_DECODERS;
pub use line_budget::LineBudget;
use parking_lot::Mutex;
use proposals::OwnWrites;
use reach::Reach;
use sole::SoleWriter;
pub use sole::{Reliance, reliance, relying};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use unserved::UnservedResources;

/// Proposals in flight; beyond that [`crate::Rejected::Busy`].
const MAX_PROPOSALS: u32 = 4096;
/// Callers that wait for the next probe.
const MAX_PROBED: usize = 4096;
/// Pause before a start asks an engine again that cannot be reached.
const PAUSE: Duration = Duration::from_millis(200);

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store in other processes. Keys start with `/registry/`, as everywhere.
pub trait RemoteEngine: Send + Sync + 'static {
    /// Starts the feed. Called once.
    fn open(&self) -> Box<dyn RemoteFeed>;

    /// Applies a transaction if all its guards hold; otherwise nothing of it. Every write has a
    /// guard on its key. Bounded in time, cancel safe in that a cancelled call counts as unknown.
    /// With `relies_on` only if that claim stands, else [`ProposalOutcome::NotSole`]; without it a
    /// claim of another process is revoked first.
    fn propose<'a>(
        &'a self,
        txn: &'a Txn,
        relies_on: Option<SoleClaim>,
    ) -> BoxFuture<'a, ProposalOutcome>;

    /// Fences off calls of unknown outcome that required a key to be absent. Returns a revision at
    /// which those that were applied are visible. Bounded in time.
    fn settle(&self) -> BoxFuture<'_, Result<Revision, String>>;

    /// A revision at which every write is visible that was acknowledged, to anyone, before the
    /// call. The error is shown to operators.
    fn barrier(&self) -> BoxFuture<'_, Result<Revision, String>>;

    /// Claims to be the only writer: transactions of other processes are applied only after one of
    /// them has revoked the claim. With a revision at which everything is visible that was applied
    /// before: in the store's numbers, unlike the claim. `None`: the engine has no claims.
    fn claim(&self) -> BoxFuture<'_, Result<Option<(SoleClaim, Revision)>, String>> {
        Box::pin(async { Ok(None) })
    }

    /// Revokes the claim of another process: what is shown here may be ahead of what that one has
    /// published.
    fn revoke(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    /// The last claim, unless it is known to be revoked: at the latest when the feed has given the
    /// revision at which it was.
    fn claimed(&self) -> Option<SoleClaim> {
        None
    }

    /// Makes the feed report its progress soon, as an empty batch, if revisions passed without
    /// events for it.
    fn hurry(&self);
}

/// Changes in the order of revisions.
pub trait RemoteFeed: Send {
    /// The next item. The first ones are a state. Reconnects by itself.
    fn next(&mut self) -> BoxFuture<'_, FeedItem>;
}

/// One item of a [`RemoteFeed`].
#[derive(Debug)]
pub enum FeedItem {
    /// A page of everything there is, at a revision. The last one replaces what was published.
    /// Between pages come none but [`Self::Lost`] and [`Self::Failed`].
    State {
        /// All of `values` are as of this one.
        revision: Revision,
        /// Values, by key after those of earlier pages.
        values: Vec<RemoteChange>,
        /// Earlier pages are void, if there were any.
        is_first: bool,
        /// The state is complete.
        is_last: bool,
    },
    /// All changes up to a revision; none if only the revision advanced. Changes of one revision
    /// are never split.
    Changes {
        /// Every change up to here was given.
        revision: Revision,
        /// In order.
        changes: Vec<RemoteChange>,
    },
    /// The connection is lost, for this reason. The feed keeps trying.
    Lost(String),
    /// The engine can no longer be followed: the process must exit.
    Failed(String),
}

/// A value written or deleted.
#[derive(Clone, Debug)]
pub struct RemoteChange {
    /// As [`Key::as_str`](crate::Key) has it.
    pub key: Box<str>,
    /// Revision that wrote it.
    pub revision: Revision,
    /// Revision that created the key; unused for a delete.
    pub create_revision: Revision,
    /// Value; `None`: deleted.
    pub value: Option<Bytes>,
}

/// A claim to be the only writer. Each has another number, which is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoleClaim(pub u64);

/// The engine's reply to a proposal.
#[derive(Clone, Debug)]
pub enum ProposalOutcome {
    /// Applied, at this revision.
    Committed(Revision),
    /// Not applied: a guard on this key did not hold at this revision, the engine's latest.
    Conflict(Key, Revision),
    /// Refused for lack of space. Applied or not, but not later: etcd refuses what takes the last
    /// of its space after it has applied it. What a barrier shows from now on tells.
    Full,
    /// Not applied, and never will be. The reason is for operators.
    Unavailable(String),
    /// Applied or not, now or later.
    Unknown(String),
    /// Not applied, and never will be: the claim that it required is revoked.
    NotSole,
    /// The engine refuses the transaction as such, for example for its size.
    Invalid(String),
}

/// The form of values for other programs that read them.
pub trait ValueCodec: Send + Sync + 'static {
    /// The resource's prefix of a key, with both slashes; `None` for keys that are not objects.
    fn prefix<'a>(&self, key: &'a str) -> Option<&'a str>;

    /// Whether the engine may delete the key by itself, once its TTL has passed.
    fn may_expire(&self, _key: &Key) -> bool {
        false
    }

    /// The value in this store's form, and its sidecar.
    ///
    /// # Errors
    /// Why it is no value of this store, for the log: without content.
    fn read(&self, key: &Key, value: &Bytes) -> Result<(Bytes, Sidecar), String>;

    /// A value of this store in the form for the others, of which [`Self::read`] makes the same
    /// value again, to the byte. The default: as it is.
    fn write(&self, _key: &Key, value: &Bytes) -> Bytes {
        value.clone()
    }

    /// Whether an entry is stored as [`Self::write`] writes its value.
    fn is_fresh(&self, entry: &Entry) -> bool {
        match entry.sidecar.form {
            ValueForm::OWN => true,
            ValueForm::STALE => false,
            form => ValueForm::of(&self.write(&entry.key, &entry.value().concat().into())) == form,
        }
    }
}

/// Called with the reason each time that an attempt to read the first state fails.
pub type WaitReport<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The storage does not answer. Nothing is known to be wrong with it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the storage is unavailable: {0}")]
pub struct Unavailable(pub String);

/// A store's end of a remote engine.
pub(crate) struct Remote {
    core: Arc<StoreCore>,
    engine: Arc<dyn RemoteEngine>,
    codec: Arc<dyn ValueCodec>,
    own: Mutex<OwnWrites>,
    unserved: UnservedResources,
    unreadable: LineBudget,
    permits: Arc<Semaphore>,
    probes: mpsc::Sender<Probe>,
    runtime: Handle,
    reach: Arc<Reach>,
    sole: SoleWriter,
    tasks: Mutex<Vec<AbortHandle>>,
    /// Tasks that decode at a time: twice the cores, so that more is fetched meanwhile.
    decoders: usize,
}

/// Ends the tasks of a start that fails or is dropped; `None` once it has succeeded.
struct Opening(Option<Arc<Remote>>);

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(remote) = &self.0 {
            remote.stop();
        }
    }
}

impl Remote {
    /// See [`ValueCodec::is_fresh`].
    pub(crate) fn is_fresh(&self, entry: &Entry) -> bool {
        self.codec.is_fresh(entry)
    }

    /// Waits for the first state, for as long as the engine cannot be reached.
    pub(crate) async fn open(
        core: Arc<StoreCore>,
        engine: Arc<dyn RemoteEngine>,
        codec: Arc<dyn ValueCodec>,
        waits: WaitReport<'_>,
    ) -> Result<Arc<Self>, OpenError> {
        let (probes, waiting) = mpsc::channel(MAX_PROBED);
        let mut feed = engine.open();
        let remote = Arc::new(Self {
            core,
            engine,
            codec,
            own: Mutex::default(),
            unserved: UnservedResources::default(),
            unreadable: LineBudget::default(),
            permits: Arc::new(Semaphore::new(MAX_PROPOSALS as usize)),
            probes,
            runtime: Handle::current(),
            reach: Arc::default(),
            sole: SoleWriter::default(),
            tasks: Mutex::default(),
            decoders: available_parallelism().map_or(1, |cores| 2 * cores.get()).min(MAX_DECODERS),
        });
        remote.load(&mut *feed, waits).await?;
        let tasks = [
            tokio::spawn(Self::follow(Arc::clone(&remote), feed)).abort_handle(),
            tokio::spawn(barrier::run(
                Arc::clone(&remote.core),
                Arc::clone(&remote.engine),
                Arc::clone(&remote.reach),
                waiting,
            ))
            .abort_handle(),
            tokio::spawn(sole::run(Arc::clone(&remote))).abort_handle(),
        ];
        remote.tasks.lock().extend(tasks);
        let mut opening = Opening(Some(Arc::clone(&remote)));
        remote.catch_up(waits).await?;
        remote.revoke_others().await;
        opening.0 = None;
        Ok(remote)
    }

    /// Waits for what happened since the first state, which may be an old one.
    async fn catch_up(self: &Arc<Self>, waits: WaitReport<'_>) -> Result<(), OpenError> {
        loop {
            let passed = tokio::select! {
                passed = self.barrier() => passed,
                why = self.core.failed() => return Err(OpenError::Remote(why)),
            };
            let Err(Unavailable(why)) = passed else { return Ok(()) };
            waits(&why);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Why the engine cannot be reached, if it cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.reach.trouble()
    }

    /// Why the engine takes no writes, if it answers and takes none.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.reach.refusal()
    }

    /// Ends the tasks. Without waiting: proposals in flight complete.
    pub(crate) fn stop(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }

    /// Waits for proposals in flight, then stops.
    pub(crate) async fn close(&self) {
        let _ = self.permits.acquire_many(MAX_PROPOSALS).await;
        self.stop();
        self.core.end();
    }
}

/// Limits that the remote side shares with the local one.
pub(crate) fn core(
    published: Arc<crate::published::Published>,
    parts: &Environment,
) -> Arc<StoreCore> {
    Arc::new(StoreCore::new(published, Revision::default(), Arc::default(), parts))
}
