//! Blocks, named by their hash and verified on every read.

use crate::error::BackupError;
use ferrokube_storage::journal::io::File;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per block, except a file's last one. On average, half a block of a growing log is
/// rewritten by each incremental backup.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// SHA-256 of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockHash([u8; 32]);

impl BlockHash {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The opposite of `Display`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut hash = [0; 32];
        for (index, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) hash: BlockHash,
    pub(crate) len: usize,
    /// Offset in an archive; 0 in a directory.
    pub(crate) offset: u64,
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads blocks by digest.
pub(crate) trait BlockSource: Send + Sync {
    /// The block's bytes, unchecked.
    fn load(&self, block: &BlockRef) -> io::Result<Vec<u8>>;
}

/// Writes blocks by digest.
pub(crate) trait BlockTarget {
    /// Writes a block unless an intact copy exists. Returns its location and whether it was
    /// written.
    fn put(&mut self, hash: BlockHash, bytes: &[u8]) -> Result<(BlockRef, bool), BackupError>;
}

/// Reads a block and checks it.
pub(crate) fn load(source: &dyn BlockSource, block: &BlockRef) -> io::Result<Vec<u8>> {
    let bytes = source.load(block)?;
    if bytes.len() == block.len && BlockHash::of(&bytes) == block.hash {
        return Ok(bytes);
    }
    let text = format!("block {} is not what was written", block.hash);
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Progress in bytes: done, and total.
#[derive(Clone)]
pub struct Progress(Arc<ProgressState>);

struct ProgressState {
    done: AtomicU64,
    total: AtomicU64,
    report: Box<dyn Fn(u64, u64) + Send + Sync>,
}

impl Progress {
    /// Calls `report` after each block.
    pub fn new(report: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(ProgressState { done, total, report: Box::new(report) }))
    }

    /// No reports.
    pub fn none() -> Self {
        Self::new(|_, _| {})
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        let done = self.0.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.0.report)(done, self.0.total.load(Ordering::Relaxed));
    }
}

/// A file of a point, read from its blocks.
pub(crate) struct BlockFile {
    source: Arc<dyn BlockSource>,
    blocks: Vec<BlockRef>,
    len: u64,
    /// The block read last.
    last: Mutex<Option<(usize, Vec<u8>)>>,
    progress: Progress,
}

impl BlockFile {
    pub(crate) fn new(
        source: Arc<dyn BlockSource>,
        blocks: Vec<BlockRef>,
        progress: Progress,
    ) -> Self {
        let len = blocks.iter().map(|block| block.len as u64).sum();
        Self { source, blocks, len, last: Mutex::new(None), progress }
    }

    /// Reads and verifies the whole file.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.blocks.iter().try_for_each(|block| {
            load(&*self.source, block)?;
            self.progress.add(block.len as u64);
            Ok(())
        })
    }
}

impl File for BlockFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() && offset + (done as u64) < self.len {
            let at = offset + done as u64;
            let index = usize::try_from(at / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
            let Some(block) = self.blocks.get(index) else { break };
            let mut last = self.last.lock();
            if last.as_ref().is_none_or(|(held, _)| *held != index) {
                *last = Some((index, load(&*self.source, block)?));
                self.progress.add(block.len as u64);
            }
            let bytes = last.as_ref().map_or(&[][..], |(_, bytes)| bytes);
            let start = usize::try_from(at % BLOCK_BYTES as u64).unwrap_or(usize::MAX);
            let rest = bytes.get(start..).unwrap_or_default();
            let count = rest.len().min(buffer.len() - done);
            if count == 0 {
                break;
            }
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Ok(done)
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        refused()
    }

    fn truncate(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn reserve(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }
}

fn refused() -> io::Result<()> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}
