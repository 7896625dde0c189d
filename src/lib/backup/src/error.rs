//! Errors of backups.

use ferrokube_storage::OpenError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a backup could not be taken, verified or restored. The backup's last point is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file system operation failed.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// Path operated on.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The backup is damaged.
    #[error("the backup {path} is damaged: {what}")]
    Damaged {
        /// The backup, or its file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// A directory with other content, or a file that is not a backup.
    #[error("{0} is not a backup")]
    NotBackup(PathBuf),
    /// A directory without a finished point.
    #[error("{0} contains no finished backup")]
    NoPoint(PathBuf),
    /// Another process is using it.
    #[error("{0} is in use by another process: wait for it, or choose another directory")]
    Busy(PathBuf),
    /// The journal cannot be read, or the restored one cannot be written.
    #[error("cannot use the journal")]
    Journal(#[from] OpenError),
    /// A key of the target differs from the backup's.
    #[error("{0} exists and differs from the backup's: remove it, or restore without keys")]
    OtherKey(PathBuf),
    /// A key that a backup cannot name.
    #[error("cannot back up {0:?}: rename it, or back up without keys")]
    KeyName(String),
    /// The keys and certificates exceed the size limit.
    #[error("the keys and certificates have {0} bytes, more than 16 MiB: back up without keys")]
    ManyKeys(u64),
    /// More files or blocks than a point can list.
    #[error("the state is too large for a backup")]
    TooLarge,
    /// Revisions would go back.
    #[error(
        "the clock is {0} s behind the time of the backup: set it, as new revisions follow the clock"
    )]
    ClockBehind(u64),
}

/// Builds a [`BackupError::Io`].
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { what, path, source }
}
