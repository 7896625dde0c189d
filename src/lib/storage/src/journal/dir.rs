//! The journal directory: its lock, its format, its reserves.

use crate::config::{JournalLimits, OpenError};
use crate::journal::frame::{FORMAT, SegmentHeader, SegmentKind};
use crate::journal::io::{DirLock, File, Io, is_full};
use crate::journal::layout::{Segment, SegmentName};
use crate::journal::manifest::{Acknowledged, Manifest};
use crate::journal::transform::Transformer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FORMAT_FILE: &str = "FORMAT";
const MANIFEST_FILE: &str = "MANIFEST";
const FORMAT_TEXT: &str = "ferrokube-storage format ";

/// Room for one or two new files.
pub(crate) const ROOM_BYTES: u64 = 64 << 10;

/// Files that only reserve space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// For appends on a full disk.
    Ballast,
    /// For the output of a merge.
    Spare,
}

impl Reserve {
    fn name(self) -> &'static str {
        match self {
            Self::Ballast => "BALLAST",
            Self::Spare => "SPARE",
        }
    }
}

/// A journal directory and what is needed to work in it.
#[derive(Clone)]
pub(crate) struct JournalDir {
    pub(crate) dir: PathBuf,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) transformer: Arc<dyn Transformer>,
    pub(crate) limits: JournalLimits,
    /// A journal existed before: do not create one in an empty directory.
    pub(crate) must_exist: bool,
}

/// Builds an [`OpenError::Io`] from an operation and a path.
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { what, path, source }
}

/// Whether the error shows that a directory is not ours to create names in: it cannot be read,
/// written or synced.
fn is_foreign(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | InvalidInput | Unsupported)
}

impl JournalDir {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Refuses a missing directory if a journal must exist: `enter` would create it.
    pub(crate) fn check_exists(&self) -> Result<(), OpenError> {
        let is_missing =
            || self.io.list(&self.dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        match self.must_exist && is_missing() {
            true => Err(OpenError::Missing(self.dir.clone())),
            false => Ok(()),
        }
    }

    /// Creates the directory and locks it.
    pub(crate) fn enter(&self) -> Result<Box<dyn DirLock>, OpenError> {
        self.io.make_dir(&self.dir).map_err(io_error("make", &self.dir))?;
        self.io
            .lock(&self.dir)
            .map_err(io_error("lock", &self.dir))?
            .ok_or_else(|| OpenError::Locked(self.dir.clone()))
    }

    /// Refuses what cannot be a reserve, such as a directory of its name: as without space, nothing
    /// would ever be written.
    pub(crate) fn check_reserves(&self) -> Result<(), OpenError> {
        for reserve in [Reserve::Ballast, Reserve::Spare] {
            let path = self.path(reserve.name());
            match self.io.open(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("open", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes the directory's name durable, and those of its ancestors, any of which may have been
    /// created with it. Done once, before the format file is written: its presence implies this.
    pub(crate) fn sync_ancestors(&self) -> Result<(), OpenError> {
        let above = self.dir.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        for (distance, dir) in above.enumerate() {
            match self.io.sync_dir(dir) {
                Err(error) if distance > 0 && is_foreign(&error) => break,
                outcome => outcome.map_err(io_error("sync", dir))?,
            }
        }
        Ok(())
    }

    /// Format of the existing journal; `None` without one. The format file is created last.
    pub(crate) fn check_format(&self, names: &[String]) -> Result<Option<u32>, OpenError> {
        if !names.iter().any(|name| name == FORMAT_FILE) {
            return Ok(None);
        }
        let path = self.path(FORMAT_FILE);
        let text = self.read(&path)?;
        let found = text
            .strip_prefix(FORMAT_TEXT)
            .and_then(|rest| rest.strip_suffix('\n')?.parse::<u32>().ok());
        match found {
            Some(found) if found > FORMAT => {
                Err(OpenError::Newer { path: self.dir.clone(), found, supported: FORMAT })
            }
            // Recovery upgrades format 1.
            Some(found) if found > 0 => Ok(Some(found)),
            _ => Err(OpenError::Damaged {
                file: path,
                offset: 0,
                what: "no format version".to_owned(),
            }),
        }
    }

    pub(crate) fn write_format(&self) -> Result<(), OpenError> {
        let (temporary, path) = (self.path("FORMAT.tmp"), self.path(FORMAT_FILE));
        let write = || {
            let file = self.io.create(&temporary)?;
            file.write_at(0, format!("{FORMAT_TEXT}{FORMAT}\n").as_bytes())?;
            file.sync()?;
            self.io.rename(&temporary, &path)?;
            self.io.sync_dir(&self.dir)
        };
        self.with_ballast(write).map_err(io_error("write", &path))
    }

    pub(crate) fn format_path(&self) -> PathBuf {
        self.path(FORMAT_FILE)
    }

    pub(crate) fn manifest_path(&self) -> PathBuf {
        self.path(MANIFEST_FILE)
    }

    /// Creates or recreates the manifest, durable with its name.
    pub(crate) fn create_manifest(&self, acknowledged: Acknowledged) -> io::Result<Manifest> {
        let temporary = self.path("MANIFEST.tmp");
        let file = self.io.create(&temporary)?;
        // Locked like an existing one; cannot be contended yet.
        file.lock()?;
        let manifest = Manifest::create(file, acknowledged)?;
        self.io.rename(&temporary, &self.manifest_path())?;
        self.io.sync_dir(&self.dir)?;
        Ok(manifest)
    }

    fn read(&self, path: &Path) -> Result<String, OpenError> {
        let mut bytes = vec![0; 256];
        let mut read = || {
            let file = self.io.open(path)?;
            file.read_at(0, &mut bytes)
        };
        let len = read().map_err(io_error("read", path))?;
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    pub(crate) fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.io.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.io.create(path),
            outcome => outcome,
        }
    }

    /// Size of a reserve, in bytes.
    pub(crate) fn held_bytes(&self, reserve: Reserve) -> u64 {
        self.io.open(&self.path(reserve.name())).and_then(|file| file.len()).unwrap_or(0)
    }

    /// Grows a reserve from `held` to `wanted` bytes, or as far as there is space. Returns its
    /// size.
    pub(crate) fn hold(&self, reserve: Reserve, held: u64, wanted: u64) -> u64 {
        if held >= wanted {
            return held;
        }
        let more = (wanted - held).min(self.io.free_bytes(&self.dir).unwrap_or(0));
        if more == 0 {
            return held;
        }
        let bytes = held + more;
        let grow = || {
            let file = self.open_or_create(&self.path(reserve.name()))?;
            // A partial reserve is useless: give it back.
            file.reserve(bytes).inspect_err(|_| _ = file.truncate(held))
        };
        match grow() {
            Ok(()) => bytes,
            Err(error) => {
                tracing::debug!(%error, ?reserve, bytes, "failed to reserve space");
                held
            }
        }
    }

    /// Runs an operation that may need one or two new files; if there is no space, retries once
    /// with part of the ballast released.
    pub(crate) fn with_ballast<T>(&self, what: impl Fn() -> io::Result<T>) -> io::Result<T> {
        what().or_else(|error| {
            let room = self.limits.ballast_bytes / 8;
            if is_full(&error) && self.give_up(room.min(ROOM_BYTES)).is_ok() {
                what()
            } else {
                Err(error)
            }
        })
    }

    /// Whether there is free space for a new file.
    pub(crate) fn has_room(&self) -> bool {
        self.io.free_bytes(&self.dir).is_ok_and(|free| free >= ROOM_BYTES)
    }

    fn give_up(&self, bytes: u64) -> io::Result<()> {
        let ballast = self.io.open(&self.path(Reserve::Ballast.name()))?;
        let held = ballast.len()?;
        if held == 0 {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            ballast.truncate(held.saturating_sub(bytes))
        }
    }

    pub(crate) fn shrink(&self, reserve: Reserve, bytes: u64) -> io::Result<()> {
        self.io.open(&self.path(reserve.name()))?.truncate(bytes)
    }

    /// Renames the spare file to `path`, keeping its size. Returns whether it existed.
    pub(crate) fn take_spare(&self, path: &Path) -> bool {
        self.io.rename(&self.path(Reserve::Spare.name()), path).is_ok()
    }

    /// Removes an obsolete file. A large one becomes the spare file, so that no other process gets
    /// its space in between.
    pub(crate) fn retire(&self, path: &Path) -> io::Result<()> {
        let bytes = self.io.open(path)?.len()?;
        if bytes > self.held_bytes(Reserve::Spare) {
            self.io.rename(path, &self.path(Reserve::Spare.name()))
        } else {
            self.io.remove(path)
        }
    }

    /// Begins a log, durable with its name. Leftovers of a failed attempt are removed now or at the
    /// next start.
    pub(crate) fn begin_log(&self, first: u64, chain: u64) -> io::Result<(Arc<dyn File>, Segment)> {
        let (path, temporary) = (
            self.path(&SegmentName::log(first)),
            self.path(&format!("{}.tmp", SegmentName::log(first))),
        );
        let header = SegmentHeader::new(SegmentKind::Log, first, chain);
        let make = || -> io::Result<Arc<dyn File>> {
            let file = self.io.create(&temporary)?;
            file.write_at(0, &header.encode())?;
            file.sync()?;
            Ok(file)
        };
        let file = make().inspect_err(|_| _ = self.io.remove(&temporary))?;
        self.io.rename(&temporary, &path).inspect_err(|_| _ = self.io.remove(&temporary))?;
        // Never write under a name that may vanish. If the removal fails, recovery recognizes a log
        // without frames.
        self.io.sync_dir(&self.dir).inspect_err(|_| _ = self.io.remove(&path))?;
        Ok((file, Segment::new(path, first, chain, header.key)))
    }
}
