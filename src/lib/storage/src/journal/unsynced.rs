//! A disk for state that may be lost with the machine: tests. Everything is written, so that it
//! outlives the process, but nothing is synced or reserved.

use super::io::{DirLock, File, Io, SystemDisk};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// [`SystemDisk`] without syncs: survives `kill -9`, but no power cut.
#[derive(Debug, Default)]
pub struct UnsyncedDisk;

struct UnsyncedFile(Arc<dyn File>);

fn unsynced(file: io::Result<Arc<dyn File>>) -> io::Result<Arc<dyn File>> {
    file.map(|file| Arc::new(UnsyncedFile(file)) as Arc<dyn File>)
}

impl Io for UnsyncedDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.make_dir(dir)
    }

    fn lock(&self, dir: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        SystemDisk.lock(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        SystemDisk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        unsynced(SystemDisk.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        unsynced(SystemDisk.open(path))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        SystemDisk.open_to_read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        SystemDisk.free_bytes(dir)
    }
}

impl File for UnsyncedFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    /// The ballast would take the memory of a `/tmp` in memory.
    fn reserve(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self) -> io::Result<bool> {
        self.0.lock()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
