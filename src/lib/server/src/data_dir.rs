//! The data directory: location, lock and format.
//!
//! ```text
//! version            format number
//! reserve            disk space reserved for a start
//! lock               id of the process that holds the directory; the lock is on the directory itself
//! store.made         a journal existed: the server does not start without it
//! admin.kubeconfig   credentials of the administrator; those of components in other processes are
//!                    next to it, such as controller-manager.kubeconfig
//! pki/               CAs (of the server, of clients) and token keys
//! store/             the journal
//! store.unfinished/  the journal of a migration until it is complete
//! audit.log          audit log; older ones next to it, and .audit.log.reserve, which reserves disk space
//! ferrokube.log      the log of an all-in-one; older ones next to it
//! ```

use crate::error::{Because, InputError};
use ferrokube_pki::files::{self, FileMode};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Format of directories that this version writes.
pub const FORMAT: u32 = 1;

/// Disk space reserved for the files that a start writes, in bytes.
const RESERVE_BYTES: u64 = 256 << 10;
/// Released by a start without disk space, for files such as kubeconfigs.
const START_BYTES: u64 = 64 << 10;
/// Free space below which nothing is reserved.
const PLENTY_BYTES: u64 = 4 << 20;

/// Written once a journal exists.
const STATE_MADE: &str = "store.made";

const STORE: &str = "store";
/// Name of a store until its migration is complete.
const UNFINISHED: &str = "store.unfinished";

type Upgrade = fn(&Path) -> Result<(), InputError>;

/// Upgrades between formats; the first one is from format 1.
const UPGRADES: [Upgrade; 0] = [];

/// An open data directory, locked until dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: [File; 2],
    /// The directory is new.
    lacks_format: bool,
}

impl DataDir {
    /// Opens or creates a directory, and upgrades older formats. `finish` writes the format
    /// number of a new one.
    ///
    /// # Errors
    /// [`InputError`]: it is in use, of a newer format, or not writable.
    pub fn open(chosen: Option<&Path>) -> Result<Self, InputError> {
        let path = Self::locate(chosen)?;
        files::private_directory(&path)
            .because(|| format!("cannot use the data directory {}", path.display()))?;
        let lock = lock(&path)?;
        let mut directory = Self { path, _lock: lock, lacks_format: false };
        directory.make_room();
        directory.check_format()?;
        Ok(directory)
    }

    /// On a full disk, releases some of the reserve; without free inodes the file itself, since
    /// replacing a file takes one. Best effort: failures show up in later writes.
    fn make_room(&self) {
        // Some file systems count no inodes.
        if rustix::fs::statvfs(&self.path).is_ok_and(|stat| stat.f_files > 0 && stat.f_favail == 0)
        {
            let _ = std::fs::remove_file(self.join("reserve"));
            return;
        }
        let reserve = OpenOptions::new().write(true).open(self.join("reserve"));
        if let (Ok(free), Ok(file)) = (self.free_bytes(), reserve)
            && free < START_BYTES
        {
            let held = file.metadata().map_or(0, |metadata| metadata.len());
            let _ = file.set_len(held.saturating_sub(START_BYTES));
        }
    }

    /// Reserves space for the next start, if there is plenty.
    pub fn hold_back(&self) {
        if self.free_bytes().is_ok_and(|free| free >= PLENTY_BYTES) {
            let options = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(self.join("reserve"));
            let held = options.and_then(|file| {
                Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES)?)
            });
            if let Err(error) = held {
                tracing::debug!(%error, "failed to reserve space for a start");
            }
        }
    }

    fn free_bytes(&self) -> std::io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Location of the directory, without opening it.
    ///
    /// # Errors
    /// [`InputError::NoHome`] if none is chosen and there is no default.
    pub fn locate(chosen: Option<&Path>) -> Result<PathBuf, InputError> {
        match chosen {
            Some(path) => {
                std::path::absolute(path).because(|| format!("cannot use {}", path.display()))
            }
            None => default_path(),
        }
    }

    /// Whether a journal was ever created in the directory.
    pub(crate) fn had_state(&self) -> bool {
        self.join(STATE_MADE).exists()
    }

    /// Records that a journal was created, or is about to be: from then on the server does not
    /// start without one.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn note_state(&self) -> Result<(), InputError> {
        if self.had_state() {
            return Ok(());
        }
        let text = "The server was started with embedded storage here. Remove this file to let it start with an empty state if store/ is missing.\n";
        Ok(files::write(&self.join(STATE_MADE), text.as_bytes(), FileMode::Private)?)
    }

    /// Where a migration makes the store, until it is complete.
    pub fn unfinished_store(&self) -> PathBuf {
        self.join(UNFINISHED)
    }

    /// Refuses a directory in which a migration has begun to make the store: the server would make
    /// an empty one.
    pub(crate) fn check_migration(&self) -> Result<(), InputError> {
        let unfinished = self.unfinished_store();
        if self.join(STORE).exists() || !unfinished.exists() {
            return Ok(());
        }
        Err(InputError::Unusable(format!(
            "{} is of a migration that has not finished: repeat it, or remove that directory to start with an empty state",
            unfinished.display()
        )))
    }

    /// Advice for a missing journal.
    pub(crate) fn advice(&self) -> String {
        format!(
            "restore the directory, or remove {} to start with an empty state",
            self.join(STATE_MADE).display()
        )
    }

    /// The path of a file below it, which need not exist.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn check_format(&mut self) -> Result<(), InputError> {
        let path = self.join("version");
        let Some(text) = files::read(&path)? else {
            self.lacks_format = true;
            return Ok(());
        };
        let found: Option<u32> =
            std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        let found = found.filter(|found| *found > 0).ok_or_else(|| {
            let text = format!("{} contains no format number: restore the file", path.display());
            InputError::Unusable(text)
        })?;
        if found > FORMAT {
            return Err(InputError::Unusable(format!(
                "{} has format {found}, this version writes format {FORMAT}: use the newer version that wrote it",
                self.path.display()
            )));
        }
        if found == FORMAT {
            return Ok(());
        }
        for upgrade in &UPGRADES[found as usize - 1..] {
            upgrade(&self.path).because(|| {
                format!("cannot upgrade {} from format {found}", self.path.display())
            })?;
        }
        self.write_format()
    }

    /// Makes the format number of a new directory durable. Separate from [`Self::open`], to overlap
    /// with other file creation.
    pub(crate) fn finish(&self) -> Result<(), InputError> {
        if self.lacks_format { self.write_format() } else { Ok(()) }
    }

    fn write_format(&self) -> Result<(), InputError> {
        Ok(files::write(
            &self.join("version"),
            format!("{FORMAT}\n").as_bytes(),
            FileMode::Private,
        )?)
    }
}

/// `$XDG_DATA_HOME/ferrokube`, else `~/.local/share/ferrokube`.
fn default_path() -> Result<PathBuf, InputError> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("ferrokube")).ok_or(InputError::NoHome)
}

/// Locks the directory itself, which cannot be removed, and the lock file, which earlier versions
/// lock.
fn lock(directory: &Path) -> Result<[File; 2], InputError> {
    let path = directory.join("lock");
    let failed = || format!("cannot lock {}", directory.display());
    let held = File::from(
        rustix::fs::open(
            directory,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .because(failed)?,
    );
    let take = |file: &File| match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
    {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut owner = String::new();
            let _ = File::open(&path).and_then(|file| file.take(32).read_to_string(&mut owner));
            let owner = owner.trim();
            let holder = if owner.is_empty() {
                "another process".to_owned()
            } else {
                format!("process {owner}")
            };
            Err(InputError::Locked { path: directory.to_owned(), holder })
        }
        Err(error) => Err(error).because(failed),
    };
    take(&held)?;
    let handle = rustix::fs::open(
        &path,
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .because(failed)?;
    let mut file = File::from(handle);
    take(&file)?;
    // Written in place: on a full disk, released space may not come back. Informational only.
    let text = format!("{}\n", std::process::id());
    match file.write_all(text.as_bytes()).and_then(|()| file.set_len(text.len() as u64)) {
        Err(error) if !is_full(&error) => Err(error).because(failed),
        _ => Ok([held, file]),
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<DataDir, InputError> {
        DataDir::open(Some(path))
    }

    #[test]
    fn fault_12_one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        let first = open(&path).unwrap();
        let message = open(&path).unwrap_err().to_string();
        assert!(
            message.contains(&format!("in use by process {}", std::process::id())),
            "{message}"
        );
        // The lock does not depend on the file.
        std::fs::remove_file(path.join("lock")).unwrap();
        let message = open(&path).unwrap_err().to_string();
        assert!(message.contains("in use by another process"), "{message}");
        std::fs::write(path.join("lock"), "").unwrap();
        assert!(open(&path).is_err());
        drop(first);
        open(&path).unwrap();
    }

    #[test]
    fn a_half_migrated_directory_is_refused_until_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let data = open(&directory.path().join("data")).unwrap();
        data.check_migration().unwrap();
        std::fs::create_dir(data.unfinished_store()).unwrap();
        let message = data.check_migration().unwrap_err().to_string();
        assert!(message.contains("store.unfinished is of a migration"), "{message}");
        std::fs::rename(data.unfinished_store(), data.join(STORE)).unwrap();
        data.check_migration().unwrap();
    }

    #[test]
    fn newer_and_broken_formats_are_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        open(&path).unwrap().finish().unwrap();
        assert_eq!(std::fs::read_to_string(path.join("version")).unwrap(), format!("{FORMAT}\n"));
        for (text, expected) in [
            ("9\n", "format 9"),
            ("x", "no format number"),
            ("0", "no format number"),
            ("", "no format number"),
        ] {
            std::fs::write(path.join("version"), text).unwrap();
            let message = open(&path).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(std::fs::read_to_string(path.join("version")).unwrap(), text);
        }
    }

    #[test]
    fn every_older_format_has_its_upgrade() {
        assert_eq!(UPGRADES.len() as u32 + 1, FORMAT);
    }
}
