//! Removal of a pod's directory, in which drivers of volumes may still mount.
//!
//! 1. What is mounted in it is an error: its files are not the pod's.
//! 2. It is renamed, so that drivers find their paths no longer. One that had found a path before
//!    still mounts there, so that 1. is repeated.
//! 3. Its entries are removed by descriptors of their directories. The kernel opens no directory on
//!    which something is mounted meanwhile (`RESOLVE_NO_XDEV`, which knows bind mounts, too), and
//!    removes none. Links are not followed.
//!
//! A kubelet that is killed meanwhile has left a directory that the next one removes.

use crate::background::in_background;
use crate::csi;
use crate::directories::{directories, pod_directory, removed_directories, removed_directory};
use crate::node::PodNode;
use crate::volumes;
use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

/// Directories that are open at a time. Deeper ones are moved up first.
const MAX_DEPTH: usize = 64;
/// Interval of searches for what killed kubelets have left.
const LEFT: Duration = Duration::from_secs(60);

/// Removes a pod's directory, whose volumes are unmounted; idempotent.
///
/// # Errors
/// Something is mounted in it, or it cannot be removed.
pub(crate) fn remove(root: &Path, uid: &str) -> io::Result<()> {
    let (directory, removed) = (pod_directory(root, uid), removed_directory(root, uid));
    // Of an earlier attempt.
    clear(&removed)?;
    refuse_mounts(&directory)?;
    if fs::symlink_metadata(&directory).is_err_and(|error| is_missing(&error)) {
        return Ok(());
    }
    let folder = removed_directories(root);
    DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    fs::rename(&directory, &removed)?;
    clear(&removed)
}

/// Removes what killed kubelets have left. Runs until dropped.
pub(crate) async fn run(node: &PodNode) {
    loop {
        let folder = removed_directories(&node.paths.root);
        let cleared = in_background(move || {
            let mut first = Ok(());
            for directory in directories(&folder)? {
                let cleared = clear(&directory);
                first = first.and(cleared);
            }
            first
        });
        if let Err(error) = cleared.await {
            tracing::warn!(%error, "cannot remove the directory of a pod that is gone");
        }
        tokio::time::sleep(LEFT).await;
    }
}

fn refuse_mounts(directory: &Path) -> io::Result<()> {
    match csi::mounted_below(directory)?.first() {
        Some(left) => Err(io::Error::other(format!("{} is still mounted", left.display()))),
        None => Ok(()),
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Removes a directory that has been renamed, if it is there.
fn clear(directory: &Path) -> io::Result<()> {
    // Of the pod's aborted worker, whose last file operation may have ended late.
    volumes::release_all(directory)?;
    refuse_mounts(directory)?;
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match fs::File::open(parent) {
        Err(error) if is_missing(&error) => return Ok(()),
        other => OwnedFd::from(other?),
    };
    remove_tree(&parent, &CString::new(name.as_bytes())?)
}

/// A directory that is being emptied.
struct EmptiedDirectory {
    name: CString,
    entries: Dir,
    /// Whether entries were removed or added since the first was read, so that some may have been
    /// skipped.
    has_changed: bool,
}

/// Removes a directory and all below it; another process may do the same.
fn remove_tree(folder: &OwnedFd, name: &CStr) -> io::Result<()> {
    // From the outermost to the innermost.
    let mut opened: Vec<EmptiedDirectory> = enter(folder, name)?.into_iter().collect();
    let mut moved = 0;
    loop {
        let depth = opened.len();
        let Some(current) = opened.last_mut() else { return Ok(()) };
        let Some(entry) = current.entries.read() else {
            leave(folder, &mut opened)?;
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        current.has_changed = true;
        let directory = current.entries.fd()?;
        if !is_directory(directory, &entry)? {
            removed(rustix::fs::unlinkat(directory, name, AtFlags::empty()))?;
        } else if depth < MAX_DEPTH {
            let inner = enter(directory, name)?;
            opened.extend(inner);
        } else {
            move_up(&mut opened, name, &mut moved)?;
        }
    }
}

fn is_directory(directory: impl AsFd, entry: &DirEntry) -> io::Result<bool> {
    let kind = match entry.file_type() {
        FileType::Unknown => {
            let found = rustix::fs::statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            match found {
                Err(Errno::NOENT) => return Ok(false),
                other => FileType::from_raw_mode(other?.st_mode),
            }
        }
        known => known,
    };
    Ok(kind == FileType::Directory)
}

/// `None` if it is gone.
fn enter(folder: impl AsFd, name: &CStr) -> io::Result<Option<EmptiedDirectory>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    let opened = match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::XDEV) => {
            let name = name.to_string_lossy();
            return Err(io::Error::other(format!("{name} of a removed pod is still mounted")));
        }
        other => other?,
    };
    let entries = Dir::new(opened)?;
    Ok(Some(EmptiedDirectory { name: name.to_owned(), entries, has_changed: false }))
}

/// Removes the innermost directory, unless it is to be read again.
fn leave(folder: &OwnedFd, opened: &mut Vec<EmptiedDirectory>) -> io::Result<()> {
    let Some(mut last) = opened.pop() else { return Ok(()) };
    let parent = match opened.last() {
        Some(parent) => parent.entries.fd()?,
        None => folder.as_fd(),
    };
    match rustix::fs::unlinkat(parent, &*last.name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if last.has_changed => {
            last.has_changed = false;
            last.entries.rewind();
            opened.push(last);
            Ok(())
        }
        other => removed(other),
    }
}

/// Moves an entry of the innermost directory to the outermost, which bounds how many are open.
fn move_up(opened: &mut [EmptiedDirectory], name: &CStr, moved: &mut u64) -> io::Result<()> {
    let [outermost, .., innermost] = opened else { return Ok(()) };
    outermost.has_changed = true;
    loop {
        let new = format!("moved-{moved}");
        *moved += 1;
        let (from, to) = (innermost.entries.fd()?, outermost.entries.fd()?);
        match rustix::fs::renameat(from, name, to, new) {
            // Of an earlier attempt.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            other => return removed(other),
        }
    }
}

/// A file that another task has removed is removed.
fn removed(done: Result<(), Errno>) -> io::Result<()> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directories::make_pod_directory;
    use crate::fixture::{self, RecordedEvents};
    use ferrokube_cri::Runtime;
    use ferrokube_cri::testing::FakeRuntime;
    use ferrokube_testkit::{BOUND, MountGuard, wait_until};
    use rustix::mount::UnmountFlags;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::Arc;
    use tempfile::TempDir;

    /// A kubelet's directory with a pod, and a directory outside with a file.
    struct RemovedPod {
        // Dropped before the folder is removed.
        _mounts: MountGuard,
        folder: TempDir,
        root: PathBuf,
        outside: PathBuf,
    }

    impl RemovedPod {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
            fs::create_dir(&outside).unwrap();
            fs::write(outside.join("file"), "kept").unwrap();
            make_pod_directory(&root, "u1").unwrap();
            Self { _mounts: MountGuard::new(folder.path()), folder, root, outside }
        }

        /// `false`: this process may not mount.
        fn mount(&self, target: &Path) -> bool {
            fs::create_dir_all(target).unwrap();
            let done = rustix::mount::mount_bind(&self.outside, target);
            if done.is_err() {
                eprintln!("skipped: this process may not mount");
            }
            done.is_ok()
        }

        fn is_kept(&self) -> bool {
            fs::read_to_string(self.outside.join("file")).is_ok_and(|text| text == "kept")
        }
    }

    #[test]
    fn a_tree_is_removed_however_deep_it_is_and_links_lead_nowhere() {
        let pod = RemovedPod::new();
        let own = pod_directory(&pod.root, "u1");
        fs::create_dir_all(own.join("volumes/a/b")).unwrap();
        fs::write(own.join("volumes/a/file"), "").unwrap();
        symlink(&pod.outside, own.join("volumes/a/link")).unwrap();
        // As a container makes it: longer than any path that the kernel takes.
        let mut opened = OwnedFd::from(fs::File::open(&own).unwrap());
        let name = "deep-in-the-directory";
        for _ in 0..300 {
            rustix::fs::mkdirat(&opened, name, Mode::RWXU).unwrap();
            opened = rustix::fs::openat(&opened, name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        for index in 0..200 {
            fs::write(own.join("volumes/a/b").join(index.to_string()), "").unwrap();
        }
        remove(&pod.root, "u1").unwrap();
        assert_eq!(fs::read_dir(removed_directories(&pod.root)).unwrap().count(), 0);
        assert!(!own.exists() && pod.is_kept());
        remove(&pod.root, "u1").unwrap();
    }

    #[test]
    fn what_a_killed_kubelet_has_left_is_removed_before_the_directory_and_without_it() {
        let pod = RemovedPod::new();
        let left = removed_directory(&pod.root, "u1");
        fs::create_dir_all(left.join("volumes")).unwrap();
        fs::write(left.join("moved-0"), "").unwrap();
        remove(&pod.root, "u1").unwrap();
        assert!(!left.exists() && !pod_directory(&pod.root, "u1").exists());
        fs::create_dir_all(left.join("volumes")).unwrap();
        remove(&pod.root, "u1").unwrap();
        assert!(!left.exists());
    }

    /// Secrets of pods are in their directories.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_kubelet_removes_what_killed_ones_have_left_of_pods_that_are_gone() {
        let pod = RemovedPod::new();
        fs::write(pod_directory(&pod.root, "u1").join("secret"), "s3cret").unwrap();
        fs::create_dir_all(removed_directory(&pod.root, "u2").join("volumes")).unwrap();
        let other = pod_directory(&pod.root, "of-another-kubelet");
        fs::create_dir_all(&other).unwrap();
        let runtime = Runtime::new(Arc::<FakeRuntime>::default());
        let fields = ", evictionHard: {memory.available: 0%}, imageGCHighThresholdPercent: 100";
        let events = Arc::<RecordedEvents>::default();
        let kubelet = fixture::kubelet(runtime, fields, pod.folder.path(), events);
        let (_, _, loops) = kubelet.loops(None);
        let kubelet = tokio::spawn(loops);
        let removed = || async {
            let pods = [pod_directory(&pod.root, "u1"), removed_directory(&pod.root, "u2")];
            let left = pods.map(|path| path.exists());
            if left == [false; 2] { Ok(()) } else { Err(format!("{left:?}")) }
        };
        wait_until("nothing is left", BOUND, removed).await;
        assert!(other.is_dir());
        kubelet.abort();
    }

    /// A driver without locks mounts after the check: before the rename, and after it.
    #[test]
    fn a_volume_that_is_mounted_late_keeps_its_files() {
        let pod = RemovedPod::new();
        for directory in [pod_directory(&pod.root, "u1"), removed_directory(&pod.root, "u1")] {
            let target = directory.join("volumes/kubernetes.io~csi/pv-1/mount");
            if !pod.mount(&target) {
                return;
            }
            let refused = remove(&pod.root, "u1").unwrap_err().to_string();
            assert!(refused.ends_with("pv-1/mount is still mounted"), "{refused}");
            rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
        }
        // Of the same file system, and after all checks.
        let parent = OwnedFd::from(fs::File::open(pod.folder.path()).unwrap());
        let tree = pod.folder.path().join("tree");
        let target = tree.join("mount");
        assert!(pod.mount(&target));
        let refused = remove_tree(&parent, c"tree").unwrap_err().to_string();
        assert_eq!(refused, "mount of a removed pod is still mounted");
        assert!(pod.is_kept());
        rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
        remove_tree(&parent, c"tree").unwrap();
        remove(&pod.root, "u1").unwrap();
        assert!(!tree.exists() && !pod_directory(&pod.root, "u1").exists() && pod.is_kept());
    }
}
