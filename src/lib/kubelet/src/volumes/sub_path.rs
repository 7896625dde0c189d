//! `subPath`: mounts part of a volume into a container.
//!
//! Other containers of the pod may replace any path component with a link at any time. So the
//! kernel resolves the path once, beneath the volume's directory, and the opened descriptor is
//! bind-mounted to a target that only the kubelet can change. The runtime gets the path of that
//! target: nothing is resolved after the check.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Max attempts to resolve a path with concurrent renames.
const TRIES: usize = 100;
/// Directory of targets in the pod's directory, with entries `VOLUME/CONTAINER/INDEX` as in
/// kubelet.
const FOLDER: &str = "volume-subpaths";

/// The step that failed.
#[derive(Debug)]
pub(super) enum SubPathFailure {
    /// Creating a missing directory.
    Create(io::Error),
    /// Resolving or mounting it.
    Prepare(io::Error),
}

/// Mount point of a container's sub path.
pub(super) fn target(pod: &Path, volume: &str, container: &str, index: usize) -> PathBuf {
    pod.join(FOLDER).join(volume).join(container).join(index.to_string())
}

/// Bind-mounts a path of a volume to a target, replacing a previous mount. Missing directories are
/// created with the mode of the volume's.
pub(super) fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<(), SubPathFailure> {
    let source = open(volume, sub_path)?;
    bind_opened(&source, target).map_err(SubPathFailure::Prepare)
}

fn open(volume: &Path, sub_path: &str) -> Result<OwnedFd, SubPathFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(volume, flags, Mode::empty());
    let root = root.map_err(|error| SubPathFailure::Prepare(error.into()))?;
    let resolved = match beneath(&root, Path::new(sub_path), OFlags::PATH) {
        Err(Errno::NOENT) => {
            make(&root, Path::new(sub_path)).map_err(SubPathFailure::Create)?;
            beneath(&root, Path::new(sub_path), OFlags::PATH)
        }
        other => other,
    };
    resolved.map_err(|error| SubPathFailure::Prepare(error.into()))
}

/// Opens a path beneath `root`, following links that stay beneath it: files of config maps are
/// links.
fn beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC;
    let mut opened = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve);
    // The kernel fails when a component was renamed concurrently.
    for _ in 1..TRIES {
        match opened {
            Err(Errno::AGAIN) => {
                opened = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve);
            }
            other => return other,
        }
    }
    opened
}

fn make(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode & 0o7777);
    let mut folder = root.try_clone()?;
    let mut way = PathBuf::new();
    for part in path.components() {
        let part = match part {
            Component::Normal(part) => part,
            Component::CurDir => continue,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        way.push(part);
        folder = match beneath(root, &way, OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&folder, part, mode)?;
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&folder, part, flags, Mode::empty())?;
                // Undo the umask.
                rustix::fs::fchmod(&made, mode)?;
                made
            }
            other => other?,
        };
    }
    Ok(())
}

fn bind_opened(source: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(source, "", flags)?;
    release(target)?;
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    let stat = rustix::fs::statat(source, "", AtFlags::EMPTY_PATH)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        fs::create_dir(target)?;
    } else {
        File::create_new(target)?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, target, flags)?)
}

/// Unmounts a target and removes it. Running containers keep their mounts.
fn release(target: &Path) -> io::Result<()> {
    loop {
        match rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    // Not recursive: if the target were still mounted, that would delete the volume's content.
    match fs::symlink_metadata(target)?.is_dir() {
        true => fs::remove_dir(target),
        false => fs::remove_file(target),
    }
}

/// Releases all targets of a pod.
pub(super) fn release_all(pod: &Path) -> io::Result<()> {
    let all = pod.join(FOLDER);
    if !all.try_exists()? {
        return Ok(());
    }
    for volume in fs::read_dir(&all)? {
        let volume = volume?.path();
        for container in fs::read_dir(&volume)? {
            let container = container?.path();
            for target in fs::read_dir(&container)? {
                release(&target?.path())?;
            }
            fs::remove_dir(container)?;
        }
        fs::remove_dir(volume)?;
    }
    fs::remove_dir(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn inode(opened: &OwnedFd) -> (u64, u64) {
        let stat = rustix::fs::statat(opened, "", AtFlags::EMPTY_PATH).unwrap();
        (stat.st_dev, stat.st_ino)
    }

    fn inode_at(path: &Path) -> (u64, u64) {
        let meta = fs::metadata(path).unwrap();
        (meta.dev(), meta.ino())
    }

    #[test]
    fn fault_56_a_path_is_resolved_beneath_its_volume() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        fs::create_dir_all(volume.join("..data")).unwrap();
        fs::create_dir_all(outside.join("deep")).unwrap();
        fs::write(volume.join("..data/key"), "x").unwrap();
        symlink("..data/key", volume.join("key")).unwrap();
        symlink("../outside", volume.join("up")).unwrap();
        symlink(&outside, volume.join("absolute")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        symlink("nothing", volume.join("dangling")).unwrap();
        let key = open(&volume, "key").unwrap();
        assert_eq!(inode(&key), inode_at(&volume.join("..data/key")));
        for path in ["up", "up/deep", "absolute", "magic", "..", "/etc"] {
            let refused = open(&volume, path);
            assert!(matches!(refused, Err(SubPathFailure::Prepare(_))), "{path}: {refused:?}");
        }
        for path in
            ["up/new", "absolute/new", "dangling", "dangling/new", "key/new", "a/../../outside"]
        {
            assert!(open(&volume, path).is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
        assert_eq!(fs::read_dir(outside.join("deep")).unwrap().count(), 0);
    }

    #[test]
    fn missing_directories_get_the_mode_of_the_volume() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let opened = open(folder.path(), "a/./b").unwrap();
        let made = folder.path().join("a/b");
        assert_eq!(inode(&opened), inode_at(&made));
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o7777, 0o777);
        assert_eq!(fs::metadata(folder.path().join("a")).unwrap().mode() & 0o7777, 0o777);
    }

    /// A container that swaps a directory for a link to the outside, as fast as it can.
    #[test]
    fn fault_56_a_directory_that_is_swapped_for_a_link_is_never_left() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, outside) = (folder.path().join("volume"), folder.path().join("outside"));
        fs::create_dir_all(volume.join("own/deep")).unwrap();
        fs::create_dir_all(outside.join("deep")).unwrap();
        symlink("../outside", volume.join("link")).unwrap();
        let inside = inode_at(&volume.join("own/deep"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                while !is_over.load(Ordering::Relaxed) {
                    let (own, link) = (volume.join("own"), volume.join("link"));
                    rustix::fs::renameat_with(CWD, &own, CWD, &link, flags).unwrap();
                }
            });
            for _ in 0..2000 {
                match open(&volume, "own/deep") {
                    Ok(opened) => assert_eq!(inode(&opened), inside),
                    Err(SubPathFailure::Prepare(_) | SubPathFailure::Create(_)) => {}
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn a_pod_without_parts_of_volumes_has_nothing_to_release() {
        release_all(tempfile::tempdir().unwrap().path()).unwrap();
    }

    /// Only where this process may mount.
    #[test]
    fn fault_56_the_checked_path_is_bound_and_survives_its_release() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, pod) = (folder.path().join("volume"), folder.path().join("pod"));
        fs::create_dir_all(volume.join("a")).unwrap();
        fs::write(volume.join("a/file"), "kept").unwrap();
        fs::create_dir(&pod).unwrap();
        let (directory, file) = (target(&pod, "v", "c", 0), target(&pod, "v", "c", 1));
        match bind(&volume, "a", &directory) {
            Err(SubPathFailure::Prepare(error))
                if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) =>
            {
                eprintln!("skipped: this process may not mount");
                return;
            }
            other => other.unwrap(),
        }
        bind(&volume, "a/file", &file).unwrap();
        // Swapped after the check: the target stays what was checked.
        fs::rename(volume.join("a"), volume.join("b")).unwrap();
        symlink("/etc", volume.join("a")).unwrap();
        assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        bind(&volume, "b", &directory).unwrap();
        assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "kept", "bound again");
        release_all(&pod).unwrap();
        assert_eq!(fs::read_dir(&pod).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(volume.join("b/file")).unwrap(), "kept");
    }
}
