//! Atomic updates of a volume's files, in kubelet's layout: a new directory, and a link `..data` to
//! it that is replaced by a rename.

use super::ownership::Ownership;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
const DIRECTORY_MODE: u32 = 0o755;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeFile {
    pub(super) bytes: Vec<u8>,
    /// Permissions.
    pub(super) mode: u32,
}

/// By relative path.
pub(super) type VolumeFiles = BTreeMap<String, VolumeFile>;

/// Whether a path stays within the volume and avoids the layout's reserved names.
pub(super) fn is_inside(path: &str) -> bool {
    let parts = Path::new(path).components();
    !path.is_empty()
        && !path.starts_with("..")
        && parts.clone().all(|part| matches!(part, Component::Normal(_)))
}

/// Writes the files if they differ from the existing ones.
pub(super) fn write(target: &Path, files: &VolumeFiles, ownership: Ownership) -> io::Result<()> {
    fs::create_dir_all(target)?;
    ownership.give_directory(target, DIRECTORY_MODE)?;
    let data = target.join(DATA);
    let old = fs::read_link(&data).ok();
    if old.is_some() && is_same(&data, files, ownership) {
        return link_names(target, files);
    }
    // The next unused directory number.
    let number =
        old.as_ref().and_then(|old| old.to_string_lossy().strip_prefix("..")?.parse::<u64>().ok());
    let name = format!("..{}", number.map_or(1, |number| number.wrapping_add(1)));
    let made = target.join(&name);
    remove(&made)?;
    DirBuilder::new().mode(0o700).create(&made)?;
    ownership.give_directory(&made, DIRECTORY_MODE)?;
    for (path, file) in files {
        if !is_inside(path) {
            return Err(io::Error::other(format!("invalid path {path:?}")));
        }
        make_folders(&made, path, ownership)?;
        let path = made.join(path);
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        out.write_all(&file.bytes)?;
        ownership.give_file(&path, file.mode)?;
    }
    let next = target.join(NEW_DATA);
    remove(&next)?;
    symlink(&name, &next)?;
    fs::rename(&next, &data)?;
    link_names(target, files)?;
    old.map_or(Ok(()), |old| remove(&target.join(old)))
}

/// Creates the parent directories of a file.
fn make_folders(made: &Path, path: &str, ownership: Ownership) -> io::Result<()> {
    for (end, _) in path.match_indices('/') {
        let folder = made.join(&path[..end]);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => ownership.give_directory(&folder, DIRECTORY_MODE)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_same(data: &Path, files: &VolumeFiles, ownership: Ownership) -> bool {
    let is_there = |(path, file): (&String, &VolumeFile)| {
        let path = data.join(path);
        let has_mode = |meta: fs::Metadata| {
            meta.permissions().mode() & 0o7777 == ownership.file(file.mode)
                && ownership.is_of(&meta)
        };
        fs::metadata(&path).is_ok_and(has_mode)
            && fs::read(&path).is_ok_and(|bytes| bytes == file.bytes)
    };
    files.iter().all(is_there) && count(data) == Some(files.len())
}

/// Number of files below a directory.
fn count(folder: &Path) -> Option<usize> {
    let mut files = 0;
    for entry in fs::read_dir(folder).ok()? {
        let entry = entry.ok()?;
        files += if entry.file_type().ok()?.is_dir() { count(&entry.path())? } else { 1 };
    }
    Some(files)
}

/// Links the first component of each path, and removes all other links.
fn link_names(target: &Path, files: &VolumeFiles) -> io::Result<()> {
    let names: BTreeSet<&str> =
        files.keys().map(|path| path.split('/').next().unwrap_or(path)).collect();
    for name in &names {
        match symlink(Path::new(DATA).join(name), target.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    for entry in fs::read_dir(target)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_old =
            name.to_str().is_some_and(|name| !name.starts_with("..") && !names.contains(name));
        if is_old {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn write(target: &Path, files: &VolumeFiles) -> io::Result<()> {
        super::write(target, files, Ownership::read_only(None))
    }

    fn files(all: &[(&str, &str)]) -> VolumeFiles {
        let file = |text: &str| VolumeFile { bytes: text.as_bytes().to_vec(), mode: 0o640 };
        all.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
    }

    #[test]
    fn files_are_replaced_all_at_once_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("v");
        let read = |path: &str| fs::read_to_string(target.join(path)).ok();
        write(&target, &files(&[("a", "1"), ("d/b", "2")])).unwrap();
        assert_eq!((read("a"), read("d/b")), (Some("1".into()), Some("2".into())));
        let first = fs::read_link(target.join(DATA)).unwrap();
        write(&target, &files(&[("a", "1"), ("d/b", "2")])).unwrap();
        assert_eq!(fs::read_link(target.join(DATA)).unwrap(), first, "nothing has changed");
        write(&target, &files(&[("a", "3")])).unwrap();
        assert_eq!((read("a"), read("d/b")), (Some("3".into()), None));
        assert!(!target.join(&first).exists());
        assert!(fs::symlink_metadata(target.join("d")).is_err());
        let mode = fs::metadata(target.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn files_get_the_group_of_the_pod_also_if_only_that_changes() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("v");
        let all = files(&[("a", "1"), ("d/e/b", "2")]);
        write(&target, &all).unwrap();
        // Only root may set any group.
        let own = fs::metadata(&target).unwrap();
        let group = if own.uid() == 0 { 4242 } else { own.gid() };
        let ownership = Ownership::read_only(Some(group));
        let facts = |path: &str| {
            let meta = fs::metadata(target.join(path)).unwrap();
            (meta.gid(), meta.mode() & 0o7777)
        };
        for _ in 0..2 {
            super::write(&target, &all, ownership).unwrap();
            for path in ["", DATA, "d", "d/e"] {
                assert_eq!(facts(path), (group, 0o2755), "{path}");
            }
            for path in ["a", "d/e/b"] {
                assert_eq!(facts(path), (group, 0o640), "{path}");
            }
        }
        super::write(&target, &all, Ownership::read_only(None)).unwrap();
    }

    #[test]
    fn remains_of_a_killed_write_do_not_stop_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("v");
        write(&target, &files(&[("a", "1")])).unwrap();
        fs::create_dir_all(target.join("..2/junk")).unwrap();
        symlink("..2", target.join(NEW_DATA)).unwrap();
        write(&target, &files(&[("a", "2")])).unwrap();
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "2");
    }

    #[test]
    fn fault_60_paths_do_not_leave_the_volume() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "..data", "a/../../x", "", "./x"] {
            assert!(!is_inside(path), "{path:?}");
            assert!(write(&folder.path().join("v"), &files(&[(path, "x")])).is_err(), "{path:?}");
        }
        assert!(is_inside("a/b"));
        assert!(!folder.path().join("x").exists());
    }
}
