//! A backup in a directory: blocks shared by several points.

use crate::blocks::{self, BlockHash, BlockRef, BlockSource, BlockTarget};
use crate::error::{BackupError, io_error};
use crate::point::{MAX_POINT_BYTES, Point};
use ferrokube_storage::journal::io::{DirLock, Io};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCKS: &str = "blocks";
const POINTS: &str = "points";

/// A backup's directory.
#[derive(Clone)]
pub(crate) struct BackupDirectory {
    io: Arc<dyn Io>,
    path: PathBuf,
}

impl BackupDirectory {
    pub(crate) fn new(io: &Arc<dyn Io>, path: &Path) -> Self {
        Self { io: Arc::clone(io), path: path.to_owned() }
    }

    fn blocks(&self) -> PathBuf {
        self.path.join(BLOCKS)
    }

    fn points(&self) -> PathBuf {
        self.path.join(POINTS)
    }

    /// Creates the directory if needed, and locks it against other writers.
    pub(crate) fn enter(&self) -> Result<Box<dyn DirLock>, BackupError> {
        let (io, path) = (&self.io, &self.path);
        io.make_dir(path).map_err(io_error("make", path))?;
        let names = io.list(path).map_err(io_error("list", path))?;
        if names.iter().any(|name| name != BLOCKS && name != POINTS) {
            return Err(BackupError::NotBackup(path.clone()));
        }
        let lock = io.lock(path).map_err(io_error("lock", path))?;
        let lock = lock.ok_or_else(|| BackupError::Busy(path.clone()))?;
        for folder in [self.blocks(), self.points()] {
            io.make_dir(&folder).map_err(io_error("make", &folder))?;
        }
        self.sync(path)?;
        // Sync all ancestors, as any of them may be new. Those that cannot be synced are not ours.
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if io.sync_dir(above).is_err() {
                break;
            }
        }
        Ok(lock)
    }

    fn sync(&self, path: &Path) -> Result<(), BackupError> {
        self.io.sync_dir(path).map_err(io_error("sync", path))
    }

    /// Names of the points, oldest first.
    fn names(&self) -> Result<Vec<String>, BackupError> {
        let folder = self.points();
        let mut names = self.io.list(&folder).map_err(io_error("list", &folder))?;
        names.retain(|name| name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_digit()));
        names.sort();
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Point, BackupError> {
        let path = self.points().join(name);
        let bytes = read_all(&*self.io, &path, MAX_POINT_BYTES).map_err(io_error("read", &path))?;
        let damaged = || BackupError::Damaged {
            path: path.clone(),
            what: "its checksum does not match".to_owned(),
        };
        Point::decode(&bytes).ok_or_else(damaged)
    }

    pub(crate) fn last(&self) -> Result<Point, BackupError> {
        let is_backup = self.io.list(&self.path).is_ok_and(|names| {
            names.iter().any(|name| name == POINTS) && names.iter().any(|name| name == BLOCKS)
        });
        if !is_backup {
            return Err(BackupError::NotBackup(self.path.clone()));
        }
        let names = self.names()?;
        let last = names.last().ok_or_else(|| BackupError::NoPoint(self.path.clone()))?;
        self.read(last)
    }

    /// Syncs blocks before a point refers to them.
    pub(crate) fn settle(&self) -> Result<(), BackupError> {
        self.sync(&self.blocks())
    }

    pub(crate) fn add(&self, point: &Point) -> Result<(), BackupError> {
        let last = self.names()?.last().and_then(|name| name.parse::<u64>().ok()).unwrap_or(0);
        let path = self.points().join(format!("{:012}", last + 1));
        let text = point.checked().ok_or(BackupError::TooLarge)?;
        write_durably(&*self.io, &path, text.as_bytes()).map_err(io_error("write", &path))?;
        self.sync(&self.points())
    }

    /// Removes all points but the last `keep`, and unreferenced blocks. Does nothing if a point to
    /// keep cannot be read.
    pub(crate) fn prune(&self, keep: usize) -> Result<(), BackupError> {
        let names = self.names()?;
        let (old, kept) = names.split_at(names.len().saturating_sub(keep.max(1)));
        let mut needed = HashSet::new();
        for name in kept {
            needed.extend(self.read(name)?.blocks().map(|block| block.hash.to_string()));
        }
        let remove = |path: PathBuf| self.io.remove(&path).map_err(io_error("remove", &path));
        for name in old {
            remove(self.points().join(name))?;
        }
        // A point must not reappear without its blocks.
        self.sync(&self.points())?;
        for (folder, is_needed) in [
            (self.points(), &(|name: &str| !name.ends_with(".tmp")) as &dyn Fn(&str) -> bool),
            (self.blocks(), &|name| needed.contains(name)),
        ] {
            let names = self.io.list(&folder).map_err(io_error("list", &folder))?;
            for name in names.iter().filter(|name| !is_needed(name)) {
                remove(folder.join(name))?;
            }
        }
        Ok(())
    }
}

impl BlockSource for BackupDirectory {
    fn load(&self, block: &BlockRef) -> io::Result<Vec<u8>> {
        read_all(&*self.io, &self.blocks().join(block.hash.to_string()), block.len as u64)
    }
}

impl BlockTarget for BackupDirectory {
    fn put(&mut self, hash: BlockHash, bytes: &[u8]) -> Result<(BlockRef, bool), BackupError> {
        let block = BlockRef { hash, len: bytes.len(), offset: 0 };
        if blocks::load(self, &block).is_ok() {
            return Ok((block, false));
        }
        let path = self.blocks().join(hash.to_string());
        write_durably(&*self.io, &path, bytes).map_err(io_error("write", &path))?;
        Ok((block, true))
    }
}

/// Reads a file of at most `max` bytes.
fn read_all(io: &dyn Io, path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = io.open_to_read(path)?;
    let len = file.len()?;
    if len > max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes a file under its name when it is complete. The caller syncs the directory.
fn write_durably(io: &dyn Io, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let file = io.create(&temporary)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    io.rename(&temporary, path)
}
