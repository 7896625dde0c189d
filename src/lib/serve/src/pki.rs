//! Keys and certificates: the CA and the token keys on disk, serving and client certificates made from them when they are needed.
//!
//! Serving and admin certificates cost 0.1 ms, so that they are made at every start and renewed while running instead of kept: fewer keys at rest,
//! no file that can be stale. What must survive is the CA (clients trust it) and the key that signs service account tokens.

use crate::files::{self, Access, FileError};
use crate::shutdown::Shutdown;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use ring::hmac;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long serving and client certificates are valid; renewed after two thirds.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Certificates begin a little in the past, for clients whose clock is slow.
const BACKDATED: Duration = Duration::from_secs(300);

/// Why keys or certificates cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file or directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file of the CA is there and another is not.
    #[error("{path} is missing: restore it, or remove all of {directory} for a new CA that clients must trust again", directory = .path.parent().unwrap_or(Path::new(".")).display())]
    Missing {
        /// The missing file.
        path: PathBuf,
    },
    /// A file does not hold what its name says.
    #[error("{path} holds no usable {what}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The CA is not valid any more.
    #[error("the CA certificate {path} has expired")]
    Expired {
        /// Its file.
        path: PathBuf,
    },
    /// A name that cannot stand in a certificate.
    #[error("{name:?} cannot stand in a certificate")]
    Name {
        /// The name.
        name: String,
    },
    /// The library refused.
    #[error("cannot make {what}")]
    Make {
        /// What.
        what: &'static str,
        /// Why.
        source: rcgen::Error,
    },
}

/// A certificate chain (leaf first) and its key, both PEM. No `Debug` of the key.
#[derive(Clone)]
pub struct Pair {
    /// The certificates.
    pub chain_pem: String,
    /// The private key, PKCS#8.
    pub key_pem: String,
    /// When it should be replaced: after two thirds of its life.
    pub renew_at: SystemTime,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("chain_pem", &self.chain_pem).field("renew_at", &self.renew_at).finish_non_exhaustive()
    }
}

/// The keys that sign and verify service account tokens (ES256), PEM. No `Debug` of the private one.
#[derive(Clone)]
pub struct TokenKeys {
    /// PKCS#8.
    pub private_pem: String,
    /// SubjectPublicKeyInfo.
    pub public_pem: String,
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKeys").field("public_pem", &self.public_pem).finish_non_exhaustive()
    }
}

/// Who a client certificate is for.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The user.
    pub common_name: &'a str,
    /// The groups.
    pub organizations: &'a [&'a str],
}

/// The cluster's admin.
pub const ADMIN: Subject<'static> = Subject { common_name: "kubernetes-admin", organizations: &["system:masters"] };

/// The controller manager: its bootstrap roles let it get a service account token for each of its controllers.
pub const CONTROLLER_MANAGER: Subject<'static> = Subject { common_name: "system:kube-controller-manager", organizations: &[] };

/// A directory with the CA and the token keys. Cheap to clone.
#[derive(Clone)]
pub struct Pki {
    ca_pem: Arc<str>,
    issuer: Arc<Issuer<'static, KeyPair>>,
    token_keys: Arc<TokenKeys>,
    lifetime: Duration,
}

impl Pki {
    /// Opens the directory, or makes it (0700) with a new CA and token keys.
    ///
    /// # Errors
    /// [`PkiError`]; also when others may read the directory or a key.
    pub fn open(directory: &Path) -> Result<Self, PkiError> {
        files::private_directory(directory)?;
        match files::read(&directory.join("ca.crt"))? {
            Some(certificate) => Self::load(directory, certificate),
            // The certificate is written last: keys without it were never used.
            None => Self::make(directory),
        }
    }

    /// The same with another lifetime of serving and client certificates.
    #[must_use]
    pub fn with_lifetime(self, lifetime: Duration) -> Self {
        Self { lifetime, ..self }
    }

    /// The CA's certificate.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The keys for service account tokens.
    pub fn token_keys(&self) -> &TokenKeys {
        &self.token_keys
    }

    /// A secret for one purpose, the same after every restart; tells nothing about the key that it is derived from.
    pub fn derived_key(&self, purpose: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.token_keys.private_pem.as_bytes());
        let tag = hmac::sign(&key, purpose.as_bytes());
        tag.as_ref().try_into().expect("SHA-256 gives 32 bytes")
    }

    /// A serving certificate for host names and addresses; see [`serving_names`].
    ///
    /// # Errors
    /// [`PkiError::Name`], [`PkiError::Make`].
    pub fn serving(&self, names: &[String]) -> Result<Pair, PkiError> {
        let mut parameters = CertificateParams::default();
        for name in names {
            let one = CertificateParams::new(vec![name.clone()]).map_err(|_| PkiError::Name { name: name.clone() })?;
            parameters.subject_alt_names.extend(one.subject_alt_names);
        }
        parameters.distinguished_name = distinguished(&Subject { common_name: "kube-apiserver", organizations: &[] });
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(parameters)
    }

    /// A client certificate.
    ///
    /// # Errors
    /// [`PkiError::Make`].
    pub fn client(&self, subject: &Subject<'_>) -> Result<Pair, PkiError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(subject);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(parameters)
    }

    fn issue(&self, mut parameters: CertificateParams) -> Result<Pair, PkiError> {
        let now = SystemTime::now();
        parameters.not_before = (now - BACKDATED).into();
        parameters.not_after = (now + self.lifetime).into();
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        let refused = |source| PkiError::Make { what: "a certificate", source };
        let key = KeyPair::generate().map_err(refused)?;
        let certificate = parameters.signed_by(&key, &*self.issuer).map_err(refused)?;
        Ok(Pair { chain_pem: certificate.pem(), key_pem: key.serialize_pem(), renew_at: now + self.lifetime * 2 / 3 })
    }

    fn make(directory: &Path) -> Result<Self, PkiError> {
        let refused = |source| PkiError::Make { what: "the CA", source };
        let [ca_key, token_key] = [KeyPair::generate().map_err(refused)?, KeyPair::generate().map_err(refused)?];
        let now = SystemTime::now();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(&Subject { common_name: "ferrokube-ca", organizations: &[] });
        parameters.not_before = (now - BACKDATED).into();
        parameters.not_after = (now + CA_LIFETIME).into();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let ca_pem = parameters.self_signed(&ca_key).map_err(refused)?.pem();
        let token_keys = TokenKeys { private_pem: token_key.serialize_pem(), public_pem: token_key.public_key_pem() };
        let ca_key_pem = ca_key.serialize_pem();
        let written = [
            ("ca.key", ca_key_pem.as_bytes(), Access::Private),
            ("sa.key", token_keys.private_pem.as_bytes(), Access::Private),
            ("sa.pub", token_keys.public_pem.as_bytes(), Access::Public),
            ("ca.crt", ca_pem.as_bytes(), Access::Public),
        ];
        files::write_all(directory, &written)?;
        Ok(Self { ca_pem: ca_pem.into(), issuer: Arc::new(Issuer::new(parameters, ca_key)), token_keys: Arc::new(token_keys), lifetime: LEAF_LIFETIME })
    }

    fn load(directory: &Path, certificate: Vec<u8>) -> Result<Self, PkiError> {
        let path = directory.join("ca.crt");
        let ca_pem = String::from_utf8(certificate).map_err(|_| PkiError::Unusable { path: path.clone(), what: "certificate" })?;
        check_validity(&ca_pem, &path)?;
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, load_key(directory.join("ca.key"))?).map_err(|_| PkiError::Unusable { path, what: "CA certificate" })?;
        let token_key = load_key(directory.join("sa.key"))?;
        let token_keys = TokenKeys { private_pem: token_key.serialize_pem(), public_pem: token_key.public_key_pem() };
        Ok(Self { ca_pem: ca_pem.into(), issuer: Arc::new(issuer), token_keys: Arc::new(token_keys), lifetime: LEAF_LIFETIME })
    }
}

/// A serving certificate of nobody but itself, for a role whose listener nobody has to trust (health, metrics on the loopback).
///
/// # Errors
/// [`PkiError::Name`], [`PkiError::Make`].
pub fn self_signed(names: &[String]) -> Result<Pair, PkiError> {
    let refused = |source| PkiError::Make { what: "a certificate", source };
    let now = SystemTime::now();
    let mut parameters = CertificateParams::new(names.to_vec()).map_err(|_| PkiError::Name { name: names.join(",") })?;
    parameters.not_before = (now - BACKDATED).into();
    parameters.not_after = (now + LEAF_LIFETIME).into();
    let key = KeyPair::generate().map_err(refused)?;
    let certificate = parameters.self_signed(&key).map_err(refused)?;
    Ok(Pair { chain_pem: certificate.pem(), key_pem: key.serialize_pem(), renew_at: now + LEAF_LIFETIME * 2 / 3 })
}

/// The names under which a server is reached: the loopback and in-cluster names, the address it listens on, the host's name, and others.
pub fn serving_names(listen: IpAddr, others: &[String]) -> Vec<String> {
    let fixed = ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
    let mut names: Vec<String> = fixed.map(str::to_owned).to_vec();
    if !listen.is_unspecified() {
        names.push(listen.to_string());
    }
    // Not every host name can stand in a certificate; one that cannot is no reason to refuse to start.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_ascii_lowercase();
    if !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')) {
        names.push(host);
    }
    names.extend(others.iter().cloned());
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// Calls `issue` whenever what it made last should be renewed, until the shutdown. `issue` puts the new certificate to use and gives the time of the next
/// renewal; when it fails it is called again after a minute.
pub async fn renew<E: std::error::Error + 'static>(first: SystemTime, shutdown: Shutdown, mut issue: impl FnMut() -> Result<SystemTime, E>) {
    let mut next = first;
    loop {
        // In steps, since the wall clock may be set while we sleep.
        let left = next.duration_since(SystemTime::now()).unwrap_or_default().min(DAY / 24);
        tokio::select! {
            () = shutdown.begun() => return,
            () = tokio::time::sleep(left) => {}
        }
        if SystemTime::now() < next {
            continue;
        }
        next = match issue() {
            Ok(next) => {
                tracing::info!("certificates renewed");
                next
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot renew certificates");
                SystemTime::now() + Duration::from_secs(60)
            }
        };
    }
}

fn distinguished(subject: &Subject<'_>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for organization in subject.organizations {
        name.push(DnType::OrganizationName, *organization);
    }
    name.push(DnType::CommonName, subject.common_name);
    name
}

fn load_key(path: PathBuf) -> Result<KeyPair, PkiError> {
    let Some(pem) = files::read_private(&path)? else { return Err(PkiError::Missing { path }) };
    let text = std::str::from_utf8(&pem).ok();
    text.and_then(|text| KeyPair::from_pem(text).ok()).ok_or(PkiError::Unusable { path, what: "private key" })
}

fn check_validity(pem: &str, path: &Path) -> Result<(), PkiError> {
    let unusable = || PkiError::Unusable { path: path.to_owned(), what: "certificate" };
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| unusable())?;
    let certificate = block.parse_x509().map_err(|_| unusable())?;
    if certificate.validity().is_valid() { Ok(()) } else { Err(PkiError::Expired { path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn open(directory: &tempfile::TempDir) -> Result<Pki, PkiError> {
        Pki::open(&directory.path().join("pki"))
    }

    #[test]
    fn the_ca_and_the_token_keys_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(&directory).unwrap();
        let second = open(&directory).unwrap();
        assert_eq!(first.ca_pem(), second.ca_pem());
        assert_eq!(first.token_keys().private_pem, second.token_keys().private_pem);
        assert!(first.token_keys().public_pem.contains("PUBLIC KEY"));
        let mode = |name: &str| std::fs::metadata(directory.path().join("pki").join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("ca.key"), mode("sa.key"), mode("ca.crt")], [0o600, 0o600, 0o644]);
    }

    #[test]
    fn a_certificate_carries_its_names_and_subject() {
        let directory = tempfile::tempdir().unwrap();
        let pki = open(&directory).unwrap();
        let names = serving_names("192.0.2.7".parse().unwrap(), &["api.example.com".into(), "localhost".into()]);
        let pair = pki.serving(&names).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(pair.chain_pem.as_bytes()).unwrap();
        let certificate = block.parse_x509().unwrap();
        let sans = format!("{:?}", certificate.subject_alternative_name().unwrap().unwrap().value.general_names);
        for name in ["localhost", "kubernetes.default.svc.cluster.local", "api.example.com", "c0, 00, 02, 07"] {
            let decimal = if name.starts_with("c0") { "192, 0, 2, 7" } else { name };
            assert!(sans.contains(name) || sans.contains(decimal) || sans.contains("c0:00:02:07"), "{name} in {sans}");
        }
        assert!(matches!(pki.serving(&["\u{e9}".into()]), Err(PkiError::Name { .. })));
        let client = pki.client(&ADMIN).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(client.chain_pem.as_bytes()).unwrap();
        assert_eq!(block.parse_x509().unwrap().subject().to_string(), "O=system:masters, CN=kubernetes-admin");
        assert!(!format!("{client:?} {:?}", pki.token_keys()).contains("PRIVATE KEY"));
    }

    #[test]
    fn keys_that_others_can_read_and_missing_keys_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).unwrap();
        let key = directory.path().join("pki/ca.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(open(&directory), Err(PkiError::File(FileError::Open { mode: 0o640, .. }))));
        std::fs::remove_file(&key).unwrap();
        assert!(matches!(open(&directory), Err(PkiError::Missing { .. })));
        std::fs::write(&key, "nonsense").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(open(&directory), Err(PkiError::Unusable { .. })));
    }

    #[test]
    fn a_crash_before_the_certificate_was_written_starts_over() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).unwrap();
        std::fs::remove_file(directory.path().join("pki/ca.crt")).unwrap();
        open(&directory).unwrap();
    }

    #[tokio::test]
    async fn certificates_are_renewed_while_running_and_failures_are_retried() {
        let (trigger, shutdown) = crate::shutdown::ShutdownTrigger::new();
        let mut calls = 0;
        let soon = SystemTime::now() + Duration::from_millis(20);
        renew(soon, shutdown, || {
            calls += 1;
            if calls == 2 {
                trigger.begin();
            }
            Ok::<_, std::io::Error>(SystemTime::now() + Duration::from_millis(20))
        })
        .await;
        assert_eq!(calls, 2);
    }
}
