//! Why keys or certificates are unavailable.

use crate::files::FileError;
use std::path::{Path, PathBuf};

/// Why keys or certificates are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Reading or writing a file or directory failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Some files of the CA exist and others do not.
    #[error("{path} is missing: restore it, or remove all of {directory} for a new CA that clients must trust again", directory = .path.parent().unwrap_or(Path::new(".")).display())]
    Missing {
        /// The missing file.
        path: PathBuf,
    },
    /// A file has unexpected content.
    #[error("{path} holds no usable {what}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// A key is not that of its certificate.
    #[error("{key} is not the key of {path}: restore both from the same backup")]
    Mismatch {
        /// The certificate.
        path: PathBuf,
        /// File of the private key.
        key: PathBuf,
    },
    /// A CA that was made elsewhere.
    #[error(
        "{path} was not made by ferrokube: renew it where it was made, then run `ferrokube certs import --replace`"
    )]
    Adopted {
        /// The certificate.
        path: PathBuf,
    },
    /// A CA exists already.
    #[error("{path} exists: clients trust it; --replace puts the other CA in its place")]
    Exists {
        /// The certificate.
        path: PathBuf,
    },
    /// The CA certificate has expired.
    #[error(
        "the CA certificate {path} has expired: `ferrokube certs renew` gives it a new lifetime with the same key"
    )]
    Expired {
        /// The file.
        path: PathBuf,
    },
    /// The CA certificate is not valid yet: the clock is or was wrong.
    #[error(
        "the CA certificate {path} is not yet valid: the clock of this machine is behind it (it says {now}, the certificate begins at {not_before})"
    )]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// The wall clock time.
        now: String,
        /// Start of its validity.
        not_before: String,
    },
    /// A name that is not allowed in a certificate.
    #[error("{name:?} cannot stand in a certificate")]
    Name {
        /// As requested.
        name: String,
    },
    /// The certificate library failed.
    #[error("cannot make {what}")]
    Make {
        /// The certificate or key.
        what: &'static str,
        /// The library's error.
        source: rcgen::Error,
    },
}
