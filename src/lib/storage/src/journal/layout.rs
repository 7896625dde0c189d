//! Which files make up the journal.

use crate::config::JournalLimits;
use crate::journal::frame::{FrameHeader, FrameKey, SEGMENT_HEADER};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A place in the index for so many bytes of a segment.
const INDEX_BYTES: u64 = 64 << 10;

/// A file of the journal, complete or as far as it was synced.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    /// The revision that its name begins with.
    pub(crate) first: u64,
    /// Last revision.
    pub(crate) last: u64,
    pub(crate) len: u64,
    /// The chain value after its last frame (for a base: that of the log at its last revision).
    pub(crate) chain: u64,
    /// What its frames begin with.
    pub(crate) key: FrameKey,
    /// Last revisions before frames, and where the frames begin; in order.
    index: Vec<(u64, u64)>,
}

impl Segment {
    /// A file without frames; the first one will follow the revision before `first`.
    pub(crate) fn new(path: PathBuf, first: u64, chain: u64, key: FrameKey) -> Self {
        Self { path, first, last: first.saturating_sub(1), len: SEGMENT_HEADER as u64, chain, key, index: Vec::new() }
    }

    /// How often its content was merged.
    pub(crate) fn generation(&self) -> u32 {
        match self.path.file_name().and_then(|name| name.to_str()).map(SegmentName::parse) {
            Some(SegmentName::Base(covers)) => covers.generation,
            _ => 0,
        }
    }

    /// Takes note of a frame at the end.
    pub(crate) fn push(&mut self, header: &FrameHeader) {
        if self.index.last().is_none_or(|(_, offset)| self.len - offset >= INDEX_BYTES) {
            self.index.push((self.last, self.len));
        }
        self.last = header.last.max(self.last);
        self.len += header.frame_len();
        self.chain = header.next_chain();
    }

    /// Where to begin to read for what follows a revision.
    pub(crate) fn seek(&self, after: u64) -> u64 {
        let index = self.index.partition_point(|(last, _)| *last <= after);
        self.index.get(index.saturating_sub(1)).map_or(self.len, |(_, offset)| *offset)
    }
}

/// The journal's files in order.
pub(crate) struct JournalLayout {
    files: Mutex<SegmentFiles>,
}

#[derive(Clone)]
pub(crate) struct SegmentFiles {
    /// The state that the logs continue: bases, and logs that are no longer read as history. In order of their revisions, of which no two hold the same.
    pub(crate) base: Vec<Arc<Segment>>,
    /// Complete logs.
    pub(crate) closed: Vec<Arc<Segment>>,
    /// The log that is written to.
    pub(crate) active: Segment,
}

impl SegmentFiles {
    /// Changes up to here are only in the base, if at all.
    pub(crate) fn floor(&self) -> u64 {
        self.base.last().map_or(0, |base| base.last)
    }

    /// Whether a file is one of them.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.base.iter().chain(&self.closed).any(|segment| segment.path == path) || self.active.path == path
    }

    /// Bytes of all files.
    pub(crate) fn len(&self) -> u64 {
        self.base.iter().chain(&self.closed).map(|segment| segment.len).sum::<u64>() + self.active.len
    }

    /// Bytes of the largest file.
    pub(crate) fn largest(&self) -> u64 {
        self.base.iter().chain(&self.closed).map(|segment| segment.len).max().unwrap_or(0).max(self.active.len)
    }

    /// How much is to be held back for a file that is written in the place of others: what the largest one may come to.
    pub(crate) fn spare_bytes(&self, limits: &JournalLimits) -> u64 {
        let step = (limits.ballast_bytes / 2).max(1);
        (self.largest().max(limits.base_bytes().min(self.len())) + step / 4).next_multiple_of(step)
    }
}

impl JournalLayout {
    pub(crate) fn new(files: SegmentFiles) -> Self {
        Self { files: Mutex::new(files) }
    }

    /// Runs under the lock; no IO in there.
    pub(crate) fn with<T>(&self, run: impl FnOnce(&mut SegmentFiles) -> T) -> T {
        run(&mut crate::sync::lock(&self.files))
    }
}

/// What a name in the directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentName {
    /// A log that begins at this revision.
    Log(u64),
    /// What was written in a range of revisions and was still present at some later one.
    Base(BaseRange),
    /// Something that was never finished.
    Temporary,
    /// Not ours.
    Other,
}

impl SegmentName {
    pub(crate) fn parse(name: &str) -> Self {
        let number = |text: &str| text.parse().ok().filter(|_| text.len() == 20);
        match name.rsplit_once('.') {
            Some((stem, "log")) => number(stem).map_or(Self::Other, Self::Log),
            Some((stem, "base")) => BaseRange::parse(stem, number).map_or(Self::Other, Self::Base),
            Some((_, "tmp")) => Self::Temporary,
            _ => Self::Other,
        }
    }

    /// The lowest revision of a file.
    pub(crate) fn first(self) -> u64 {
        match self {
            Self::Log(first) => first,
            Self::Base(covers) => covers.first,
            Self::Temporary | Self::Other => 0,
        }
    }

    pub(crate) fn log(revision: u64) -> String {
        format!("{revision:020}.log")
    }

    pub(crate) fn base(covers: BaseRange) -> String {
        let BaseRange { first, last, generation } = covers;
        if generation == 0 { format!("{last:020}.base") } else { format!("{first:020}-{last:020}-{generation:010}.base") }
    }
}

/// The revisions of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// How often its content was merged; 0: a base of format 2, which has no other beside it.
    pub(crate) generation: u32,
}

impl BaseRange {
    fn parse(stem: &str, number: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let Some((first, rest)) = stem.split_once('-') else { return Some(Self { first: 0, last: number(stem)?, generation: 0 }) };
        let (last, generation) = rest.split_once('-')?;
        let generation = generation.parse().ok().filter(|_| generation.len() == 10)?;
        Some(Self { first: number(first)?, last: number(last)?, generation })
    }

    /// Whether a base with these revisions takes the place of one with the others.
    pub(crate) fn replaces(self, other: Self) -> bool {
        let contains = self.first <= other.first && other.last <= self.last;
        let larger = self.first < other.first || other.last < self.last;
        contains && (larger || self.generation > other.generation)
    }
}
