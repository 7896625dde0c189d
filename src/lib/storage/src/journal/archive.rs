//! Reads events from journal segments, for watches that lag behind the events in memory.

use crate::cursor::WatchError;
use crate::entry::Entry;
use crate::journal::codec;
use crate::journal::dir::JournalDir;
use crate::journal::frame::{Op, OpFlags};
use crate::journal::frame_reader::{FrameProblem, FrameReader};
use crate::journal::io::{File, is_scarce};
use crate::journal::layout::{JournalLayout, Segment, SegmentFiles};
use crate::key::{Key, Revision};
use crate::log::ReadLimit;
use crate::published::{Archive, ArchivedEvents, event_bytes};
use crate::stats::Counters;
use crate::txn::Event;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes scanned per call; other readers wait for the thread.
const SCAN_BYTES: u64 = 8 << 20;
/// Open readers kept per call to look up replaced values.
const LOOKUPS: usize = 16;
/// Retries, and their delay, when out of file descriptors.
const SCARCE_ATTEMPTS: usize = 100;
const SCARCE_WAIT: Duration = Duration::from_millis(50);

/// The journal's segments as an [`Archive`].
pub(crate) struct JournalArchive {
    journal_dir: JournalDir,
    layout: Arc<JournalLayout>,
    counters: Arc<Counters>,
}

impl JournalArchive {
    pub(crate) fn new(
        journal_dir: JournalDir,
        layout: Arc<JournalLayout>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { journal_dir, layout, counters }
    }

    /// Segments that may hold events after `after`, and the ones before, which hold the values they
    /// replace.
    fn segments(&self, after: Revision) -> Result<Vec<Arc<Segment>>, WatchError> {
        let SegmentFiles { base, closed, active, .. } = self.layout.with(|files| files.clone());
        if after.0 < base.last().map_or(0, |base| base.last) {
            return Err(WatchError::Compacted(after));
        }
        Ok(base.into_iter().chain(closed).chain([Arc::new(active)]).collect())
    }

    /// Reports what a scan found. Returns whether to list the segments again: a merged file is
    /// gone, or reused for other content.
    fn is_outdated(&self, segments: &[Arc<Segment>], error: &ScanError) -> bool {
        match error {
            ScanError::Gone(reason) | ScanError::Damaged(reason) => {
                !self.layout.damaged(segments, &self.counters, reason)
            }
            ScanError::Scarce | ScanError::Unreadable(_) => false,
        }
    }
}

impl Archive for JournalArchive {
    fn floor(&self) -> Revision {
        Revision(self.layout.with(|files| files.floor()))
    }

    fn events(
        &self,
        prefix: &str,
        after: Revision,
        until: Revision,
        most: ReadLimit,
    ) -> Result<ArchivedEvents, WatchError> {
        let (mut scarce, mut merged) = (0, false);
        loop {
            // Fails if what follows `after` was merged in the meantime.
            let segments = self.segments(after)?;
            let mut scan = Scan {
                journal_dir: &self.journal_dir,
                segments: &segments,
                wanted: ScanRange { prefix, after, until, most },
                seen: HashMap::new(),
                lookups: Vec::new(),
                events: Vec::new(),
                event_bytes: 0,
                bytes: 0,
            };
            match scan.run() {
                Ok(reached) => {
                    return Ok(ArchivedEvents {
                        events: scan.events,
                        reached: Revision(reached).min(until),
                    });
                }
                Err(ScanError::Scarce) if scarce < SCARCE_ATTEMPTS => {
                    scarce += 1;
                    std::thread::sleep(SCARCE_WAIT);
                }
                Err(ScanError::Gone(_)) if !merged => merged = true,
                Err(error) if self.is_outdated(&segments, &error) && !merged => merged = true,
                Err(error) => {
                    tracing::warn!(%error, "failed to read archived events");
                    return Err(WatchError::Compacted(after));
                }
            }
        }
    }
}

/// Why archived events cannot be returned.
#[derive(Debug, thiserror::Error)]
enum ScanError {
    /// A file no longer exists.
    #[error("{0}")]
    Gone(String),
    /// Out of file descriptors.
    #[error("out of file descriptors")]
    Scarce,
    /// A file could not be opened.
    #[error("{0}")]
    Unreadable(String),
    /// A file differs from what was written, or cannot be read.
    #[error("{0}")]
    Damaged(String),
}

impl From<String> for ScanError {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

#[derive(Clone, Copy)]
struct ScanRange<'a> {
    prefix: &'a str,
    after: Revision,
    until: Revision,
    most: ReadLimit,
}

struct Scan<'a> {
    journal_dir: &'a JournalDir,
    segments: &'a [Arc<Segment>],
    wanted: ScanRange<'a>,
    /// Last values of the keys scanned: usually what the next event of a key replaces.
    seen: HashMap<Key, Arc<Entry>>,
    /// Readers for other lookups, most recently used last. Replaced values tend to be stored in the
    /// order in which their events are read.
    lookups: Vec<Lookup>,
    events: Vec<Event>,
    event_bytes: usize,
    bytes: u64,
}

/// An open position in a segment.
struct Lookup {
    path: PathBuf,
    frames: FrameReader<Arc<dyn File>>,
    /// Frames before the position end at or before this revision.
    passed: u64,
}

impl Scan<'_> {
    fn open(&self, path: &Path) -> Result<Arc<dyn File>, ScanError> {
        self.journal_dir.io.open(path).map_err(|error| match error.kind() {
            _ if is_scarce(&error) => ScanError::Scarce,
            std::io::ErrorKind::NotFound => ScanError::Gone(format!("{}: {error}", path.display())),
            _ => ScanError::Unreadable(format!("{}: {error}", path.display())),
        })
    }

    /// A reader positioned before `revision`, reused if possible.
    fn look_up(&mut self, segment: &Segment, revision: u64) -> Result<&mut Lookup, ScanError> {
        let at = segment.seek(revision - 1);
        let is_before = |lookup: &Lookup| lookup.passed < revision && at <= lookup.frames.offset();
        let mut of_piece =
            (0..self.lookups.len()).filter(|index| self.lookups[*index].path == segment.path);
        let near = of_piece.find(|index| {
            is_before(&self.lookups[*index]) || self.lookups[*index].frames.is_near(at)
        });
        let mut lookup = match near {
            Some(near) => self.lookups.remove(near),
            None => {
                if self.lookups.len() >= LOOKUPS {
                    self.lookups.remove(0);
                }
                let file = self.open(&segment.path)?;
                Lookup {
                    path: segment.path.clone(),
                    frames: FrameReader::for_lookups(file, at..segment.len, segment.key),
                    passed: revision - 1,
                }
            }
        };
        if !is_before(&lookup) {
            lookup.frames.go_to(at);
            lookup.passed = revision - 1;
        }
        self.lookups.push(lookup);
        Ok(self.lookups.last_mut().expect("pushed above"))
    }

    /// Returns the revision reached.
    fn run(&mut self) -> Result<u64, ScanError> {
        let (segments, after) = (self.segments, self.wanted.after.0);
        let mut reached = after;
        for segment in segments.iter().filter(|segment| segment.last > after) {
            let file = self.open(&segment.path)?;
            let mut frames =
                FrameReader::new(&*file, segment.seek(after)..segment.len, segment.key, None);
            while let Some(frame) =
                frames.next().map_err(|problem| describe(&segment.path, problem))?
            {
                for op in frame.ops() {
                    self.take(&op)?;
                    // A frame of many small values may replace large ones.
                    if let Some(last) = self.events.last().filter(|_| self.is_full()) {
                        return Ok(last.revision().0);
                    }
                }
                reached = frame.header.last;
                self.bytes += frame.bytes.len() as u64;
                if reached >= self.wanted.until.0 || self.bytes >= SCAN_BYTES {
                    return Ok(reached);
                }
            }
        }
        Ok(reached)
    }

    /// Whether the events fill a read. Each has a revision of its own in this resource.
    fn is_full(&self) -> bool {
        let most = self.wanted.most;
        self.events.len() >= most.events || self.event_bytes >= most.bytes
    }

    fn take(&mut self, op: &Op<'_>) -> Result<(), ScanError> {
        let revision = Revision(op.header.revision);
        let in_range = revision > self.wanted.after && revision <= self.wanted.until;
        if !in_range || op.key.get(..op.header.prefix_len) != Some(self.wanted.prefix) {
            return Ok(());
        }
        let key = codec::key(op)?;
        let previous = self.previous(&key, op.header.previous)?;
        let entry =
            codec::entry(op, key.clone(), previous.as_deref(), &*self.journal_dir.transformer)?;
        let deleted = op.header.flags.has(OpFlags::DELETE);
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

    /// The value written at a revision; 0 means none.
    fn previous(&mut self, key: &Key, revision: u64) -> Result<Option<Arc<Entry>>, ScanError> {
        if revision == 0 {
            return Ok(None);
        }
        if let Some(seen) = self.seen.get(key).filter(|seen| seen.revision.0 == revision) {
            return Ok(Some(seen.clone()));
        }
        let (segments, transformer) = (self.segments, &*self.journal_dir.transformer);
        let segment = segments
            .iter()
            .find(|segment| segment.last >= revision)
            .ok_or_else(|| "a replaced value is in no segment".to_owned())?;
        let Lookup { frames, passed, .. } = self.look_up(segment, revision)?;
        while let Some(frame) = frames.next().map_err(|problem| describe(&segment.path, problem))? {
            if let Some(op) =
                frame.ops().find(|op| op.header.revision == revision && op.key == key.as_str())
            {
                let entry = codec::entry(&op, key.clone(), None, transformer)?;
                // The next lookup may hit the same frame.
                let offset = frame.offset;
                frames.go_to(offset);
                return Ok(Some(entry));
            }
            if frame.header.ops > 0 && frame.header.first > revision {
                break;
            }
            *passed = frame.header.last.max(*passed);
        }
        Err(format!(
            "{:?} at revision {revision} is missing from {}",
            key.as_str(),
            segment.path.display()
        )
        .into())
    }
}

fn describe(path: &Path, problem: FrameProblem) -> ScanError {
    ScanError::Damaged(problem.describe(path))
}
