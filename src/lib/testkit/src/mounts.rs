//! Mounts of tests, which must not outlive them.

use rustix::mount::UnmountFlags;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether something is mounted on a path, which has no spaces.
pub fn is_mount_point(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    mount_points().any(|point| point == path)
}

/// Unmounts everything on or below a directory when dropped, also by a test that fails. The path
/// has no spaces.
pub struct MountGuard(PathBuf);

impl MountGuard {
    /// For a directory that exists when this is dropped.
    pub fn new(directory: &Path) -> Self {
        Self(directory.to_owned())
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        let Ok(directory) = self.0.canonicalize() else { return };
        let below: Vec<_> = mount_points().filter(|point| point.starts_with(&directory)).collect();
        below.iter().for_each(|point| unmount_all(point));
    }
}

/// Unmounts all that is mounted on a path, as far as this process may; files that are open stay so.
pub(crate) fn unmount_all(path: &Path) {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    while is_mount_point(path) && rustix::mount::unmount(path, flags).is_ok() {}
}

/// The fifth field of each line of the kernel's table.
fn mount_points() -> impl Iterator<Item = PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points: Vec<_> =
        table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect();
    points.into_iter()
}
