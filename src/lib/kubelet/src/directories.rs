//! Directories of pods, whose names manifests and runtimes choose in part.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// File by which a pod's directory is known as that of a kubelet of this program. Contains the UID.
const OWNER: &str = ".uid";
/// Longest UID that is read.
const MAX_UID: u64 = 4096;

/// Directory of a pod's own files.
pub(crate) fn pod_directory(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(plain(uid))
}

/// Where a pod's directory is while it is removed: on the same file system, by a name that no pod
/// has.
pub(crate) fn removed_directory(root: &Path, uid: &str) -> PathBuf {
    removed_directories(root).join(plain(uid))
}

/// Contains all that [`removed_directory`] returns.
pub(crate) fn removed_directories(root: &Path) -> PathBuf {
    root.join("pods").join(".removed")
}

/// Makes a name safe as a single path component: manifests and runtimes are untrusted.
pub(crate) fn plain(name: &str) -> String {
    let hides = if name.is_empty() || name.starts_with('.') { "_" } else { "" };
    format!("{hides}{}", name.replace(['/', '\0'], "_"))
}

/// Makes the directory of a pod, which only the kubelet may enter.
pub(crate) fn make_pod_directory(root: &Path, uid: &str) -> io::Result<()> {
    let own = pod_directory(root, uid);
    DirBuilder::new().recursive(true).mode(0o750).create(root.join("pods"))?;
    match DirBuilder::new().mode(0o750).create(&own) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.and_then(|()| fs::write(own.join(OWNER), uid)),
    }
}

/// Directories of pods, of whichever kubelet; none if there is no such directory. Links are left
/// out.
pub(crate) fn pod_directories(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = directories(&root.join("pods"))?;
    let is_hidden = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    };
    found.retain(|path| !is_hidden(path));
    Ok(found)
}

/// UIDs of the pods whose directory [`make_pod_directory`] made.
pub(crate) fn own_pods(root: &Path) -> io::Result<Vec<String>> {
    let read = |directory: PathBuf| {
        let mut uid = String::new();
        File::open(directory.join(OWNER)).ok()?.take(MAX_UID).read_to_string(&mut uid).ok()?;
        // Anything else is no pod's.
        Some(uid).filter(|uid| pod_directory(root, uid) == directory)
    };
    Ok(pod_directories(root)?.into_iter().filter_map(read).collect())
}

/// Directories in a directory; none if it is missing. Links are left out.
pub(crate) fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_this_program_made_are_its_own() {
        let root = tempfile::tempdir().unwrap();
        assert!(own_pods(root.path()).unwrap().is_empty());
        for uid in ["u1", "a/b"] {
            make_pod_directory(root.path(), uid).unwrap();
            make_pod_directory(root.path(), uid).unwrap();
        }
        fs::create_dir_all(pod_directory(root.path(), "other")).unwrap();
        fs::create_dir_all(removed_directory(root.path(), "u2")).unwrap();
        let copied = pod_directory(root.path(), "copied");
        fs::create_dir(&copied).unwrap();
        fs::write(copied.join(OWNER), "u1").unwrap();
        let mut own = own_pods(root.path()).unwrap();
        own.sort();
        assert_eq!(own, ["a/b", "u1"]);
        assert_eq!(pod_directories(root.path()).unwrap().len(), 4, "without what is removed");
    }
}
