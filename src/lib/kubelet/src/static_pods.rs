//! Static pods: a directory with one manifest per pod.

use crate::pod::{NodePod, NodePodError};
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Max bytes of a manifest.
const MAX_FILE: u64 = 10 << 20;

/// Reads the pods of all files in a directory; invalid files are logged. One that does not exist
/// has none, as in kubelet: else no pod of any source would ever be missing.
///
/// # Errors
/// The directory cannot be listed; the caller keeps the previous pods.
pub(crate) fn read_directory(path: &Path, node: &str) -> io::Result<Vec<NodePod>> {
    let files = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut files = files.collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut pods: Vec<NodePod> = Vec::new();
    for file in files {
        let is_hidden = file.file_name().to_string_lossy().starts_with('.');
        if is_hidden || !file.path().is_file() {
            continue;
        }
        let file_name = file.file_name();
        let file_name = file_name.to_string_lossy();
        match read_file(&file.path(), node) {
            Ok(pod) if pods.iter().any(|other| other.name == pod.name) => {
                tracing::warn!(file = &*file_name, pod = pod.name, "a pod of this name exists");
            }
            Ok(pod) => pods.push(pod),
            Err(error) => {
                tracing::warn!(file = &*file_name, %error, "cannot use the file of a static pod");
            }
        }
    }
    Ok(pods)
}

fn read_file(path: &Path, node: &str) -> Result<NodePod, NodePodError> {
    let file = fs::File::open(path).map_err(NodePodError::Read)?;
    let mut body = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut body).map_err(NodePodError::Read)?;
    if body.len() as u64 > MAX_FILE {
        return Err(NodePodError::Invalid("larger than 10 MiB".to_owned()));
    }
    NodePod::from_file(&body, node)
}
