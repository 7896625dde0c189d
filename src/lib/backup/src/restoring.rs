//! Verifies and restores backups.

use crate::archive::BackupArchive;
use crate::blocks::{self, BlockFile, BlockSource, Progress};
use crate::directory::BackupDirectory;
use crate::error::{BackupError, io_error};
use crate::point::{Point, PointFile, PointInfo, STORE};
use crate::taking::{BackupLocation, checked, journal_files, now_ms};
use ferrokube_storage::JournalFiles;
use ferrokube_storage::journal::io::Io;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Source and target of a restore.
pub struct RestoreTarget {
    /// A data directory that is not in use.
    pub directory: PathBuf,
    /// Whether to restore keys and certificates.
    pub has_keys: bool,
}

/// Verifies the last point of a backup by reading all of it.
///
/// # Errors
/// [`BackupError`].
pub fn verify(
    io: &Arc<dyn Io>,
    location: &BackupLocation,
    progress: &Progress,
) -> Result<PointInfo, BackupError> {
    CheckedBackup::open(io, location, progress).map(|backup| backup.info())
}

/// The last point of a backup, fully read and verified.
pub struct CheckedBackup {
    io: Arc<dyn Io>,
    backup: OpenBackup,
}

impl CheckedBackup {
    /// Reads and verifies the whole point.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn open(
        io: &Arc<dyn Io>,
        location: &BackupLocation,
        progress: &Progress,
    ) -> Result<Self, BackupError> {
        let backup = open(io, location)?;
        backup.check(progress)?;
        Ok(Self { io: Arc::clone(io), backup })
    }

    /// Summary of the point.
    pub fn info(&self) -> PointInfo {
        self.backup.point.info(0)
    }

    /// Checks that it can be restored there: the clock is not behind, there is no journal, and
    /// existing keys are the same.
    ///
    /// # Errors
    /// [`BackupError::ClockBehind`], [`BackupError::Journal`], [`BackupError::OtherKey`],
    /// [`BackupError::Io`].
    pub fn check_target(&self, target: &RestoreTarget) -> Result<(), BackupError> {
        let behind = self.backup.point.taken_ms.saturating_sub(now_ms());
        if behind > 0 {
            return Err(BackupError::ClockBehind(behind.div_ceil(1000)));
        }
        JournalFiles::check_room(&self.io, &target.directory.join(STORE))?;
        missing_keys(&*self.io, &self.keys(target)?).map(drop)
    }

    fn keys(&self, target: &RestoreTarget) -> Result<Vec<(PathBuf, Vec<u8>)>, BackupError> {
        let files = self.backup.point.files.iter();
        let keys = files.filter(|file| target.has_keys && !file.is_journal());
        keys.map(|file| Ok((target.directory.join(&file.name), self.backup.content(file)?)))
            .collect()
    }

    /// Restores it into a data directory without a journal. Can be repeated after an interruption;
    /// until it completes, no store opens the directory.
    ///
    /// # Errors
    /// [`BackupError`]; if the directory has a journal, before anything is written.
    pub fn restore(
        &self,
        target: &RestoreTarget,
        progress: &Progress,
    ) -> Result<PointInfo, BackupError> {
        self.check_target(target)?;
        let (io, backup) = (&self.io, &self.backup);
        let keys = self.keys(target)?;
        for (path, bytes) in missing_keys(&**io, &keys)? {
            write_key(&**io, path, bytes).map_err(io_error("write", path))?;
        }
        progress.expect(2 * backup.point.bytes());
        let files = &backup.point.files;
        let journal = journal_files(files, &backup.reader, progress, &backup.path);
        let store = target.directory.join(STORE);
        journal.install(io, &store, &mut |bytes| progress.add(bytes))?;
        checked(JournalFiles::of_directory(io, &store)?)?;
        Ok(backup.point.info(0))
    }
}

/// A backup opened at its last point.
struct OpenBackup {
    path: PathBuf,
    point: Point,
    reader: Arc<dyn BlockSource>,
}

fn open(io: &Arc<dyn Io>, location: &BackupLocation) -> Result<OpenBackup, BackupError> {
    let (path, point, reader): (_, _, Arc<dyn BlockSource>) = match location {
        BackupLocation::Directory(path) => {
            let directory = BackupDirectory::new(io, path);
            (path, directory.last()?, Arc::new(directory))
        }
        BackupLocation::File(path) => {
            let archive = BackupArchive::open(io, path)?;
            (path, archive.point()?, Arc::new(archive))
        }
    };
    Ok(OpenBackup { path: path.clone(), point, reader })
}

impl OpenBackup {
    fn damaged(&self, what: &dyn std::fmt::Display) -> BackupError {
        BackupError::Damaged { path: self.path.clone(), what: what.to_string() }
    }

    fn check(&self, progress: &Progress) -> Result<(), BackupError> {
        let point = &self.point;
        progress.expect(point.bytes());
        let journal = journal_files(&point.files, &self.reader, progress, &self.path);
        let revision = checked(journal)?;
        if revision.0 != point.revision {
            let what = format!("it ends at revision {revision}, not {}", point.revision);
            return Err(self.damaged(&what));
        }
        for file in point.files.iter().filter(|file| !file.is_journal()) {
            let blocks =
                BlockFile::new(Arc::clone(&self.reader), file.blocks.clone(), progress.clone());
            blocks.check().map_err(|error| self.damaged(&format!("{}: {error}", file.name)))?;
        }
        Ok(())
    }

    fn content(&self, file: &PointFile) -> Result<Vec<u8>, BackupError> {
        let mut bytes = Vec::new();
        for block in &file.blocks {
            let loaded = blocks::load(&*self.reader, block);
            bytes.extend(loaded.map_err(|error| self.damaged(&error))?);
        }
        Ok(bytes)
    }
}

/// Keys missing in the target.
fn missing_keys<'a>(
    io: &dyn Io,
    keys: &'a [(PathBuf, Vec<u8>)],
) -> Result<Vec<&'a (PathBuf, Vec<u8>)>, BackupError> {
    let mut missing = Vec::new();
    for key in keys {
        let (path, bytes) = key;
        match io.open_to_read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(key),
            Err(error) => return Err(io_error("open", path)(error)),
            Ok(file) => {
                let mut present = vec![0; bytes.len() + 1];
                let read = file.read_at(0, &mut present).map_err(io_error("read", path))?;
                if present[..read] != bytes[..] {
                    return Err(BackupError::OtherKey(path.clone()));
                }
            }
        }
    }
    Ok(missing)
}

/// Writes a key atomically and durably, readable by its owner only.
fn write_key(io: &dyn Io, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    io.make_dir(folder)?;
    let temporary = path.with_extension("restored.tmp");
    let file = io.create(&temporary)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    io.rename(&temporary, path)?;
    io.sync_dir(folder)?;
    io.sync_dir(folder.parent().unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_storage::testing::SimDisk;

    #[test]
    fn fault_09_a_clock_behind_the_backup_is_refused() {
        let disk = SimDisk::default();
        let io: Arc<dyn Io> = Arc::new(disk.clone());
        let location = BackupLocation::Directory("/sim/backup".into());
        let directory = BackupDirectory::new(&io, Path::new("/sim/backup"));
        let _ = directory.enter().unwrap();
        let point = Point { taken_ms: now_ms() + 600_000, revision: 0, files: Vec::new() };
        directory.add(&point).unwrap();
        let target = RestoreTarget { directory: "/sim/data".into(), has_keys: true };
        let backup = CheckedBackup::open(&io, &location, &Progress::none()).unwrap();
        let refused = backup.restore(&target, &Progress::none());
        assert!(matches!(refused, Err(BackupError::ClockBehind(1..=600))), "{refused:?}");
        assert!(disk.files().keys().all(|path| path.starts_with("/sim/backup")));
    }
}
