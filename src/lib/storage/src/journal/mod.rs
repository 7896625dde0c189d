//! The embedded journal: revision-ordered segments, synced before anything is acknowledged.
//!
//! A directory holds bases (of each range of revisions what still matters) and the logs that continue them; the last log is written to. The journal is the
//! history: watches that are behind the events in memory read it (`archive`). Space is regained by merging old files (`rewrite`, `merge`); what happens when
//! there is none is in `space`.
//! What is known to be durable is written down in the `manifest`. Every start goes on at a distance, at the wall clock's microseconds if that is
//! ahead: nothing can tell that a directory was replaced by an older copy of itself, but no revision that the newer one has shown is given again.

mod archive;
mod codec;
mod dir;
mod frame;
mod frame_reader;
pub mod io;
mod layout;
#[cfg(test)]
mod legacy;
mod manifest;
mod merge;
mod recover;
mod rewrite;
mod space;
mod step_gate;
pub mod transform;

pub(crate) use recover::RecoveryVisitor;

use crate::committer::{AppendError, JournalWriter};
use crate::config::{JournalLimits, OpenError};
use crate::head::QueuedTxn;
use crate::journal::archive::JournalArchive;
use crate::journal::dir::{JournalDir, io_error};
use crate::journal::frame::{FrameKey, FrameWriter, SEGMENT_HEADER};
use crate::journal::io::{DirLock, File, is_full, is_scarce};
use crate::journal::layout::JournalLayout;
use crate::journal::manifest::{Acknowledged, Manifest};
use crate::journal::merge::SpacePressure;
use crate::journal::rewrite::Rewriter;
use crate::journal::space::DiskSpace;
use crate::key::Revision;
use crate::published::Archive;
use crate::stats::Counters;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How to open a journal.
pub(crate) struct JournalSetup {
    pub(crate) dir: std::path::PathBuf,
    /// Refuse to make a new one.
    pub(crate) must_exist: bool,
    /// Of a journal that is there already, the next revision is at least this.
    pub(crate) floor: Revision,
    pub(crate) io: Arc<dyn io::Io>,
    pub(crate) transformer: Arc<dyn transform::Transformer>,
    pub(crate) limits: JournalLimits,
    pub(crate) counters: Arc<Counters>,
    /// Bytes of all present values: what a base would hold.
    pub(crate) live_bytes: Box<dyn Fn() -> u64 + Send>,
}

/// An open journal; its owner is the committer.
pub(crate) struct Journal {
    journal_dir: JournalDir,
    layout: Arc<JournalLayout>,
    file: Arc<dyn File>,
    manifest: Manifest,
    /// The active log, its length (where the next frame goes), the last revision in the journal.
    end: Acknowledged,
    chain: u64,
    key: FrameKey,
    writer: FrameWriter,
    counters: Arc<Counters>,
    live_bytes: Box<dyn Fn() -> u64 + Send>,
    space: DiskSpace,
    rewriter: Rewriter,
    /// Last: the directory is free only when everything else is done.
    _held: Box<dyn DirLock>,
}

impl Journal {
    /// Takes the directory and reads what is there; also gives the first revision for what follows.
    pub(crate) fn open(setup: JournalSetup, restore: &mut dyn RecoveryVisitor) -> Result<(Self, Revision), OpenError> {
        let JournalSetup { dir, must_exist, floor, io, transformer, limits, counters, live_bytes } = setup;
        let journal_dir = JournalDir { dir, io, transformer, limits, must_exist };
        let held = journal_dir.enter()?;
        let names = journal_dir.io.list(&journal_dir.dir).map_err(io_error("list", &journal_dir.dir))?;
        let recovered = recover::recover(&journal_dir, &names, floor, restore)?;
        let space = DiskSpace::find(&journal_dir);
        counters.journal_bytes.store(recovered.files.len(), Ordering::Relaxed);
        let (chain, key) = (recovered.files.active.chain, recovered.files.active.key);
        let layout = Arc::new(JournalLayout::new(recovered.files));
        let rewriter = Rewriter::new(journal_dir.clone(), layout.clone(), counters.clone());
        let (file, manifest, end) = (recovered.active, recovered.manifest, recovered.end);
        let writer = FrameWriter::default();
        let mut journal = Self { journal_dir, layout, file, manifest, end, chain, key, writer, counters, live_bytes, space, rewriter, _held: held };
        journal.hold_back();
        Ok((journal, Revision(recovered.next)))
    }

    /// Reads events that are no longer in memory.
    pub(crate) fn archive(&self) -> Arc<dyn Archive> {
        Arc::new(JournalArchive::new(self.journal_dir.clone(), self.layout.clone(), self.counters.clone()))
    }

    fn try_append(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        if self.end.len >= self.journal_dir.limits.segment_bytes {
            let first = batch.iter().flat_map(|job| &job.changes).next().map_or(self.end.revision + 1, |change| change.event.revision().0);
            self.roll(first)?;
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

    /// Removes what was written of a batch for which there was no space, so that no restart finds it.
    fn undo(&mut self) -> AppendError {
        self.space.full = true;
        match self.file.truncate(self.end.len).and_then(|()| self.file.sync()) {
            Ok(()) => AppendError::Full,
            Err(error) => fatal("take back a batch from", &error),
        }
    }

    /// Closes the active log, which is synced, and begins the next one; not without a descriptor for it.
    fn roll(&mut self, next: u64) -> Result<(), AppendError> {
        let (file, segment) = match self.journal_dir.begin_log(next, self.chain) {
            Ok(begun) => begun,
            Err(error) if is_full(&error) => {
                self.space.full = true;
                return Err(AppendError::Full);
            }
            Err(error) if is_scarce(&error) => {
                // The active log goes on, however long: its descriptor is there. The next append tries again.
                tracing::debug!(%error, "the next segment is begun later");
                return Ok(());
            }
            Err(error) => return Err(fatal("begin a segment of", &error)),
        };
        self.file = file;
        self.key = segment.key;
        self.end = Acknowledged { log: next, len: segment.len, revision: self.end.revision };
        self.layout.with(|files| {
            let closed = std::mem::replace(&mut files.active, segment);
            files.closed.push(Arc::new(closed));
        });
        self.counters.journal_bytes.fetch_add(self.end.len, Ordering::Relaxed);
        self.manifest.settle(self.end, false).map_err(|error| fatal("write the manifest of", &error))?;
        let pressure = if self.space.full { self.space.pressure } else { SpacePressure::Low };
        self.rewriter.start((self.live_bytes)(), pressure).map_err(AppendError::Fatal)
    }

    /// A burst of writes is over: what it left behind goes now, instead of when the next segment is full. False: not yet.
    fn tidy(&mut self) -> bool {
        if self.rewriter.is_running() {
            return false;
        }
        if let Err(reason) = self.rewriter.check() {
            self.space.broken = Some(reason);
        }
        let live = (self.live_bytes)();
        let limits = &self.journal_dir.limits;
        let (total, next) = self.layout.with(|files| (files.len(), files.active.last + 1));
        let is_worthwhile = total > 2 * live + limits.retain(live) + 2 * limits.segment_bytes;
        if !is_worthwhile || self.end.len <= SEGMENT_HEADER as u64 || self.space.broken.is_some() {
            return true;
        }
        match self.roll(next) {
            Ok(()) => {}
            Err(AppendError::Full) => tracing::debug!("the journal is not made smaller: there is no space for a new segment"),
            // The next append reports it.
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
            Err(AppendError::Full) if batch.iter().all(|job| !job.grows) => self.append_anyway(batch),
            outcome => outcome,
        }
    }

    fn acknowledged(&mut self) {
        self.manifest.mark(self.end);
    }

    fn close(&mut self) {
        if let Err(error) = self.manifest.settle(self.end, true) {
            tracing::warn!(%error, "the journal is not marked as closed");
        }
    }

    fn rest(&mut self) -> bool {
        self.writer.rest();
        self.tidy()
    }

    fn has_space(&mut self, probe: bool) -> bool {
        self.check_space(probe)
    }
}

fn fatal(what: &str, error: &std::io::Error) -> AppendError {
    AppendError::Fatal(format!("cannot {what} the journal: {error}"))
}
