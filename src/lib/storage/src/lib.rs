//! The state core: revisions, current state, one history, the committer, preconditions and TTLs, on
//! top of a journal.
//!
//! Must never know objects, JSON or HTTP. A value is bytes; [`Sidecar`] holds data that its writer
//! reads back without parsing. State in other processes (etcd) is behind [`remote`]. Start at
//! [`store`]. Writes go `store` -> `head` -> `committer` -> `journal` -> `published`; reads start
//! at `published`.

pub mod clock;
mod committer;
pub mod config;
mod core;
pub mod cursor;
pub mod entry;
mod expiry;
mod head;
mod image;
pub mod journal;
pub mod key;
mod loader;
mod log;
mod map;
mod published;
pub mod remote;
mod replay_cache;
pub mod snapshot;
pub mod stats;
pub mod store;
pub mod testing;
pub mod topic;
mod turns;
pub mod txn;

pub use config::{Config, Engine, Environment, JournalLimits, OpenError, Rewrites, StoreLimits};
pub use cursor::{Cursor, WatchError};
pub use entry::{CheckedEpoch, Entry, FieldValues, Sidecar, ValueForm};
pub use journal::files::{JournalFile, JournalFiles, JournalState, StoredEntry};
pub use key::{Key, KeyError, Prefix, Revision, is_key_segment};
pub use log::ReadLimit;
pub use published::Presence;
pub use remote::{RemoteEngine, Unavailable, ValueCodec};
pub use snapshot::{Mark, Snapshot};
pub use stats::Stats;
pub use store::{Confirmation, History, Store, Ticket, Turn};
pub use topic::Topic;
pub use txn::{CommitError, Committed, Event, Guard, Need, Put, Rejected, Txn, Write};
