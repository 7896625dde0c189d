//! Reads events from the segments, for watches that are behind the events in memory.

use crate::cursor::WatchError;
use crate::entry::Entry;
use crate::journal::codec;
use crate::journal::frame::{Flags, Op};
use crate::journal::frames::{Frames, Problem};
use crate::journal::layout::{Files, Layout, Piece};
use crate::journal::place::Place;
use crate::key::{Key, Revision};
use crate::log::Most;
use crate::published::{Archive, Older, event_bytes};
use crate::stats::Counters;
use crate::txn::Event;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// How much is looked through in one call: others wait for the thread.
const SCAN_BYTES: u64 = 8 << 20;

/// The journal's files as an archive.
pub(crate) struct JournalArchive {
    place: Place,
    layout: Arc<Layout>,
    counters: Arc<Counters>,
}

impl JournalArchive {
    pub(crate) fn new(place: Place, layout: Arc<Layout>, counters: Arc<Counters>) -> Self {
        Self { place, layout, counters }
    }

    /// The files that hold something of `after < revision <= until`, and those before them, for what is replaced.
    fn pieces(&self, after: Revision) -> Result<Vec<Arc<Piece>>, WatchError> {
        let Files { base, closed, active } = self.layout.with(|files| files.clone());
        if after.0 < base.last().map_or(0, |base| base.last) {
            return Err(WatchError::Compacted(after));
        }
        Ok(base.into_iter().chain(closed).chain([Arc::new(active)]).collect())
    }

    /// Whether these are still the files.
    fn is_current(&self, pieces: &[Arc<Piece>]) -> bool {
        self.layout.with(|files| pieces.iter().all(|piece| files.has(&piece.path)))
    }
}

impl Archive for JournalArchive {
    fn floor(&self) -> Revision {
        Revision(self.layout.with(|files| files.floor()))
    }

    fn events(&self, prefix: &str, after: Revision, until: Revision, most: Most) -> Result<Older, WatchError> {
        let pieces = self.pieces(after)?;
        let mut scan = Scan {
            place: &self.place,
            pieces: &pieces,
            wanted: Wanted { prefix, after, until, most },
            seen: HashMap::new(),
            events: Vec::new(),
            event_bytes: 0,
            bytes: 0,
        };
        let reached = scan.run().map_err(|error| {
            // A file may just have been merged into a base: then the watch is told so, and so it is when the disk fails.
            match error {
                // One that is no longer there may be written to for something else.
                ScanError::Damaged(reason) if self.is_current(&pieces) => self.counters.damaged(&reason),
                ScanError::Damaged(reason) => tracing::debug!(reason, "older events were merged while they were read"),
                ScanError::Unreadable(reason) => tracing::warn!(reason, "older events cannot be read"),
            }
            WatchError::Compacted(after)
        })?;
        Ok(Older { events: scan.events, reached: Revision(reached).min(until) })
    }
}

/// Why older events cannot be given.
enum ScanError {
    /// A file could not be read, or is gone.
    Unreadable(String),
    /// A file holds something else than what was written.
    Damaged(String),
}

impl From<String> for ScanError {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

#[derive(Clone, Copy)]
struct Wanted<'a> {
    prefix: &'a str,
    after: Revision,
    until: Revision,
    most: Most,
}

struct Scan<'a> {
    place: &'a Place,
    pieces: &'a [Arc<Piece>],
    wanted: Wanted<'a>,
    /// The last values of keys that came by: mostly what the next event of the key replaces.
    seen: HashMap<Key, Arc<Entry>>,
    events: Vec<Event>,
    event_bytes: usize,
    bytes: u64,
}

impl Scan<'_> {
    /// Up to where it looked.
    fn run(&mut self) -> Result<u64, ScanError> {
        let (pieces, after) = (self.pieces, self.wanted.after.0);
        let mut reached = after;
        for piece in pieces.iter().filter(|piece| piece.last > after) {
            let file = self.place.io.open(&piece.path).map_err(|error| ScanError::Unreadable(error.to_string()))?;
            let mut frames = Frames::new(&*file, (piece.seek(after), piece.len), piece.key, None);
            while let Some(frame) = frames.next().map_err(|problem| describe(&piece.path, problem))? {
                for op in frame.ops() {
                    self.take(&op)?;
                }
                reached = frame.header.last;
                self.bytes += frame.bytes.len() as u64;
                let most = self.wanted.most;
                if self.events.len() > most.events {
                    self.events.truncate(most.events);
                    return Ok(self.events.last().map_or(after, |event| event.revision().0));
                }
                if reached >= self.wanted.until.0 || self.events.len() == most.events || self.event_bytes >= most.bytes || self.bytes >= SCAN_BYTES {
                    return Ok(reached);
                }
            }
        }
        Ok(reached)
    }

    fn take(&mut self, op: &Op<'_>) -> Result<(), ScanError> {
        let revision = Revision(op.header.revision);
        let in_range = revision > self.wanted.after && revision <= self.wanted.until;
        if !in_range || op.key.get(..op.header.prefix_len) != Some(self.wanted.prefix) {
            return Ok(());
        }
        let key = codec::key(op)?;
        let previous = self.previous(&key, op.header.previous)?;
        let entry = codec::entry(op, key.clone(), previous.as_deref(), &*self.place.transformer)?;
        let deleted = op.header.flags.has(Flags::DELETE);
        if deleted {
            self.seen.remove(&key);
        } else {
            self.seen.insert(key, entry.clone());
        }
        let event = Event { entry, previous, deleted };
        self.event_bytes += event_bytes(&event);
        self.events.push(event);
        Ok(())
    }

    /// The value that was written at a revision; 0 is none.
    fn previous(&self, key: &Key, revision: u64) -> Result<Option<Arc<Entry>>, ScanError> {
        if revision == 0 {
            return Ok(None);
        }
        if let Some(seen) = self.seen.get(key).filter(|seen| seen.revision.0 == revision) {
            return Ok(Some(seen.clone()));
        }
        let piece = self.pieces.iter().find(|piece| piece.last >= revision).ok_or_else(|| "a value is in no segment".to_owned())?;
        let file = self.place.io.open(&piece.path).map_err(|error| ScanError::Unreadable(error.to_string()))?;
        let mut frames = Frames::new(&*file, (piece.seek(revision - 1), piece.len), piece.key, None);
        while let Some(frame) = frames.next().map_err(|problem| describe(&piece.path, problem))? {
            if let Some(op) = frame.ops().find(|op| op.header.revision == revision && op.key == key.as_str()) {
                return Ok(Some(codec::entry(&op, key.clone(), None, &*self.place.transformer)?));
            }
            if frame.header.ops > 0 && frame.header.first > revision {
                break;
            }
        }
        Err(format!("what {:?} was at revision {revision} is not in {}", key.as_str(), piece.path.display()).into())
    }
}

fn describe(path: &Path, problem: Problem) -> ScanError {
    match problem {
        Problem::Io(error) => ScanError::Unreadable(format!("{}: {error}", path.display())),
        Problem::Bad { offset, what, .. } => ScanError::Damaged(format!("{} is damaged at byte {offset}: {what}", path.display())),
    }
}
