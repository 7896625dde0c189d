//! Disk usage of a directory that the pod may change concurrently, and hostilely.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::path::Arg;
use std::os::fd::AsFd;
use std::path::Path;

/// Max nesting of directories, each of which is kept open.
const MAX_DEPTH: usize = 128;

/// Bytes below a directory; 0 if it is missing. Links are not followed. `u64::MAX` if it cannot be
/// counted: directories are nested deeper than [`MAX_DEPTH`], or `may_continue`, called for each
/// file, has returned false.
pub(super) fn size(folder: &Path, may_continue: &mut dyn FnMut() -> bool) -> u64 {
    let mut bytes: u64 = 0;
    // Each is opened relative to its parent, so that no rename or link can redirect the walk.
    let mut opened: Vec<Dir> = open(CWD, folder).into_iter().collect();
    while let Some(directory) = opened.last_mut() {
        let Some(Ok(entry)) = directory.read() else {
            opened.pop();
            continue;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if !may_continue() {
            return u64::MAX;
        }
        let Ok(parent) = directory.fd() else { continue };
        let Ok(meta) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let blocks = u64::try_from(meta.st_blocks).unwrap_or(0);
        bytes = bytes.saturating_add(blocks.saturating_mul(512));
        if FileType::from_raw_mode(meta.st_mode) != FileType::Directory {
            continue;
        }
        if let Some(inner) = open(parent, name) {
            if opened.len() >= MAX_DEPTH {
                return u64::MAX;
            }
            opened.push(inner);
        }
    }
    bytes
}

fn open(parent: impl AsFd, name: impl Arg) -> Option<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Dir::new(rustix::fs::openat(parent, name, flags, Mode::empty()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn all_files_count_and_links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        for path in [&inside.join("a/b"), &outside] {
            fs::create_dir_all(path).unwrap();
        }
        let write = |path: &Path| {
            fs::write(path, vec![1; 64 << 10]).unwrap();
            // Some file systems count blocks only then.
            fs::File::open(path).unwrap().sync_all().unwrap();
        };
        write(&outside.join("large"));
        symlink(&outside, inside.join("a/link")).unwrap();
        let all = |folder: &Path| size(folder, &mut || true);
        let before = all(&inside);
        assert!(before < 64 << 10, "{before}");
        write(&inside.join("a/b/large"));
        assert!((64 << 10..128 << 10).contains(&(all(&inside) - before)));
        assert_eq!(all(&inside.join("a/link")), 0, "not a directory itself");
        assert_eq!(all(&inside.join("missing")), 0);
    }

    #[test]
    fn what_cannot_be_counted_is_all_there_is() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let with = |mut left: u32| {
            size(folder.path(), &mut || {
                left -= 1;
                left > 0
            })
        };
        assert_eq!((with(4), with(3)), (0, u64::MAX));
        let mut deep = folder.path().to_owned();
        for _ in 1..MAX_DEPTH {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        assert!(size(folder.path(), &mut || true) < u64::MAX);
        fs::create_dir(deep.join("d")).unwrap();
        assert_eq!(size(folder.path(), &mut || true), u64::MAX);
    }
}
