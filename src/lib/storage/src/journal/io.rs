//! File system abstraction of the journal. Everything that can fail, tear or vanish goes through
//! it, so that tests can inject faults call by call.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Directory operations. Only synced data survives a power cut: contents by [`File::sync`], names
/// by [`Io::sync_dir`].
pub trait Io: Send + Sync + 'static {
    /// Creates a directory and its missing ancestors, accessible by their owner only. Refuses an
    /// existing directory that others may enter, or another user's, who may put links in it.
    ///
    /// # Errors
    /// Of the operating system; likewise for all methods below.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;

    /// Locks a directory until the process exits or the returned value is dropped; `None` if it is
    /// locked. Locks the directory itself: a lock file could be removed.
    fn lock(&self, dir: &Path) -> io::Result<Option<Box<dyn DirLock>>>;

    /// Lists the names in a directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates a file, accessible by its owner only. What has the name is replaced, not opened: it
    /// may be another's, or a link.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens a file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens a file for reading.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Free bytes on the file system.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// Holds a directory lock while alive.
pub trait DirLock: Send + Sync {}

/// An open file.
#[allow(clippy::len_without_is_empty)]
pub trait File: Send + Sync {
    /// Length in bytes.
    ///
    /// # Errors
    /// Of the operating system; likewise for all methods below.
    fn len(&self) -> io::Result<u64>;

    /// Reads until the buffer is full or the file ends.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Truncates or extends to `len` bytes.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Allocates `len` bytes without writing them.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Locks the file until the process exits or the value is dropped; false if it is locked. For a
    /// file that other directories may hold too, as a link.
    fn lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Makes contents and length durable. After an error the state of everything written since the
    /// last success is unknown.
    fn sync(&self) -> io::Result<()>;
}

/// Whether the error means a full disk.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Whether the error means that the process or the system is out of file descriptors, which is
/// temporary.
pub(crate) fn is_scarce(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The operating system's file system.
#[derive(Debug, Default)]
pub struct SystemDisk;

impl Io for SystemDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let found = fs::metadata(dir)?;
        let mode = found.mode();
        if mode & 0o077 != 0 {
            let text = format!(
                "accessible by others than its owner (mode {:o}): chmod 700 it",
                mode & 0o7777
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        check_owner(found.uid())
    }

    fn lock(&self, dir: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        let file = SystemFile(fs::File::open(dir)?);
        Ok(file.lock()?.then(|| Box::new(file) as Box<dyn DirLock>))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let create =
            || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                create()?
            }
            created => created?,
        };
        Ok(Arc::new(SystemFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(SystemFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(SystemFile(fs::File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Refuses what is neither root's nor of the user of this process.
fn check_owner(owner: u32) -> io::Result<()> {
    if owner == 0 || owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let text = format!(
        "it belongs to user {owner}, not to the user of this process: run as that user, as with `runuser -u NAME --`"
    );
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

struct SystemFile(fs::File);

impl DirLock for SystemFile {}

impl File for SystemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), 0, len) {
            // Without support for preallocation the ballast is a no-op.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    fn lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.0, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn directories_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own/inner");
        SystemDisk.make_dir(&own).unwrap();
        SystemDisk.make_dir(&own).unwrap();
        assert!(check_owner(0).is_ok(), "root may replace anything anyway");
        let own_user = rustix::process::geteuid().as_raw();
        let other = own_user.wrapping_add(1).max(1);
        let refused = check_owner(other).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert!(refused.to_string().ends_with("as with `runuser -u NAME --`"), "{refused}");
        if own_user == 0 {
            std::os::unix::fs::chown(&own, Some(65_534), None).unwrap();
            let refused = SystemDisk.make_dir(&own).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 65534"), "{refused}");
        }
    }

    #[test]
    fn a_created_file_is_its_owners_whatever_had_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, others) = (folder.path().join("new"), folder.path().join("others"));
        fs::write(&others, "theirs").unwrap();
        fs::set_permissions(&others, fs::Permissions::from_mode(0o666)).unwrap();
        for place in [
            (|others, path| symlink(others, path)) as fn(&Path, &Path) -> io::Result<()>,
            |others, path| fs::hard_link(others, path),
            |_, path| fs::write(path, "an older one"),
            |_, _| Ok(()),
        ] {
            place(&others, &path).unwrap();
            SystemDisk.create(&path).unwrap().write_at(0, b"secret").unwrap();
            assert_eq!(fs::read(&others).unwrap(), b"theirs");
            let written = fs::symlink_metadata(&path).unwrap();
            assert!(written.is_file() && written.mode() & 0o777 == 0o600, "{:o}", written.mode());
            assert_eq!(written.len(), 6);
            fs::remove_file(&path).unwrap();
        }
    }
}
