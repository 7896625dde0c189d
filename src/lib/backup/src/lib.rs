//! Backups of the embedded store: taken while a server runs or not, incremental, checked.
//!
//! Must never know objects, HTTP or flags. Start at [`take()`].
//!
//! A backup consists of points. Each is a complete snapshot: the journal's files and the key files
//! at one moment. A point lists its files as blocks named by their hash, so it costs only blocks
//! that no earlier point has. A backup is a directory, or a single file with one point:
//!
//! - Directory: `blocks/HASH`, and `points/NUMBER` (`directory.rs`). A point is written after its
//!   blocks are durable and verified; then old points and unreferenced blocks are removed. So the
//!   last point is intact whenever the process dies.
//! - File: the blocks, the point, then its location (`archive.rs`). It is renamed to its final name
//!   when complete.
//!
//! A point contains every write acknowledged before [`take()`] began, since writes are acknowledged
//! only once in the journal. A restored store assigns revisions above the wall clock in
//! microseconds, and thus above every revision returned before or after the backup;
//! [`CheckedBackup`] rejects a clock that is behind.

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
pub use taking::{BackupLocation, BackupSource, KeyFile, take};
