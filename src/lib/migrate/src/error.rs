//! Errors of migrations.

use ferrokube_etcd::ConfigError;
use ferrokube_storage::OpenError;
use std::path::PathBuf;

/// Why a migration did not finish. The source is unchanged; repeat the migration after fixing the
/// cause.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A call to etcd failed.
    #[error("etcd failed: {0}")]
    Etcd(String),
    /// The etcd configuration is invalid.
    #[error("cannot use etcd")]
    Config(#[from] ConfigError),
    /// The embedded store failed.
    #[error("cannot use the embedded store")]
    Journal(#[from] OpenError),
    /// The target is not empty.
    #[error(
        "{0} is not empty: choose another --to or --etcd-prefix, or remove its content if nothing needs it"
    )]
    NotEmpty(String),
    /// The target has an unfinished migration from elsewhere.
    #[error("{target} has an unfinished migration from {from}: continue that one, or remove it")]
    OtherSource {
        /// Directory or URL.
        target: String,
        /// The source of that migration.
        from: String,
    },
    /// The source is itself the target of an unfinished migration.
    #[error("the source is the target of a migration that has not finished, from {0}")]
    SourceUnfinished(String),
    /// The migration note was written by a newer version.
    #[error("the note of a migration in etcd is of a newer version")]
    UnknownNote,
    /// Values that this server would not serve.
    #[error("{count} values cannot be read, first {key}: {why}")]
    Unreadable {
        /// Number of them.
        count: u64,
        /// One of their keys.
        key: String,
        /// Why, without content.
        why: String,
    },
    /// Keys changed during the migration: servers were running.
    #[error("the state changed during the migration: stop its API servers, and repeat it")]
    Changed,
    /// The copy differs from the source.
    #[error("the copy differs from the source: {copy} instead of {source_hash}")]
    Different {
        /// Count and hash of the source.
        source_hash: String,
        /// Count and hash of the copy.
        copy: String,
    },
    /// A write to the new store failed.
    #[error("cannot write to the new store: {0}")]
    Write(String),
    /// A directory operation.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// Path operated on.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}
