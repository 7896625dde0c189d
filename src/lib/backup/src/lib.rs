//! Backups of the embedded store: taken while a server runs or not, incremental, checked.
//!
//! Must never know objects, HTTP or flags. Start at [`take()`].
//!
//! A backup has points, each of which is complete: the journal's files at a moment, and the files of
//! keys. A point lists its files as blocks, which are named by their hash, so a point costs only the
//! blocks that no earlier one has. A backup is a directory, or a single file with one point:
//!
//! - Directory: `blocks/HASH`, and `points/NUMBER` (`directory.rs`). A point is written after its
//!   blocks are durable and have been read back and checked; then old points are removed, and blocks
//!   that no point names. So whenever the process dies, the last point is whole.
//! - File: the blocks, then the point, then its place (`archive.rs`). It appears under its name when
//!   it is complete.
//!
//! A point holds every write that was acknowledged before [`take()`] began: the journal is its source,
//! and a write is acknowledged after it is in the journal.
//! What a restored store assigns next is above the wall clock's microseconds, hence above every
//! revision that was shown before or after the backup; [`CheckedBackup`] refuses a clock that is
//! behind.

mod archive;
mod blocks;
mod directory;
mod error;
mod point;
mod restoring;
mod taking;

pub use blocks::Progress;
pub use error::BackupError;
pub use point::PointInfo;
pub use restoring::{CheckedBackup, RestoreTarget, verify};
pub use taking::{BackupPlace, BackupSource, KeyFile, take};
