//! Moves the state between the embedded store and etcd, both ways.
//!
//! Must never know objects, HTTP or flags. Start at [`to_etcd`] and [`to_directory`].
//!
//! - No server may run on either side: the embedded store is locked, and etcd's keys must be the
//!   same at the end as at the start, which are further apart than two writes of an idle server.
//! - The target must be empty, or an unfinished migration, which is continued in etcd if it is from
//!   the same source, and begun again in a directory. No server starts on an unfinished target:
//!   etcd contains a note (`ferrokube_etcd::MigrationNote`), and a directory has another name until
//!   the end, by which servers refuse it.
//! - Revisions continue above those of the source: the embedded store begins there, and etcd's
//!   servers add the base in the note. So an earlier watch gets 410, and no revision refers to two
//!   states.
//! - Expiring keys keep their remaining time.
//! - Finally the whole target is read back, and compared with the source by count and hash.
//!
//! The source is not modified. Values are converted to the target's format; kinds that are not
//! served are skipped and reported.

mod digest;
mod directory;
mod error;
mod etcd;

pub use directory::{DirectoryTarget, to_directory};
pub use error::MigrateError;
pub use etcd::to_etcd;

use std::collections::BTreeMap;

/// Progress callback: keys done, and total keys.
pub type Report<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationSummary {
    /// Keys in the target.
    pub keys: u64,
    /// Keys already copied by an earlier run.
    pub present: u64,
    /// An unfinished copy of an earlier run was removed.
    pub started_over: bool,
    /// Hash of all keys and values, as compared.
    pub hash: String,
    /// The target's revisions are above this one.
    pub revision: u64,
    /// Resources that are not served, and thus not copied, with their number of keys.
    pub unserved: BTreeMap<String, u64>,
}
