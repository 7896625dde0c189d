//! Keys and certificates: three CAs and the token keys on disk; serving and client certificates
//! issued on demand.
//!
//! One CA per trust: `ca.crt` is what clients verify the server with, `client-ca.crt` what the
//! server verifies clients with, so that neither key can speak for the other. `front-proxy-ca.crt`
//! is what aggregated servers verify this server with; it is trusted for nothing here: front
//! proxies of this server have a CA of the user's (`--requestheader-client-ca-file`) or none.
//!
//! Issuing a certificate takes 0.1 ms, so they are issued at every start and renewed while running
//! rather than stored: fewer keys at rest, no stale files. Only the CAs and the key that signs
//! service account tokens must survive.

use crate::files::{self, FileError, FileMode};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use ring::hmac;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use x509_parser::time::ASN1Time;

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long serving and client certificates are valid; renewed after two thirds.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Lifetime of the administrator's certificate: it cannot be revoked, and its file gets copied.
pub const ADMIN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How often the wall clock is read: it may be set, and the machine may sleep, which a timer does
/// not notice.
const POLL: Duration = Duration::from_secs(10);
/// Delay after a failed renewal.
const RETRY: Duration = Duration::from_secs(60);
/// Certificates are backdated for clients whose clock is slow.
const BACKDATED: Duration = Duration::from_secs(300);

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
        /// What it should contain.
        what: &'static str,
    },
    /// A key is not that of its certificate.
    #[error("{key} is not the key of {path}: restore both from the same backup")]
    Mismatch {
        /// The certificate.
        path: PathBuf,
        /// The key.
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
        /// Its file.
        path: PathBuf,
    },
    /// The CA certificate is not valid yet: the clock is or was wrong.
    #[error(
        "the CA certificate {path} is not yet valid: the clock of this machine is behind it (it says {now}, the certificate begins at {not_before})"
    )]
    NotYetValid {
        /// Its file.
        path: PathBuf,
        /// The wall clock time.
        now: String,
        /// Start of its validity.
        not_before: String,
    },
    /// A name that is not allowed in a certificate.
    #[error("{name:?} cannot stand in a certificate")]
    Name {
        /// The name.
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

/// A certificate chain (leaf first) and its key, both PEM. `Debug` omits the key.
#[derive(Clone)]
pub struct Pair {
    /// PEM, leaf first.
    pub chain_pem: String,
    /// The private key, PKCS#8.
    pub key_pem: String,
    /// When to replace it.
    pub renewal: Renewal,
}

/// When to replace a certificate, by the wall clock: after two thirds of its lifetime, or when the
/// clock was set back to before its validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    not_before: SystemTime,
    at: SystemTime,
}

impl Renewal {
    fn of(issued: SystemTime, lifetime: Duration) -> Self {
        Self { not_before: issued - BACKDATED, at: issued + lifetime * 2 / 3 }
    }

    /// The earlier of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { not_before: self.not_before.max(other.not_before), at: self.at.min(other.at) }
    }

    /// The time left, as long as nobody sets the clock.
    fn left(self, now: SystemTime) -> Duration {
        if now < self.not_before {
            Duration::ZERO
        } else {
            self.at.duration_since(now).unwrap_or_default()
        }
    }

    /// Resolves when it is due.
    pub async fn due(self) {
        self.due_by(SystemTime::now).await;
    }

    async fn due_by(self, clock: impl Fn() -> SystemTime) {
        loop {
            let left = self.left(clock());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(POLL)).await;
        }
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("chain_pem", &self.chain_pem)
            .field("renewal", &self.renewal)
            .finish_non_exhaustive()
    }
}

/// Keys for service account tokens (ES256), PEM. `Debug` omits the private key.
#[derive(Clone)]
pub struct TokenKeyPair {
    /// PKCS#8.
    pub private_pem: String,
    /// SubjectPublicKeyInfo.
    pub public_pem: String,
}

impl std::fmt::Debug for TokenKeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenKeyPair").field("public_pem", &self.public_pem).finish_non_exhaustive()
    }
}

/// The subject of a client certificate.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// User name.
    pub common_name: &'a str,
    /// Groups.
    pub organizations: &'a [&'a str],
}

/// The subject of a node's kubelet.
pub fn node_name(node: &str) -> String {
    format!("system:node:{node}")
}

/// The group of all nodes.
pub const NODES: &str = "system:nodes";

/// The scheduler.
pub const SCHEDULER: Subject<'static> =
    Subject { common_name: "system:kube-scheduler", organizations: &[] };

/// The cluster administrator.
pub const ADMIN: Subject<'static> =
    Subject { common_name: "kubernetes-admin", organizations: &["system:masters"] };

/// The controller manager: by its bootstrap roles it requests a service account token for each of
/// its controllers.
pub const CONTROLLER_MANAGER: Subject<'static> =
    Subject { common_name: "system:kube-controller-manager", organizations: &[] };

/// A directory with the CAs and the token keys. Cheap to clone.
#[derive(Clone)]
pub struct Pki {
    serving: Authority,
    clients: Authority,
    front_proxy: Authority,
    token_keys: Arc<TokenKeyPair>,
    lifetime: Duration,
}

/// One CA.
#[derive(Clone)]
pub(crate) struct Authority {
    pub(crate) pem: Arc<str>,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

/// The file names of a CA, and its common name.
pub(crate) struct AuthorityFiles {
    pub(crate) certificate: &'static str,
    pub(crate) key: &'static str,
    pub(crate) common_name: &'static str,
}

pub(crate) const SERVING_CA: AuthorityFiles =
    AuthorityFiles { certificate: "ca.crt", key: "ca.key", common_name: "ferrokube-ca" };
pub(crate) const CLIENT_CA: AuthorityFiles = AuthorityFiles {
    certificate: "client-ca.crt",
    key: "client-ca.key",
    common_name: "ferrokube-client-ca",
};

/// Identifies this server to aggregated servers: they believe which users it names.
pub(crate) const FRONT_PROXY_CA: AuthorityFiles = AuthorityFiles {
    certificate: "front-proxy-ca.crt",
    key: "front-proxy-ca.key",
    common_name: "ferrokube-front-proxy-ca",
};

/// Name in the certificate of [`Pki::front_proxy`].
pub const FRONT_PROXY: &str = "front-proxy-client";

impl Pki {
    /// Opens the directory, or creates it (0700) with new CAs and token keys. A directory of an
    /// older version, with one CA for everything, gets a client CA; client certificates signed by
    /// the old one are no longer accepted.
    ///
    /// # Errors
    /// [`PkiError`]; also if other users can read the directory or a key.
    pub fn open(directory: &Path) -> Result<Self, PkiError> {
        files::private_directory(directory)?;
        let now = SystemTime::now();
        // The certificate is written last: keys without it were never used.
        let Some(serving) = SERVING_CA.load(directory, now)? else {
            return Self::make(directory, now);
        };
        let clients = CLIENT_CA.load_or_make(directory, now)?;
        let front_proxy = FRONT_PROXY_CA.load_or_make(directory, now)?;
        let token_key = load_key(directory.join("sa.key"))?;
        let token_keys = TokenKeyPair {
            private_pem: token_key.serialize_pem(),
            public_pem: token_key.public_key_pem(),
        };
        let token_keys = Arc::new(token_keys);
        Ok(Self { serving, clients, front_proxy, token_keys, lifetime: LEAF_LIFETIME })
    }

    /// Sets the lifetime of serving certificates and caps that of client certificates.
    #[must_use]
    pub fn with_lifetime(self, lifetime: Duration) -> Self {
        Self { lifetime, ..self }
    }

    /// The CA certificate for verifying the server.
    pub fn ca_pem(&self) -> &str {
        &self.serving.pem
    }

    /// The CA certificate for verifying clients.
    pub fn client_ca_pem(&self) -> &str {
        &self.clients.pem
    }

    /// The CA certificate by which aggregated servers verify this server.
    pub fn front_proxy_ca_pem(&self) -> &str {
        &self.front_proxy.pem
    }

    /// The keys for service account tokens.
    pub fn token_keys(&self) -> &TokenKeyPair {
        &self.token_keys
    }

    /// Derives a secret for one purpose, stable across restarts. Reveals nothing about the key that
    /// it is derived from.
    pub fn derived_key(&self, purpose: &str) -> [u8; 32] {
        derived_key(self.token_keys.private_pem.as_bytes(), purpose)
    }

    /// Issues a serving certificate for host names and addresses; see [`serving_names`].
    ///
    /// # Errors
    /// [`PkiError::Name`], [`PkiError::Make`].
    pub fn serving(&self, names: &[String]) -> Result<Pair, PkiError> {
        let mut parameters = CertificateParams::default();
        for name in names {
            let one = CertificateParams::new(vec![name.clone()])
                .map_err(|_| PkiError::Name { name: name.clone() })?;
            parameters.subject_alt_names.extend(one.subject_alt_names);
        }
        parameters.distinguished_name =
            distinguished(&Subject { common_name: "kube-apiserver", organizations: &[] });
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.serving.issue(parameters, self.lifetime)
    }

    /// Issues a client certificate.
    ///
    /// # Errors
    /// [`PkiError::Make`].
    pub fn client(&self, subject: &Subject<'_>, lifetime: Duration) -> Result<Pair, PkiError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(subject);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.clients.issue(parameters, lifetime.min(self.lifetime))
    }

    /// Issues the certificate that this server shows to aggregated servers.
    ///
    /// # Errors
    /// [`PkiError::Make`].
    pub fn front_proxy(&self) -> Result<Pair, PkiError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name =
            distinguished(&Subject { common_name: FRONT_PROXY, organizations: &[] });
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.front_proxy.issue(parameters, self.lifetime)
    }

    fn make(directory: &Path, now: SystemTime) -> Result<Self, PkiError> {
        let token_key = KeyPair::generate()
            .map_err(|source| PkiError::Make { what: "the token key", source })?;
        let token_keys = TokenKeyPair {
            private_pem: token_key.serialize_pem(),
            public_pem: token_key.public_key_pem(),
        };
        let ((clients, client_key), (serving, serving_key)) =
            (CLIENT_CA.make(now)?, SERVING_CA.make(now)?);
        let (front_proxy, proxy_key) = FRONT_PROXY_CA.make(now)?;
        let [client_key, client_ca] = CLIENT_CA.written(&clients, &client_key);
        let [proxy_key, proxy_ca] = FRONT_PROXY_CA.written(&front_proxy, &proxy_key);
        let [serving_key, serving_ca] = SERVING_CA.written(&serving, &serving_key);
        let token_files = [
            ("sa.key", token_keys.private_pem.as_bytes(), FileMode::Private),
            ("sa.pub", token_keys.public_pem.as_bytes(), FileMode::Public),
        ];
        let [token_key, token_public] = token_files;
        let clients_first = [client_key, client_ca, proxy_key, proxy_ca];
        let serving_last = [serving_key, token_key, token_public, serving_ca];
        files::write_all(directory, &[clients_first, serving_last].concat())?;
        let token_keys = Arc::new(token_keys);
        Ok(Self { serving, clients, front_proxy, token_keys, lifetime: LEAF_LIFETIME })
    }
}

impl Authority {
    fn issue(
        &self,
        mut parameters: CertificateParams,
        lifetime: Duration,
    ) -> Result<Pair, PkiError> {
        let now = SystemTime::now();
        parameters.not_before = (now - BACKDATED).into();
        parameters.not_after = (now + lifetime).into();
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        let refused = |source| PkiError::Make { what: "a certificate", source };
        let key = KeyPair::generate().map_err(refused)?;
        let certificate = parameters.signed_by(&key, &*self.issuer).map_err(refused)?;
        Ok(Pair {
            chain_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            renewal: Renewal::of(now, lifetime),
        })
    }
}

impl AuthorityFiles {
    /// A new CA, with its key as PEM.
    fn make(&self, now: SystemTime) -> Result<(Authority, String), PkiError> {
        let refused = |source| PkiError::Make { what: "a CA", source };
        self.make_with(KeyPair::generate().map_err(refused)?, now)
    }

    /// A new certificate for a key, with the key as PEM.
    pub(crate) fn make_with(
        &self,
        key: KeyPair,
        now: SystemTime,
    ) -> Result<(Authority, String), PkiError> {
        let refused = |source| PkiError::Make { what: "a CA", source };
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name =
            distinguished(&Subject { common_name: self.common_name, organizations: &[] });
        parameters.not_before = (now - BACKDATED).into();
        parameters.not_after = (now + CA_LIFETIME).into();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let pem = parameters.self_signed(&key).map_err(refused)?.pem();
        let key_pem = key.serialize_pem();
        Ok((Authority { pem: pem.into(), issuer: Arc::new(Issuer::new(parameters, key)) }, key_pem))
    }

    /// Its files, in the order in which they are written.
    pub(crate) fn written<'a>(
        &self,
        authority: &'a Authority,
        key_pem: &'a str,
    ) -> [(&'static str, &'a [u8], FileMode); 2] {
        [
            (self.key, key_pem.as_bytes(), FileMode::Private),
            (self.certificate, authority.pem.as_bytes(), FileMode::Public),
        ]
    }

    /// Loads the CA, or makes one.
    fn load_or_make(&self, directory: &Path, now: SystemTime) -> Result<Authority, PkiError> {
        if let Some(authority) = self.load(directory, now)? {
            return Ok(authority);
        }
        let (authority, key) = self.make(now)?;
        files::write_all(directory, &self.written(&authority, &key))?;
        Ok(authority)
    }

    /// Loads the CA; `None` if it is not on disk.
    fn load(&self, directory: &Path, now: SystemTime) -> Result<Option<Authority>, PkiError> {
        let path = directory.join(self.certificate);
        let Some(certificate) = files::read(&path)? else { return Ok(None) };
        let pem = String::from_utf8(certificate)
            .map_err(|_| PkiError::Unusable { path: path.clone(), what: "certificate" })?;
        check_validity(&pem, &path, now)?;
        let key_path = directory.join(self.key);
        let key = load_key(key_path.clone())?;
        check_key(&pem, &key, &path, &key_path)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key)
            .map_err(|_| PkiError::Unusable { path, what: "CA certificate" })?;
        Ok(Some(Authority { pem: pem.into(), issuer: Arc::new(issuer) }))
    }
}

/// A self-signed serving certificate, for listeners that clients need not verify (health and
/// metrics on the loopback address).
///
/// # Errors
/// [`PkiError::Name`], [`PkiError::Make`].
pub fn self_signed(names: &[String]) -> Result<Pair, PkiError> {
    let refused = |source| PkiError::Make { what: "a certificate", source };
    let now = SystemTime::now();
    let mut parameters = CertificateParams::new(names.to_vec())
        .map_err(|_| PkiError::Name { name: names.join(",") })?;
    parameters.not_before = (now - BACKDATED).into();
    parameters.not_after = (now + LEAF_LIFETIME).into();
    let key = KeyPair::generate().map_err(refused)?;
    let certificate = parameters.self_signed(&key).map_err(refused)?;
    Ok(Pair {
        chain_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
        renewal: Renewal::of(now, LEAF_LIFETIME),
    })
}

/// The names by which clients reach a server: loopback and in-cluster names, the listen address or
/// for a wildcard those of the default routes, the host name, and `others`.
pub fn serving_names(listen: IpAddr, others: &[String]) -> Vec<String> {
    let fixed = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let mut names: Vec<String> = fixed.map(str::to_owned).to_vec();
    if listen.is_unspecified() {
        names.extend(main_addresses(listen).iter().map(ToString::to_string));
    } else {
        names.push(listen.to_string());
    }
    // A host name that is not allowed in a certificate must not prevent the start.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_ascii_lowercase();
    if !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
    {
        names.push(host);
    }
    names.extend(others.iter().cloned());
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The addresses from which packets leave this machine, of the families that a wildcard address
/// listens on. Nothing is sent.
fn main_addresses(wildcard: IpAddr) -> Vec<IpAddr> {
    // Addresses of documentation: any that are not local.
    let v4 = ("0.0.0.0:0", "203.0.113.1:9");
    let v6 = ("[::]:0", "[2001:db8::1]:9");
    let families = if wildcard.is_ipv4() { vec![v4] } else { vec![v4, v6] };
    let address = |(local, remote): (&str, &str)| {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(remote).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    families.into_iter().filter_map(address).collect()
}

/// Calls `issue` whenever its last certificate is due, until `end` resolves. `issue` installs the
/// new certificate and returns when that is due; after an error it is called again within a minute.
pub async fn renew<E: std::error::Error + 'static>(
    first: Renewal,
    end: impl Future<Output = ()>,
    issue: impl FnMut() -> Result<Renewal, E>,
) {
    renew_by(SystemTime::now, first, end, issue).await;
}

async fn renew_by<E: std::error::Error + 'static>(
    clock: impl Fn() -> SystemTime,
    first: Renewal,
    end: impl Future<Output = ()>,
    mut issue: impl FnMut() -> Result<Renewal, E>,
) {
    let mut end = std::pin::pin!(end);
    let mut next = first;
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = &mut end => return,
            () = async {
                tokio::time::sleep(pause).await;
                next.due_by(&clock).await;
            } => {}
        }
        pause = match issue() {
            Ok(renewal) => {
                tracing::info!("certificates renewed");
                next = renewal;
                Duration::ZERO
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot renew certificates"
                );
                RETRY
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

pub(crate) fn load_key(path: PathBuf) -> Result<KeyPair, PkiError> {
    let Some(pem) = files::read_private(&path)? else { return Err(PkiError::Missing { path }) };
    let text = std::str::from_utf8(&pem).ok();
    text.and_then(|text| KeyPair::from_pem(text).ok())
        .ok_or(PkiError::Unusable { path, what: "private key" })
}

/// Refuses another certificate's key: nobody would trust what it signs.
pub(crate) fn check_key(
    pem: &str,
    key: &KeyPair,
    path: &Path,
    key_path: &Path,
) -> Result<(), PkiError> {
    let unusable = || PkiError::Unusable { path: path.to_owned(), what: "certificate" };
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| unusable())?;
    let certificate = block.parse_x509().map_err(|_| unusable())?;
    if *certificate.public_key().subject_public_key.data == *key.public_key_raw() {
        return Ok(());
    }
    Err(PkiError::Mismatch { path: path.to_owned(), key: key_path.to_owned() })
}

pub(crate) fn check_validity(pem: &str, path: &Path, now: SystemTime) -> Result<(), PkiError> {
    let unusable = || PkiError::Unusable { path: path.to_owned(), what: "certificate" };
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| unusable())?;
    let certificate = block.parse_x509().map_err(|_| unusable())?;
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = ASN1Time::from_timestamp(i64::try_from(seconds).unwrap_or(i64::MAX))
        .map_err(|_| unusable())?;
    let validity = certificate.validity();
    if now < validity.not_before {
        return Err(PkiError::NotYetValid {
            path: path.to_owned(),
            now: now.to_string(),
            not_before: validity.not_before.to_string(),
        });
    }
    if now > validity.not_after { Err(PkiError::Expired { path: path.to_owned() }) } else { Ok(()) }
}

/// Derives a secret for one purpose from another one. See [`Pki::derived_key`].
pub fn derived_key(secret: &[u8], purpose: &str) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, purpose.as_bytes());
    tag.as_ref().try_into().expect("SHA-256 gives 32 bytes")
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
        let mode = |name: &str| {
            std::fs::metadata(directory.path().join("pki").join(name)).unwrap().permissions().mode()
                & 0o777
        };
        assert_eq!([mode("ca.key"), mode("sa.key"), mode("ca.crt")], [0o600, 0o600, 0o644]);
    }

    #[test]
    fn a_certificate_carries_its_names_and_subject() {
        let directory = tempfile::tempdir().unwrap();
        let pki = open(&directory).unwrap();
        let names = serving_names(
            "192.0.2.7".parse().unwrap(),
            &["api.example.com".into(), "localhost".into()],
        );
        let pair = pki.serving(&names).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(pair.chain_pem.as_bytes()).unwrap();
        let certificate = block.parse_x509().unwrap();
        let sans = format!(
            "{:?}",
            certificate.subject_alternative_name().unwrap().unwrap().value.general_names
        );
        for name in [
            "localhost",
            "kubernetes.default.svc.cluster.local",
            "api.example.com",
            "c0, 00, 02, 07",
        ] {
            let decimal = if name.starts_with("c0") { "192, 0, 2, 7" } else { name };
            assert!(
                sans.contains(name) || sans.contains(decimal) || sans.contains("c0:00:02:07"),
                "{name} in {sans}"
            );
        }
        assert!(matches!(pki.serving(&["\u{e9}".into()]), Err(PkiError::Name { .. })));
        let client = pki.client(&ADMIN, ADMIN_LIFETIME).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(client.chain_pem.as_bytes()).unwrap();
        assert_eq!(
            block.parse_x509().unwrap().subject().to_string(),
            "O=system:masters, CN=kubernetes-admin"
        );
        assert!(!format!("{client:?} {:?}", pki.token_keys()).contains("PRIVATE KEY"));
    }

    #[test]
    fn keys_that_others_can_read_and_missing_keys_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).unwrap();
        let key = directory.path().join("pki/ca.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            open(&directory),
            Err(PkiError::File(FileError::Open { mode: 0o640, .. }))
        ));
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

    #[test]
    fn servers_and_clients_have_separate_cas_and_old_directories_get_the_second() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(&directory).unwrap();
        assert_ne!(first.ca_pem(), first.client_ca_pem());
        let file = |name: &str| directory.path().join("pki").join(name);
        let mode = |name: &str| std::fs::metadata(file(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("client-ca.key"), mode("client-ca.crt")], [0o600, 0o644]);
        assert_eq!(open(&directory).unwrap().client_ca_pem(), first.client_ca_pem());
        // A directory as version 1 left it.
        std::fs::remove_file(file("client-ca.crt")).unwrap();
        std::fs::remove_file(file("client-ca.key")).unwrap();
        let second = open(&directory).unwrap();
        assert_eq!(
            (second.ca_pem(), &second.token_keys().public_pem),
            (first.ca_pem(), &first.token_keys().public_pem)
        );
        assert_ne!(second.client_ca_pem(), first.client_ca_pem());
        assert_eq!(open(&directory).unwrap().client_ca_pem(), second.client_ca_pem());
        std::fs::remove_file(file("client-ca.key")).unwrap();
        assert!(matches!(open(&directory), Err(PkiError::Missing { .. })));
    }

    #[test]
    fn fault_14_a_clock_behind_the_ca_is_not_an_expired_ca() {
        let now = SystemTime::now();
        let (authority, _) = SERVING_CA.make(now).unwrap();
        let at = |now| check_validity(&authority.pem, Path::new("ca.crt"), now);
        at(now).unwrap();
        assert!(matches!(at(now + CA_LIFETIME * 2), Err(PkiError::Expired { .. })));
        let error = at(now - CA_LIFETIME).unwrap_err();
        assert!(error.to_string().starts_with("the CA certificate ca.crt is not yet valid: the clock of this machine is behind it (it says "), "{error}");
    }

    #[tokio::test]
    async fn certificates_are_renewed_while_running_and_failures_are_retried() {
        let end = tokio::sync::Notify::new();
        let mut calls = 0;
        let soon = || Renewal {
            not_before: SystemTime::UNIX_EPOCH,
            at: SystemTime::now() + Duration::from_millis(20),
        };
        renew(soon(), end.notified(), || {
            calls += 1;
            if calls == 2 {
                end.notify_one();
            }
            Ok::<_, std::io::Error>(soon())
        })
        .await;
        assert_eq!(calls, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn fault_14_a_clock_that_is_set_either_way_renews_within_seconds() {
        let wall = std::sync::Mutex::new(SystemTime::now());
        let clock = || *wall.lock().unwrap();
        let end = tokio::sync::Notify::new();
        let (renewed, seen) = tokio::sync::watch::channel(0);
        let mut calls = 0;
        let renewing = renew_by(clock, Renewal::of(clock(), LEAF_LIFETIME), end.notified(), || {
            calls += 1;
            renewed.send_replace(calls);
            // The second time it fails.
            if calls == 2 {
                Err(std::io::Error::other("no"))
            } else {
                Ok(Renewal::of(clock(), LEAF_LIFETIME))
            }
        });
        let setting = async {
            let waits = async |count, bound| {
                let begun = tokio::time::Instant::now();
                seen.clone().wait_for(|seen| *seen == count).await.unwrap();
                assert!(begun.elapsed() <= bound, "{:?}", begun.elapsed());
            };
            tokio::time::sleep(POLL * 10).await;
            assert_eq!(*seen.borrow(), 0);
            *wall.lock().unwrap() += LEAF_LIFETIME;
            waits(1, POLL).await;
            *wall.lock().unwrap() -= LEAF_LIFETIME * 3;
            waits(2, POLL).await;
            waits(3, RETRY).await;
            tokio::time::sleep(POLL * 10).await;
            assert_eq!(*seen.borrow(), 3);
            end.notify_one();
        };
        tokio::join!(renewing, setting);
    }
}
