//! Files of a certificate: each pair is one file named by its time, and a link names the current
//! one, so that certificate and key change together (kubelet's layout).

use ferrokube_pki::files::{self, FileError, FileMode};
use ferrokube_pki::{CertificateFacts, PkiError, Renewal, RequestedKey};
use k8s_openapi::jiff::Timestamp;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A certificate and its key.
pub(crate) struct StoredCertificate {
    /// Chain and key, PEM.
    pub(crate) pem: String,
    /// Host names and addresses of the certificate.
    pub(crate) names: Vec<String>,
    /// When to replace it.
    pub(crate) renewal: Renewal,
}

/// The files of one purpose.
pub(super) struct CertificateStore {
    directory: PathBuf,
    prefix: &'static str,
}

impl CertificateStore {
    /// Writes nothing.
    pub(super) fn new(directory: &Path, prefix: &'static str) -> Self {
        Self { directory: directory.to_owned(), prefix }
    }

    /// The link to the current pair.
    pub(super) fn current_path(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.prefix))
    }

    /// The current pair; `None` before the first.
    ///
    /// # Errors
    /// [`PkiError`]: also if it has expired.
    pub(super) fn current(&self) -> Result<Option<StoredCertificate>, PkiError> {
        let path = self.current_path();
        let Some(bytes) = files::read_private(&path)? else { return Ok(None) };
        let unusable = |what| PkiError::Unusable { path: path.clone(), what };
        let pem = String::from_utf8(bytes).map_err(|_| unusable("certificate"))?;
        let key = pem.find("-----BEGIN PRIVATE KEY-----").and_then(|at| pem.get(at..));
        let key = key.and_then(RequestedKey::from_pem).ok_or_else(|| unusable("private key"))?;
        let renewal = key.check(&pem, &path)?;
        let facts = CertificateFacts::read_all(pem.as_bytes()).unwrap_or_default();
        let names = facts.into_iter().next().map(|first| first.names).unwrap_or_default();
        Ok(Some(StoredCertificate { pem, names, renewal }))
    }

    fn key_path(&self) -> PathBuf {
        self.directory.join(format!("{}.key.tmp", self.prefix))
    }

    /// The key of the current request; a new one if there is none.
    pub(super) fn pending_key(&self) -> Result<RequestedKey, PkiError> {
        let path = self.key_path();
        let mut directory = fs::DirBuilder::new();
        directory.recursive(true).mode(0o700).create(&self.directory).map_err(|source| {
            FileError::Io { what: "make the directory", path: self.directory.clone(), source }
        })?;
        let kept = files::read_private(&path)?.and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(key) = kept.as_deref().and_then(RequestedKey::from_pem) {
            return Ok(key);
        }
        let key = RequestedKey::generate()?;
        files::write(&path, key.pem().as_bytes(), FileMode::Private)?;
        Ok(key)
    }

    /// Removes the key of the current request.
    pub(super) fn forget_key(&self) -> Result<(), PkiError> {
        let path = self.key_path();
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(FileError::Io { what: "remove", path, source }.into())
            }
            _ => Ok(()),
        }
    }

    /// Makes a pair the current one. The one before stays, older ones are removed.
    pub(super) fn replace(&self, chain: &str, key: &RequestedKey) -> Result<(), PkiError> {
        let current = self.current_path();
        let previous = fs::read_link(&current).ok();
        let time = Timestamp::now().strftime("%Y-%m-%d-%H-%M-%S");
        let name = format!("{}-{time}.pem", self.prefix);
        let pem = format!("{}\n{}", chain.trim_end(), key.pem());
        files::write(&self.directory.join(&name), pem.as_bytes(), FileMode::Private)?;
        let refused = |source| FileError::Io { what: "write", path: current.clone(), source };
        let link = self.directory.join(format!("{}-current.new", self.prefix));
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&name, &link)
            .and_then(|()| fs::rename(&link, &current))
            .map_err(refused)?;
        self.forget_key()?;
        let kept = [Some(PathBuf::from(&name)), previous];
        if let Err(error) = self.remove_older(&kept) {
            tracing::warn!(%error, "cannot remove old certificates of the node");
        }
        Ok(())
    }

    fn remove_older(&self, kept: &[Option<PathBuf>]) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let is_kept = kept.iter().flatten().any(|kept| kept.as_os_str() == name);
            let stamp = name.to_str().and_then(|name| {
                name.strip_prefix(self.prefix)?.strip_prefix('-')?.strip_suffix(".pem")
            });
            let is_stamp = |text: &str| {
                text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') && text.len() == 19
            };
            if !is_kept && stamp.is_some_and(is_stamp) {
                fs::remove_file(self.directory.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_pki::{
        CertificatePurpose, CertificateRequest, CertificateTerms, Pki, RequestSigner, Subject,
    };
    use std::os::unix::fs::PermissionsExt;

    const NODE: Subject<'static> =
        Subject { common_name: "system:node:a", organizations: &["system:nodes"] };

    fn signed(signer: &RequestSigner, key: &RequestedKey) -> String {
        let request = key.request(&NODE, &[], &[]).unwrap();
        let request = CertificateRequest::parse(request.as_bytes()).unwrap();
        let purpose = CertificatePurpose::Client;
        let terms = CertificateTerms { purpose, enciphers_keys: false, lifetime: None };
        signer.sign(&request, terms).unwrap()
    }

    #[test]
    fn a_pair_is_replaced_at_once_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let signer = Pki::open(&folder.path().join("ca")).unwrap().request_signer();
        let directory = folder.path().join("pki");
        let store = CertificateStore::new(&directory, "kubelet-client");
        assert!(store.current().unwrap().is_none());
        let key = store.pending_key().unwrap();
        assert_eq!(store.pending_key().unwrap().digest(), key.digest(), "kept across restarts");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&store.key_path()), 0o600);
        for old in ["2001-01-01-00-00-00", "2002-01-01-00-00-00"] {
            fs::write(directory.join(format!("kubelet-client-{old}.pem")), "").unwrap();
        }
        fs::write(directory.join("kubelet-client-mine.pem"), "").unwrap();
        store.replace(&signed(&signer, &key), &key).unwrap();
        let current = store.current().unwrap().unwrap();
        assert!(current.pem.contains("BEGIN CERTIFICATE") && current.pem.contains("PRIVATE KEY"));
        assert_eq!(mode(&store.current_path()), 0o600);
        assert!(fs::symlink_metadata(store.current_path()).unwrap().is_symlink());
        assert!(!store.key_path().exists());
        let count = fs::read_dir(&directory).unwrap().count();
        assert_eq!(count, 3, "the pair, the link, and what is not the kubelet's");
        assert_ne!(store.pending_key().unwrap().digest(), key.digest());
    }

    #[test]
    fn a_pair_that_others_can_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let signer = Pki::open(&folder.path().join("ca")).unwrap().request_signer();
        let store = CertificateStore::new(folder.path(), "kubelet-client");
        let key = store.pending_key().unwrap();
        store.replace(&signed(&signer, &key), &key).unwrap();
        fs::set_permissions(store.current_path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(store.current(), Err(PkiError::File(FileError::Open { .. }))));
        fs::set_permissions(store.current_path(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(store.current_path(), "nothing").unwrap();
        assert!(matches!(store.current(), Err(PkiError::Unusable { .. })));
    }
}
