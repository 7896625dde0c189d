//! Transactions: guards, writes and outcomes.

use crate::entry::{Entry, Sidecar};
use crate::key::{Key, Revision};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A precondition, checked against the pending head.
#[derive(Clone, Debug)]
pub enum Guard {
    /// The key has no value.
    Absent(Key),
    /// The key's value was written at exactly this revision.
    At(Key, Revision),
}

impl Guard {
    /// Guarded key.
    pub fn key(&self) -> &Key {
        match self {
            Self::Absent(key) | Self::At(key, _) => key,
        }
    }

    /// Required revision of the key's value; `None`: no value.
    pub(crate) fn revision(&self) -> Option<Revision> {
        match self {
            Self::Absent(_) => None,
            Self::At(_, revision) => Some(*revision),
        }
    }
}

/// A value to write.
#[derive(Clone, Debug)]
pub struct Put {
    /// At most once in a transaction.
    pub key: Key,
    /// Value, without its revision.
    pub value: Bytes,
    /// Stored with the value.
    pub sidecar: Sidecar,
    /// Deletes the key after this long, as an ordinary event; `None` keeps it.
    pub ttl: Option<Duration>,
}

/// One write of a transaction.
#[derive(Clone, Debug)]
pub enum Write {
    /// Create or replace.
    Put(Put),
    /// Delete. The DELETED event carries `last` with the deletion's revision, or the stored value
    /// if `None`.
    Delete {
        /// Key; must exist, else [`Rejected::Guard`].
        key: Key,
        /// Last state to show, if not the stored one. Same key; its TTL is ignored.
        last: Option<Put>,
    },
}

impl Write {
    /// Key written to.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(put) => &put.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// Length of the value that it stores.
    pub fn put_bytes(&self) -> usize {
        match self {
            Self::Put(put) => put.value.len(),
            Self::Delete { .. } => 0,
        }
    }
}

/// Guards and writes that are accepted together or not at all. At least one write, no key twice.
///
/// The writes share one revision and one journal record, so a crash keeps all or none, with one
/// exception: of several writes to one resource only the first belongs to it. The others get
/// revisions of their own, directly before, because a watch must be able to resume after every
/// event it has seen. They are journaled in the same batch; a crash in between may keep some of
/// them without the rest, so they should be correctable later (quota usage).
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// Puts and deletes.
    pub writes: Vec<Write>,
}

/// How much a transaction is needed on a full disk. Transactions that do not grow the state are
/// always accepted: deletes, and replacements of the same length or less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// Refused if it grows the state.
    #[default]
    Ordinary,
    /// Leads to a delete: may grow the state slightly ([`crate::StoreLimits::essential_bytes`]).
    Essential,
}

/// Why a transaction was not accepted. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// A guard failed: compute again on the current head.
    #[error("{} changed", .0.as_str())]
    Guard(Key),
    /// The committer's queue is full: retry later.
    #[error("the commit queue is full")]
    Busy,
    /// The store failed or is closing: no more writes.
    #[error("the store accepts no more writes: {0}")]
    Closed(String),
    /// Caller error: no write, two writes to one key, a splice outside of the value, a value over
    /// the limit.
    #[error("invalid transaction: {0}")]
    Invalid(&'static str),
}

/// Why an accepted transaction did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// No space; nothing was written. Transactions that do not grow the state still work.
    #[error("the disk is full")]
    DiskFull,
    /// The journal failed. The process must exit; whether the write survived is known after a
    /// restart.
    #[error("the journal failed: {0}")]
    Failed(String),
    /// Remote engines only: a guard on this key failed at the commit. Compute again on the current
    /// head, which is published by now.
    #[error("{} changed", .0.as_str())]
    Conflict(Key),
    /// Remote engines only: nothing was written.
    #[error("the storage is unavailable: {0}")]
    Unavailable(String),
    /// Remote engines only: the connection was lost for too long, so the outcome is unknown.
    #[error("whether the write happened is unknown: {0}")]
    Unknown(String),
    /// Remote engines only: the storage refuses the transaction, for example for its size.
    #[error("the storage refuses the write: {0}")]
    Invalid(String),
}

/// A durable, published transaction.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The highest of its entries.
    pub revision: Revision,
    /// One entry per write, in order; for a delete the last state at the deletion's revision.
    pub entries: Vec<Arc<Entry>>,
}

/// One event of the history.
#[derive(Clone, Debug)]
pub struct Event {
    /// Value after the event; for a delete the last state at the deletion's revision.
    pub entry: Arc<Entry>,
    /// Value before the event; `None` for a create.
    pub previous: Option<Arc<Entry>>,
    /// Whether the key was deleted.
    pub deleted: bool,
}

impl Event {
    /// The last event of an object of a state. What an update replaced is unknown: as if it had
    /// changed nothing.
    pub(crate) fn of_state(entry: &Arc<Entry>) -> Self {
        let is_create = entry.create_revision == entry.revision;
        let previous = (!is_create).then(|| Arc::clone(entry));
        Self { entry: Arc::clone(entry), previous, deleted: false }
    }

    /// Revision of the event.
    pub fn revision(&self) -> Revision {
        self.entry.revision
    }

    /// Bytes of the values that it keeps alive: its own, and the one that it replaced.
    pub fn value_bytes(&self) -> usize {
        self.entry.bytes.len() + self.previous.as_ref().map_or(0, |before| before.bytes.len())
    }
}

/// An entry's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expires {
    /// TTL in milliseconds.
    pub(crate) ttl_ms: u64,
    /// Wall-clock deadline in milliseconds since 1970, as journaled.
    pub(crate) wall_ms: u64,
}

/// An event on its way to the journal and the history.
#[derive(Clone, Debug)]
pub(crate) struct TxnEvent {
    pub(crate) event: Event,
    /// A delete whose last state differs from the previous value: the journal must hold it.
    pub(crate) own_last: bool,
    pub(crate) expires: Option<Expires>,
}
