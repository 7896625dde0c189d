//! The store: turns, transactions, snapshots and cursors over one history.

use crate::entry::{Entry, Sidecar};
use crate::key::{Key, Prefix, Revision};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where durable bytes go.
#[derive(Clone, Debug)]
pub enum Engine {
    /// Nowhere.
    Memory,
    /// Our own journal in this directory.
    Embedded(PathBuf),
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// The engine.
    pub engine: Engine,
    /// Bytes of history kept in memory over all resources; older events are read from the journal, or gone (memory engine).
    pub history_bytes: usize,
}

/// Why a store cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory.
    #[error("{0} is in use by another process")]
    Locked(PathBuf),
    /// The directory was written by a newer version.
    #[error("{path} has format {found}, newer than {supported} which this binary writes")]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// A damaged journal, other than a torn tail of the last segment.
    #[error("journal {file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// What, with the key when it is known.
        what: String,
    },
    /// The file system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A precondition of a transaction, checked against the pending head.
#[derive(Clone, Debug)]
pub enum Guard {
    /// The key has no value.
    Absent(Key),
    /// The key has a value written at exactly this revision.
    At(Key, Revision),
}

/// A value to write.
#[derive(Clone, Debug)]
pub struct Put {
    /// The key.
    pub key: Key,
    /// The value, without its revision.
    pub value: Bytes,
    /// What to keep beside it.
    pub sidecar: Sidecar,
    /// Delete the key (as an event like every other) after this long; `None` keeps it.
    pub ttl: Option<Duration>,
}

/// One change of a transaction.
#[derive(Clone, Debug)]
pub enum Write {
    /// Create or replace.
    Put(Put),
    /// Delete; `last` is the value that the DELETED event carries with the deletion's revision (the last value when `None`).
    Delete {
        /// The key; must exist.
        key: Key,
        /// The last state to show, if it is not the stored one.
        last: Option<Put>,
    },
}

/// Guards and changes that happen together or not at all, at one revision. At most one change per resource.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// What to write.
    pub writes: Vec<Write>,
}

/// Why a transaction was not accepted; nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// A guard does not hold: compute again on the present head.
    #[error("{} changed", .0.as_str())]
    Guard(Key),
    /// The queue of the committer is full: try later.
    #[error("the commit queue is full")]
    Busy,
    /// The store failed or is closing: no more writes.
    #[error("the store takes no more writes: {0}")]
    Closed(String),
}

/// Why an accepted transaction did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// No space below the watermark: nothing was written; deletes still work.
    #[error("the disk is full")]
    DiskFull,
    /// The journal failed; the process must end, and whether the write survived is known after restart.
    #[error("the journal failed: {0}")]
    Failed(String),
}

/// A durable, published transaction.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Its revision.
    pub revision: Revision,
    /// One for each write of the transaction, in order; for a delete the last state with the deletion's revision.
    pub entries: Vec<Arc<Entry>>,
}

/// Resolves when a transaction is durable and published, or failed. Dropping it changes nothing: the transaction goes on.
pub struct Ticket {}

impl Ticket {
    /// The entries as they will be published (revisions are already final if the commit succeeds).
    pub fn entries(&self) -> &[Arc<Entry>] {
        unimplemented!("storage owner")
    }

    /// Waits.
    ///
    /// # Errors
    /// [`CommitError`].
    pub async fn committed(self) -> Result<Committed, CommitError> {
        unimplemented!("storage owner")
    }
}

/// The right to compute on a key's pending head: writers of one key take turns. Never held across an await.
pub struct Turn<'a> {
    _store: &'a Store,
}

impl Turn<'_> {
    /// The pending head of any key.
    pub fn pending(&self, _key: &Key) -> Option<Arc<Entry>> {
        unimplemented!("storage owner")
    }

    /// Enqueues a transaction and ends the turn; does not wait.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit(self, _txn: Txn) -> Result<Ticket, Rejected> {
        unimplemented!("storage owner")
    }
}

/// One event of the history.
#[derive(Clone, Debug)]
pub struct Event {
    /// The value after the event; for a delete the last state, carrying the deletion's revision.
    pub entry: Arc<Entry>,
    /// The value before it; `None` for a create.
    pub previous: Option<Arc<Entry>>,
    /// Whether the key is gone.
    pub deleted: bool,
}

/// The current state of one resource at one revision; immutable, cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    /// Every event up to here is in it.
    pub revision: Revision,
}

impl Snapshot {
    /// Entries in key order, starting after `after` (exclusive, what follows the prefix), within one namespace when given.
    pub fn range<'a>(&'a self, _namespace: Option<&str>, _after: Option<&str>) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
        std::iter::empty()
    }

    /// How many entries [`Self::range`] would give; not slower than walking keys.
    pub fn count(&self, _namespace: Option<&str>, _after: Option<&str>) -> usize {
        unimplemented!("storage owner")
    }
}

/// A watcher's place in the history of one resource.
pub struct Cursor {}

/// Why a watch cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The events after this revision are compacted away: 410.
    #[error("revision {0} is compacted")]
    Compacted(Revision),
    /// The store is closing.
    #[error("the store is closing")]
    Closed,
}

impl Cursor {
    /// Waits for the next events (at least one, at most `max`), in order. Cancel safe.
    ///
    /// # Errors
    /// [`WatchError`].
    pub async fn next(&mut self, _max: usize) -> Result<Vec<Event>, WatchError> {
        unimplemented!("storage owner")
    }

    /// Every event up to this revision was given by [`Self::next`]: what a bookmark may say. Loads the published revision, then needs a drained log.
    pub fn bookmark(&self) -> Option<Revision> {
        unimplemented!("storage owner")
    }
}

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {}

impl Store {
    /// Opens or makes a store; recovers what the engine holds.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(_config: Config) -> Result<Self, OpenError> {
        unimplemented!("storage owner")
    }

    /// Waits for the turn on a key (short, synchronous, bounded by what other turns compute).
    pub fn turn(&self, _key: &Key) -> Turn<'_> {
        unimplemented!("storage owner")
    }

    /// Submits without a turn: compare-and-swap by guards.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn submit(&self, _txn: Txn) -> Result<Ticket, Rejected> {
        unimplemented!("storage owner")
    }

    /// The published value of a key.
    pub fn get(&self, _key: &Key) -> Option<Arc<Entry>> {
        unimplemented!("storage owner")
    }

    /// The pending head of a key, without a turn: what a guard of the next transaction is compared with (admission reads namespaces and quotas so).
    pub fn pending(&self, _key: &Key) -> Option<Arc<Entry>> {
        unimplemented!("storage owner")
    }

    /// The published revision.
    pub fn revision(&self) -> Revision {
        unimplemented!("storage owner")
    }

    /// Waits until the published revision is at least this.
    pub async fn wait_for(&self, _revision: Revision) {
        unimplemented!("storage owner")
    }

    /// The published state of a resource.
    pub fn snapshot(&self, _prefix: &Prefix) -> Snapshot {
        unimplemented!("storage owner")
    }

    /// The state of a resource as it was at a revision.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] when the history does not reach back that far.
    pub fn snapshot_at(&self, _prefix: &Prefix, _revision: Revision) -> Result<Snapshot, WatchError> {
        unimplemented!("storage owner")
    }

    /// A cursor that gives the events after a revision (which may lie in the future: earlier events are then not given).
    ///
    /// # Errors
    /// [`WatchError::Compacted`].
    pub fn watch(&self, _prefix: &Prefix, _after: Revision) -> Result<Cursor, WatchError> {
        unimplemented!("storage owner")
    }

    /// Drops history up to a revision: watches and lists from before it get [`WatchError::Compacted`].
    pub fn compact(&self, _revision: Revision) {
        unimplemented!("storage owner")
    }

    /// Resolves with the reason when the journal has failed: the process must then end with an error.
    pub async fn failed(&self) -> String {
        unimplemented!("storage owner")
    }

    /// Refuses new writes, waits for accepted ones, ends the committer. Watches get [`WatchError::Closed`].
    pub async fn close(&self) {
        unimplemented!("storage owner")
    }
}
