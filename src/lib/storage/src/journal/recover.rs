//! Recovery: reads the bases, then every log after them. A torn tail of the last log that was never
//! acknowledged is cut; any other inconsistency is refused.
//!
//! An interrupted merge leaves bases next to their inputs. A base within the range of another is
//! obsolete, and so is a log that begins within a base. A log that begins before the end of the
//! bases without being obsolete is part of the state: read without events.
//!
//! What is read may exist only in the page cache: the last process may have died between a write
//! and its sync, or of a failed sync, which leaves pages clean though not on disk. So before
//! anything is published it is made durable, in this order:
//!
//! 1. the last frame, unless it was acknowledged: rewritten, then synced (its predecessors were
//!    synced before it was written);
//! 2. the names: that of the last log, and those of the bases before the logs they replace are
//!    removed;
//! 3. the manifest.

use crate::config::OpenError;
use crate::entry::Entry;
use crate::journal::codec;
use crate::journal::dir::{JournalDir, io_error};
use crate::journal::frame::{self, HeaderError, Op, SEGMENT_HEADER, SegmentHeader, SegmentKind};
use crate::journal::frame_reader::{self, CheckedFrame, FrameProblem, FrameReader};
use crate::journal::io::File;
use crate::journal::layout::{BaseRange, Segment, SegmentFiles, SegmentName};
use crate::journal::manifest::{Acknowledged, LastRun, Manifest};
use crate::key::{Key, Revision};
use crate::txn::{Event, Expires};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Minimum number of revisions skipped at a start. Revisions that were shown may be lost, as disks
/// may lie about syncs and a directory may be replaced by an older copy of itself. Gaps of this
/// size are recognized when the journal is read again.
const GAP: u64 = 1000;
/// Revisions skipped when the wall clock is behind them and cannot bound what was shown.
const EPOCH: u64 = 1_000_000;

/// Receives a recovered journal, in order.
pub(crate) trait RecoveryVisitor {
    /// Revision of the initial state, before the first event.
    fn origin(&mut self, revision: Revision);

    /// An entry of the initial state; replaces an earlier one of its key.
    fn entry(&mut self, entry: Arc<Entry>, expires: Option<Expires>);

    /// A key absent from the initial state.
    fn absent(&mut self, key: &Key);

    /// The current entry of a key.
    fn present(&mut self, key: &Key) -> Option<Arc<Entry>>;

    /// A change after the initial state. Returns whether it replaced the entry that it claims to
    /// replace.
    fn event(&mut self, event: Event, expires: Option<Expires>) -> bool;

    /// Revisions in between were lost, or never part of this history.
    fn gap(&mut self, after: Revision, before: Revision);

    /// The journal ends at this revision.
    fn end(&mut self, revision: Revision);
}

/// A recovered journal, ready to append to.
pub(crate) struct RecoveredJournal {
    pub(crate) files: SegmentFiles,
    pub(crate) active: Arc<dyn File>,
    pub(crate) manifest: Manifest,
    /// The last log, its length and the last revision.
    pub(crate) end: Acknowledged,
    /// First revision that may be assigned.
    pub(crate) next: u64,
}

/// Bounds of the revisions that a journal assigns.
#[derive(Clone, Copy)]
pub(crate) struct RevisionBounds {
    /// Minimum next revision, unless the journal is new.
    pub(crate) floor: Revision,
    /// Revision before the first one, if it is.
    pub(crate) origin: Revision,
}

/// Reads the journal, makes it durable, then removes leftovers of a crash.
pub(crate) fn recover(
    journal_dir: &JournalDir,
    names: &[String],
    bounds: RevisionBounds,
    restore: &mut dyn RecoveryVisitor,
) -> Result<RecoveredJournal, OpenError> {
    let RevisionBounds { floor, origin } = bounds;
    let Some(format) = journal_dir.check_format(names)? else {
        return begin(journal_dir, names, origin, restore);
    };
    let (manifest, left) = open_manifest(journal_dir, names, format)?;
    let mut found = DirContents::new(names);
    let mut reader = RecoveryReader {
        journal_dir,
        restore,
        next: 1,
        chain: 0,
        bound: left.acknowledged,
        is_state: true,
    };
    let base = reader.state(&found)?;
    reader.is_state = false;
    let mut logs = reader.logs(&mut found)?;
    let (revision, chain) = (reader.next - 1, reader.chain);
    let last = logs.pop().filter(|last| last.first >= left.acknowledged.log).ok_or_else(|| {
        let path = journal_dir.path(&SegmentName::log(left.acknowledged.log.max(1)));
        damaged(&path, 0, "missing log")
    })?;
    if revision < left.acknowledged.revision {
        let what = format!(
            "the journal ends at revision {revision}, but was acknowledged up to {}",
            left.acknowledged.revision
        );
        return Err(damaged(
            &last.path,
            last.segment.as_ref().map_or(0, |segment| segment.len),
            what,
        ));
    }
    let (legacy, first) = (last.legacy, last.first);
    let (mut active, mut segment) = last.open(journal_dir, chain, left.acknowledged)?;
    let mut closed: Vec<Arc<Segment>> =
        logs.into_iter().filter_map(|log| log.segment).map(Arc::new).collect();
    let mut end = Acknowledged { log: first, len: segment.len, revision, key: segment.key };
    if !(left.closed && left.acknowledged == end) {
        tracing::info!(revision, "recovered a journal that was not closed");
    }
    if legacy {
        let next = (revision + 1).max(first);
        let (file, new) = journal_dir
            .with_ballast(|| journal_dir.begin_log(next, chain))
            .map_err(io_error("begin a log in", &journal_dir.dir))?;
        if next != first {
            closed.push(Arc::new(segment));
        }
        end = Acknowledged { log: next, len: new.len, revision, key: new.key };
        (active, segment) = (file, new);
    }
    journal_dir.io.sync_dir(&journal_dir.dir).map_err(io_error("sync", &journal_dir.dir))?;
    let manifest = settle(journal_dir, manifest, end, format)?;
    found.remove_obsolete(journal_dir)?;
    let last = revision.max(end.log);
    let next = if floor.0 > last + GAP { floor.0 } else { last + EPOCH };
    restore.gap(Revision(revision), Revision(next));
    restore.end(Revision(revision));
    Ok(RecoveredJournal {
        files: SegmentFiles::new(base, closed, segment),
        active,
        manifest,
        end,
        next,
    })
}

/// Names of the files to read, in order.
pub(super) fn segments(names: &[String]) -> Vec<String> {
    let found = DirContents::new(names);
    let state = found.state.iter().filter_map(|name| match *name {
        SegmentName::Base(covers) => Some(SegmentName::base(covers)),
        SegmentName::Log(first) => Some(SegmentName::log(first)),
        SegmentName::Temporary | SegmentName::Other => None,
    });
    state.chain(found.logs.iter().map(|first| SegmentName::log(*first))).collect()
}

/// Reads a whole journal as one state, without events. Unlike at a start, nothing may be torn.
/// Returns the last revision and the chain value after it.
pub(super) fn read_state(
    journal_dir: &JournalDir,
    names: &[String],
    restore: &mut dyn RecoveryVisitor,
) -> Result<(Revision, u64), OpenError> {
    let mut found = DirContents::new(names);
    let bound = Acknowledged { log: u64::MAX, ..Acknowledged::default() };
    let mut reader =
        RecoveryReader { journal_dir, restore, next: 1, chain: 0, bound, is_state: true };
    reader.state(&found)?;
    reader.logs(&mut found)?;
    Ok((Revision(reader.next - 1), reader.chain))
}

/// The manifest, and the writes that it records as acknowledged; format 1 had none.
fn open_manifest(
    journal_dir: &JournalDir,
    names: &[String],
    format: u32,
) -> Result<(Option<Manifest>, LastRun), OpenError> {
    let path = journal_dir.manifest_path();
    let found = if names
        .iter()
        .any(|name| Path::new(name) == path.file_name().map_or(Path::new(""), Path::new))
    {
        let file = journal_dir.io.open(&path).map_err(io_error("open", &path))?;
        // A copy of the directory that consists of links has a lock of its own, but these files.
        if !file.lock().map_err(io_error("lock", &path))? {
            return Err(OpenError::Locked(journal_dir.dir.clone()));
        }
        Manifest::open(file).map_err(io_error("read", &path))?
    } else {
        None
    };
    match found {
        Some((manifest, left)) => Ok((Some(manifest), left)),
        None if format == 1 => {
            Ok((None, LastRun { acknowledged: Acknowledged::default(), closed: false }))
        }
        None => Err(damaged(&path, 0, "missing or invalid")),
    }
}

/// Records that everything up to `end` is durable, and that the journal is in use.
fn settle(
    journal_dir: &JournalDir,
    manifest: Option<Manifest>,
    end: Acknowledged,
    format: u32,
) -> Result<Manifest, OpenError> {
    let path = journal_dir.manifest_path();
    let manifest = match manifest {
        Some(mut manifest) => {
            manifest.settle(end, false).map_err(io_error("write", &path))?;
            manifest
        }
        None => journal_dir
            .with_ballast(|| journal_dir.create_manifest(end))
            .map_err(io_error("create", &path))?,
    };
    if format < frame::FORMAT {
        tracing::info!(from = format, to = frame::FORMAT, "upgraded the journal");
        journal_dir.write_format()?;
    }
    Ok(manifest)
}

/// Creates a journal, or finishes an interrupted creation.
fn begin(
    journal_dir: &JournalDir,
    names: &[String],
    origin: Revision,
    restore: &mut dyn RecoveryVisitor,
) -> Result<RecoveredJournal, OpenError> {
    for name in names {
        let holds_data = match SegmentName::parse(name) {
            SegmentName::Log(_) => {
                let path = journal_dir.path(name);
                let len = journal_dir
                    .io
                    .open(&path)
                    .and_then(|file| file.len())
                    .map_err(io_error("open", &path))?;
                len > SEGMENT_HEADER as u64
            }
            SegmentName::Base(_) => true,
            SegmentName::Temporary | SegmentName::Other => false,
        };
        if holds_data {
            return Err(OpenError::Damaged {
                file: journal_dir.format_path(),
                offset: 0,
                what: format!("missing, but there is {name}"),
            });
        }
    }
    if journal_dir.must_exist {
        return Err(OpenError::Missing(journal_dir.dir.clone()));
    }
    journal_dir.sync_ancestors()?;
    let (active, segment) = journal_dir
        .with_ballast(|| journal_dir.begin_log(origin.0 + 1, 0))
        .map_err(io_error("begin a log in", &journal_dir.dir))?;
    let end = Acknowledged { log: origin.0 + 1, len: segment.len, revision: 0, key: segment.key };
    let manifest = journal_dir
        .with_ballast(|| journal_dir.create_manifest(end))
        .map_err(io_error("create", &journal_dir.manifest_path()))?;
    journal_dir.write_format()?;
    restore.origin(origin);
    restore.end(origin);
    Ok(RecoveredJournal {
        files: SegmentFiles::new(Vec::new(), Vec::new(), segment),
        active,
        manifest,
        end,
        next: origin.0 + 1,
    })
}

/// Classified directory listing.
struct DirContents {
    /// Files that form the initial state, in order.
    state: Vec<SegmentName>,
    /// Logs that begin after it, in order.
    logs: Vec<u64>,
    obsolete: Vec<String>,
}

impl DirContents {
    fn new(names: &[String]) -> Self {
        let mut parsed: Vec<(SegmentName, &String)> =
            names.iter().map(|name| (SegmentName::parse(name), name)).collect();
        let bases: Vec<BaseRange> = parsed
            .iter()
            .filter_map(
                |(name, _)| if let SegmentName::Base(covers) = name { Some(*covers) } else { None },
            )
            .collect();
        let end = bases.iter().map(|covers| covers.last).max().unwrap_or(0);
        let is_obsolete = |name| match name {
            SegmentName::Log(first) => {
                bases.iter().any(|covers| (covers.first..=covers.last).contains(&first))
            }
            SegmentName::Base(covers) => bases.iter().any(|other| other.replaces(covers)),
            SegmentName::Temporary => true,
            SegmentName::Other => false,
        };
        parsed.sort_by_key(|(name, _)| name.first());
        let (mut state, mut logs, mut obsolete) = (Vec::new(), Vec::new(), Vec::new());
        for (name, text) in parsed {
            match name {
                name if is_obsolete(name) => obsolete.push(text.clone()),
                SegmentName::Log(first) if first > end => logs.push(first),
                SegmentName::Log(_) | SegmentName::Base(_) => state.push(name),
                SegmentName::Temporary | SegmentName::Other => {}
            }
        }
        Self { state, logs, obsolete }
    }

    fn remove_obsolete(&self, journal_dir: &JournalDir) -> Result<(), OpenError> {
        for name in &self.obsolete {
            let path = journal_dir.path(name);
            match journal_dir.retire(&path) {
                // A temporary file that was renamed since.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                outcome => outcome.map_err(io_error("remove", &path))?,
            }
        }
        Ok(())
    }
}

/// A log that was read.
struct ScannedLog {
    first: u64,
    path: PathBuf,
    /// `None`: its header was never written in full.
    segment: Option<Segment>,
    /// Written in format 1.
    legacy: bool,
    /// Offset of its last frame; 0 without one.
    last_frame: u64,
    /// Offset of its torn tail.
    cut: Option<u64>,
}

impl ScannedLog {
    /// Opens the log for appending: cuts the torn tail, makes the rest durable, recreates a log
    /// without a header.
    fn open(
        self,
        journal_dir: &JournalDir,
        chain: u64,
        bound: Acknowledged,
    ) -> Result<(Arc<dyn File>, Segment), OpenError> {
        let Some(segment) = self.segment else {
            return journal_dir
                .with_ballast(|| journal_dir.begin_log(self.first, chain))
                .map_err(io_error("create", &self.path));
        };
        let file = journal_dir.io.open(&self.path).map_err(io_error("open", &self.path))?;
        if let Some(offset) = self.cut {
            tracing::warn!(file = %self.path.display(), offset, "cutting off an incomplete batch");
            file.truncate(offset).map_err(io_error("cut", &self.path))?;
        }
        let is_acknowledged = bound.log == self.first && bound.len == segment.len;
        if !is_acknowledged {
            rewrite(&*file, self.last_frame, segment.len).map_err(io_error("write", &self.path))?;
        }
        if self.cut.is_some() || !is_acknowledged {
            file.sync().map_err(io_error("sync", &self.path))?;
        }
        Ok((file, segment))
    }
}

/// Rewrites a range in place, to dirty its pages for the next sync.
fn rewrite(file: &dyn File, from: u64, to: u64) -> std::io::Result<()> {
    let mut bytes =
        vec![0; usize::try_from(to - from).map_err(|_| std::io::ErrorKind::FileTooLarge)?];
    if file.read_at(from, &mut bytes)? < bytes.len() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    file.write_at(from, &bytes)
}

struct RecoveryReader<'a> {
    journal_dir: &'a JournalDir,
    restore: &'a mut dyn RecoveryVisitor,
    /// Lowest revision that may come next.
    next: u64,
    /// Chain value so far.
    chain: u64,
    /// How far the journal was acknowledged.
    bound: Acknowledged,
    /// Still reading the initial state.
    is_state: bool,
}

impl RecoveryReader<'_> {
    /// Reads everything up to the end of the bases.
    fn state(&mut self, found: &DirContents) -> Result<Vec<Arc<Segment>>, OpenError> {
        if let Some(SegmentName::Base(covers)) = found.state.last() {
            self.restore.origin(Revision(covers.last));
        }
        let mut segments = Vec::with_capacity(found.state.len());
        for name in &found.state {
            let segment = match *name {
                SegmentName::Base(covers) => self.base(covers)?,
                SegmentName::Log(first) => self.log(first, false)?.segment.ok_or_else(|| {
                    damaged(&self.journal_dir.path(&SegmentName::log(first)), 0, "invalid header")
                })?,
                SegmentName::Temporary | SegmentName::Other => continue,
            };
            segments.push(Arc::new(segment));
        }
        Ok(segments)
    }

    fn base(&mut self, covers: BaseRange) -> Result<Segment, OpenError> {
        let revision = covers.last;
        let path = self.journal_dir.path(&SegmentName::base(covers));
        let (file, len) = self.open(&path)?;
        let header =
            self.header(&*file, &path)?.ok_or_else(|| damaged(&path, 0, "invalid header"))?;
        if header.kind != SegmentKind::Base || header.revision != revision {
            return Err(damaged(&path, 0, "does not match its file name"));
        }
        let mut segment = Segment::new(path.clone(), covers.first, 0, header.key);
        let before = if covers.generation == 0 { 0 } else { self.chain };
        let mut frames = FrameReader::whole(&*file, len, header.key, before);
        let mut ops = 0u64;
        let complete = loop {
            let Some(frame) = frames.next().map_err(|problem| refuse(&path, problem))? else {
                break false;
            };
            segment.push(&frame.header);
            if frame.header.ops == 0 {
                break frame.header.first == ops && frame.header.last == revision;
            }
            ops += u64::from(frame.header.ops);
            for op in frame.ops() {
                self.present(&op, revision).map_err(|what| damaged(&path, frame.offset, what))?;
            }
        };
        if !complete || frames.offset() != len {
            return Err(damaged(&path, frames.offset(), "invalid footer"));
        }
        (self.next, self.chain, segment.chain) = (revision + 1, header.chain, header.chain);
        Ok(segment)
    }

    /// A change of the initial state.
    fn present(&mut self, op: &Op<'_>, last: u64) -> Result<(), String> {
        if op.header.revision > last {
            return Err(format!("{:?} is outside of the file's range", op.key));
        }
        let key = codec::key(op)?;
        if op.header.flags.has(frame::OpFlags::DELETE) {
            self.restore.absent(&key);
            return Ok(());
        }
        let entry = codec::entry(op, key, None, &*self.journal_dir.transformer)?;
        self.restore.entry(entry, codec::expires(op));
        Ok(())
    }

    /// Reads all logs. A log without frames may be the leftover of a failed attempt to begin one,
    /// after which its predecessor continued.
    fn logs(&mut self, found: &mut DirContents) -> Result<Vec<ScannedLog>, OpenError> {
        let mut logs: Vec<ScannedLog> = Vec::new();
        // The last log with frames: an empty successor says little about its end.
        let mut end = found.logs.len().saturating_sub(1);
        while end > 0 && self.has_no_frames(found.logs[end])? {
            end -= 1;
        }
        for (index, first) in found.logs.iter().enumerate() {
            if *first < self.next && self.has_no_frames(*first)? {
                found.obsolete.push(SegmentName::log(*first));
                continue;
            }
            if let Some((before, cut)) = logs.last().and_then(|before| Some((before, before.cut?)))
            {
                if self.began_later(*first)? {
                    return Err(damaged(
                        &before.path,
                        cut,
                        "incomplete frame at the end of a log that is not the last",
                    ));
                }
                found.obsolete.push(SegmentName::log(*first));
                continue;
            }
            let log = self.log(*first, index >= end)?;
            logs.push(log);
        }
        Ok(logs)
    }

    /// Whether the log's header refers to more of its predecessor than was read.
    fn began_later(&self, first: u64) -> Result<bool, OpenError> {
        let path = self.journal_dir.path(&SegmentName::log(first));
        let (file, _) = self.open(&path)?;
        Ok(self.header(&*file, &path)?.is_some_and(|header| header.chain != self.chain))
    }

    fn has_no_frames(&self, first: u64) -> Result<bool, OpenError> {
        let (_, len) = self.open(&self.journal_dir.path(&SegmentName::log(first)))?;
        Ok(len <= SEGMENT_HEADER as u64)
    }

    fn log(&mut self, first: u64, may_be_torn: bool) -> Result<ScannedLog, OpenError> {
        let path = self.journal_dir.path(&SegmentName::log(first));
        if first < self.next {
            return Err(damaged(
                &path,
                0,
                format!("begins at revision {first}, expected {}", self.next),
            ));
        }
        let (file, len) = self.open(&path)?;
        let Some(header) = self.header(&*file, &path)? else {
            if may_be_torn
                && first > self.bound.log
                && len <= SEGMENT_HEADER as u64
                && header_is_torn(&*file, &path)?
            {
                return Ok(ScannedLog {
                    first,
                    path,
                    segment: None,
                    legacy: false,
                    last_frame: 0,
                    cut: None,
                });
            }
            return Err(damaged(&path, 0, "invalid header"));
        };
        if header.kind != SegmentKind::Log || header.revision != first || header.chain != self.chain
        {
            let what = format!("does not follow revision {}: a segment is missing", self.next - 1);
            return Err(damaged(&path, 0, what));
        }
        if first == self.bound.log && !header.key.may_be(self.bound.key) {
            return Err(foreign_log(&path));
        }
        let mut log = ScannedLog {
            first,
            path: path.clone(),
            segment: None,
            legacy: header.format == 1,
            last_frame: 0,
            cut: None,
        };
        let mut segment = Segment::new(path.clone(), first, self.chain, header.key);
        let mut frames = FrameReader::whole(&*file, len, header.key, self.chain);
        log.cut = loop {
            let problem = match frames.next() {
                Ok(None) => break None,
                Ok(Some(frame)) => {
                    self.frame(&frame, first).map_err(|what| damaged(&path, frame.offset, what))?;
                    segment.push(&frame.header);
                    log.last_frame = frame.offset;
                    continue;
                }
                Err(problem) => problem,
            };
            match problem {
                FrameProblem::Bad { offset, header: found, .. }
                    if may_be_torn
                        && self.is_unacknowledged(first, offset)
                        && torn(&*file, &path, offset..len, header.key, found)? =>
                {
                    break Some(offset);
                }
                problem => return Err(refuse(&path, problem)),
            }
        };
        self.chain = segment.chain;
        log.segment = Some(segment);
        Ok(log)
    }

    /// Whether the bytes from there on may be a batch that was never acknowledged.
    fn is_unacknowledged(&self, log: u64, offset: u64) -> bool {
        log > self.bound.log || (log == self.bound.log && offset >= self.bound.len)
    }

    fn frame(&mut self, frame: &CheckedFrame<'_>, least: u64) -> Result<(), String> {
        let header = &frame.header;
        let mut revision = self.next.max(least);
        if header.first < revision || header.ops == 0 {
            return Err(format!("found revision {}, expected {revision}", header.first));
        }
        if header.first - self.next >= GAP {
            self.restore.gap(Revision(self.next - 1), Revision(header.first));
        }
        for op in frame.ops() {
            if op.header.revision < revision {
                return Err(format!(
                    "{:?} has revision {}, after {revision}",
                    op.key, op.header.revision
                ));
            }
            if op.header.revision > Revision::MAX.0 {
                return Err(format!(
                    "{:?} has the impossible revision {}",
                    op.key, op.header.revision
                ));
            }
            revision = op.header.revision;
            if self.is_state { self.present(&op, revision)? } else { self.event(&op)? }
        }
        self.next = revision + 1;
        Ok(())
    }

    fn event(&mut self, op: &Op<'_>) -> Result<(), String> {
        let key = codec::key(op)?;
        // Creates need no lookup: the insertion shows whether there was an entry.
        let previous = if op.header.previous == 0 { None } else { self.restore.present(&key) };
        if previous.as_ref().map_or(0, |previous| previous.revision.0) != op.header.previous {
            return Err(format!("{:?} does not follow the value it replaces", op.key));
        }
        let entry = codec::entry(op, key, previous.as_deref(), &*self.journal_dir.transformer)?;
        let deleted = op.header.flags.has(frame::OpFlags::DELETE);
        let event = Event { entry, previous, deleted };
        if !self.restore.event(event, codec::expires(op)) {
            return Err(format!("{:?} is created but exists", op.key));
        }
        Ok(())
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn File>, u64), OpenError> {
        let file = self.journal_dir.io.open(path).map_err(io_error("open", path))?;
        let len = file.len().map_err(io_error("measure", path))?;
        Ok((file, len))
    }

    fn header(&self, file: &dyn File, path: &Path) -> Result<Option<SegmentHeader>, OpenError> {
        match SegmentHeader::decode(&first_bytes(file, path)?) {
            Ok(header) => Ok(Some(header)),
            Err(HeaderError::Newer(found)) => {
                Err(OpenError::Newer { path: path.to_owned(), found, supported: frame::FORMAT })
            }
            Err(HeaderError::Bad) => Ok(None),
        }
    }
}

fn first_bytes(file: &dyn File, path: &Path) -> Result<Vec<u8>, OpenError> {
    let mut bytes = vec![0; SEGMENT_HEADER];
    let len = file.read_at(0, &mut bytes).map_err(io_error("read", path))?;
    bytes.truncate(len);
    Ok(bytes)
}

/// A partially written header is short or ends in zeros.
fn header_is_torn(file: &dyn File, path: &Path) -> Result<bool, OpenError> {
    let bytes = first_bytes(file, path)?;
    Ok(bytes.len() < SEGMENT_HEADER
        || bytes[SEGMENT_HEADER - 1] == 0
        || bytes[SEGMENT_HEADER - 5] == 0)
}

fn torn(
    file: &dyn File,
    path: &Path,
    range: Range<u64>,
    key: frame::FrameKey,
    header: Option<frame::FrameHeader>,
) -> Result<bool, OpenError> {
    frame_reader::is_torn(file, range, key, header).map_err(io_error("read", path))
}

/// A log of another journal, under the name of the one that was written.
pub(super) fn foreign_log(path: &Path) -> OpenError {
    damaged(path, 0, "not the log that was written: it is of another journal")
}

fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { file: path.to_owned(), offset, what: what.into() }
}

fn refuse(path: &Path, problem: FrameProblem) -> OpenError {
    match problem {
        FrameProblem::Io(source) => OpenError::Io { what: "read", path: path.to_owned(), source },
        FrameProblem::Bad { offset, what, .. } => damaged(path, offset, what),
    }
}
