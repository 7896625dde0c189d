//! Moves the state between the embedded store and etcd, both ways.
//!
//! Must never know objects, HTTP or flags. Start at [`to_etcd`] and [`to_directory`].
//!
//! - No server works on either end meanwhile: the embedded store is locked, and etcd's keys must be
//!   at the end as they were at the start.
//! - The target must be empty, or hold an unfinished migration from the same source, which is
//!   continued. No server starts on an unfinished one: etcd has a note (`ferrokube_etcd::MigrationNote`),
//!   and a directory gets its name at the end.
//! - Revisions continue above those of the source: the embedded store begins there, and etcd's
//!   servers add the base in the note. So a watch from before the migration gets 410, and no
//!   revision names two states.
//! - What expires keeps its time.
//! - At the end all of the target is read, and compared with the source by count and hash.
//!
//! The source stays as it is. Values are copied into etcd in the form of its servers, and from etcd
//! in that of the embedded store; kinds that it does not serve are left, and reported.

mod digest;
mod directory;
mod error;
mod etcd;

pub use directory::{DirectoryTarget, to_directory};
pub use error::MigrateError;
pub use etcd::to_etcd;

use std::collections::BTreeMap;

/// Gets the number of keys done and of all keys.
pub type Report<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationSummary {
    /// Keys in the target.
    pub keys: u64,
    /// Keys that an earlier run had copied.
    pub present: u64,
    /// Hash of all keys and values, as compared.
    pub hash: String,
    /// Revisions of the target are above this one.
    pub revision: u64,
    /// Resources that are not served, with the number of their keys. They were not copied.
    pub unserved: BTreeMap<String, u64>,
}
