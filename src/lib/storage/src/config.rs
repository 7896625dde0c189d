//! Store configuration and open errors.

use crate::clock::{Clock, SystemClock};
use crate::journal::io::{Io, SystemDisk};
use crate::journal::transform::{PlainValues, Transformer};
use crate::key::Revision;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Storage engine.
#[derive(Clone, Debug)]
pub enum Engine {
    /// In memory only; nothing survives the process.
    Memory,
    /// The embedded journal, in this directory.
    Embedded(PathBuf),
}

/// Store configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Storage engine.
    pub engine: Engine,
    /// Upper bound for history held in memory, in bytes over all resources; an idle store keeps
    /// less ([`StoreLimits::quiet_history_bytes`]). Older events are read from the journal; the
    /// memory engine drops them.
    pub history_bytes: usize,
    /// Revisions of a new store start after this one. `None`: the memory engine starts at the
    /// current time in microseconds since 1970, above every revision of an earlier process (which
    /// would have needed a million revisions per second of its life to get there). The embedded
    /// engine starts at 1, and every later start resumes above the wall clock's microseconds.
    pub origin: Option<Revision>,
    /// Fail with [`OpenError::Missing`] instead of creating an empty journal.
    pub must_exist: bool,
}

impl Config {
    /// Configuration of a memory store.
    pub fn memory() -> Self {
        Self { engine: Engine::Memory, history_bytes: 64 << 20, origin: None, must_exist: false }
    }

    /// Configuration of an embedded store.
    pub fn embedded(directory: impl Into<PathBuf>) -> Self {
        Self {
            engine: Engine::Embedded(directory.into()),
            history_bytes: 16 << 20,
            origin: None,
            must_exist: false,
        }
    }
}

/// The environment of a store. Production uses the default; tests inject clocks, disks and limits.
#[derive(Clone)]
pub struct Environment {
    /// Wall clock for expiry, monotonic clock for timeouts.
    pub clock: Arc<dyn Clock>,
    /// File system.
    pub io: Arc<dyn Io>,
    /// Encrypts values on their way to the journal.
    pub transformer: Arc<dyn Transformer>,
    /// Limits of the queue, of values, and of the history.
    pub limits: StoreLimits,
    /// Limits of the embedded journal.
    pub journal: JournalLimits,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            io: Arc::new(SystemDisk),
            transformer: Arc::new(PlainValues),
            limits: StoreLimits::default(),
            journal: JournalLimits::default(),
        }
    }
}

/// Limits on memory used by writers and watchers.
#[derive(Clone, Debug)]
pub struct StoreLimits {
    /// Transactions queued for the committer; beyond that [`crate::Rejected::Busy`].
    pub queue_txns: usize,
    /// Bytes queued for the committer.
    pub queue_bytes: usize,
    /// Bytes taken from the queue per batch (at least one transaction).
    pub batch_bytes: usize,
    /// Maximum size of a value, in bytes.
    pub value_bytes: usize,
    /// Growth allowed to a [`crate::Need::Essential`] transaction on a full disk, in bytes.
    pub essential_bytes: usize,
    /// Events between two retained snapshots of a resource, hence the most that a list at an older
    /// revision replays.
    pub replay_events: usize,
    /// With a journal: bytes of events older than [`Self::young`] that stay in memory, or a quarter
    /// of the live bytes if that is more. Lists at an older revision and continued lists need their
    /// events in memory.
    pub quiet_history_bytes: usize,
    /// Events younger than this stay in memory, within [`Config::history_bytes`]: watchers are
    /// about to read them, and continued lists start from them.
    pub young: Duration,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            queue_txns: 8192,
            queue_bytes: 64 << 20,
            batch_bytes: 8 << 20,
            value_bytes: 32 << 20,
            essential_bytes: 4 << 10,
            replay_events: 16384,
            quiet_history_bytes: 1 << 20,
            young: Duration::from_secs(5),
        }
    }
}

/// Limits of the embedded journal.
#[derive(Clone, Debug)]
pub struct JournalLimits {
    /// Size at which a segment is closed, in bytes.
    pub segment_bytes: u64,
    /// Bytes of closed segments kept as history for resuming watches, also across restarts. A small
    /// store keeps less (see [`Self::retain`]).
    pub retain_bytes: u64,
    /// Free bytes on the file system below which puts are refused.
    pub watermark_bytes: u64,
    /// Minimum space held in reserve, in bytes. Half is the ballast, which lets deletes be
    /// journaled on a full disk; the other half is for merging files then, and grows with the
    /// largest file.
    pub ballast_bytes: u64,
    /// Thread of rewrites.
    pub rewrites: Rewrites,
}

/// Thread of segment rewrites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewrites {
    /// On a background thread.
    #[default]
    Background,
    /// Synchronously on the committer thread, for tests that count calls.
    Inline,
    /// On a background thread that only advances between the committer's calls, by steps drawn from
    /// this seed, for reproducible tests.
    Stepped(u64),
}

impl JournalLimits {
    /// Bytes of closed segments to keep as history given `live_bytes`: twice that, but at least one
    /// segment. An emptied store shrinks instead of keeping the history of everything deleted.
    pub fn retain(&self, live_bytes: u64) -> u64 {
        self.retain_bytes.min(self.segment_bytes.max(2 * live_bytes))
    }

    /// Target size of a merged file.
    pub(crate) fn base_bytes(&self) -> u64 {
        self.segment_bytes / 2
    }
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 20,
            retain_bytes: 128 << 20,
            watermark_bytes: 32 << 20,
            ballast_bytes: 8 << 20,
            rewrites: Rewrites::Background,
        }
    }
}

/// Why a store cannot be opened. Nothing was modified.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory lock.
    #[error("{0} is in use by another process: stop it, or choose another directory")]
    Locked(PathBuf),
    /// [`Config::must_exist`] is set, but the directory holds no journal.
    #[error("{0} contains no journal, but did before: restore it")]
    Missing(PathBuf),
    /// There is no journal in the directory.
    #[error("{0} contains no journal")]
    Absent(PathBuf),
    /// The directory of a new journal contains something else.
    #[error("{0} is not empty: choose a directory without state, or move it away")]
    Occupied(PathBuf),
    /// A newer version wrote the directory.
    #[error(
        "{path} has format {found}, newer than {supported}, the newest that this version reads"
    )]
    Newer {
        /// Journal directory.
        path: PathBuf,
        /// Format version in the directory.
        found: u32,
        /// Newest format this version reads.
        supported: u32,
    },
    /// The journal is damaged, beyond a torn tail of its last segment.
    #[error("journal {file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// Segment.
        file: PathBuf,
        /// Byte offset in the segment.
        offset: u64,
        /// The damage, with the key if known.
        what: String,
    },
    /// A remote engine is not there, or cannot be used.
    #[error("cannot use the storage: {0}")]
    Remote(String),
    /// A file system operation failed.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation, as a verb ("open").
        what: &'static str,
        /// Path operated on.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}
