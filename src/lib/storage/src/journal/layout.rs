//! Which files make up the journal.

use crate::journal::frame::{FrameHeader, FrameKey, SEGMENT_HEADER};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A place in the index for so many bytes of a segment.
const INDEX_BYTES: u64 = 64 << 10;

/// A file of the journal, complete or as far as it was synced.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) path: PathBuf,
    /// Last revision.
    pub(crate) last: u64,
    pub(crate) len: u64,
    /// The chain value after its last frame (for a base: that of the log at its revision).
    pub(crate) chain: u64,
    /// What its frames begin with.
    pub(crate) key: FrameKey,
    /// Last revisions before frames, and where the frames begin; in order.
    index: Vec<(u64, u64)>,
}

impl Piece {
    /// A file without frames; the first one will follow the revision before `first`.
    pub(crate) fn new(path: PathBuf, first: u64, chain: u64, key: FrameKey) -> Self {
        Self { path, last: first.saturating_sub(1), len: SEGMENT_HEADER as u64, chain, key, index: Vec::new() }
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
pub(crate) struct Layout {
    files: Mutex<Files>,
}

#[derive(Clone)]
pub(crate) struct Files {
    /// The state that the logs continue.
    pub(crate) base: Option<Arc<Piece>>,
    /// Complete logs.
    pub(crate) closed: Vec<Arc<Piece>>,
    /// The log that is written to.
    pub(crate) active: Piece,
}

impl Files {
    /// Changes up to here are only in the base, if at all.
    pub(crate) fn floor(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.last)
    }

    /// Bytes of all files.
    pub(crate) fn len(&self) -> u64 {
        self.base.iter().chain(&self.closed).map(|piece| piece.len).sum::<u64>() + self.active.len
    }
}

impl Layout {
    pub(crate) fn new(files: Files) -> Self {
        Self { files: Mutex::new(files) }
    }

    /// Runs under the lock; no IO in there.
    pub(crate) fn with<T>(&self, run: impl FnOnce(&mut Files) -> T) -> T {
        run(&mut crate::sync::lock(&self.files))
    }
}

/// What a name in the directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A log that begins at this revision.
    Log(u64),
    /// The state at this revision.
    Base(u64),
    /// Something that was never finished.
    Temporary,
    /// Not ours.
    Other,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        let number = |text: &str| text.parse().ok().filter(|_| text.len() == 20);
        match name.rsplit_once('.') {
            Some((stem, "log")) => number(stem).map_or(Self::Other, Self::Log),
            Some((stem, "base")) => number(stem).map_or(Self::Other, Self::Base),
            Some((_, "tmp")) => Self::Temporary,
            _ => Self::Other,
        }
    }

    pub(crate) fn log(revision: u64) -> String {
        format!("{revision:020}.log")
    }

    pub(crate) fn base(revision: u64) -> String {
        format!("{revision:020}.base")
    }
}
