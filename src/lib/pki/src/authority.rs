//! Keys and certificates: three CAs and the token keys on disk; serving and client certificates
//! issued on demand.
//!
//! One CA per purpose: clients verify the server with `ca.crt`, the server verifies clients with
//! `client-ca.crt`, so that neither key can act as the other. Aggregated servers verify this server
//! with `front-proxy-ca.crt`, which is not trusted here: front proxies of this server need a CA
//! given by `--requestheader-client-ca-file`.
//!
//! Issuing a certificate takes 0.1 ms, so they are issued at every start and renewed while running
//! rather than stored: fewer keys at rest, no stale files. Only the CAs and the key that signs
//! service account tokens must survive.

use crate::error::PkiError;
use crate::files::{self, FileMode};
use crate::renewal::{BACKDATED, Renewal};
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

/// Subject of the client certificate of a scheduler.
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
    pub(crate) clients: Authority,
    front_proxy: Authority,
    token_keys: Arc<TokenKeyPair>,
    lifetime: Duration,
}

/// One CA.
#[derive(Clone)]
pub(crate) struct Authority {
    pub(crate) pem: Arc<str>,
    pub(crate) issuer: Arc<Issuer<'static, KeyPair>>,
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
    /// Loads a CA; `None` if its certificate is not on disk.
    pub(crate) fn open(
        path: PathBuf,
        key_path: PathBuf,
        now: SystemTime,
    ) -> Result<Option<Self>, PkiError> {
        let Some(certificate) = files::read(&path)? else { return Ok(None) };
        let pem = String::from_utf8(certificate)
            .map_err(|_| PkiError::Unusable { path: path.clone(), what: "certificate" })?;
        check_validity(&pem, &path, now)?;
        let key = load_key(key_path.clone())?;
        check_key(&pem, &key, &path, &key_path)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key)
            .map_err(|_| PkiError::Unusable { path, what: "CA certificate" })?;
        Ok(Some(Self { pem: pem.into(), issuer: Arc::new(issuer) }))
    }

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

    /// Files of the authority, in the order in which they are written.
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
        Authority::open(directory.join(self.certificate), directory.join(self.key), now)
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
pub fn main_addresses(wildcard: IpAddr) -> Vec<IpAddr> {
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

pub(crate) fn distinguished(subject: &Subject<'_>) -> DistinguishedName {
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

/// Rejects a key that does not match the certificate.
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
mod tests;
