//! Merges old segments: drops changes that later ones have replaced, file by file.
//!
//! The base and the old logs form one sequence of changes, in which the last one per key counts. It
//! is split into groups of neighboring files whose live data makes a file of moderate size. Each
//! group is rewritten as one base that replaces its files atomically: written to a temporary file,
//! synced, renamed, and its name synced before anything is removed. Leftovers of a crash are
//! removed on open. Between two groups the journal is complete and smaller than before, so only the
//! space of one file is needed at a time.
//!
//! The group with the last log goes first. It moves the start of the history, after which
//! everything that only the dropped history needed may go. Watches from before get `Compacted`, so
//! no delete is missed silently.

use crate::image::StateImage;
use crate::journal::dir::{JournalDir, Reserve};
use crate::journal::frame::{
    FrameWriter, Op, OpFlags, OpHeader, SEGMENT_HEADER, SegmentHeader, SegmentKind,
};
use crate::journal::frame_reader::FrameReader;
use crate::journal::io::{File, is_full, is_scarce};
use crate::journal::layout::{BaseRange, JournalLayout, Segment, SegmentFiles, SegmentName};
use crate::stats::Counters;
use crate::testing::StepGate;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Frame size in a base, in bytes.
const FRAME_BYTES: usize = 256 << 10;

/// How scarce space is, hence how much a merge keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpacePressure {
    /// Plenty: keeps some history and drops everything else that was replaced.
    Low,
    /// Scarce: keeps no history, and skips files that would regain little.
    High,
    /// None left: keeps no history and drops every replaced byte.
    Full,
}

/// Why a merge ended early. The journal continues with the files it has.
#[derive(Debug)]
pub(crate) enum MergeError {
    /// The store is closing.
    Cancelled,
    /// No space, or an unreadable file: retry later.
    Later(String),
    /// A damaged segment, whose content is still in memory: `repair` replaces it.
    Damaged,
    /// A failed sync: nothing on this disk can be trusted.
    Fatal(String),
}

/// Files to merge, in order.
pub(crate) struct MergeInput {
    pub(super) files: Vec<Arc<Segment>>,
    /// How many files at the end are logs that still serve as history.
    pub(super) logs: usize,
}

impl MergeInput {
    /// The base and all closed logs except the newest `retain` bytes.
    pub(crate) fn choose(files: &SegmentFiles, retain: u64) -> Option<Self> {
        let mut kept = 0;
        let keep = files.closed.iter().rev().take_while(|segment| {
            kept += segment.len;
            kept <= retain
        });
        let logs = files.closed.len() - keep.count();
        let files: Vec<_> = files.base.iter().chain(&files.closed[..logs]).cloned().collect();
        (!files.is_empty()).then_some(Self { files, logs })
    }

    pub(crate) fn has_no_history(&self) -> bool {
        self.logs == 0
    }

    pub(crate) fn len(&self) -> u64 {
        self.files.iter().map(|segment| segment.len).sum()
    }
}

pub(crate) struct Merge {
    pub(crate) journal_dir: JournalDir,
    pub(crate) layout: Arc<JournalLayout>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) gate: Option<Arc<StepGate>>,
    pub(crate) old: MergeInput,
    pub(crate) pressure: SpacePressure,
    /// Target size of the spare file.
    pub(crate) spare_bytes: u64,
    /// Content of the files, if they may be damaged.
    pub(crate) image: Option<StateImage>,
}

struct KeyFate {
    /// Revision of its last value; 0: deleted.
    revision: u64,
    /// Length of that value, and index of its file.
    at: (u64, usize),
    /// First file with a value of the key.
    first: usize,
}

/// Result of scanning the input.
struct MergeScan {
    fates: HashMap<Box<str>, KeyFate>,
    /// Per file: bytes of changes, and bytes of live ones.
    sizes: Vec<(u64, u64)>,
}

impl Merge {
    /// Called before every effect visible to another thread.
    pub(super) fn step(&self) {
        if let Some(gate) = &self.gate {
            gate.step();
        }
    }

    pub(crate) fn run(&self) -> Result<(), MergeError> {
        // Before the scan: tests count disk calls.
        self.step();
        if let Some(image) = &self.image {
            return self.repair(image);
        }
        let found = self.survey()?;
        let groups = self.groups(&found.sizes);
        let Some(last) = groups.last().cloned() else { return Ok(()) };
        let mut outcome = Ok(());
        if self.old.logs > 0 || self.is_worthwhile(&last, &found) {
            self.rewrite(&last, |output| self.copy(output, &last, &found, last.start))?;
        }
        // Files before this index hold no replaced values.
        let mut clean = 0;
        for group in &groups[..groups.len() - 1] {
            let is_whole = clean == group.start;
            if self.is_worthwhile(group, &found) {
                let dirty = if is_whole { 0 } else { group.start };
                match self.rewrite(group, |output| self.copy(output, group, &found, dirty)) {
                    // Smaller groups may still fit.
                    Err(error @ MergeError::Later(_)) => {
                        outcome = Err(error);
                        continue;
                    }
                    other => other?,
                }
            } else if self.garbage(group, &found) > 0 {
                continue;
            }
            if is_whole {
                clean = group.end;
            }
        }
        outcome
    }

    /// Finds the last value of each key, and how much of each file is live.
    fn survey(&self) -> Result<MergeScan, MergeError> {
        let mut fates: HashMap<Box<str>, KeyFate> = HashMap::new();
        let mut sizes = vec![(0, 0); self.old.files.len()];
        for index in 0..self.old.files.len() {
            self.scan(index, |op| {
                let len = op.bytes.len() as u64;
                sizes[index].0 += len;
                let is_delete = op.header.flags.has(OpFlags::DELETE);
                match fates.get_mut(op.key) {
                    Some(fate) => {
                        sizes[fate.at.1].1 -= fate.at.0;
                        if is_delete && fate.first == index {
                            fates.remove(op.key);
                            return Ok(());
                        }
                        let (revision, len) =
                            if is_delete { (0, 0) } else { (op.header.revision, len) };
                        (fate.revision, fate.at) = (revision, (len, index));
                        sizes[index].1 += len;
                    }
                    None if is_delete => {}
                    None => {
                        fates.insert(
                            op.key.into(),
                            KeyFate {
                                revision: op.header.revision,
                                at: (len, index),
                                first: index,
                            },
                        );
                        sizes[index].1 += len;
                    }
                }
                Ok(())
            })?;
        }
        Ok(MergeScan { fates, sizes })
    }

    /// Splits the files into groups whose live values fit one file.
    pub(super) fn groups(&self, sizes: &[(u64, u64)]) -> Vec<Range<usize>> {
        let base_bytes = self.journal_dir.limits.base_bytes();
        // Without free space the spare file must suffice.
        let most = if self.pressure == SpacePressure::Low {
            base_bytes
        } else {
            base_bytes.min(self.journal_dir.held_bytes(Reserve::Spare))
        };
        let mut groups: Vec<Range<usize>> = Vec::new();
        let mut bytes = 0;
        for (index, (_, live)) in sizes.iter().enumerate() {
            match groups.last_mut() {
                Some(group) if bytes + live <= most => group.end = index + 1,
                _ => {
                    groups.push(index..index + 1);
                    bytes = 0;
                }
            }
            bytes += live;
        }
        groups
    }

    fn garbage(&self, group: &Range<usize>, found: &MergeScan) -> u64 {
        found.sizes[group.clone()].iter().map(|(all, live)| all - live).sum()
    }

    fn is_worthwhile(&self, group: &Range<usize>, found: &MergeScan) -> bool {
        let garbage = self.garbage(group, found);
        let live: u64 = found.sizes[group.clone()].iter().map(|(_, live)| live).sum();
        group.len() > 1
            || (garbage > 0 && (self.pressure != SpacePressure::High || garbage >= live / 8))
    }

    pub(super) fn scan(
        &self,
        index: usize,
        mut each: impl FnMut(&Op<'_>) -> Result<(), MergeError>,
    ) -> Result<(), MergeError> {
        let segment = &self.old.files[index];
        let file = self
            .journal_dir
            .io
            .open(&segment.path)
            .map_err(|error| self.unopened(segment, &error))?;
        let mut frames =
            FrameReader::new(&*file, SEGMENT_HEADER as u64..segment.len, segment.key, None);
        loop {
            self.step();
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(MergeError::Cancelled);
            }
            match frames.next() {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame.ops().try_for_each(|op| each(&op))?,
                Err(problem) => {
                    return Err(self.damaged(segment, &problem.describe(&segment.path)));
                }
            }
        }
    }

    fn unopened(&self, segment: &Arc<Segment>, error: &std::io::Error) -> MergeError {
        if error.kind() == std::io::ErrorKind::NotFound {
            self.damaged(segment, &format!("{} is missing", segment.path.display()))
        } else {
            later("open", &segment.path, error)
        }
    }

    fn damaged(&self, segment: &Arc<Segment>, reason: &str) -> MergeError {
        self.layout.damaged(std::slice::from_ref(segment), &self.counters, reason);
        MergeError::Damaged
    }

    /// Rewrites a group as one base with the changes that `fill` pushes.
    pub(super) fn rewrite(
        &self,
        group: &Range<usize>,
        fill: impl Fn(&mut BaseOutput<'_>) -> Result<(), MergeError>,
    ) -> Result<(), MergeError> {
        let files = &self.old.files[group.clone()];
        let (first, last) = (
            files.first().expect("groups are not empty"),
            files.last().expect("groups are not empty"),
        );
        let generation = 1 + files.iter().map(|segment| segment.generation()).max().unwrap_or(0);
        let name = SegmentName::base(BaseRange { first: first.first, last: last.last, generation });
        let temporary = self.journal_dir.path(&format!("{name}.tmp"));
        if self.pressure != SpacePressure::Low {
            self.take_spare(&temporary)?;
        }
        let written = self.write(&temporary, group, fill);
        if written.is_err() {
            self.step();
            // If this fails it is removed on open.
            let _ = self.journal_dir.retire(&temporary);
        }
        let mut segment = written?;
        segment.path = self.journal_dir.path(&name);
        self.install(&temporary, segment, group)?;
        if self.pressure != SpacePressure::Low {
            // Another thread may get there first.
            self.step();
            self.journal_dir.hold(
                Reserve::Spare,
                self.journal_dir.held_bytes(Reserve::Spare),
                self.spare_bytes,
            );
        }
        Ok(())
    }

    /// Turns the spare file into the output file.
    fn take_spare(&self, temporary: &Path) -> Result<(), MergeError> {
        self.step();
        if self.journal_dir.take_spare(temporary) {
            self.step();
            // The spare's name must not reappear.
            self.journal_dir
                .io
                .sync_dir(&self.journal_dir.dir)
                .map_err(|error| synced("sync", &self.journal_dir.dir, &error))?;
        }
        Ok(())
    }

    fn write(
        &self,
        path: &Path,
        group: &Range<usize>,
        fill: impl Fn(&mut BaseOutput<'_>) -> Result<(), MergeError>,
    ) -> Result<Segment, MergeError> {
        let (first, last) = (&self.old.files[group.start], &self.old.files[group.end - 1]);
        let chain = if group.start == 0 { 0 } else { self.old.files[group.start - 1].chain };
        self.step();
        let file =
            self.journal_dir.open_or_create(path).map_err(|error| later("create", path, &error))?;
        let header = SegmentHeader::new(SegmentKind::Base, last.last, last.chain);
        file.write_at(0, &header.encode()).map_err(|error| later("write", path, &error))?;
        let mut segment = Segment::new(path.to_owned(), first.first, chain, header.key);
        let mut output = BaseOutput {
            merge: self,
            file: &*file,
            path,
            writer: FrameWriter::default(),
            segment: &mut segment,
            ops: 0,
        };
        output.writer.begin();
        fill(&mut output)?;
        output.flush()?;
        output.writer.begin_footer(last.last, output.ops);
        output.append()?;
        self.step();
        // The spare file may have been longer.
        file.truncate(segment.len).map_err(|error| later("cut", path, &error))?;
        self.step();
        file.sync().map_err(|error| synced("sync", path, &error))?;
        segment.chain = last.chain;
        Ok(segment)
    }

    /// Copies what survives of a group. Files before `dirty` may hold values that were deleted
    /// later.
    fn copy(
        &self,
        output: &mut BaseOutput<'_>,
        group: &Range<usize>,
        found: &MergeScan,
        dirty: usize,
    ) -> Result<(), MergeError> {
        for index in group.clone() {
            self.scan(index, |op| {
                let Some(fate) = found.fates.get(op.key) else { return Ok(()) };
                if !op.header.flags.has(OpFlags::DELETE) {
                    return if fate.revision == op.header.revision {
                        output.push(op)
                    } else {
                        Ok(())
                    };
                }
                if fate.revision == 0 && fate.first < dirty {
                    output.push_delete(op)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    /// Replaces the group's files by the new base.
    fn install(
        &self,
        temporary: &Path,
        segment: Segment,
        group: &Range<usize>,
    ) -> Result<(), MergeError> {
        let Self { journal_dir, layout, counters, old, .. } = self;
        self.step();
        journal_dir
            .io
            .rename(temporary, &segment.path)
            .map_err(|error| later("rename", temporary, &error))?;
        self.step();
        if let Err(error) = journal_dir.io.sync_dir(&journal_dir.dir) {
            self.step();
            return Err(self.withdraw(&segment.path, &error));
        }
        self.step();
        let gone = &old.files[group.clone()];
        let total = layout.with(|files| {
            if group.end == old.files.len() {
                files.base.extend(files.closed.drain(..old.logs));
            }
            let at =
                files.base.iter().position(|segment| Arc::ptr_eq(segment, &gone[0])).unwrap_or(0);
            files.base.splice(at..at + gone.len(), [Arc::new(segment)]);
            files.suspects.retain(|path| gone.iter().all(|segment| segment.path != *path));
            files.len()
        });
        counters.journal_bytes.store(total, Ordering::Relaxed);
        counters.rewrites.fetch_add(1, Ordering::Relaxed);
        for segment in gone {
            self.step();
            if let Err(error) = journal_dir.retire(&segment.path) {
                tracing::warn!(%error, path = %segment.path.display(), "failed to remove a merged segment; retrying at the next start");
            }
        }
        Ok(())
    }

    /// Removes a base whose name could not be made durable. The journal continues with the
    /// files that it was to replace, of which a later merge may take others: a start would find
    /// bases that overlap. Not retired: the spare file may be cut, and this name may still be the
    /// durable one.
    fn withdraw(&self, base: &Path, unsynced: &std::io::Error) -> MergeError {
        match self.journal_dir.io.remove(base) {
            Ok(()) => synced("sync", &self.journal_dir.dir, unsynced),
            Err(error) => MergeError::Fatal(format!("cannot remove {}: {error}", base.display())),
        }
    }
}

/// A base being written.
pub(super) struct BaseOutput<'a> {
    merge: &'a Merge,
    file: &'a dyn File,
    path: &'a Path,
    pub(super) writer: FrameWriter,
    segment: &'a mut Segment,
    ops: u64,
}

impl BaseOutput<'_> {
    fn push(&mut self, op: &Op<'_>) -> Result<(), MergeError> {
        self.writer.raw(op);
        self.pushed()
    }

    /// Appends a delete without its last state, which is no longer read.
    fn push_delete(&mut self, op: &Op<'_>) -> Result<(), MergeError> {
        let OpHeader { revision, create_revision, previous, prefix_len, .. } = op.header;
        let flags = OpFlags::default().with(OpFlags::DELETE, true);
        self.writer.op(
            OpHeader {
                revision,
                create_revision,
                previous,
                prefix_len,
                flags,
                ..OpHeader::default()
            },
            op.key,
            |_| (),
        );
        self.pushed()
    }

    /// Counts an op that was written to `writer`.
    pub(super) fn pushed(&mut self) -> Result<(), MergeError> {
        self.ops += 1;
        if self.writer.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), MergeError> {
        if !self.writer.is_empty() {
            self.append()?;
            self.writer.begin();
        }
        Ok(())
    }

    fn append(&mut self) -> Result<(), MergeError> {
        self.merge.step();
        let (header, bytes) = self.writer.end(self.segment.chain, self.segment.key);
        self.file
            .write_at(self.segment.len, bytes)
            .map_err(|error| later("write", self.path, &error))?;
        self.segment.push(&header);
        Ok(())
    }
}

fn later(what: &str, path: &Path, error: &std::io::Error) -> MergeError {
    MergeError::Later(format!("cannot {what} {}: {error}", path.display()))
}

/// A failed sync is fatal, unless it only means a full disk or missing descriptors for a file that
/// nothing depends on yet.
fn synced(what: &str, path: &Path, error: &std::io::Error) -> MergeError {
    let text = format!("cannot {what} {}: {error}", path.display());
    if is_full(error) || is_scarce(error) {
        MergeError::Later(text)
    } else {
        MergeError::Fatal(text)
    }
}
