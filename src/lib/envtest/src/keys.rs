//! Key files as test suites write them: with mode 0640, in a directory of theirs. The server takes
//! keys that only their owner may read, so it gets copies.

use ferrokube_pki::files::{self, FileError, FileMode};
use std::path::{Path, PathBuf};

/// Copies a key file into a private directory; returns the copy.
///
/// # Errors
/// [`FileError`]: it is missing or unreadable, or the copy cannot be written.
pub fn copy(key: &Path, directory: &Path) -> Result<PathBuf, FileError> {
    let bytes = files::read(key)?.ok_or_else(|| FileError::Io {
        what: "read",
        path: key.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
    })?;
    let name = key.file_name().unwrap_or_default();
    let copied = directory.join(name);
    files::private_directory(directory)?;
    files::write_volatile(&copied, &bytes, FileMode::Private)?;
    Ok(copied)
}

/// The serving pair in a `--cert-dir`: as kube-apiserver, made if there is none.
///
/// # Errors
/// [`FileError`]. The names of the certificate are fixed, so making it does not fail for them.
pub fn serving_pair(cert_dir: &Path, names: &[String]) -> Result<(PathBuf, PathBuf), FileError> {
    let (chain, key) = (cert_dir.join("apiserver.crt"), cert_dir.join("apiserver.key"));
    if chain.exists() && key.exists() {
        return Ok((chain, key));
    }
    let made = ferrokube_pki::self_signed(names).map_err(|error| FileError::Io {
        what: "make",
        path: chain.clone(),
        source: std::io::Error::other(error),
    })?;
    files::private_directory(cert_dir).or_else(|error| match error {
        // It exists, and is the starter's.
        FileError::Open { .. } => Ok(()),
        error => Err(error),
    })?;
    files::write_volatile(&key, made.key_pem.as_bytes(), FileMode::Private)?;
    files::write_volatile(&chain, made.chain_pem.as_bytes(), FileMode::Public)?;
    Ok((chain, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn copies_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("sa-signer.key");
        std::fs::write(&key, "key").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        let copied = copy(&key, &directory.path().join("keys")).unwrap();
        assert_eq!(files::read_private(&copied).unwrap().unwrap(), b"key");
        assert!(copy(&directory.path().join("none"), directory.path()).is_err());
    }

    #[test]
    fn a_serving_pair_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let cert_dir = directory.path().join("certs");
        let (chain, key) = serving_pair(&cert_dir, &["localhost".to_owned()]).unwrap();
        let first = std::fs::read(&chain).unwrap();
        files::read_private(&key).unwrap().unwrap();
        serving_pair(&cert_dir, &["localhost".to_owned()]).unwrap();
        assert_eq!(std::fs::read(&chain).unwrap(), first);
    }
}
