//! TLS to other servers: our client certificate, and connections without verification.

use arc_swap::ArcSwapOption;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use std::sync::Arc;

/// Our client certificate, replaced when renewed.
#[derive(Clone, Debug, Default)]
pub struct ClientIdentity(Arc<ArcSwapOption<CertifiedKey>>);

/// An unusable certificate or key.
#[derive(Debug, thiserror::Error)]
#[error("the client certificate or key cannot be used")]
pub struct IdentityError;

impl ClientIdentity {
    /// Sets PEM chain and key for new connections.
    ///
    /// # Errors
    /// They are malformed.
    pub fn replace(&self, chain_pem: &str, key_pem: &str) -> Result<(), IdentityError> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain_pem.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(|_| IdentityError)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|_| IdentityError)?;
        if chain.is_empty() {
            return Err(IdentityError);
        }
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|_| IdentityError)?;
        self.0.store(Some(Arc::new(key)));
        Ok(())
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }

    fn has_certs(&self) -> bool {
        self.0.load().is_some()
    }
}

/// Accepts any certificate: encrypts, but does not authenticate the server.
#[derive(Debug)]
pub struct AnyCertificate(Arc<CryptoProvider>);

impl Default for AnyCertificate {
    fn default() -> Self {
        Self(Arc::new(ring::default_provider()))
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _rest: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
