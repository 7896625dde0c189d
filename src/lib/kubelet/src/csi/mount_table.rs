//! The kernel's table of mounts: read without touching what is mounted, which may hang.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/self/mountinfo";

/// Whether something is mounted on a path. Only its parents are resolved.
pub(super) fn is_mounted(path: &Path) -> io::Result<bool> {
    let Some(path) = resolved(path)? else { return Ok(false) };
    Ok(points(&fs::read(TABLE)?).any(|point| point == path))
}

/// Paths of what is mounted on or below a directory.
pub(crate) fn mounted_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(directory) = resolved(directory)? else { return Ok(Vec::new()) };
    Ok(points(&fs::read(TABLE)?).filter(|point| point.starts_with(&directory)).collect())
}

/// `None` if its parent does not exist.
fn resolved(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path.to_owned()));
    };
    match fs::canonicalize(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => Ok(Some(other?.join(name))),
    }
}

/// The mount points, the fifth field of each line.
fn points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(unescaped(line.split(|byte| *byte == b' ').nth(4)?)))
}

/// Blanks and backslashes are written as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = || {
            let digits = std::str::from_utf8(after.get(..3)?).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        match octal().filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_the_fifth_field() {
        let table = b"22 28 0:21 / /proc rw,nosuid - proc proc rw\n\
            36 35 98:0 /mnt1 /mnt2\\040a\\134 rw,noatime master:1 - ext3 /dev/root rw\n\n";
        let found: Vec<PathBuf> = points(table).collect();
        assert_eq!(found, [PathBuf::from("/proc"), PathBuf::from("/mnt2 a\\")]);
    }

    #[test]
    fn a_path_is_mounted_only_if_something_is_on_it() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        assert!(is_mounted(Path::new("/sys/../proc")).unwrap());
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_mounted(folder.path()).unwrap());
        assert!(!is_mounted(&folder.path().join("a/b")).unwrap());
        assert!(mounted_below(folder.path()).unwrap().is_empty());
        assert!(mounted_below(Path::new("/proc")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
