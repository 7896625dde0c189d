//! A backup in a single file: blocks, the point, and a footer that locates the point.

use crate::blocks::{BlockHash, BlockRef, BlockSource, BlockTarget};
use crate::error::{BackupError, io_error};
use crate::point::{MAX_POINT_BYTES, Point};
use crate::taking::now_ms;
use ferrokube_storage::journal::io::{File, Io};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// At the start and at the end of the file.
const MAGIC: &[u8; 24] = b"ferrokube backup file 1\n";
/// Offset and length of the point, then the magic.
const FOOTER: usize = 16 + MAGIC.len();

/// An archive being written, under a temporary name.
pub(crate) struct NewArchive {
    io: Arc<dyn Io>,
    path: PathBuf,
    temporary: PathBuf,
    file: Arc<dyn File>,
    end: u64,
    blocks: HashMap<BlockHash, u64>,
    is_finished: bool,
}

impl Drop for NewArchive {
    /// Removes an unfinished archive.
    fn drop(&mut self) {
        if !self.is_finished {
            // What is left is named as temporary.
            let _ = self.io.remove(&self.temporary);
        }
    }
}

impl NewArchive {
    pub(crate) fn create(io: &Arc<dyn Io>, path: &Path) -> Result<Self, BackupError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        // Not that of another process that writes the same backup.
        name.push(format!(".{}-{:x}.tmp", std::process::id(), now_ms()));
        let temporary = path.with_file_name(name);
        let create = || {
            let file = io.create(&temporary)?;
            file.write_at(0, MAGIC)?;
            Ok(file)
        };
        let file = create().map_err(io_error("create", &temporary))?;
        let (io, path) = (Arc::clone(io), path.to_owned());
        let end = MAGIC.len() as u64;
        Ok(Self { io, path, temporary, file, end, blocks: HashMap::new(), is_finished: false })
    }

    /// Makes the blocks readable by [`BackupArchive::blocks`] before there is a point.
    pub(crate) fn reader(&self) -> BackupArchive {
        BackupArchive { path: self.temporary.clone(), file: Arc::clone(&self.file) }
    }

    /// Completes it.
    pub(crate) fn finish(mut self, point: &Point) -> Result<(), BackupError> {
        let text = point.checked().ok_or(BackupError::TooLarge)?;
        let finish = || {
            self.file.write_at(self.end, text.as_bytes())?;
            let mut footer = [0; FOOTER];
            footer[..8].copy_from_slice(&self.end.to_le_bytes());
            footer[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
            footer[16..].copy_from_slice(MAGIC);
            self.file.write_at(self.end + text.len() as u64, &footer)?;
            self.file.sync()?;
            self.io.rename(&self.temporary, &self.path)?;
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            self.io.sync_dir(folder.unwrap_or(Path::new(".")))
        };
        finish().map_err(io_error("write", &self.path))?;
        self.is_finished = true;
        Ok(())
    }
}

impl BlockTarget for NewArchive {
    fn put(&mut self, hash: BlockHash, bytes: &[u8]) -> Result<(BlockRef, bool), BackupError> {
        let len = bytes.len();
        if let Some(offset) = self.blocks.get(&hash) {
            return Ok((BlockRef { hash, len, offset: *offset }, false));
        }
        let written = self.file.write_at(self.end, bytes);
        written.map_err(io_error("write", &self.temporary))?;
        let offset = self.end;
        self.blocks.insert(hash, offset);
        self.end += len as u64;
        Ok((BlockRef { hash, len, offset }, true))
    }
}

pub(crate) struct BackupArchive {
    path: PathBuf,
    file: Arc<dyn File>,
}

impl BackupArchive {
    pub(crate) fn open(io: &Arc<dyn Io>, path: &Path) -> Result<Self, BackupError> {
        let file = io.open_to_read(path).map_err(io_error("open", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Refuses to replace a file that is neither a backup nor empty.
    pub(crate) fn check_replaced(io: &Arc<dyn Io>, path: &Path) -> Result<(), BackupError> {
        let file = match io.open_to_read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(io_error("open", path))?,
        };
        let mut start = [0; MAGIC.len()];
        let read = file.read_at(0, &mut start).map_err(io_error("read", path))?;
        let is_backup = read == 0 || start == *MAGIC;
        is_backup.then_some(()).ok_or_else(|| BackupError::NotBackup(path.to_owned()))
    }

    pub(crate) fn point(&self) -> Result<Point, BackupError> {
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            let count = self.file.read_at(at, &mut bytes).map_err(io_error("read", &self.path))?;
            bytes.truncate(count);
            Ok::<_, BackupError>(bytes)
        };
        let len = self.file.len().map_err(io_error("measure", &self.path))?;
        if read(0, MAGIC.len())? != MAGIC {
            return Err(BackupError::NotBackup(self.path.clone()));
        }
        let damaged =
            |what: &str| BackupError::Damaged { path: self.path.clone(), what: what.to_owned() };
        let end = len.checked_sub(FOOTER as u64).ok_or_else(|| damaged("it is cut short"))?;
        let footer = read(end, FOOTER)?;
        let number = |at: usize| {
            footer.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
        };
        let (Some(at), Some(size)) = (number(0), number(8)) else {
            return Err(damaged("it is cut short"));
        };
        let is_whole =
            footer.ends_with(MAGIC) && size <= MAX_POINT_BYTES && at.checked_add(size) == Some(end);
        if !is_whole {
            return Err(damaged("it is cut short"));
        }
        let text = read(at, usize::try_from(size).unwrap_or(usize::MAX))?;
        Point::decode(&text).ok_or_else(|| damaged("its checksum does not match"))
    }
}

impl BlockSource for BackupArchive {
    fn load(&self, block: &BlockRef) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; block.len];
        let count = self.file.read_at(block.offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }
}
