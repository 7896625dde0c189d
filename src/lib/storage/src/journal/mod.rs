//! The embedded journal: revision-ordered segments, synced before a write is acknowledged.
//!
//! A directory holds bases (the live data of a revision range) and the logs that continue them; the
//! last log is written to. The journal is the history: watches that lag behind the events in memory
//! read it (`archive`). Merging old files regains space (`rewrite`, `merge`); `space` handles a
//! full disk, `repair` damage to a file that was written.
//! The `manifest` records what is known to be durable. Every start skips revisions, up to the wall
//! clock's microseconds if those are ahead: nothing can tell that a directory was replaced by an
//! older copy of itself, but no revision that the newer one has shown is assigned again.

mod archive;
mod codec;
mod dir;
pub mod files;
mod frame;
mod frame_reader;
pub mod io;
mod layout;
#[cfg(test)]
mod legacy;
mod manifest;
mod merge;
mod recover;
mod repair;
mod rewrite;
mod space;
pub mod transform;
pub mod unsynced;

pub(crate) use recover::RecoveryVisitor;

use crate::committer::{AppendError, JournalWriter};
use crate::config::{JournalLimits, OpenError};
use crate::head::QueuedTxn;
use crate::image::LiveState;
use crate::journal::archive::JournalArchive;
use crate::journal::dir::{JournalDir, io_error};
use crate::journal::frame::{FrameKey, FrameWriter, SEGMENT_HEADER};
use crate::journal::io::{DirLock, File, is_full, is_scarce};
use crate::journal::layout::JournalLayout;
use crate::journal::manifest::{Acknowledged, Manifest};
use crate::journal::merge::SpacePressure;
use crate::journal::recover::RevisionBounds;
use crate::journal::repair::RepairTurns;
use crate::journal::rewrite::Rewriter;
use crate::journal::space::DiskSpace;
use crate::key::Revision;
use crate::published::Archive;
use crate::stats::Counters;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Parameters of [`Journal::open`].
pub(crate) struct JournalSetup {
    pub(crate) dir: std::path::PathBuf,
    /// Refuse to create a journal.
    pub(crate) must_exist: bool,
    /// Minimum next revision, for an existing journal.
    pub(crate) floor: Revision,
    /// Revision before the first one of a new journal.
    pub(crate) origin: Revision,
    pub(crate) io: Arc<dyn io::Io>,
    pub(crate) transformer: Arc<dyn transform::Transformer>,
    pub(crate) limits: JournalLimits,
    pub(crate) counters: Arc<Counters>,
    /// Bytes of all live values, hence of a full merge.
    pub(crate) live_bytes: Box<dyn Fn() -> u64 + Send>,
}

/// An open journal, owned by the committer.
pub(crate) struct Journal {
    journal_dir: JournalDir,
    layout: Arc<JournalLayout>,
    file: Arc<dyn File>,
    manifest: Manifest,
    /// The active log, its length (the offset of the next frame), and the last revision.
    end: Acknowledged,
    chain: u64,
    key: FrameKey,
    writer: FrameWriter,
    counters: Arc<Counters>,
    live_bytes: Box<dyn Fn() -> u64 + Send>,
    space: DiskSpace,
    rewriter: Rewriter,
    repairs: RepairTurns,
    /// Last field: the directory is unlocked after everything else was dropped.
    _held: Box<dyn DirLock>,
}

impl Journal {
    /// Locks the directory and reads the journal. Also returns the next revision.
    pub(crate) fn open(
        setup: JournalSetup,
        restore: &mut dyn RecoveryVisitor,
    ) -> Result<(Self, Revision), OpenError> {
        let JournalSetup {
            dir,
            must_exist,
            floor,
            origin,
            io,
            transformer,
            limits,
            counters,
            live_bytes,
        } = setup;
        let journal_dir = JournalDir { dir, io, transformer, limits, must_exist };
        journal_dir.check_exists()?;
        let held = journal_dir.enter()?;
        journal_dir.check_reserves()?;
        let names =
            journal_dir.io.list(&journal_dir.dir).map_err(io_error("list", &journal_dir.dir))?;
        let recovered =
            recover::recover(&journal_dir, &names, RevisionBounds { floor, origin }, restore)?;
        let space = DiskSpace::find(&journal_dir);
        counters.journal_bytes.store(recovered.files.len(), Ordering::Relaxed);
        let (chain, key) = (recovered.files.active.chain, recovered.files.active.key);
        let layout = Arc::new(JournalLayout::new(recovered.files));
        let rewriter = Rewriter::new(journal_dir.clone(), layout.clone(), counters.clone());
        let (file, manifest, end) = (recovered.active, recovered.manifest, recovered.end);
        let writer = FrameWriter::default();
        let mut journal = Self {
            journal_dir,
            layout,
            file,
            manifest,
            end,
            chain,
            key,
            writer,
            counters,
            live_bytes,
            space,
            rewriter,
            repairs: RepairTurns::default(),
            _held: held,
        };
        journal.hold_back();
        Ok((journal, Revision(recovered.next)))
    }

    /// Access to events evicted from memory.
    pub(crate) fn archive(&self) -> Arc<dyn Archive> {
        Arc::new(JournalArchive::new(
            self.journal_dir.clone(),
            self.layout.clone(),
            self.counters.clone(),
        ))
    }

    fn try_append(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        if self.end.len >= self.journal_dir.limits.segment_bytes {
            let first = batch
                .iter()
                .flat_map(|job| &job.changes)
                .next()
                .map_or(self.end.revision + 1, |change| change.event.revision().0);
            let was_full = self.space.full;
            match self.roll(first) {
                // Space, but no names: out of inodes. The active log continues beyond its size; the
                // next append retries.
                Err(AppendError::Full) if self.journal_dir.has_room() => {
                    tracing::debug!("no new file can be made: deferring the next segment");
                    self.space.full = was_full;
                }
                outcome => outcome?,
            }
        }
        self.writer.begin();
        for change in batch.iter().flat_map(|job| &job.changes) {
            codec::write(&mut self.writer, change, &*self.journal_dir.transformer);
        }
        let (header, bytes) = self.writer.end(self.chain, self.key);
        if let Err(error) = self.file.write_at(self.end.len, bytes) {
            return Err(if is_full(&error) { self.undo() } else { fatal("write", &error) });
        }
        self.rewriter.advance();
        let began = Instant::now();
        self.file.sync().map_err(|error| fatal("sync", &error))?;
        self.counters.synced(began.elapsed());
        self.end.len += header.frame_len();
        self.end.revision = header.last;
        self.chain = header.next_chain();
        self.space.unchecked += header.frame_len();
        self.counters.journal_bytes.fetch_add(header.frame_len(), Ordering::Relaxed);
        self.layout.with(|files| files.active.push(&header));
        Ok(())
    }

    /// Truncates a batch for which there was no space, so that no restart finds parts of it.
    fn undo(&mut self) -> AppendError {
        self.space.full = true;
        match self.file.truncate(self.end.len).and_then(|()| self.file.sync()) {
            Ok(()) => AppendError::Full,
            Err(error) => fatal("take back a batch from", &error),
        }
    }

    /// Closes the active log, which is synced, and begins the next one, unless out of file
    /// descriptors.
    fn roll(&mut self, next: u64) -> Result<(), AppendError> {
        let (file, segment) = match self.journal_dir.begin_log(next, self.chain) {
            Ok(begun) => begun,
            Err(error) if is_full(&error) => {
                self.space.full = true;
                return Err(AppendError::Full);
            }
            Err(error) if is_scarce(&error) => {
                // The active log continues beyond its size: its descriptor is open. The next append
                // retries.
                tracing::debug!(%error, "deferring the next segment");
                return Ok(());
            }
            Err(error) => return Err(fatal("begin a segment of", &error)),
        };
        self.file = file;
        self.key = segment.key;
        let (len, key) = (segment.len, segment.key);
        self.end = Acknowledged { log: next, len, revision: self.end.revision, key };
        self.layout.with(|files| {
            let closed = std::mem::replace(&mut files.active, segment);
            files.closed.push(Arc::new(closed));
        });
        self.counters.journal_bytes.fetch_add(self.end.len, Ordering::Relaxed);
        self.manifest
            .settle(self.end, false)
            .map_err(|error| fatal("write the manifest of", &error))?;
        let pressure = if self.space.full { self.space.pressure } else { SpacePressure::Low };
        self.rewriter.start((self.live_bytes)(), pressure).map_err(AppendError::Fatal)
    }

    /// Merges what a burst of writes left behind without waiting for the next full segment. Returns
    /// false if not done yet.
    fn tidy(&mut self, state: &LiveState<'_>) -> bool {
        self.rewriter.advance();
        if self.rewriter.is_running() {
            return false;
        }
        if let Err(reason) = self.rewriter.check() {
            self.space.broken = Some(reason);
        }
        if self.counters.is_damaged() {
            if self.space.broken.is_none() {
                self.repair(state);
            }
            return false;
        }
        self.repairs = RepairTurns::default();
        let live = (self.live_bytes)();
        let limits = &self.journal_dir.limits;
        let (total, next) = self.layout.with(|files| (files.len(), files.active.last + 1));
        let is_worthwhile = total > 2 * live + limits.retain(live) + 2 * limits.segment_bytes;
        if !is_worthwhile || self.end.len <= SEGMENT_HEADER as u64 || self.space.broken.is_some() {
            return true;
        }
        match self.roll(next) {
            Ok(()) => {}
            Err(AppendError::Full) => {
                tracing::debug!("not compacting the journal: no space for a new segment")
            }
            // Reported by the next append.
            Err(AppendError::Fatal(reason)) => self.space.broken = Some(reason),
        }
        true
    }
}

impl JournalWriter for Journal {
    fn append(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        if let Some(reason) = self.space.broken.take() {
            return Err(AppendError::Fatal(reason));
        }
        self.rewriter.advance();
        self.rewriter.check().map_err(AppendError::Fatal)?;
        match self.keep_mergeable(batch).and_then(|()| self.try_append(batch)) {
            Err(AppendError::Full) if batch.iter().all(|job| !job.grows) => {
                self.append_anyway(batch)
            }
            outcome => outcome,
        }
    }

    fn acknowledged(&mut self) {
        if !self.manifest.is_behind() {
            return self.manifest.mark(self.end);
        }
        // A few bytes at a fixed place, synced: there may be space again.
        if let Err(error) = self.manifest.settle(self.end, false) {
            self.space.broken = Some(format!("cannot write the manifest of the journal: {error}"));
        }
    }

    fn close(&mut self) {
        if let Err(error) = self.manifest.settle(self.end, true) {
            tracing::warn!(%error, "failed to mark the journal as closed");
        }
    }

    fn rest(&mut self, state: &LiveState<'_>) -> bool {
        self.writer.rest();
        self.tidy(state)
    }

    fn on_damage(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.layout.on_damage(wake);
    }

    fn is_damaged(&self) -> bool {
        self.counters.is_damaged()
    }

    fn has_space(&mut self, probe: bool) -> bool {
        self.check_space(probe)
    }
}

fn fatal(what: &str, error: &std::io::Error) -> AppendError {
    AppendError::Fatal(format!("cannot {what} the journal: {error}"))
}
