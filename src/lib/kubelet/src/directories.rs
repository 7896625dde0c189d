//! Names of directories, which manifests and runtimes choose in part.

use std::path::{Path, PathBuf};

/// Directory of a pod's own files.
pub(crate) fn pod_directory(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(plain(uid))
}

/// Makes a name safe as a single path component: manifests and runtimes are untrusted.
pub(crate) fn plain(name: &str) -> String {
    let hides = if name.is_empty() || name.starts_with('.') { "_" } else { "" };
    format!("{hides}{}", name.replace(['/', '\0'], "_"))
}
