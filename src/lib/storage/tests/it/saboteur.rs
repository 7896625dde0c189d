//! A disk with one deliberate bug, which a checker must find.

use ferrokube_storage::journal::io::{DirLock, File, Io};
use ferrokube_storage::testing::SimDisk;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A batch is acknowledged without a sync.
    SkipSync,
    /// A batch is published first and synced with the next one.
    PublishBeforeSync,
    /// Directories are never synced.
    SkipDirSync,
    /// The directory is not synced between renaming a base and removing its logs.
    SkipBaseDirSync,
    /// A base is not synced before it is renamed.
    SkipBaseSync,
    /// A batch without space is not truncated.
    KeepHalfBatch,
    /// A failed sync is retried, successfully.
    RetrySync,
    /// The last sector of a batch is not written.
    ForgetSector,
    /// Every start cuts the end of the log.
    CutTail,
    /// Recovery publishes what it has not synced.
    StartWithoutSync,
    /// Recovery syncs what it publishes, but without rewriting pages that a failed sync left clean.
    StartWithoutRewrite,
    /// Recovery does not sync names before it removes what they replace.
    StartWithoutDirSync,
    /// The directory's own name is not synced.
    SkipParentSync,
    /// Revisions of a refused batch are assigned again. (Done by the driver, not the disk.)
    ReuseRevisions,
    /// An object that leaves a topic is unnoticed by the topic's watches. (Done by the driver.)
    MissLeavers,
}

pub(crate) const BUGS: [Bug; 15] = [
    Bug::SkipSync,
    Bug::PublishBeforeSync,
    Bug::SkipDirSync,
    Bug::SkipBaseDirSync,
    Bug::SkipBaseSync,
    Bug::KeepHalfBatch,
    Bug::RetrySync,
    Bug::ForgetSector,
    Bug::CutTail,
    Bug::StartWithoutSync,
    Bug::StartWithoutRewrite,
    Bug::StartWithoutDirSync,
    Bug::SkipParentSync,
    Bug::ReuseRevisions,
    Bug::MissLeavers,
];

/// A disk with the bug.
#[derive(Clone)]
pub(crate) struct Saboteur(Arc<SaboteurInner>);

struct SaboteurInner {
    disk: SimDisk,
    bug: Option<Bug>,
    dir: PathBuf,
    /// A store is being opened. Recovery bugs apply only if a journal exists.
    starting: AtomicBool,
    /// A journal exists.
    existing: AtomicBool,
    /// A base was just renamed.
    renamed: AtomicBool,
}

impl Saboteur {
    pub(crate) fn new(disk: &SimDisk, dir: &str, bug: Option<Bug>) -> Self {
        let [starting, existing, renamed] = [(); 3].map(|()| AtomicBool::new(false));
        Self(Arc::new(SaboteurInner {
            disk: disk.clone(),
            bug,
            dir: dir.into(),
            starting,
            existing,
            renamed,
        }))
    }

    /// Marks the begin or end of a start.
    pub(crate) fn starting(&self, now: bool) {
        self.0.starting.store(now, Ordering::Relaxed);
    }

    fn is(&self, bug: Bug) -> bool {
        self.0.bug == Some(bug)
    }

    fn starts(&self) -> bool {
        self.0.starting.load(Ordering::Relaxed) && self.0.existing.load(Ordering::Relaxed)
    }

    fn file(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let name = path.to_string_lossy();
        let kind = if name.contains(".log") {
            FileKind::Log
        } else if name.contains(".base") {
            FileKind::Base
        } else {
            FileKind::Other
        };
        Arc::new(BadFile { saboteur: self.clone(), file, kind, unsynced: Mutex::new(false) })
    }
}

impl Io for Saboteur {
    fn make_dir(&self, dir: &Path) -> Result<()> {
        self.0.disk.make_dir(dir)
    }

    fn lock(&self, dir: &Path) -> Result<Option<Box<dyn DirLock>>> {
        self.0.disk.lock(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let names = self.0.disk.list(dir)?;
        self.0.existing.store(names.iter().any(|name| name == "FORMAT"), Ordering::Relaxed);
        Ok(names)
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.0.disk.create(path)?))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(self.file(path, self.0.disk.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.renamed.store(to.to_string_lossy().ends_with(".base"), Ordering::Relaxed);
        self.0.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let skip = self.is(Bug::SkipDirSync)
            || (self.is(Bug::SkipParentSync) && dir != self.0.dir)
            || (self.is(Bug::StartWithoutDirSync) && self.starts())
            || (self.is(Bug::SkipBaseDirSync) && self.0.renamed.swap(false, Ordering::Relaxed));
        if skip { Ok(()) } else { self.0.disk.sync_dir(dir) }
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.0.disk.free_bytes(dir)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Log,
    Base,
    Other,
}

struct BadFile {
    saboteur: Saboteur,
    file: Arc<dyn File>,
    kind: FileKind,
    /// A sync was deferred.
    unsynced: Mutex<bool>,
}

impl BadFile {
    fn is(&self, bug: Bug, kind: FileKind) -> bool {
        self.kind == kind && self.saboteur.is(bug)
    }
}

impl File for BadFile {
    fn len(&self) -> Result<u64> {
        let len = self.file.len()?;
        let cut = self.is(Bug::CutTail, FileKind::Log) && self.saboteur.starts() && len > 100;
        Ok(if cut { len - 8 } else { len })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if std::mem::take(&mut *self.unsynced.lock().unwrap()) {
            self.file.sync()?;
        }
        if self.is(Bug::StartWithoutRewrite, FileKind::Log)
            && self.saboteur.starts()
            && self.file.len()? >= offset + bytes.len() as u64
        {
            return Ok(());
        }
        if self.is(Bug::ForgetSector, FileKind::Log) && bytes.len() > 600 {
            self.file.write_at(offset + bytes.len() as u64 - 1, &bytes[bytes.len() - 1..])?;
            return self.file.write_at(offset, &bytes[..bytes.len() - 512]);
        }
        self.file.write_at(offset, bytes)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        if self.is(Bug::KeepHalfBatch, FileKind::Log) && !self.saboteur.starts() {
            Ok(())
        } else {
            self.file.truncate(len)
        }
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.file.reserve(len)
    }

    fn sync(&self) -> Result<()> {
        let skip = self.is(Bug::SkipSync, FileKind::Log)
            || self.is(Bug::SkipBaseSync, FileKind::Base)
            || (self.is(Bug::StartWithoutSync, FileKind::Log) && self.saboteur.starts());
        if skip {
            return Ok(());
        }
        if self.is(Bug::PublishBeforeSync, FileKind::Log) && !self.saboteur.starts() {
            *self.unsynced.lock().unwrap() = true;
            return Ok(());
        }
        let outcome = self.file.sync();
        if self.is(Bug::RetrySync, FileKind::Log) {
            outcome.or_else(|_| self.file.sync())
        } else {
            outcome
        }
    }
}
