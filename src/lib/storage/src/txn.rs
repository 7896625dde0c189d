//! What is written: guards, changes, transactions, and how they end.

use crate::entry::{Entry, Sidecar};
use crate::key::{Key, Revision};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A precondition of a transaction, checked against the pending head.
#[derive(Clone, Debug)]
pub enum Guard {
    /// The key has no value.
    Absent(Key),
    /// The key has a value written at exactly this revision.
    At(Key, Revision),
}

impl Guard {
    /// The key that it is about.
    pub fn key(&self) -> &Key {
        match self {
            Self::Absent(key) | Self::At(key, _) => key,
        }
    }
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
        /// The key; must exist (else [`Rejected::Guard`]).
        key: Key,
        /// The last state to show, if it is not the stored one; its key is the same, its ttl is not used.
        last: Option<Put>,
    },
}

impl Write {
    /// The key that it changes.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(put) => &put.key,
            Self::Delete { key, .. } => key,
        }
    }
}

/// Guards and changes that are accepted together or not at all; at least one change, no key twice.
///
/// They have one revision and are one record of the journal, so that also a crash leaves all or nothing of them, with one exception: of several
/// changes of one resource only the first is among them. The others have revisions of their own, right before, since a watch must be able to resume
/// after every event that it has seen. They are journaled in the same batch; a crash between may leave some of them without what follows, so that
/// they should be what can be corrected later (the usage of a quota).
#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// What to write.
    pub writes: Vec<Write>,
}

/// How much a transaction is needed when the disk is full. Whatever makes the state no larger is accepted then in any case: deletes, and changes to values of
/// the same length or less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// It is refused if it makes the state larger.
    #[default]
    Ordinary,
    /// It leads to a delete: it may make the state larger by a little ([`crate::StoreLimits::essential_bytes`]).
    Essential,
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
    /// The caller's mistake (no change, two changes of one key, a splice outside of the value, a value over the limit).
    #[error("not a transaction: {0}")]
    Invalid(&'static str),
}

/// Why an accepted transaction did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// No space: nothing was written. What makes the state no larger still works.
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

impl Event {
    /// The revision of the event.
    pub fn revision(&self) -> Revision {
        self.entry.revision
    }
}

/// When an entry goes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expires {
    /// How long it was to live, in milliseconds.
    pub(crate) ttl_ms: u64,
    /// The end by the wall clock, in milliseconds since 1970: what the journal holds.
    pub(crate) wall_ms: u64,
}

/// An event on its way to the journal and to the history.
#[derive(Clone, Debug)]
pub(crate) struct TxnEvent {
    pub(crate) event: Event,
    /// A delete that shows another state than the previous one: the journal must hold it.
    pub(crate) own_last: bool,
    pub(crate) expires: Option<Expires>,
}
