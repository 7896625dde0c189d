//! Manual maintenance of CAs: renewal with the same key, or adoption of an existing CA.

use crate::authority::{
    AuthorityFiles, CLIENT_CA, FRONT_PROXY_CA, Pki, SERVING_CA, check_key, check_validity, load_key,
};
use crate::certificate::CertificateFacts;
use crate::error::PkiError;
use crate::files::{self, FileError, FileMode};
use rcgen::KeyPair;
use std::path::Path;
use std::time::SystemTime;

/// A CA of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ca {
    /// Clients verify the server with it.
    Serving,
    /// The server verifies clients with it.
    Clients,
    /// Aggregated servers verify this server with it.
    FrontProxy,
}

impl Ca {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Serving, Self::Clients, Self::FrontProxy];

    /// Name of its files, without their endings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serving => "ca",
            Self::Clients => "client-ca",
            Self::FrontProxy => "front-proxy-ca",
        }
    }

    fn files(self) -> AuthorityFiles {
        match self {
            Self::Serving => SERVING_CA,
            Self::Clients => CLIENT_CA,
            Self::FrontProxy => FRONT_PROXY_CA,
        }
    }

    /// Issues the CA a certificate with a new lifetime for the same key. Certificates that it
    /// issued remain valid, also for clients with the previous CA certificate.
    ///
    /// # Errors
    /// [`PkiError`]; [`PkiError::Adopted`] if it was made elsewhere.
    pub fn renew(self, directory: &Path) -> Result<CertificateFacts, PkiError> {
        files::check_private(directory)?;
        let names = self.files();
        let path = directory.join(names.certificate);
        let Some(pem) = files::read_regular(&path)? else {
            return Err(PkiError::Missing { path });
        };
        let facts = first(&pem, &path)?;
        let own = format!("CN={}", names.common_name);
        if facts.subject != own || facts.issuer != own {
            return Err(PkiError::Adopted { path });
        }
        let key_path = directory.join(names.key);
        let key = load_key(key_path.clone())?;
        check_key(&String::from_utf8_lossy(&pem), &key, &path, &key_path)?;
        let (authority, key_pem) = names.make_with(key, SystemTime::now())?;
        // The key is unchanged, so a crash cannot leave a mismatched pair.
        let [_, certificate] = names.written(&authority, &key_pem);
        files::write_all(directory, &[certificate])?;
        first(authority.pem.as_bytes(), &path)
    }

    /// Puts another CA into a directory, which is created if missing. With `replaces`, an existing
    /// CA is replaced: its clients no longer trust this server, or are no longer trusted.
    ///
    /// # Errors
    /// [`PkiError`]; [`PkiError::Exists`].
    pub fn adopt(
        self,
        directory: &Path,
        certificate: &Path,
        key: &Path,
        replaces: bool,
    ) -> Result<CertificateFacts, PkiError> {
        let missing = |path: &Path| FileError::Io {
            what: "read",
            path: path.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        let pem = files::read(certificate)?.ok_or_else(|| missing(certificate))?;
        files::read_private(key)?.ok_or_else(|| missing(key))?;
        let facts = first(&pem, certificate)?;
        let unusable = |path: &Path, what| PkiError::Unusable { path: path.to_owned(), what };
        let text = String::from_utf8(pem).map_err(|_| unusable(certificate, "certificate"))?;
        if !facts.is_ca {
            return Err(unusable(certificate, "CA certificate"));
        }
        check_validity(&text, certificate, SystemTime::now())?;
        let pair: KeyPair = load_key(key.to_owned())?;
        check_key(&text, &pair, certificate, key)?;
        let names = self.files();
        let path = directory.join(names.certificate);
        if !directory.join(SERVING_CA.certificate).exists() {
            Pki::open(directory)?;
        } else if path.exists() && !replaces {
            return Err(PkiError::Exists { path });
        }
        files::check_private(directory)?;
        let key_pem = pair.serialize_pem();
        let written = [
            (names.key, key_pem.as_bytes(), FileMode::Private),
            (names.certificate, text.as_bytes(), FileMode::Public),
        ];
        files::write_all(directory, &written)?;
        Ok(facts)
    }
}

fn first(pem: &[u8], path: &Path) -> Result<CertificateFacts, PkiError> {
    let read = CertificateFacts::read_all(pem);
    read.ok()
        .and_then(|all| all.into_iter().next())
        .ok_or_else(|| PkiError::Unusable { path: path.to_owned(), what: "certificate" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ADMIN;
    use std::path::PathBuf;
    use std::time::Duration;

    fn facts(path: &Path) -> CertificateFacts {
        first(&std::fs::read(path).unwrap(), path).unwrap()
    }

    #[test]
    fn a_renewed_ca_has_its_key_and_a_new_lifetime() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("pki");
        let before = Pki::open(&directory).unwrap();
        let day = Duration::from_secs(24 * 3600);
        for ca in Ca::ALL {
            // Expired: a server would not start with it.
            let names = ca.files();
            let key = load_key(directory.join(names.key)).unwrap();
            let (old, key_pem) = names.make_with(key, SystemTime::now() - day * 4000).unwrap();
            files::write_all(&directory, &names.written(&old, &key_pem)).unwrap();
            assert!(
                matches!(Pki::open(&directory), Err(PkiError::Expired { .. })),
                "{}",
                ca.name()
            );
            let key = std::fs::read(directory.join(names.key)).unwrap();
            let renewed = ca.renew(&directory).unwrap();
            assert!(renewed.days_left(SystemTime::now()) > 3600, "{renewed:?}");
            assert_eq!(std::fs::read(directory.join(names.key)).unwrap(), key);
        }
        let after = Pki::open(&directory).unwrap();
        assert_ne!(before.ca_pem(), after.ca_pem());
        // Earlier certificates have the same key and issuer.
        let issued = before.client(&ADMIN, day).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(issued.chain_pem.as_bytes()).unwrap();
        let (_, ca) = x509_parser::pem::parse_x509_pem(after.client_ca_pem().as_bytes()).unwrap();
        let (issued, ca) = (block.parse_x509().unwrap(), ca.parse_x509().unwrap());
        assert_eq!(issued.issuer().as_raw(), ca.subject().as_raw());
        issued.verify_signature(Some(ca.public_key())).unwrap();
    }

    #[test]
    fn a_ca_of_the_user_is_taken_with_its_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| -> PathBuf { folder.path().join(name) };
        Pki::open(&path("others")).unwrap();
        Pki::open(&path("third")).unwrap();
        let (certificate, key) = (path("others/ca.crt"), path("others/ca.key"));
        let adopt =
            |key: &Path, replaces| Ca::Serving.adopt(&path("pki"), &certificate, key, replaces);
        let wrong = adopt(&path("third/ca.key"), false);
        assert!(matches!(wrong, Err(PkiError::Mismatch { .. })), "{wrong:?}");
        assert!(!path("pki").exists());
        adopt(&key, false).unwrap();
        let ours = Pki::open(&path("pki")).unwrap();
        assert_eq!(ours.ca_pem().as_bytes(), std::fs::read(&certificate).unwrap());
        assert!(matches!(adopt(&key, false), Err(PkiError::Exists { .. })));
        adopt(&key, true).unwrap();
        let leaf = ours.client(&ADMIN, Duration::from_secs(60)).unwrap();
        std::fs::write(path("leaf.crt"), leaf.chain_pem).unwrap();
        let refused = Ca::Clients.adopt(&path("pki"), &path("leaf.crt"), &key, true);
        assert!(matches!(refused, Err(PkiError::Unusable { what: "CA certificate", .. })));
        let none = Ca::Clients.adopt(&path("pki"), &path("none"), &key, true).unwrap_err();
        assert!(none.to_string().ends_with("/none"), "{none}");
        // A mismatched pair, from two backups.
        std::fs::copy(path("third/client-ca.crt"), path("pki/client-ca.crt")).unwrap();
        assert!(matches!(Pki::open(&path("pki")), Err(PkiError::Mismatch { .. })));
    }

    #[test]
    fn a_ca_that_was_made_elsewhere_is_renewed_there() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("pki");
        Pki::open(&directory).unwrap();
        let names = AuthorityFiles { common_name: "company", ..SERVING_CA };
        let key = load_key(directory.join(names.key)).unwrap();
        let (company, key_pem) = names.make_with(key, SystemTime::now()).unwrap();
        files::write_all(&directory, &names.written(&company, &key_pem)).unwrap();
        let refused = Ca::Serving.renew(&directory).unwrap_err();
        assert!(matches!(refused, PkiError::Adopted { .. }), "{refused}");
        assert_eq!(facts(&directory.join("ca.crt")).subject, "CN=company");
    }
}
