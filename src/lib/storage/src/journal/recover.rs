//! Reads a journal back: the newest base, then every log after it. The torn tail of the last log is cut; everything else that does not fit is refused.

use crate::config::OpenError;
use crate::entry::Entry;
use crate::journal::codec;
use crate::journal::frame::{self, HeaderError, Kind, Op, SEGMENT_HEADER, SegmentHeader};
use crate::journal::frames::{self, Frame, Frames, Problem};
use crate::journal::io::File;
use crate::journal::layout::{Files, Name, Piece};
use crate::journal::place::{Place, io_error};
use crate::key::{Key, Revision};
use crate::txn::{Event, Expires};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Takes what is read back, in order.
pub(crate) trait Restore {
    /// The state before the first event is that of this revision.
    fn origin(&mut self, revision: Revision);

    /// An entry of that state.
    fn entry(&mut self, entry: Arc<Entry>, expires: Option<Expires>);

    /// What a key holds at this point.
    fn present(&mut self, key: &Key) -> Option<Arc<Entry>>;

    /// A change after that state; whether there was what it says that it replaces.
    fn event(&mut self, event: Event, expires: Option<Expires>) -> bool;

    /// Everything up to this revision was given.
    fn end(&mut self, revision: Revision);
}

/// A journal as it was found, and the log to go on with.
pub(crate) struct Recovered {
    pub(crate) files: Files,
    pub(crate) active: Arc<dyn File>,
}

/// Reads everything, then cleans up what a crash has left.
pub(crate) fn recover(place: &Place, names: &[String], restore: &mut dyn Restore) -> Result<Recovered, OpenError> {
    if !place.check_format(names)? {
        return begin(place, names, restore);
    }
    let found = Found::new(names);
    let mut reader = Reader { place, restore, next: 1, chain: 0 };
    let base = found.base.map(|revision| reader.base(revision)).transpose()?;
    let mut logs = Vec::new();
    for (index, first) in found.logs.iter().enumerate() {
        let log = reader.log(*first, index + 1 == found.logs.len())?;
        logs.push(log);
    }
    let (next, chain) = (reader.next, reader.chain);
    restore.end(Revision(next - 1));
    let Some(last) = logs.pop() else {
        let what = format!("the log that begins at revision {next} is missing");
        return Err(OpenError::Damaged { file: place.path(&Name::log(next)), offset: 0, what });
    };
    let (active, piece) = last.open(place, next, chain)?;
    let closed = logs.into_iter().filter_map(|log| log.piece).map(Arc::new).collect();
    for name in found.obsolete {
        let path = place.path(&name);
        place.io.remove(&path).map_err(io_error("remove", &path))?;
    }
    Ok(Recovered { files: Files { base: base.map(Arc::new), closed, active: piece }, active })
}

/// A new journal, or one whose making was interrupted.
fn begin(place: &Place, names: &[String], restore: &mut dyn Restore) -> Result<Recovered, OpenError> {
    for name in names {
        let holds_data = match Name::parse(name) {
            Name::Log(_) => {
                let path = place.path(name);
                let len = place.io.open(&path).and_then(|file| file.len()).map_err(io_error("open", &path))?;
                len > SEGMENT_HEADER as u64
            }
            Name::Base(_) => true,
            Name::Temporary | Name::Other => false,
        };
        if holds_data {
            return Err(OpenError::Damaged { file: place.format_path(), offset: 0, what: format!("it is missing, but there is {name}") });
        }
    }
    let log = Log { path: place.path(&Name::log(1)), piece: None, cut: None };
    let (active, piece) = log.open(place, 1, 0)?;
    place.write_format()?;
    restore.origin(Revision(0));
    restore.end(Revision(0));
    Ok(Recovered { files: Files { base: None, closed: Vec::new(), active: piece }, active })
}

/// The files by what they are.
struct Found {
    base: Option<u64>,
    logs: Vec<u64>,
    obsolete: Vec<String>,
}

impl Found {
    fn new(names: &[String]) -> Self {
        let parsed = || names.iter().map(|name| (Name::parse(name), name));
        let base = parsed().filter_map(|(name, _)| if let Name::Base(revision) = name { Some(revision) } else { None }).max();
        let covered = base.unwrap_or(0);
        let mut logs: Vec<u64> = parsed().filter_map(|(name, _)| if let Name::Log(first) = name { Some(first) } else { None }).collect();
        logs.retain(|first| *first > covered);
        logs.sort_unstable();
        let is_obsolete = |name| match name {
            Name::Log(first) => first <= covered,
            Name::Base(revision) => revision < covered,
            Name::Temporary => true,
            Name::Other => false,
        };
        let obsolete = parsed().filter(|(name, _)| is_obsolete(*name)).map(|(_, name)| name.clone()).collect();
        Self { base, logs, obsolete }
    }
}

/// A log that was read.
struct Log {
    path: PathBuf,
    /// `None`: its header was never written in full.
    piece: Option<Piece>,
    /// Where its torn tail begins.
    cut: Option<u64>,
}

impl Log {
    /// Opens it to go on with: cuts what is torn, makes it anew when it has no header.
    fn open(self, place: &Place, next: u64, chain: u64) -> Result<(Arc<dyn File>, Piece), OpenError> {
        let Some(piece) = self.piece else {
            let header = SegmentHeader { kind: Kind::Log, revision: next, chain }.encode();
            let file = place.create_segment(&self.path, &header).map_err(io_error("create", &self.path))?;
            return Ok((file, Piece::new(self.path, next, SEGMENT_HEADER as u64, chain)));
        };
        let file = place.io.open(&self.path).map_err(io_error("open", &self.path))?;
        if let Some(offset) = self.cut {
            tracing::warn!(file = %self.path.display(), offset, "a batch that was never completed is cut off");
            file.truncate(offset).and_then(|()| file.sync()).map_err(io_error("cut", &self.path))?;
        }
        Ok((file, piece))
    }
}

struct Reader<'a> {
    place: &'a Place,
    restore: &'a mut dyn Restore,
    /// The revision that must come next.
    next: u64,
    /// The chain value so far.
    chain: u64,
}

impl Reader<'_> {
    fn base(&mut self, revision: u64) -> Result<Piece, OpenError> {
        let path = self.place.path(&Name::base(revision));
        let (file, len) = self.open(&path)?;
        let header = self.header(&*file, &path)?.ok_or_else(|| damaged(&path, 0, "its header does not hold"))?;
        if header.kind != Kind::Base || header.revision != revision {
            return Err(damaged(&path, 0, "it is not the base that its name says"));
        }
        self.restore.origin(Revision(revision));
        let mut piece = Piece::new(path.clone(), 1, SEGMENT_HEADER as u64, 0);
        let mut frames = Frames::whole(&*file, len, 0);
        let mut ops = 0u64;
        let complete = loop {
            let Some(frame) = frames.next().map_err(|problem| refuse(&path, problem))? else { break false };
            piece.push(&frame.header);
            if frame.header.ops == 0 {
                break frame.header.first == ops && frame.header.last == revision;
            }
            ops += u64::from(frame.header.ops);
            for op in frame.ops() {
                self.base_entry(&op, revision).map_err(|what| damaged(&path, frame.offset, what))?;
            }
        };
        if !complete || frames.offset() != len {
            return Err(damaged(&path, frames.offset(), "its end does not fit"));
        }
        (self.next, self.chain, piece.chain) = (revision + 1, header.chain, header.chain);
        Ok(piece)
    }

    fn base_entry(&mut self, op: &Op<'_>, revision: u64) -> Result<(), String> {
        if op.header.revision > revision || op.header.flags.has(frame::Flags::DELETE) {
            return Err(format!("{:?} does not belong there", op.key));
        }
        let entry = codec::entry(op, codec::key(op)?, None, &*self.place.transformer)?;
        self.restore.entry(entry, codec::expires(op));
        Ok(())
    }

    fn log(&mut self, first: u64, last: bool) -> Result<Log, OpenError> {
        let path = self.place.path(&Name::log(first));
        if first != self.next {
            return Err(damaged(&path, 0, format!("it begins at revision {first}, but {} comes next: a segment is missing", self.next)));
        }
        let (file, len) = self.open(&path)?;
        let Some(header) = self.header(&*file, &path)? else {
            if last && len <= SEGMENT_HEADER as u64 && header_is_torn(&*file, &path)? {
                return Ok(Log { path, piece: None, cut: None });
            }
            return Err(damaged(&path, 0, "its header does not hold"));
        };
        if header != (SegmentHeader { kind: Kind::Log, revision: first, chain: self.chain }) {
            return Err(damaged(&path, 0, "it does not follow the segment before it"));
        }
        let mut piece = Piece::new(path.clone(), first, SEGMENT_HEADER as u64, self.chain);
        let mut frames = Frames::whole(&*file, len, self.chain);
        let cut = loop {
            let problem = match frames.next() {
                Ok(None) => break None,
                Ok(Some(frame)) => {
                    self.frame(&frame).map_err(|what| damaged(&path, frame.offset, what))?;
                    piece.push(&frame.header);
                    continue;
                }
                Err(problem) => problem,
            };
            match problem {
                Problem::Bad { offset, header, .. } if last && torn(&*file, &path, offset, len, header)? => break Some(offset),
                problem => return Err(refuse(&path, problem)),
            }
        };
        self.chain = piece.chain;
        Ok(Log { path, piece: Some(piece), cut })
    }

    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        let header = &frame.header;
        if header.first != self.next || header.ops == 0 {
            return Err(format!("it holds revision {}, but {} comes next", header.first, self.next));
        }
        let mut revision = self.next;
        for op in frame.ops() {
            if op.header.revision != revision && op.header.revision != revision + 1 {
                return Err(format!("{:?} has revision {}, after {revision}", op.key, op.header.revision));
            }
            revision = op.header.revision;
            self.event(&op)?;
        }
        self.next = revision + 1;
        Ok(())
    }

    fn event(&mut self, op: &Op<'_>) -> Result<(), String> {
        let key = codec::key(op)?;
        // What was created needs no look: that nothing was there shows when it is put there.
        let previous = if op.header.previous == 0 { None } else { self.restore.present(&key) };
        if previous.as_ref().map_or(0, |previous| previous.revision.0) != op.header.previous {
            return Err(format!("{:?} does not follow what it replaces", op.key));
        }
        let entry = codec::entry(op, key, previous.as_deref(), &*self.place.transformer)?;
        let deleted = op.header.flags.has(frame::Flags::DELETE);
        let event = Event { entry, previous, deleted };
        if !self.restore.event(event, codec::expires(op)) {
            return Err(format!("{:?} is created but was there", op.key));
        }
        Ok(())
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn File>, u64), OpenError> {
        let file = self.place.io.open(path).map_err(io_error("open", path))?;
        let len = file.len().map_err(io_error("measure", path))?;
        Ok((file, len))
    }

    fn header(&self, file: &dyn File, path: &Path) -> Result<Option<SegmentHeader>, OpenError> {
        match SegmentHeader::decode(&first_bytes(file, path)?) {
            Ok(header) => Ok(Some(header)),
            Err(HeaderError::Newer(found)) => Err(OpenError::Newer { path: path.to_owned(), found, supported: frame::FORMAT }),
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

/// A header that was written in part is short, or ends in zeros.
fn header_is_torn(file: &dyn File, path: &Path) -> Result<bool, OpenError> {
    let bytes = first_bytes(file, path)?;
    Ok(bytes.len() < SEGMENT_HEADER || bytes[SEGMENT_HEADER - 1] == 0 || bytes[SEGMENT_HEADER - 5] == 0)
}

fn torn(file: &dyn File, path: &Path, offset: u64, len: u64, header: Option<frame::FrameHeader>) -> Result<bool, OpenError> {
    frames::is_torn(file, offset, len, header).map_err(io_error("read", path))
}

fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { file: path.to_owned(), offset, what: what.into() }
}

fn refuse(path: &Path, problem: Problem) -> OpenError {
    match problem {
        Problem::Io(source) => OpenError::Io { what: "read", path: path.to_owned(), source },
        Problem::Bad { offset, what, .. } => damaged(path, offset, what),
    }
}
