//! TLS: the serving certificate and the client CAs, all replaceable while connections live.
//!
//! Every client certificate is let through the handshake once its holder proved to have the key;
//! which CA verifies it is recorded in [`Peer`](crate::Peer). A certificate that none verifies is a
//! matter for authentication (401), as with kube-apiserver, not a broken handshake.

use arc_swap::{ArcSwap, ArcSwapOption};
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Certificates or keys that cannot be used. Nothing was replaced.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or without what is needed in it.
    #[error("no usable {what} in the PEM text")]
    Pem {
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// The key is of a kind that is not supported, or belongs to another certificate.
    #[error("the certificate and its key do not work together")]
    Pair(#[source] rustls::Error),
    /// A CA certificate that cannot verify anything.
    #[error("the CA certificates cannot be used: {0}")]
    Authority(String),
    /// One key signs for clients and for front proxies (fault 52).
    #[error(
        "the client CA and the front proxy's CA share a key: every client could pass itself off as anybody"
    )]
    Shared,
}

/// The TLS state of a listener. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Tls {
    provider: Arc<CryptoProvider>,
    serving: Arc<Serving>,
    authorities: Arc<Authorities>,
    versions: &'static [&'static SupportedProtocolVersion],
    /// Encrypts what clients keep of their sessions; the keys change by themselves.
    tickets: Arc<dyn ProducesTickets>,
    /// Of new connections; made again when a CA is replaced, whose names are in it.
    config: Arc<ArcSwapOption<ServerConfig>>,
}

static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// What a listener negotiates.
#[derive(Clone, Debug, Default)]
pub struct TlsPolicy {
    /// TLS 1.3 only, instead of 1.2 too.
    pub only_tls13: bool,
    /// The cipher suites of TLS 1.2 and 1.3; all that are safe if empty. As with Go, those of TLS
    /// 1.3 cannot be chosen.
    pub suites: Vec<CipherSuite>,
}

impl TlsPolicy {
    /// A cipher suite by the name that Go has for it; `None` for one that is not supported.
    pub fn suite(name: &str) -> Option<CipherSuite> {
        Self::named().into_iter().find(|(known, _)| known == name).map(|(_, suite)| suite)
    }

    /// The names of all cipher suites.
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
    /// From a certificate chain (leaf first) and its private key (PKCS#8, SEC1 or PKCS#1), both
    /// PEM.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Pair`].
    pub fn new(chain_pem: &[u8], key_pem: &[u8]) -> Result<Self, TlsError> {
        Self::with_policy(chain_pem, key_pem, &TlsPolicy::default())
    }

    /// The same with a policy.
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
        let serving =
            Arc::new(Serving(ArcSwap::from_pointee(certified(&provider, chain_pem, key_pem)?)));
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

    /// Serves new connections with another certificate; present ones go on.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn replace_serving(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), TlsError> {
        self.serving.0.store(Arc::new(certified(&self.provider, chain_pem, key_pem)?));
        Ok(())
    }

    /// [`Self::replace_cas`] of the clients' alone.
    ///
    /// # Errors
    /// As [`Self::replace_cas`].
    pub fn replace_client_ca(&self, pem: &[u8]) -> Result<(), TlsError> {
        self.replace_cas(Some(pem), None)
    }

    /// [`Self::replace_cas`] of the front proxies' alone.
    ///
    /// # Errors
    /// As [`Self::replace_cas`].
    pub fn replace_proxy_ca(&self, pem: &[u8]) -> Result<(), TlsError> {
        self.replace_cas(None, Some(pem))
    }

    /// Replaces the CAs that verify clients, those that verify front proxies, or both in one step
    /// (PEM, one or more each); also for present connections, from their next request on.
    /// Invariant: no key is in both, however and whenever they came; so there is no other way to
    /// set them.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Authority`], [`TlsError::Shared`].
    pub fn replace_cas(&self, client: Option<&[u8]>, proxy: Option<&[u8]>) -> Result<(), TlsError> {
        let _one_at_a_time = self.authorities.writing.lock().expect("no panic while held");
        let present = self.authorities.trusted.load();
        let replaced = |pem: Option<&[u8]>, present: &Option<Arc<Authority>>| match pem {
            Some(pem) => self.authority(pem).map(|authority| Some(Arc::new(authority))),
            None => Ok(present.clone()),
        };
        let next = Trusted {
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

    /// Whether a client CA verifies the chain for client authentication, now.
    pub(crate) fn is_client(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> bool {
        verifies(self.authorities.trusted.load().client.as_deref(), leaf, rest)
    }

    /// Whether a front proxy's CA verifies the chain for client authentication, now.
    pub(crate) fn is_proxy(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> bool {
        verifies(self.authorities.trusted.load().proxy.as_deref(), leaf, rest)
    }

    /// The configuration of new connections.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        self.config.load_full().expect("made before a value is given out")
    }

    fn configure(&self) -> Result<(), TlsError> {
        let verifier = AnyWithKey {
            provider: Arc::clone(&self.provider),
            hints: self.authorities.trusted.load().subjects(),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(self.versions)
            .map_err(TlsError::Pair)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::clone(&self.serving) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // One, as Go's server: sessions are resumed without another signature. Nothing is kept
        // here; what a client showed is judged again at each request.
        config.send_tls13_tickets = 1;
        config.ticketer = Arc::clone(&self.tickets);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        self.config.store(Some(Arc::new(config)));
        Ok(())
    }

    fn authority(&self, pem: &[u8]) -> Result<Authority, TlsError> {
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
            .map(|verifier| Authority { verifier, keys, subjects })
            .map_err(|error| TlsError::Authority(error.to_string()))
    }
}

#[derive(Default)]
struct Authorities {
    trusted: ArcSwap<Trusted>,
    writing: Mutex<()>,
    generation: AtomicU64,
}

/// Whom certificates are verified by.
#[derive(Default)]
struct Trusted {
    client: Option<Arc<Authority>>,
    proxy: Option<Arc<Authority>>,
}

struct Authority {
    verifier: Arc<dyn ClientCertVerifier>,
    /// The public keys of its CAs.
    keys: BTreeSet<Vec<u8>>,
    subjects: Vec<DistinguishedName>,
}

impl Trusted {
    /// The names of all CAs, each once.
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
    authority: Option<&Authority>,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
) -> bool {
    authority.is_some_and(|authority| {
        authority.verifier.verify_client_cert(leaf, rest, UnixTime::now()).is_ok()
    })
}

#[derive(Debug)]
struct Serving(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Certificates that a client may show.
const MAX_CHAIN: usize = 8;
/// Bytes of all of them: a connection keeps them twice.
const MAX_CHAIN_BYTES: usize = 16 << 10;

/// Accepts any certificate whose key the client has, within bounds: it is judged later.
#[derive(Debug)]
struct AnyWithKey {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AnyWithKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// As kube-apiserver: browsers, and clients with several certificates, choose by them. A client
    /// may then keep a foreign certificate to itself and be anonymous.
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
        if rest.len() >= MAX_CHAIN || bytes > MAX_CHAIN_BYTES {
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

fn certified(
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
    fn fault_52_one_key_never_signs_for_clients_and_proxies() {
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
