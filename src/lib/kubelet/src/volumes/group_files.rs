//! `fsGroup` on a volume that others write at the same time: gives each file to the group.
//!
//! Each file is opened relative to its directory without following links, and changed through its
//! descriptor, so that no rename or link can redirect the change.

use super::ownership::Ownership;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat};
use rustix::path::Arg;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Max nesting of directories, each of which is kept open.
const MAX_DEPTH: usize = 128;
/// Permissions and the bits above them.
const MODE: u32 = 0o7777;

/// Gives a volume's files and directories to a group, which may read and write them. With
/// `if_needed` only if its root is not the group's yet (`OnRootMismatch`). Links keep their
/// targets.
///
/// # Errors
/// The first file that cannot be changed, or directories nested deeper than [`MAX_DEPTH`].
pub(crate) fn give(volume: &Path, group: u32, if_needed: bool) -> io::Result<()> {
    let rules = Ownership::writable(Some(group));
    let root = open(CWD, volume, OFlags::DIRECTORY)?;
    let stat = rustix::fs::fstat(&root)?;
    if if_needed && stat.st_gid == group && stat.st_mode & MODE == wanted(rules, &stat) {
        return Ok(());
    }
    let mut opened = vec![read(&root)?];
    while let Some(directory) = opened.last_mut() {
        let Some(entry) = directory.read() else {
            opened.pop();
            continue;
        };
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let file = match open(directory.fd()?, entry.file_name(), OFlags::empty()) {
            // Removed since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let stat = rustix::fs::fstat(&file)?;
        change(&file, &stat, rules, group)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            if opened.len() >= MAX_DEPTH {
                let text = format!("more than {MAX_DEPTH} directories in each other");
                return Err(io::Error::other(text));
            }
            opened.push(read(&file)?);
        }
    }
    // Last, so that an interrupted change is seen as needed.
    change(&root, &stat, rules, group)
}

fn open(parent: impl AsFd, name: impl Arg, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn read(directory: &OwnedFd) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    Ok(Dir::new(readable)?)
}

fn wanted(rules: Ownership, stat: &Stat) -> u32 {
    let mode = stat.st_mode & MODE;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => rules.directory(mode),
        _ => rules.file(mode),
    }
}

fn change(file: &OwnedFd, stat: &Stat, rules: Ownership, group: u32) -> io::Result<()> {
    if stat.st_gid != group {
        let group = Some(Gid::from_raw(group));
        rustix::fs::chownat(file, "", None, group, AtFlags::EMPTY_PATH)?;
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Ok(());
    }
    // A descriptor of a path cannot be changed itself, its entry in /proc can.
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(own, Permissions::from_mode(wanted(rules, stat)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// Groups that this process may give files to: any for root, else its own.
    fn group() -> u32 {
        if rustix::process::geteuid().is_root() {
            4242
        } else {
            rustix::process::getegid().as_raw()
        }
    }

    fn seen(path: &Path) -> (u32, u32) {
        let meta = fs::symlink_metadata(path).unwrap();
        (meta.gid(), meta.mode() & MODE)
    }

    #[test]
    fn all_files_are_given_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        let secret = outside.join("secret");
        for file in [volume.join("a/b/file"), secret.clone()] {
            fs::write(&file, "x").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        }
        for directory in [&volume, &volume.join("a"), &volume.join("a/b")] {
            fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        }
        symlink(&secret, volume.join("link")).unwrap();
        symlink(&outside, volume.join("a/linked")).unwrap();
        let before = [seen(&secret), seen(&outside)];
        give(&volume, group(), false).unwrap();
        assert_eq!(seen(&volume), (group(), 0o2775));
        assert_eq!(seen(&volume.join("a/b")), (group(), 0o2775));
        assert_eq!(seen(&volume.join("a/b/file")), (group(), 0o660));
        assert_eq!([seen(&secret), seen(&outside)], before, "fault 56");
    }

    #[test]
    fn if_needed_only_the_root_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        give(folder.path(), group(), true).unwrap();
        assert_eq!(seen(&file).1 & 0o060, 0o060, "it was needed");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        give(folder.path(), group(), true).unwrap();
        assert_eq!(seen(&file).1, 0o600);
        give(folder.path(), group(), false).unwrap();
        assert_eq!(seen(&file).1, 0o660);
    }
}
