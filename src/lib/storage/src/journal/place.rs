//! The directory of a journal: its lock, its format, its ballast.

use crate::config::{JournalLimits, OpenError};
use crate::journal::frame::{FORMAT, Kind, SegmentHeader};
use crate::journal::io::{File, Held, Io};
use crate::journal::layout::{Name, Piece};
use crate::journal::manifest::{Acknowledged, Manifest};
use crate::journal::transform::Transformer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FORMAT_FILE: &str = "FORMAT";
const MANIFEST_FILE: &str = "MANIFEST";
const BALLAST_FILE: &str = "BALLAST";
const FORMAT_TEXT: &str = "ferrokube-storage format ";

/// A directory and what is needed to work in it.
#[derive(Clone)]
pub(crate) struct Place {
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

impl Place {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes the directory and takes its lock.
    pub(crate) fn enter(&self) -> Result<Box<dyn Held>, OpenError> {
        self.io.make_dir(&self.dir).map_err(io_error("make", &self.dir))?;
        self.io.lock(&self.dir).map_err(io_error("lock", &self.dir))?.ok_or_else(|| OpenError::Locked(self.dir.clone()))
    }

    /// Makes the directory's own name durable, and those of all that it lies in: any of them may have been made with it. Done once, before the format file
    /// is written: where that is found, this was done.
    pub(crate) fn sync_ancestors(&self) -> Result<(), OpenError> {
        let above = self.dir.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        for (distance, dir) in above.enumerate() {
            match self.io.sync_dir(dir) {
                // Where we may not look we have made nothing.
                Err(error) if distance > 0 && error.kind() == io::ErrorKind::PermissionDenied => break,
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
        write().map_err(io_error("write", &path))
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

    /// Holds space back; whether it is held.
    pub(crate) fn take_ballast(&self) -> bool {
        let path = self.path(BALLAST_FILE);
        let reserve = || self.io.create(&path)?.reserve(self.limits.ballast_bytes);
        if let Err(error) = reserve() {
            tracing::debug!(%error, "no ballast could be made");
            // What is left of it would hold back too little.
            let _ = self.io.remove(&path);
            return false;
        }
        true
    }

    /// Whether the ballast is there from an earlier run.
    pub(crate) fn has_ballast(&self, names: &[String]) -> bool {
        names.iter().any(|name| name == BALLAST_FILE)
    }

    /// Gives the ballast up.
    pub(crate) fn drop_ballast(&self) -> io::Result<()> {
        self.io.remove(&self.path(BALLAST_FILE))
    }

    /// Begins a log, durable with its name. What an attempt that failed leaves behind is removed, or at the next start.
    pub(crate) fn begin_log(&self, first: u64, chain: u64) -> io::Result<(Arc<dyn File>, Piece)> {
        let (path, temporary) = (self.path(&Name::log(first)), self.path(&format!("{}.tmp", Name::log(first))));
        let header = SegmentHeader::new(Kind::Log, first, chain);
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
        Ok((file, Piece::new(path, first, chain, header.key)))
    }
}
