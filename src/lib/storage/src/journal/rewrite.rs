//! Regains space: merges the base and old logs into a new base, which holds what was present after the last of them.
//!
//! Crash-safe: the new base is written beside, synced, renamed and its name synced before anything older is removed; whatever is left behind is removed
//! when the journal is opened. Watches from before the new base are told that their events are gone, so no tombstone is missed in silence.

use crate::config::Rewrites;
use crate::journal::frame::{Flags, FrameWriter, Kind, SEGMENT_HEADER, SegmentHeader};
use crate::journal::frames::{Frames, Problem};
use crate::journal::gate::Gate;
use crate::journal::io::{File, is_full, is_scarce};
use crate::journal::layout::{Files, Layout, Name, Piece};
use crate::journal::place::Place;
use crate::stats::Counters;
use crate::testing::Dice;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes of a frame of a base.
const FRAME_BYTES: usize = 256 << 10;

/// Runs one rewrite at a time.
pub(crate) struct Rewriter {
    place: Place,
    layout: Arc<Layout>,
    counters: Arc<Counters>,
    cancelled: Arc<AtomicBool>,
    running: Option<JoinHandle<Result<(), RewriteError>>>,
    /// In tests that must be repeatable.
    driver: Option<Driver>,
}

/// Drives rewrites step by step.
struct Driver {
    gate: Arc<Gate>,
    dice: Dice,
}

/// Why a rewrite ended early. The journal goes on with its old files.
#[derive(Debug)]
enum RewriteError {
    /// The store is closing.
    Cancelled,
    /// There is no space, or a file could not be read: try again later.
    Later(String),
    /// A segment is damaged. What it holds is still in memory.
    Damaged(String),
    /// A sync failed: nothing on this disk can be trusted.
    Fatal(String),
}

impl Rewriter {
    pub(crate) fn new(place: Place, layout: Arc<Layout>, counters: Arc<Counters>) -> Self {
        let driver = match place.limits.rewrites {
            Rewrites::Stepped(seed) => Some(Driver { gate: Arc::default(), dice: Dice::new(seed) }),
            Rewrites::Background | Rewrites::Inline => None,
        };
        Self { place, layout, counters, cancelled: Arc::default(), running: None, driver }
    }

    /// Whether one is running.
    pub(crate) fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| match &self.driver {
            Some(driver) => !driver.gate.is_over(),
            None => !running.is_finished(),
        })
    }

    /// A place where a driven rewrite may get on.
    pub(crate) fn advance(&mut self) {
        if let Some(driver) = self.driver.as_mut().filter(|_| self.running.is_some()) {
            let steps = driver.dice.below(6);
            driver.gate.advance(steps);
        }
    }

    /// Begins a rewrite if it pays. With a full disk no history is kept back.
    pub(crate) fn start(&mut self, live_bytes: u64, full: bool) -> Result<(), String> {
        if self.running.is_some() {
            return Ok(());
        }
        let limits = &self.place.limits;
        let retain = if full { 0 } else { limits.retain(live_bytes) };
        let Some(old) = self.layout.with(|files| Old::choose(files, retain)) else { return Ok(()) };
        if old.len() <= 2 * live_bytes + if full { 0 } else { limits.segment_bytes } {
            return Ok(());
        }
        let task = Task {
            place: self.place.clone(),
            layout: self.layout.clone(),
            counters: self.counters.clone(),
            cancelled: self.cancelled.clone(),
            gate: None,
            old,
        };
        if limits.rewrites == Rewrites::Inline {
            return self.settle(task.run());
        }
        let task = match &mut self.driver {
            Some(driver) => {
                driver.gate = Arc::default();
                Task { gate: Some(driver.gate.clone()), ..task }
            }
            None => task,
        };
        match std::thread::Builder::new().name("storage-rewrite".to_owned()).spawn(move || task.run_gated()) {
            Ok(running) => self.running = Some(running),
            Err(error) => tracing::warn!(%error, "no thread for rewriting segments"),
        }
        Ok(())
    }

    fn settle(&self, outcome: Result<(), RewriteError>) -> Result<(), String> {
        match outcome {
            Ok(()) | Err(RewriteError::Cancelled) => Ok(()),
            Err(RewriteError::Later(reason)) => {
                tracing::warn!(reason, "segments could not be rewritten");
                Ok(())
            }
            Err(RewriteError::Damaged(reason)) => {
                self.counters.damaged(&reason);
                Ok(())
            }
            Err(RewriteError::Fatal(reason)) => Err(reason),
        }
    }

    /// Looks whether the running one has ended.
    ///
    /// # Errors
    /// It failed in a way that the journal must not survive.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.is_running() {
            return Ok(());
        }
        match self.running.take() {
            Some(ended) => self.settle(ended.join().unwrap_or_else(|_| Err(RewriteError::Later("it panicked".to_owned())))),
            None => Ok(()),
        }
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(driver) = &self.driver {
            driver.gate.open();
        }
        if let Some(running) = self.running.take() {
            // Its outcome no longer matters: the old files are still there.
            let _ = running.join();
        }
    }
}

/// What is merged.
struct Old {
    base: Option<Arc<Piece>>,
    logs: Vec<Arc<Piece>>,
}

impl Old {
    /// The base and all closed logs but the newest `retain` bytes.
    fn choose(files: &Files, retain: u64) -> Option<Self> {
        let mut kept = 0;
        let keep = files.closed.iter().rev().take_while(|piece| {
            kept += piece.len;
            kept <= retain
        });
        let logs = files.closed[..files.closed.len() - keep.count()].to_vec();
        (!logs.is_empty()).then(|| Self { base: files.base.clone(), logs })
    }

    fn pieces(&self) -> impl Iterator<Item = &Arc<Piece>> {
        self.base.iter().chain(&self.logs)
    }

    fn len(&self) -> u64 {
        self.pieces().map(|piece| piece.len).sum()
    }
}

struct Task {
    place: Place,
    layout: Arc<Layout>,
    counters: Arc<Counters>,
    cancelled: Arc<AtomicBool>,
    gate: Option<Arc<Gate>>,
    old: Old,
}

impl Task {
    fn run_gated(self) -> Result<(), RewriteError> {
        let gate = self.gate.clone();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| self.run())).unwrap_or_else(|_| Err(RewriteError::Later("it panicked".to_owned())));
        if let Some(gate) = gate {
            gate.end();
        }
        outcome
    }

    /// Before everything that another thread can see.
    fn step(&self) {
        if let Some(gate) = &self.gate {
            gate.step();
        }
    }

    fn run(self) -> Result<(), RewriteError> {
        let last = self.old.logs.last().expect("chosen so").clone();
        let temporary = self.place.path(&format!("{}.tmp", Name::base(last.last)));
        let written = self.write(&temporary, &last);
        if written.is_err() {
            // Else it is removed when the journal is opened.
            let _ = self.place.io.remove(&temporary);
        }
        self.install(&temporary, written?)
    }

    /// Which value of each key is the last one, by revision.
    fn present(&self) -> Result<HashMap<Box<str>, u64>, RewriteError> {
        let mut present: HashMap<Box<str>, u64> = HashMap::new();
        self.scan(|op| {
            if op.header.flags.has(Flags::DELETE) {
                present.remove(op.key);
            } else if let Some(revision) = present.get_mut(op.key) {
                *revision = op.header.revision;
            } else {
                present.insert(op.key.into(), op.header.revision);
            }
            Ok(())
        })?;
        Ok(present)
    }

    fn scan(&self, mut each: impl FnMut(&super::frame::Op<'_>) -> Result<(), RewriteError>) -> Result<(), RewriteError> {
        for piece in self.old.pieces() {
            let file = self.place.io.open(&piece.path).map_err(|error| later("open", &piece.path, &error))?;
            let mut frames = Frames::new(&*file, (SEGMENT_HEADER as u64, piece.len), piece.key, None);
            loop {
                self.step();
                if self.cancelled.load(Ordering::Relaxed) {
                    return Err(RewriteError::Cancelled);
                }
                match frames.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => frame.ops().try_for_each(|op| each(&op))?,
                    Err(Problem::Io(error)) => return Err(later("read", &piece.path, &error)),
                    Err(Problem::Bad { offset, what, .. }) => {
                        return Err(RewriteError::Damaged(format!("{} is damaged at byte {offset}: {what}", piece.path.display())));
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path, last: &Piece) -> Result<Piece, RewriteError> {
        let present = self.present()?;
        let file = self.place.io.create(path).map_err(|error| later("create", path, &error))?;
        let header = SegmentHeader::new(Kind::Base, last.last, last.chain);
        file.write_at(0, &header.encode()).map_err(|error| later("write", path, &error))?;
        let mut output =
            Output { task: self, file: &*file, path, writer: FrameWriter::default(), piece: Piece::new(path.to_owned(), 1, 0, header.key), ops: 0 };
        output.writer.begin();
        self.scan(|op| if present.get(op.key) == Some(&op.header.revision) && !op.header.flags.has(Flags::DELETE) { output.push(op) } else { Ok(()) })?;
        output.flush()?;
        output.writer.begin_footer(last.last, output.ops);
        output.append()?;
        let mut piece = output.piece;
        self.step();
        file.sync().map_err(|error| synced("sync", path, &error))?;
        piece.chain = last.chain;
        piece.path = self.place.path(&Name::base(last.last));
        Ok(piece)
    }

    /// Puts the new base in the place of what it was made of.
    fn install(&self, temporary: &Path, piece: Piece) -> Result<(), RewriteError> {
        let Self { place, layout, counters, old, .. } = self;
        self.step();
        place.io.rename(temporary, &piece.path).map_err(|error| later("rename", temporary, &error))?;
        self.step();
        place.io.sync_dir(&place.dir).map_err(|error| synced("sync", &place.dir, &error))?;
        self.step();
        let total = layout.with(|files| {
            files.base = Some(Arc::new(piece));
            files.closed.drain(..old.logs.len());
            files.len()
        });
        counters.journal_bytes.store(total, Ordering::Relaxed);
        counters.rewrites.fetch_add(1, Ordering::Relaxed);
        for piece in old.pieces() {
            self.step();
            if let Err(error) = place.io.remove(&piece.path) {
                tracing::warn!(%error, path = %piece.path.display(), "a merged segment is removed at the next start");
            }
        }
        Ok(())
    }
}

/// A base that is being written.
struct Output<'a> {
    task: &'a Task,
    file: &'a dyn File,
    path: &'a Path,
    writer: FrameWriter,
    piece: Piece,
    ops: u64,
}

impl Output<'_> {
    fn push(&mut self, op: &super::frame::Op<'_>) -> Result<(), RewriteError> {
        self.writer.raw(op);
        self.ops += 1;
        if self.writer.len() >= FRAME_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RewriteError> {
        if !self.writer.is_empty() {
            self.append()?;
            self.writer.begin();
        }
        Ok(())
    }

    fn append(&mut self) -> Result<(), RewriteError> {
        self.task.step();
        let (header, bytes) = self.writer.end(self.piece.chain, self.piece.key);
        self.file.write_at(self.piece.len, bytes).map_err(|error| later("write", self.path, &error))?;
        self.piece.push(&header);
        Ok(())
    }
}

fn later(what: &str, path: &Path, error: &std::io::Error) -> RewriteError {
    RewriteError::Later(format!("cannot {what} {}: {error}", path.display()))
}

/// A failed sync is fatal unless it only says that there is no space, or no descriptor, for a file that nothing depends on yet.
fn synced(what: &str, path: &Path, error: &std::io::Error) -> RewriteError {
    let text = format!("cannot {what} {}: {error}", path.display());
    if is_full(error) || is_scarce(error) { RewriteError::Later(text) } else { RewriteError::Fatal(text) }
}
