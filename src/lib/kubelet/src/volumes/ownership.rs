//! `fsGroup`: the group of a volume's files, which all processes of the pod belong to.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// kubelet's permission masks for the group.
const READ: u32 = 0o440;
const WRITE: u32 = 0o660;
/// Directories are searchable and setgid, so that new files inherit the group.
const SEARCH: u32 = 0o2110;

/// Group and modes of a volume's files. Without a group, modes are as given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    group: Option<u32>,
    access: u32,
}

impl Ownership {
    /// Ownership of files that only the kubelet writes.
    pub(super) fn read_only(group: Option<u32>) -> Self {
        Self { group, access: READ }
    }

    /// Ownership of files that the pod writes.
    pub(super) fn writable(group: Option<u32>) -> Self {
        Self { group, access: WRITE }
    }

    /// The mode of a file with the group's permissions added.
    pub(super) fn file(self, mode: u32) -> u32 {
        self.group.map_or(mode, |_| mode | self.access)
    }

    /// The mode of a directory with the group's permissions added.
    pub(super) fn directory(self, mode: u32) -> u32 {
        self.group.map_or(mode, |_| mode | self.access | SEARCH)
    }

    /// Whether a file has the group.
    pub(super) fn is_of(self, meta: &Metadata) -> bool {
        self.group.is_none_or(|group| meta.gid() == group)
    }

    /// Sets a file's group and mode. Follows links, so use it only on files that the kubelet alone
    /// can replace.
    pub(super) fn give_file(self, path: &Path, mode: u32) -> io::Result<()> {
        self.give(path, self.file(mode))
    }

    /// The same for a directory.
    pub(super) fn give_directory(self, path: &Path, mode: u32) -> io::Result<()> {
        self.give(path, self.directory(mode))
    }

    fn give(self, path: &Path, mode: u32) -> io::Result<()> {
        if self.group.is_some() {
            chown(path, None, self.group)?;
        }
        fs::set_permissions(path, Permissions::from_mode(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_kubelet_s() {
        let (own, shared) = (Ownership::read_only(Some(7)), Ownership::writable(Some(7)));
        assert_eq!((own.file(0o400), own.directory(0o755)), (0o440, 0o2755));
        assert_eq!((shared.file(0o600), shared.directory(0o777)), (0o660, 0o2777));
        let none = Ownership::read_only(None);
        assert_eq!((none.file(0o400), none.directory(0o755)), (0o400, 0o755));
    }
}
