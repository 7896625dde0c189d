//! How a store is opened.

use crate::clock::{Clock, SystemClock};
use crate::journal::io::{Io, SystemDisk};
use crate::journal::transform::{PlainValues, Transformer};
use crate::key::Revision;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where durable bytes go.
#[derive(Clone, Debug)]
pub enum Engine {
    /// Nowhere.
    Memory,
    /// Our own journal in this directory.
    Embedded(PathBuf),
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// The engine.
    pub engine: Engine,
    /// The most bytes of history kept in memory over all resources (less is kept while little happens: [`StoreLimits::quiet_history_bytes`]); older events are
    /// read from the journal, or gone (memory engine).
    pub history_bytes: usize,
    /// Memory engine: its first revision follows this one. `None`: the time in microseconds since 1970, so that no revision of an earlier process is given
    /// again (a million revisions in each second of its life would not be enough for that). The embedded engine starts at 1; every later start
    /// resumes above the wall clock's microseconds.
    pub origin: Option<Revision>,
    /// There was a journal: when it is gone the store is [`OpenError::Missing`] instead of empty.
    pub must_exist: bool,
}

impl Config {
    /// A store without a disk.
    pub fn memory() -> Self {
        Self { engine: Engine::Memory, history_bytes: 64 << 20, origin: None, must_exist: false }
    }

    /// A store in a directory.
    pub fn embedded(directory: impl Into<PathBuf>) -> Self {
        Self { engine: Engine::Embedded(directory.into()), history_bytes: 32 << 20, origin: None, must_exist: false }
    }
}

/// What a store is built on. Production uses the default; tests exchange the parts.
#[derive(Clone)]
pub struct Environment {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The file system.
    pub io: Arc<dyn Io>,
    /// What changes values at the journal.
    pub transformer: Arc<dyn Transformer>,
    /// Bounds.
    pub limits: StoreLimits,
    /// Bounds of the embedded journal.
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

/// Bounds of a store.
#[derive(Clone, Debug)]
pub struct StoreLimits {
    /// Transactions that may wait for the committer; more are [`crate::Rejected::Busy`].
    pub queue_txns: usize,
    /// Their bytes.
    pub queue_bytes: usize,
    /// Bytes that one batch takes from the queue (at least one transaction).
    pub batch_bytes: usize,
    /// The longest value, in bytes.
    pub value_bytes: usize,
    /// By so many bytes a transaction that leads to a delete may make the state larger on a full disk.
    pub essential_bytes: usize,
    /// Events of a resource between two kept snapshots: the most that a list at an older revision replays.
    pub replay_events: usize,
    /// Of events older than [`Self::young`], so many bytes stay in memory (or a quarter of what is stored, if that is more), when a journal has them, too.
    /// Lists at an older revision and continued lists need them in memory.
    pub quiet_history_bytes: usize,
    /// Events that are younger stay in memory in any case, within [`Config::history_bytes`]: watchers are about to read them, lists are continued there.
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

/// Bounds of the embedded journal.
#[derive(Clone, Debug)]
pub struct JournalLimits {
    /// A segment that is longer is closed.
    pub segment_bytes: u64,
    /// Bytes of closed segments that are kept as history, for watches that resume, also after a restart; less while little is present (see
    /// [`Self::retain`]).
    pub retain_bytes: u64,
    /// Puts are refused while less is free on the file system.
    pub watermark_bytes: u64,
    /// Space that is held back at least: half of it so that what frees space can be journaled when nothing is left, the other half so that files can be merged
    /// then. That half grows with the largest file.
    pub ballast_bytes: u64,
    /// How segments are rewritten.
    pub rewrites: Rewrites,
}

/// How segments are rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewrites {
    /// On a thread of their own.
    #[default]
    Background,
    /// On the committer's thread, at once: for tests that count calls.
    Inline,
    /// On a thread of their own that moves only between the committer's calls, by as much as dice with this seed say: for tests that must be repeatable.
    Stepped(u64),
}

impl JournalLimits {
    /// Bytes of closed segments that are kept as history beside so many bytes of present values: twice as much, but at least a segment. A store that was
    /// emptied does not stay as large as what was deleted.
    pub fn retain(&self, live_bytes: u64) -> u64 {
        self.retain_bytes.min(self.segment_bytes.max(2 * live_bytes))
    }

    /// Merged files are about as large.
    pub(crate) fn base_bytes(&self) -> u64 {
        self.segment_bytes / 2
    }
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self { segment_bytes: 32 << 20, retain_bytes: 128 << 20, watermark_bytes: 32 << 20, ballast_bytes: 8 << 20, rewrites: Rewrites::Background }
    }
}

/// Why a store cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory.
    #[error("{0} is in use by another process")]
    Locked(PathBuf),
    /// [`Config::must_exist`], but the directory holds no journal.
    #[error("{0} holds no journal, but there was one: restore it")]
    Missing(PathBuf),
    /// The directory was written by a newer version.
    #[error("{path} has format {found}, newer than {supported} which this binary writes")]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// A damaged journal, other than a torn tail of the last segment.
    #[error("journal {file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// What, with the key when it is known.
        what: String,
    },
    /// The file system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
