//! TLS: the serving certificate and the client CAs, all replaceable while connections live.
//!
//! Every client certificate is let through the handshake once its holder proved to have the key; which CA verifies it is recorded in
//! [`Peer`](crate::Peer). A certificate that none verifies is a matter for authentication (401), as with kube-apiserver, not a broken handshake.

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};
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
    #[error("the client CA and the front proxy's CA share a key: every client could pass itself off as anybody")]
    Shared,
}

/// The TLS state of a listener. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Tls {
    provider: Arc<CryptoProvider>,
    serving: Arc<Serving>,
    authorities: Arc<Authorities>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

impl Tls {
    /// From a certificate chain (leaf first) and its private key (PKCS#8, SEC1 or PKCS#1), both PEM.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Pair`].
    pub fn new(chain_pem: &[u8], key_pem: &[u8]) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = certified(&provider, chain_pem, key_pem)?;
        Ok(Self { provider, serving: Arc::new(Serving(ArcSwap::from_pointee(key))), authorities: Arc::default() })
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

    /// Replaces the CAs that verify clients, those that verify front proxies, or both in one step (PEM, one or more each); also for present connections,
    /// from their next request on. Invariant: no key is in both, however and whenever they came; so there is no other way to set them.
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
        let next = Trusted { client: replaced(client, &present.client)?, proxy: replaced(proxy, &present.proxy)? };
        if let (Some(client), Some(proxy)) = (&next.client, &next.proxy)
            && !client.keys.is_disjoint(&proxy.keys)
        {
            return Err(TlsError::Shared);
        }
        self.authorities.trusted.store(Arc::new(next));
        self.authorities.generation.fetch_add(1, Ordering::Release);
        Ok(())
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
    pub(crate) fn server_config(&self) -> Result<ServerConfig, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(TlsError::Pair)?
            .with_client_cert_verifier(Arc::new(AnyWithKey(Arc::clone(&self.provider))))
            .with_cert_resolver(Arc::clone(&self.serving) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Clients of this API do not resume sessions; tickets would only cost every handshake bytes and memory.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }

    fn authority(&self, pem: &[u8]) -> Result<Authority, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem)? {
            roots.add(certificate).map_err(|error| TlsError::Authority(error.to_string()))?;
        }
        let keys = roots.roots.iter().map(|root| root.subject_public_key_info.to_vec()).collect();
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map(|verifier| Authority { verifier, keys })
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
}

fn verifies(authority: Option<&Authority>, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> bool {
    authority.is_some_and(|authority| authority.verifier.verify_client_cert(leaf, rest, UnixTime::now()).is_ok())
}

#[derive(Debug)]
struct Serving(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// Accepts any certificate whose key the client has.
#[derive(Debug)]
struct AnyWithKey(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyWithKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: with hints, clients would hide a foreign certificate and be anonymous instead of refused; and hints cannot be replaced.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(&self, _leaf: &CertificateDer<'_>, _rest: &[CertificateDer<'_>], _now: UnixTime) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn certified(provider: &CryptoProvider, chain_pem: &[u8], key_pem: &[u8]) -> Result<CertifiedKey, TlsError> {
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| TlsError::Pem { what: "private key" })?;
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
        let own = crate::pki::self_signed(&["localhost".to_owned()]).unwrap();
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
