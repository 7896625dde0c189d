//! Reads the frames of a segment, and tells a frame that was never written in full from one that
//! was damaged later.

use crate::journal::frame::{self, FRAME_HEADER, FrameHeader, FrameKey, Ops, SEGMENT_HEADER};
use crate::journal::io::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

/// Read-ahead of sequential scans.
const WINDOW: usize = 1 << 20;
/// Read-ahead of single lookups.
const LOOKUP_WINDOW: usize = 64 << 10;
/// Unit that a device writes atomically.
const SECTOR: u64 = 512;

/// A verified frame.
pub(crate) struct CheckedFrame<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
}

impl CheckedFrame<'_> {
    pub(crate) fn ops(&self) -> Ops<'_> {
        Ops::of(&self.header, self.bytes)
    }
}

/// Why there is no next frame.
#[derive(Debug)]
pub(crate) enum FrameProblem {
    /// Read error.
    Io(io::Error),
    /// Invalid frame.
    Bad {
        offset: u64,
        what: String,
        /// Header of the frame, if valid.
        header: Option<FrameHeader>,
    },
}

impl FrameProblem {
    /// Describes damage to a file whose frames were all written and synced.
    pub(crate) fn describe(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Io(error) => format!("{path} cannot be read: {error}"),
            Self::Bad { offset, what, .. } => format!("{path} is damaged at byte {offset}: {what}"),
        }
    }
}

/// Iterates over the frames between two offsets.
pub(crate) struct FrameReader<F> {
    file: F,
    at: u64,
    end: u64,
    key: FrameKey,
    /// Chain value that the next frame must carry; unknown after a seek.
    chain: Option<u64>,
    window: Vec<u8>,
    window_at: u64,
    /// Read-ahead in bytes.
    window_len: usize,
}

impl<F: Deref<Target = dyn File>> FrameReader<F> {
    pub(crate) fn new(file: F, range: Range<u64>, key: FrameKey, chain: Option<u64>) -> Self {
        let Range { start: at, end } = range;
        Self { file, at, end, key, chain, window: Vec::new(), window_at: at, window_len: WINDOW }
    }

    /// A reader for random access.
    pub(crate) fn for_lookups(file: F, range: Range<u64>, key: FrameKey) -> Self {
        Self { window_len: LOOKUP_WINDOW, ..Self::new(file, range, key, None) }
    }

    /// A reader for all frames of a segment.
    pub(crate) fn whole(file: F, end: u64, key: FrameKey, chain: u64) -> Self {
        Self::new(file, SEGMENT_HEADER as u64..end, key, Some(chain))
    }

    /// Offset of the next frame. Everything before it was verified.
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    /// Whether `at` is within reach of the current window.
    pub(crate) fn is_near(&self, at: u64) -> bool {
        (self.window_at..=self.window_at + self.window.len() as u64).contains(&at)
    }

    /// Seeks to the beginning of a frame.
    pub(crate) fn go_to(&mut self, at: u64) {
        if !self.is_near(at) {
            self.window.clear();
            self.window_at = at;
        }
        (self.at, self.chain) = (at, None);
    }

    /// Reads and verifies the next frame; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<CheckedFrame<'_>>, FrameProblem> {
        if self.at >= self.end {
            return Ok(None);
        }
        let offset = self.at;
        let bad = |what: String, header| FrameProblem::Bad { offset, what, header };
        if self.end - self.at < FRAME_HEADER as u64 {
            return Err(bad("a frame is cut short".to_owned(), None));
        }
        let key = self.key;
        let Some(header) = FrameHeader::decode(self.fill(FRAME_HEADER)?, key) else {
            return Err(bad("a frame's header is invalid".to_owned(), None));
        };
        // Bounds the allocation by the length of the file.
        let len = usize::try_from(header.frame_len())
            .ok()
            .filter(|len| *len as u64 <= self.end - self.at);
        let Some(len) = len else {
            return Err(bad("a frame is cut short".to_owned(), Some(header)));
        };
        if self.chain.is_some_and(|chain| chain != header.chain) {
            return Err(bad("a frame does not follow the one before it".to_owned(), Some(header)));
        }
        if let Err(what) = frame::check(&header, self.fill(len)?) {
            return Err(bad(what, Some(header)));
        }
        self.chain = Some(header.next_chain());
        self.at += len as u64;
        let start = usize::try_from(offset - self.window_at).expect("it is in the window");
        Ok(Some(CheckedFrame { header, offset, bytes: &self.window[start..start + len] }))
    }

    /// Reads the next `len` bytes, which must lie within the file.
    fn fill(&mut self, len: usize) -> Result<&[u8], FrameProblem> {
        let start = usize::try_from(self.at - self.window_at).expect("the window is in memory");
        if self.window.len() < start + len {
            self.window.drain(..start.min(self.window.len()));
            self.window_at = self.at;
            let have = self.window.len();
            let want = usize::try_from(self.end - self.at)
                .unwrap_or(usize::MAX)
                .min(len.max(self.window_len));
            self.window.resize(want, 0);
            let got = self
                .file
                .read_at(self.at + have as u64, &mut self.window[have..])
                .map_err(FrameProblem::Io)?;
            self.window.truncate(have + got);
            if self.window.len() < len {
                return Err(FrameProblem::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            return Ok(&self.window[..len]);
        }
        Ok(&self.window[start..start + len])
    }
}

/// Whether the bytes in `range`, up to the end of the last segment, are an incomplete write rather
/// than damage.
///
/// At most one write is unsynced at any time, and it appends. A power cut leaves it cut short, or
/// with unwritten sectors that read as zeros. A whole frame without such a gap was complete, so a
/// checksum mismatch means damage to a batch that may have been acknowledged.
pub(crate) fn is_torn(
    file: &dyn File,
    range: Range<u64>,
    key: FrameKey,
    header: Option<FrameHeader>,
) -> io::Result<bool> {
    let offset = range.start;
    let tail = usize::try_from(range.end - offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; tail];
    let got = file.read_at(offset, &mut bytes)?;
    bytes.truncate(got);
    if header_after(&bytes, offset, key) {
        return Ok(false);
    }
    if bytes.len() < FRAME_HEADER {
        return Ok(true);
    }
    let frame = match header.map(|header| usize::try_from(header.frame_len()).unwrap_or(usize::MAX))
    {
        Some(len) if len > bytes.len() => return Ok(true),
        Some(len) => &bytes[..len],
        None => &bytes[..],
    };
    Ok(frame.last() == Some(&0) || has_gap(frame, offset))
}

/// Whether any sector of the file within `bytes` is all zeros.
fn has_gap(bytes: &[u8], offset: u64) -> bool {
    let first =
        usize::try_from(SECTOR - offset % SECTOR).expect("a sector is small").min(bytes.len());
    let (head, rest) = bytes.split_at(first);
    head.iter().all(|byte| *byte == 0)
        || rest.chunks(SECTOR as usize).any(|sector| sector.iter().all(|byte| *byte == 0))
}

/// Whether a valid header follows the first one, which means that more than one write is damaged.
fn header_after(bytes: &[u8], offset: u64, key: FrameKey) -> bool {
    let skip = 8 - usize::try_from(offset % 8).expect("small");
    (skip..bytes.len()).step_by(8).any(|at| FrameHeader::decode(&bytes[at..], key).is_some())
}
