//! Files with keys: written atomically, readable only by their owner.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

/// Why a file or directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A system call failed.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users may read or write it.
    #[error("{path} is open to others (mode {mode:04o}): run `chmod go= {path}`")]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// Permission bits found.
        mode: u32,
    },
    /// It belongs to another user.
    #[error(
        "{path} belongs to user {owner}, not to the user of this process: run as that user, as with `runuser -u NAME --`"
    )]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Uid of the owner found.
        owner: u32,
    },
    /// A directory, pipe or device.
    #[error("{path} is not a regular file")]
    Special {
        /// The file.
        path: PathBuf,
    },
    /// Larger than such a file can be.
    #[error("{path} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The same for all files of keys, certificates and tokens.
        limit_bytes: u64,
    },
}

/// Max size of keys, certificates and token files.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Creates a directory and its parents with mode 0700, or checks that an existing one is ours and
/// private.
///
/// # Errors
/// [`FileError`].
pub fn private_directory(path: &Path) -> Result<(), FileError> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => check_private(path),
        Err(source) => {
            Err(FileError::Io { what: "make the directory", path: path.to_owned(), source })
        }
    }
}

/// Checks that a file or directory belongs to us or root, and that other users have no access. A
/// group of ours may read what is root's: root chose it, as kubelets do for mounted Secrets
/// (`fsGroup`), and Debian for the group `ssl-cert`.
///
/// # Errors
/// [`FileError`].
pub fn check_private(path: &Path) -> Result<(), FileError> {
    let metadata = fs::metadata(path).map_err(|source| FileError::Io {
        what: "inspect",
        path: path.to_owned(),
        source,
    })?;
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(FileError::Foreign { path: path.to_owned(), owner });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & forbidden(&metadata, &own_groups()) != 0 {
        return Err(FileError::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Permissions that must not be set, for a process in these groups. Root's group does not count:
/// many programs share it.
fn forbidden(metadata: &fs::Metadata, groups: &[u32]) -> u32 {
    let group = metadata.gid();
    let is_shared =
        metadata.uid() == 0 && metadata.is_file() && group != 0 && groups.contains(&group);
    if is_shared { 0o037 } else { 0o077 }
}

fn own_groups() -> Vec<u32> {
    let others = rustix::process::getgroups().unwrap_or_default();
    others.into_iter().chain([rustix::process::getegid()]).map(|group| group.as_raw()).collect()
}

/// Reads a file; `Ok(None)` if it does not exist.
///
/// # Errors
/// [`FileError::Io`], [`FileError::TooLarge`].
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let refused = |source| FileError::Io { what: "read", path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error)),
    };
    read_bounded(file, path).map(Some)
}

fn read_bounded(file: File, path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(refused("read", path))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(FileError::TooLarge { path: path.to_owned(), limit_bytes: MAX_FILE_BYTES });
    }
    Ok(bytes)
}

/// As [`read`], but never waits: pipes and devices are refused. For files that others name.
///
/// # Errors
/// [`FileError::Io`], [`FileError::Special`], [`FileError::TooLarge`].
pub fn read_regular(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let refused = |source: io::Error| FileError::Io { what: "read", path: path.to_owned(), source };
    let opened = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let file = match opened {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        // A socket, or a device that is not there.
        Err(rustix::io::Errno::NXIO) => return Err(FileError::Special { path: path.to_owned() }),
        Err(error) => return Err(refused(error.into())),
    };
    if !file.metadata().map_err(refused)?.is_file() {
        return Err(FileError::Special { path: path.to_owned() });
    }
    read_bounded(file, path).map(Some)
}

/// Reads a file with a secret; `Ok(None)` if it does not exist.
///
/// # Errors
/// As [`read`] and [`check_private`].
pub fn read_private(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let bytes = read(path)?;
    if bytes.is_some() {
        check_private(path)?;
    }
    Ok(bytes)
}

/// Mode of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Owner only: 0600.
    Private,
    /// World-readable: 0644.
    Public,
}

/// Replaces files of one directory, each atomically, also in case of power loss. All are durable
/// before the first is renamed; they are renamed in order.
///
/// # Errors
/// [`FileError::Io`].
pub fn write_all(directory: &Path, files: &[(&str, &[u8], FileMode)]) -> Result<(), FileError> {
    let paths: Vec<[PathBuf; 2]> = files
        .iter()
        .map(|(name, ..)| [directory.join(format!(".{name}.new")), directory.join(name)])
        .collect();
    let mut written = Vec::new();
    for ([temporary, path], (_, bytes, mode)) in paths.iter().zip(files) {
        let file = open_new(temporary, *mode).and_then(|mut file| {
            file.write_all(bytes)?;
            Ok(file)
        });
        written.push((path.as_path(), file.map_err(refused("write", path))?));
    }
    sync_together(&written)?;
    for [temporary, path] in &paths {
        fs::rename(temporary, path).map_err(refused("write", path))?;
    }
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(refused("sync", directory))
}

/// Syncs files at the same time: the file system commits them together.
fn sync_together(files: &[(&Path, File)]) -> Result<(), FileError> {
    let sync = |(path, file): &(&Path, File)| file.sync_data().map_err(refused("sync", path));
    thread::scope(|scope| {
        let Some((last, others)) = files.split_last() else { return Ok(()) };
        let mut tasks = Vec::new();
        for file in others {
            match thread::Builder::new().spawn_scoped(scope, move || sync(file)) {
                Ok(task) => tasks.push(task),
                // At the limit of tasks.
                Err(_) => sync(file)?,
            }
        }
        sync(last)?;
        tasks.into_iter().try_for_each(|task| task.join().expect("a system call does not panic"))
    })
}

/// Error of an operation on a path.
fn refused(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { what, path, source }
}

/// Replaces one file; see [`write_all`].
///
/// # Errors
/// [`FileError::Io`].
pub fn write(path: &Path, bytes: &[u8], mode: FileMode) -> Result<(), FileError> {
    let refused = || FileError::Io {
        what: "write",
        path: path.to_owned(),
        source: io::ErrorKind::InvalidInput.into(),
    };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(refused)?;
    let directory = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    write_all(directory, &[(name, bytes, mode)])
}

/// Replaces a file that is rewritten at every start: atomically, but without syncing.
///
/// # Errors
/// [`FileError::Io`].
pub fn write_volatile(path: &Path, bytes: &[u8], mode: FileMode) -> Result<(), FileError> {
    let temporary = path.with_extension("new");
    open_new(&temporary, mode)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(refused("write", path))
}

/// Creates a file. What has the name is replaced, not opened: it may be another user's, or a link.
fn open_new(path: &Path, mode: FileMode) -> io::Result<File> {
    let mode = match mode {
        FileMode::Private => 0o600,
        FileMode::Public => 0o644,
    };
    let create = || OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let file = match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create()?
        }
        created => created?,
    };
    // The umask may have cleared bits.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_replaced_with_their_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert!(read_private(&path).unwrap().is_none());
        write(&path, b"one", FileMode::Private).unwrap();
        write(&path, b"two", FileMode::Private).unwrap();
        assert_eq!(read_private(&path).unwrap().unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        write(&path, b"two", FileMode::Public).unwrap();
        assert!(matches!(read_private(&path), Err(FileError::Open { mode: 0o644, .. })));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no leftovers");
    }

    #[test]
    fn no_file_is_replaced_before_all_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let replace = |names: [&'static str; 3]| {
            let files = names.map(|name| (name, &b"new"[..], FileMode::Private));
            write_all(directory.path(), &files)
        };
        write(&path("one"), b"old", FileMode::Private).unwrap();
        assert!(replace(["one", "two", "none/three"]).is_err());
        assert_eq!(fs::read(path("one")).unwrap(), b"old");
        assert!(!path("two").exists());
        replace(["one", "two", "three"]).unwrap();
        for name in ["one", "two", "three"] {
            assert_eq!(fs::read(path(name)).unwrap(), b"new", "{name}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "no leftovers");
    }

    /// In a directory that others may write to, such as /tmp.
    #[test]
    fn what_others_prepared_under_the_temporary_name_is_not_written_to() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let (path, others) = (directory.path().join("key"), directory.path().join("others"));
        fs::write(&others, "theirs").unwrap();
        fs::set_permissions(&others, fs::Permissions::from_mode(0o666)).unwrap();
        for (name, write) in [
            (".key.new", write as fn(&Path, &[u8], FileMode) -> Result<(), FileError>),
            ("key.new", write_volatile),
        ] {
            let temporary = directory.path().join(name);
            for prepare in [
                (|others, path| symlink(others, path)) as fn(&Path, &Path) -> io::Result<()>,
                |others, path| fs::hard_link(others, path),
            ] {
                prepare(&others, &temporary).unwrap();
                write(&path, b"secret", FileMode::Private).unwrap();
                assert_eq!(fs::read(&others).unwrap(), b"theirs", "{name}");
                let written = fs::symlink_metadata(&path).unwrap();
                assert!(written.is_file() && written.nlink() == 1, "{name}");
                assert_eq!(read_private(&path).unwrap().unwrap(), b"secret");
                assert_eq!(fs::metadata(&others).unwrap().mode() & 0o777, 0o666);
            }
        }
    }

    /// As kubelets mount Secrets: root's, for a group of the process.
    #[test]
    fn a_group_of_the_process_may_read_what_is_roots() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        write(&path, b"key", FileMode::Private).unwrap();
        let with = |group: Option<u32>, mode| {
            std::os::unix::fs::chown(&path, Some(0), group).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            check_private(&path)
        };
        // Group 0, and one that this process is no member of.
        assert!(matches!(with(Some(0), 0o640), Err(FileError::Open { .. })));
        assert!(matches!(with(Some(65_532), 0o640), Err(FileError::Open { .. })));
        let bits = |path: &Path, groups: &[u32]| forbidden(&fs::metadata(path).unwrap(), groups);
        std::os::unix::fs::chown(&path, Some(0), Some(65_532)).unwrap();
        assert_eq!(bits(&path, &[0, 65_532]), 0o037, "it may read, others may nothing");
        assert_eq!(bits(&path, &[0, 65_531]), 0o077, "no member");
        std::os::unix::fs::chown(&path, Some(65_530), None).unwrap();
        assert_eq!(bits(&path, &[65_532]), 0o077, "not root's");
        let message = check_private(&path).unwrap_err().to_string();
        assert!(message.contains("user 65530") && message.contains("`runuser -u "), "{message}");
        std::os::unix::fs::chown(directory.path(), Some(0), Some(65_532)).unwrap();
        assert_eq!(bits(directory.path(), &[65_532]), 0o077, "a directory");
        std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        assert_eq!(bits(&path, &[0]), 0o077, "root's group");
    }

    #[test]
    fn reading_what_others_name_never_waits() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        for name in ["pipe", "socket", "device", ""] {
            let read = read_regular(&path(name));
            assert!(matches!(read, Err(FileError::Special { .. })), "{name}: {read:?}");
        }
        assert!(matches!(read_regular(&path("loop")), Err(FileError::Io { .. })));
        assert!(read_regular(&path("none")).unwrap().is_none());
        fs::write(path("file"), "text").unwrap();
        assert_eq!(read_regular(&path("file")).unwrap().unwrap(), b"text");
    }

    #[test]
    fn directories_that_others_can_enter_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        private_directory(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let message = private_directory(&path).unwrap_err().to_string();
        assert!(message.contains("chmod go= "), "{message}");
    }
}
