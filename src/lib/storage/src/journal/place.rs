//! The directory of a journal: its lock, its format, its ballast.

use crate::config::{JournalLimits, OpenError};
use crate::journal::frame::FORMAT;
use crate::journal::io::{File, Held, Io};
use crate::journal::transform::Transformer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK_FILE: &str = "LOCK";
const FORMAT_FILE: &str = "FORMAT";
const BALLAST_FILE: &str = "BALLAST";
const FORMAT_TEXT: &str = "ferrokube-storage format ";

/// A directory and what is needed to work in it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) transformer: Arc<dyn Transformer>,
    pub(crate) limits: JournalLimits,
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
        if let Some(parent) = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.io.sync_dir(parent).map_err(io_error("sync", parent))?;
        }
        let path = self.path(LOCK_FILE);
        self.io.lock(&path).map_err(io_error("lock", &path))?.ok_or_else(|| OpenError::Locked(self.dir.clone()))
    }

    /// Whether the directory holds a journal: the format file is the last that is made.
    pub(crate) fn check_format(&self, names: &[String]) -> Result<bool, OpenError> {
        if !names.iter().any(|name| name == FORMAT_FILE) {
            return Ok(false);
        }
        let path = self.path(FORMAT_FILE);
        let text = self.read(&path)?;
        let found = text.strip_prefix(FORMAT_TEXT).and_then(|rest| rest.strip_suffix('\n')?.parse::<u32>().ok());
        match found {
            Some(found) if found > FORMAT => Err(OpenError::Newer { path: self.dir.clone(), found, supported: FORMAT }),
            // The steps that bring older formats up go here; there is none older than the first.
            Some(FORMAT) => Ok(true),
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

    /// Makes a file with these first bytes, durable with its name.
    pub(crate) fn create_segment(&self, path: &Path, header: &[u8]) -> io::Result<Arc<dyn File>> {
        let file = self.io.create(path)?;
        file.write_at(0, header)?;
        file.sync()?;
        self.io.sync_dir(&self.dir)?;
        Ok(file)
    }
}
