//! The state core: revisions, current state, one history, committer, preconditions, TTL; journals below it.
//!
//! Must never know objects, JSON or HTTP: a value is bytes, and [`Sidecar`] is what its writer wants back beside it.
//! Start reading at [`store`].

pub mod entry;
pub mod key;
pub mod store;
pub mod testing;

pub use entry::{Entry, Sidecar};
pub use key::{Key, KeyError, Prefix, Revision};
pub use store::{
    CommitError, Committed, Config, Cursor, Engine, Event, Guard, OpenError, Put, Rejected, Snapshot, Store, Ticket, Turn, Txn, WatchError, Write,
};
