//! The set of files that make up the journal.

use crate::config::JournalLimits;
use crate::journal::frame::{FrameHeader, FrameKey, SEGMENT_HEADER};
use crate::key::Revision;
use crate::stats::Counters;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Distance of index entries, in bytes of a segment.
const INDEX_BYTES: u64 = 64 << 10;

/// A segment, complete or as far as it was synced.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    /// First revision, as in its file name.
    pub(crate) first: u64,
    /// Last revision.
    pub(crate) last: u64,
    pub(crate) len: u64,
    /// Chain value after its last frame (for a base: that of the log at its last revision).
    pub(crate) chain: u64,
    /// Marker of its frames.
    pub(crate) key: FrameKey,
    /// Sparse index: the last revision before a frame, and the frame's offset.
    index: Vec<(u64, u64)>,
}

impl Segment {
    /// A segment without frames. The first frame will follow revision `first - 1`.
    pub(crate) fn new(path: PathBuf, first: u64, chain: u64, key: FrameKey) -> Self {
        Self {
            path,
            first,
            last: first.saturating_sub(1),
            len: SEGMENT_HEADER as u64,
            chain,
            key,
            index: Vec::new(),
        }
    }

    /// How many merges its content went through.
    pub(crate) fn generation(&self) -> u32 {
        match self.path.file_name().and_then(|name| name.to_str()).map(SegmentName::parse) {
            Some(SegmentName::Base(covers)) => covers.generation,
            _ => 0,
        }
    }

    /// Records an appended frame.
    pub(crate) fn push(&mut self, header: &FrameHeader) {
        if self.index.last().is_none_or(|(_, offset)| self.len - offset >= INDEX_BYTES) {
            self.index.push((self.last, self.len));
        }
        self.last = header.last.max(self.last);
        self.len += header.frame_len();
        self.chain = header.next_chain();
    }

    /// Offset from which to read for events after a revision.
    pub(crate) fn seek(&self, after: u64) -> u64 {
        let index = self.index.partition_point(|(last, _)| *last <= after);
        self.index.get(index.saturating_sub(1)).map_or(self.len, |(_, offset)| *offset)
    }
}

/// The journal's segments, in order.
pub(crate) struct JournalLayout {
    files: Mutex<SegmentFiles>,
    /// Called when damage is found.
    on_damage: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Clone)]
pub(crate) struct SegmentFiles {
    /// The state that the logs continue: bases, and logs no longer served as history. Ordered;
    /// revision ranges do not overlap.
    pub(crate) base: Vec<Arc<Segment>>,
    /// Complete logs.
    pub(crate) closed: Vec<Arc<Segment>>,
    /// The log being written.
    pub(crate) active: Segment,
    /// Files written before damage was found in one of them; `repair` replaces them all.
    pub(crate) suspects: Vec<PathBuf>,
}

impl SegmentFiles {
    pub(crate) fn new(base: Vec<Arc<Segment>>, closed: Vec<Arc<Segment>>, active: Segment) -> Self {
        Self { base, closed, active, suspects: Vec::new() }
    }

    /// Changes up to this revision are only in the base, if they survived.
    pub(crate) fn floor(&self) -> u64 {
        self.base.last().map_or(0, |base| base.last)
    }

    pub(crate) fn has(&self, path: &Path) -> bool {
        self.base.iter().chain(&self.closed).any(|segment| segment.path == path)
            || self.active.path == path
    }

    /// Total bytes.
    pub(crate) fn len(&self) -> u64 {
        self.base.iter().chain(&self.closed).map(|segment| segment.len).sum::<u64>()
            + self.active.len
    }

    /// Bytes of the largest segment.
    pub(crate) fn largest(&self) -> u64 {
        self.base
            .iter()
            .chain(&self.closed)
            .map(|segment| segment.len)
            .max()
            .unwrap_or(0)
            .max(self.active.len)
    }

    /// Size of the spare file: the largest file that a merge may have to write.
    pub(crate) fn spare_bytes(&self, limits: &JournalLimits) -> u64 {
        let step = (limits.ballast_bytes / 2).max(1);
        (self.largest().max(limits.base_bytes().min(self.len())) + step / 4).next_multiple_of(step)
    }
}

impl JournalLayout {
    pub(crate) fn new(files: SegmentFiles) -> Self {
        Self { files: Mutex::new(files), on_damage: OnceLock::new() }
    }

    /// Sets what is called when damage is found; it must not wait for a merge.
    pub(crate) fn on_damage(&self, wake: Box<dyn Fn() + Send + Sync>) {
        // The committer is the only caller.
        let _ = self.on_damage.set(wake);
    }

    /// Reports that one of `segments` differs from what was written. Returns false if
    /// one of them is no longer in use: then nothing may be wrong.
    pub(crate) fn damaged(
        &self,
        segments: &[Arc<Segment>],
        counters: &Counters,
        reason: &str,
    ) -> bool {
        let found = self.with(|files| {
            if !segments.iter().all(|segment| files.has(&segment.path)) {
                return None;
            }
            let is_known = !files.suspects.is_empty();
            if !is_known {
                let written = Some(&files.active).filter(|log| log.len > SEGMENT_HEADER as u64);
                let old = files.base.iter().chain(&files.closed).map(|segment| &**segment);
                files.suspects = old.chain(written).map(|segment| segment.path.clone()).collect();
                counters.damaged();
            }
            Some(!is_known)
        });
        if found == Some(true) {
            tracing::error!(
                reason,
                "the journal is damaged on disk: replacing its files from memory, which is whole"
            );
            if let Some(wake) = self.on_damage.get() {
                wake();
            }
        }
        found.is_some()
    }

    /// Ends a repair at a revision, if every suspect file is replaced; returns whether it is over.
    pub(crate) fn repaired(&self, revision: u64, counters: &Counters) -> bool {
        let is_over = self.with(|files| {
            let is_over = files.suspects.is_empty();
            if is_over {
                counters.repaired(revision);
            }
            is_over
        });
        if is_over {
            tracing::warn!(
                revision,
                "replaced the damaged files of the journal: nothing of the state is lost; of the \
                 history up to this revision only what is in memory is left, older watches get 410"
            );
        }
        is_over
    }

    /// Runs under the lock; must not do IO.
    pub(crate) fn with<T>(&self, run: impl FnOnce(&mut SegmentFiles) -> T) -> T {
        run(&mut self.files.lock())
    }
}

/// A parsed file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentName {
    /// A log, by its first revision.
    Log(u64),
    /// A base: what was written in a range of revisions and still live at a later one.
    Base(BaseRange),
    /// A file that was never finished.
    Temporary,
    /// Not a journal file.
    Other,
}

impl SegmentName {
    pub(crate) fn parse(name: &str) -> Self {
        let number = |text: &str| {
            let revision = text.parse().ok().filter(|_| text.len() == 20)?;
            (revision <= Revision::MAX.0).then_some(revision)
        };
        match name.rsplit_once('.') {
            Some((stem, "log")) => number(stem).map_or(Self::Other, Self::Log),
            Some((stem, "base")) => BaseRange::parse(stem, number).map_or(Self::Other, Self::Base),
            Some((_, "tmp")) => Self::Temporary,
            _ => Self::Other,
        }
    }

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
        if generation == 0 {
            format!("{last:020}.base")
        } else {
            format!("{first:020}-{last:020}-{generation:010}.base")
        }
    }
}

/// Revision range of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// How many merges its content went through; 0: a base in format 2, which is the only one.
    pub(crate) generation: u32,
}

impl BaseRange {
    fn parse(stem: &str, number: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let Some((first, rest)) = stem.split_once('-') else {
            return Some(Self { first: 0, last: number(stem)?, generation: 0 });
        };
        let (last, generation) = rest.split_once('-')?;
        let generation = generation.parse().ok().filter(|_| generation.len() == 10)?;
        Some(Self { first: number(first)?, last: number(last)?, generation })
    }

    /// Whether a base with this range supersedes one with the other.
    pub(crate) fn replaces(self, other: Self) -> bool {
        let contains = self.first <= other.first && other.last <= self.last;
        let larger = self.first < other.first || other.last < self.last;
        contains && (larger || self.generation > other.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader may still read a file that a merge replaced, and retired for other content.
    #[test]
    fn a_file_that_is_not_in_use_any_more_is_not_damaged() {
        let segment =
            |name: &str| Arc::new(Segment::new(PathBuf::from(name), 1, 0, FrameKey::default()));
        let [merged, base, log, active] = ["merged", "base", "log", "active"].map(segment);
        let files = SegmentFiles::new(
            vec![Arc::clone(&base)],
            vec![Arc::clone(&log)],
            Segment::clone(&active),
        );
        let (layout, counters) = (JournalLayout::new(files), Counters::default());
        for read in [&[Arc::clone(&merged)][..], &[Arc::clone(&base), merged]] {
            assert!(!layout.damaged(read, &counters, "it differs"));
            assert!(!counters.is_damaged() && layout.with(|files| files.suspects.is_empty()));
        }
        assert!(layout.damaged(&[base, log], &counters, "it differs"));
        assert!(counters.is_damaged());
    }

    #[test]
    fn names_are_of_possible_revisions() {
        let (most, more) = (Revision::MAX.0, Revision::MAX.0 + 1);
        assert_eq!(SegmentName::parse(&SegmentName::log(most)), SegmentName::Log(most));
        assert_eq!(SegmentName::parse(&SegmentName::log(more)), SegmentName::Other);
        let base = |last| SegmentName::base(BaseRange { first: 1, last, generation: 1 });
        assert!(matches!(SegmentName::parse(&base(most)), SegmentName::Base(_)));
        assert_eq!(SegmentName::parse(&base(more)), SegmentName::Other);
    }
}
