//! The directory of a journal: its lock, its format, the space that it holds back.

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

/// What a new file or two need.
pub(crate) const ROOM_BYTES: u64 = 64 << 10;

/// Files that only hold space back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// For what must be appended when there is no space.
    Ballast,
    /// For the file that is written when old ones are merged.
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

/// A directory and what is needed to work in it.
#[derive(Clone)]
pub(crate) struct JournalDir {
    pub(crate) dir: PathBuf,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) transformer: Arc<dyn Transformer>,
    pub(crate) limits: JournalLimits,
    /// There was a journal once: an empty directory is not a new one.
    pub(crate) must_exist: bool,
}

/// An error of opening, with what was done to which path.
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { what, path, source }
}

/// Whether a directory shows that we have made nothing in it: it cannot be read, written or synced.
fn is_foreign(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | InvalidInput | Unsupported)
}

impl JournalDir {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes the directory and takes its lock.
    pub(crate) fn enter(&self) -> Result<Box<dyn DirLock>, OpenError> {
        self.io.make_dir(&self.dir).map_err(io_error("make", &self.dir))?;
        self.io.lock(&self.dir).map_err(io_error("lock", &self.dir))?.ok_or_else(|| OpenError::Locked(self.dir.clone()))
    }

    /// Makes the directory's own name durable, and those of all that it lies in: any of them may have been made with it. Done once, before the format file
    /// is written: where that is found, this was done.
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

    /// The format of the journal in the directory; none when there is no journal: the format file is the last that is made.
    pub(crate) fn check_format(&self, names: &[String]) -> Result<Option<u32>, OpenError> {
        if !names.iter().any(|name| name == FORMAT_FILE) {
            return Ok(None);
        }
        let path = self.path(FORMAT_FILE);
        let text = self.read(&path)?;
        let found = text.strip_prefix(FORMAT_TEXT).and_then(|rest| rest.strip_suffix('\n')?.parse::<u32>().ok());
        match found {
            Some(found) if found > FORMAT => Err(OpenError::Newer { path: self.dir.clone(), found, supported: FORMAT }),
            // Format 1 is brought up by recovery.
            Some(found) if found > 0 => Ok(Some(found)),
            _ => Err(OpenError::Damaged { file: path, offset: 0, what: "it does not name a format".to_owned() }),
        }
    }

    /// Writes the format file.
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

    /// The path of the format file, for those who miss it.
    pub(crate) fn format_path(&self) -> PathBuf {
        self.path(FORMAT_FILE)
    }

    /// The path of the manifest.
    pub(crate) fn manifest_path(&self) -> PathBuf {
        self.path(MANIFEST_FILE)
    }

    /// Makes the manifest, or makes it anew, durable with its name.
    pub(crate) fn create_manifest(&self, acknowledged: Acknowledged) -> io::Result<Manifest> {
        let temporary = self.path("MANIFEST.tmp");
        let manifest = Manifest::create(self.io.create(&temporary)?, acknowledged)?;
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

    /// A file as it is, or a new one.
    pub(crate) fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.io.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.io.create(path),
            outcome => outcome,
        }
    }

    /// Bytes that a file holds back.
    pub(crate) fn held_bytes(&self, reserve: Reserve) -> u64 {
        self.io.open(&self.path(reserve.name())).and_then(|file| file.len()).unwrap_or(0)
    }

    /// Holds so much back instead of `held` bytes, or as much as there is; how much is held.
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
            // What was taken of what is not enough goes back.
            file.reserve(bytes).inspect_err(|_| _ = file.truncate(held))
        };
        match grow() {
            Ok(()) => bytes,
            Err(error) => {
                tracing::debug!(%error, ?reserve, bytes, "no space can be held back");
                held
            }
        }
    }

    /// Does something that may need a new file or two; without space for them once more, with some of the ballast given up.
    pub(crate) fn with_ballast<T>(&self, what: impl Fn() -> io::Result<T>) -> io::Result<T> {
        what().or_else(|error| {
            let room = self.limits.ballast_bytes / 8;
            if is_full(&error) && self.give_up(room.min(ROOM_BYTES)).is_ok() { what() } else { Err(error) }
        })
    }

    fn give_up(&self, bytes: u64) -> io::Result<()> {
        let ballast = self.io.open(&self.path(Reserve::Ballast.name()))?;
        let held = ballast.len()?;
        if held == 0 { Err(io::ErrorKind::StorageFull.into()) } else { ballast.truncate(held.saturating_sub(bytes)) }
    }

    /// Holds so much back and no more.
    pub(crate) fn shrink(&self, reserve: Reserve, bytes: u64) -> io::Result<()> {
        self.io.open(&self.path(reserve.name()))?.truncate(bytes)
    }

    /// Takes the spare file under another name, as large as it is; whether it was there.
    pub(crate) fn take_spare(&self, path: &Path) -> bool {
        self.io.rename(&self.path(Reserve::Spare.name()), path).is_ok()
    }

    /// Removes a file that is no longer needed; a large one becomes the spare file, without anybody else getting its space meanwhile.
    pub(crate) fn retire(&self, path: &Path) -> io::Result<()> {
        let bytes = self.io.open(path)?.len()?;
        if bytes > self.held_bytes(Reserve::Spare) { self.io.rename(path, &self.path(Reserve::Spare.name())) } else { self.io.remove(path) }
    }

    /// Begins a log, durable with its name. What an attempt that failed leaves behind is removed, or at the next start.
    pub(crate) fn begin_log(&self, first: u64, chain: u64) -> io::Result<(Arc<dyn File>, Segment)> {
        let (path, temporary) = (self.path(&SegmentName::log(first)), self.path(&format!("{}.tmp", SegmentName::log(first))));
        let header = SegmentHeader::new(SegmentKind::Log, first, chain);
        let make = || -> io::Result<Arc<dyn File>> {
            let file = self.io.create(&temporary)?;
            file.write_at(0, &header.encode())?;
            file.sync()?;
            Ok(file)
        };
        let file = make().inspect_err(|_| _ = self.io.remove(&temporary))?;
        self.io.rename(&temporary, &path).inspect_err(|_| _ = self.io.remove(&temporary))?;
        // A name that may vanish must not be written to; one that stays without frames is known for what it is.
        self.io.sync_dir(&self.dir).inspect_err(|_| _ = self.io.remove(&path))?;
        Ok((file, Segment::new(path, first, chain, header.key)))
    }
}
