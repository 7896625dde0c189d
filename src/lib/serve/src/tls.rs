//! TLS: the serving certificate and the client CAs, replaceable while connections are open.
//!
//! The handshake accepts every client certificate whose private key the client has;
//! [`Peer`](crate::Peer) records which CA verifies it. An unverified certificate is a matter of
//! authentication (401), as in kube-apiserver, not of the handshake.

use arc_swap::{ArcSwap, ArcSwapOption};
use ferrokube_pki::Pair;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Certificates or keys that cannot be used. Nothing was replaced.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or without the needed block.
    #[error("no usable {what} in the PEM text")]
    Pem {
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// The key type is not supported, or it belongs to another certificate.
    #[error("the certificate and its key do not work together")]
    Pair(#[source] rustls::Error),
    /// A CA certificate that cannot verify anything.
    #[error("the CA certificates cannot be used: {0}")]
    Authority(String),
    /// One key signs for clients and for front proxies (fault 52).
    #[error(
        "the client CA and the front proxy's CA share a key: every client could impersonate any user"
    )]
    Shared,
}

/// The TLS state of a listener. Clones share it.
#[derive(Clone)]
pub struct Tls {
    provider: Arc<CryptoProvider>,
    serving: Arc<ServingCertificate>,
    authorities: Arc<CaSets>,
    versions: &'static [&'static SupportedProtocolVersion],
    /// Encrypts session tickets; rotates its keys itself.
    tickets: Arc<dyn ProducesTickets>,
    /// For new connections; rebuilt when a CA is replaced, as it contains their names.
    config: Arc<ArcSwapOption<ServerConfig>>,
}

static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Versions and suites that a listener negotiates.
#[derive(Clone, Debug, Default)]
pub struct TlsPolicy {
    /// TLS 1.3 only, without 1.2.
    pub only_tls13: bool,
    /// Cipher suites of TLS 1.2; all safe ones if empty. As in Go, those of TLS 1.3 cannot be
    /// chosen.
    pub suites: Vec<CipherSuite>,
}

impl TlsPolicy {
    /// A cipher suite by its Go name; `None` if not supported.
    pub fn suite(name: &str) -> Option<CipherSuite> {
        Self::named().into_iter().find(|(known, _)| known == name).map(|(_, suite)| suite)
    }

    /// Go names of all cipher suites.
    pub fn suite_names() -> Vec<String> {
        Self::named().into_iter().map(|(name, _)| name).collect()
    }

    fn named() -> Vec<(String, CipherSuite)> {
        let suites =
            rustls::crypto::ring::ALL_CIPHER_SUITES.iter().map(rustls::SupportedCipherSuite::suite);
        let name = |suite: CipherSuite| {
            suite.as_str().map(|name| (name.replacen("TLS13_", "TLS_", 1), suite))
        };
        suites.filter_map(name).collect()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

impl Tls {
    /// `chain_pem` is leaf first; the key is PKCS#8, SEC1 or PKCS#1. Both are PEM.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Pair`].
    pub fn new(chain_pem: &[u8], key_pem: &[u8]) -> Result<Self, TlsError> {
        Self::with_policy(chain_pem, key_pem, &TlsPolicy::default())
    }

    /// [`Self::new`] with a policy.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn with_policy(
        chain_pem: &[u8],
        key_pem: &[u8],
        policy: &TlsPolicy,
    ) -> Result<Self, TlsError> {
        let mut provider = rustls::crypto::ring::default_provider();
        let is_chosen = |suite: &SupportedCipherSuite| {
            suite.tls13().is_some()
                || policy.suites.is_empty()
                || policy.suites.contains(&suite.suite())
        };
        provider.cipher_suites.retain(is_chosen);
        let has_tls12 = !policy.only_tls13
            && provider.cipher_suites.iter().any(|suite| suite.tls13().is_none());
        let versions = if has_tls12 { rustls::ALL_VERSIONS } else { ONLY_TLS13 };
        let provider = Arc::new(provider);
        let serving = Arc::new(ServingCertificate(ArcSwap::from_pointee(certified_key(
            &provider, chain_pem, key_pem,
        )?)));
        let tickets = rustls::crypto::ring::Ticketer::new().map_err(TlsError::Pair)?;
        let tls = Self {
            provider,
            serving,
            authorities: Arc::default(),
            versions,
            tickets,
            config: Arc::default(),
        };
        tls.configure()?;
        Ok(tls)
    }

    /// Replaces the serving certificate of new connections.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn replace_serving(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), TlsError> {
        self.serving.0.store(Arc::new(certified_key(&self.provider, chain_pem, key_pem)?));
        Ok(())
    }

    /// The chain of a certificate, leaf first, if the key belongs to it: what a handshake proves.
    pub(crate) fn proven_chain(
        &self,
        pair: &Pair,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let (chain, key) = (pair.chain_pem.as_bytes(), pair.key_pem.as_bytes());
        Ok(certified_key(&self.provider, chain, key)?.cert)
    }

    /// [`Self::replace_cas`] for clients only.
    ///
    /// # Errors
    /// As [`Self::replace_cas`].
    pub fn replace_client_ca(&self, pem: &[u8]) -> Result<(), TlsError> {
        self.replace_cas(Some(pem), None)
    }

    /// [`Self::replace_cas`] for front proxies only.
    ///
    /// # Errors
    /// As [`Self::replace_cas`].
    pub fn replace_proxy_ca(&self, pem: &[u8]) -> Result<(), TlsError> {
        self.replace_cas(None, Some(pem))
    }

    /// Replaces the CAs (PEM, one or more each) that verify clients, those that verify front
    /// proxies, or both in one step; existing connections are verified again at their next request.
    ///
    /// Invariant: no key is in both sets, in whatever order they were set. So there is no other way
    /// to set them.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Authority`], [`TlsError::Shared`].
    pub fn replace_cas(&self, client: Option<&[u8]>, proxy: Option<&[u8]>) -> Result<(), TlsError> {
        let _one_at_a_time = self.authorities.writing.lock();
        let present = self.authorities.trusted.load();
        let replaced = |pem: Option<&[u8]>, present: &Option<Arc<CaSet>>| match pem {
            Some(pem) => self.authority(pem).map(|authority| Some(Arc::new(authority))),
            None => Ok(present.clone()),
        };
        let next = TrustedRoots {
            client: replaced(client, &present.client)?,
            proxy: replaced(proxy, &present.proxy)?,
        };
        if let (Some(client), Some(proxy)) = (&next.client, &next.proxy)
            && !client.keys.is_disjoint(&proxy.keys)
        {
            return Err(TlsError::Shared);
        }
        self.authorities.trusted.store(Arc::new(next));
        self.authorities.generation.fetch_add(1, Ordering::Release);
        self.configure()
    }

    /// Counts replacements of CAs.
    pub(crate) fn generation(&self) -> u64 {
        self.authorities.generation.load(Ordering::Acquire)
    }

    /// Whether a client CA verifies the chain for client authentication now.
    pub(crate) fn is_client(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> bool {
        verifies(self.authorities.trusted.load().client.as_deref(), leaf, rest)
    }

    /// Whether a front proxy CA verifies the chain for client authentication now.
    pub(crate) fn is_proxy(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> bool {
        verifies(self.authorities.trusted.load().proxy.as_deref(), leaf, rest)
    }

    /// For new connections.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        self.config.load_full().expect("made before a value is given out")
    }

    fn configure(&self) -> Result<(), TlsError> {
        let verifier = AnyProvenKey {
            provider: Arc::clone(&self.provider),
            hints: self.authorities.trusted.load().subjects(),
            authorities: Arc::clone(&self.authorities),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(self.versions)
            .map_err(TlsError::Pair)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::clone(&self.serving) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // One ticket, like Go's server: resumption saves a signature. Nothing is stored here, and a
        // resumed client's certificates are verified at each request.
        config.send_tls13_tickets = 1;
        config.ticketer = Arc::clone(&self.tickets);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        self.config.store(Some(Arc::new(config)));
        Ok(())
    }

    fn authority(&self, pem: &[u8]) -> Result<CaSet, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem)? {
            roots.add(certificate).map_err(|error| TlsError::Authority(error.to_string()))?;
        }
        let keys = roots.roots.iter().map(|root| root.subject_public_key_info.to_vec()).collect();
        let subjects = roots.subjects();
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&self.provider),
        )
        .build();
        verifier
            .map(|verifier| CaSet { verifier, keys, subjects })
            .map_err(|error| TlsError::Authority(error.to_string()))
    }
}

#[derive(Default)]
struct CaSets {
    trusted: ArcSwap<TrustedRoots>,
    writing: Mutex<()>,
    generation: AtomicU64,
}

/// One set of CAs.
#[derive(Default)]
struct TrustedRoots {
    client: Option<Arc<CaSet>>,
    proxy: Option<Arc<CaSet>>,
}

struct CaSet {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Public keys of the CAs.
    keys: BTreeSet<Vec<u8>>,
    subjects: Vec<DistinguishedName>,
}

impl TrustedRoots {
    /// Distinct names of all CAs.
    fn subjects(&self) -> Vec<DistinguishedName> {
        let mut subjects: Vec<DistinguishedName> = Vec::new();
        for subject in [&self.client, &self.proxy]
            .into_iter()
            .flatten()
            .flat_map(|authority| &authority.subjects)
        {
            if !subjects.iter().any(|known| known.as_ref() == subject.as_ref()) {
                subjects.push(subject.clone());
            }
        }
        subjects
    }
}

fn verifies(
    authority: Option<&CaSet>,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
) -> bool {
    authority.is_some_and(|authority| {
        authority.verifier.verify_client_cert(leaf, rest, UnixTime::now()).is_ok()
    })
}

#[derive(Debug)]
struct ServingCertificate(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Certificates that a client may show.
const MAX_CHAIN: usize = 8;
/// Max total bytes of a chain: a connection keeps it, plus a copy for verification.
const MAX_CHAIN_BYTES: usize = 16 << 10;
/// Max total bytes of a chain that no CA verifies, which any client can make.
const MAX_UNVERIFIED_BYTES: usize = 4 << 10;

/// Accepts any certificate whose key the client has, within bounds: it is judged later.
struct AnyProvenKey {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
    authorities: Arc<CaSets>,
}

impl fmt::Debug for AnyProvenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyProvenKey").finish_non_exhaustive()
    }
}

impl AnyProvenKey {
    fn verifies(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> bool {
        let trusted = self.authorities.trusted.load();
        verifies(trusted.client.as_deref(), leaf, rest)
            || verifies(trusted.proxy.as_deref(), leaf, rest)
    }
}

impl ClientCertVerifier for AnyProvenKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Sent like kube-apiserver does: browsers, and clients with several certificates, choose by
    /// them. A client may then withhold a foreign certificate and be anonymous.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let bytes = leaf.len() + rest.iter().map(|certificate| certificate.len()).sum::<usize>();
        if rest.len() >= MAX_CHAIN
            || bytes > MAX_CHAIN_BYTES
            || (bytes > MAX_UNVERIFIED_BYTES && !self.verifies(leaf, rest))
        {
            return Err(rustls::Error::General(
                "the client's certificate chain is too long".into(),
            ));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn certified_key(
    provider: &CryptoProvider,
    chain_pem: &[u8],
    key_pem: &[u8],
) -> Result<CertifiedKey, TlsError> {
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|_| TlsError::Pem { what: "private key" })?;
    CertifiedKey::from_der(certificates(chain_pem)?, key, provider).map_err(TlsError::Pair)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or(TlsError::Pem { what: "certificate" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn ca(name: &str, key: &KeyPair) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.self_signed(key).unwrap().pem().into_bytes()
    }

    #[test]
    fn fault_52_no_key_signs_for_clients_and_proxies() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let own = ferrokube_pki::self_signed(&["localhost".to_owned()]).unwrap();
        let tls = Tls::new(own.chain_pem.as_bytes(), own.key_pem.as_bytes()).unwrap();
        let (client, proxy) = (ca("ca", &one), ca("proxy-ca", &other));
        let is_shared = |result: Result<(), TlsError>| matches!(result, Err(TlsError::Shared));
        assert!(is_shared(tls.replace_cas(Some(&client), Some(&client))));
        tls.replace_cas(Some(&client), Some(&proxy)).unwrap();
        let generation = tls.generation();
        let renamed = [proxy.clone(), ca("another name, same key", &one)].concat();
        assert!(is_shared(tls.replace_proxy_ca(&renamed)), "after a start with good ones, too");
        assert!(is_shared(tls.replace_client_ca(&proxy)));
        assert_eq!(tls.generation(), generation, "nothing was replaced");
        tls.replace_cas(Some(&proxy), Some(&client)).unwrap();
    }
}
