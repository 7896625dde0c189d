//! TLS to aggregated servers: their CA, their name, and our identity as a front proxy.

use crate::service::RemoteService;
use arc_swap::ArcSwapOption;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_webhook::bundle_verifier;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, crypto::ring};
use std::sync::Arc;

/// The certificate by which aggregated servers recognize this server; replaced when it is renewed.
#[derive(Clone, Debug, Default)]
pub struct ProxyIdentity(Arc<ArcSwapOption<CertifiedKey>>);

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the proxy's client certificate or key cannot be used")]
pub struct IdentityError;

impl ProxyIdentity {
    /// Sets chain and key, both PEM; new connections use them.
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

impl ResolvesClientCert for ProxyIdentity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }

    fn has_certs(&self) -> bool {
        self.0.load().is_some()
    }
}

/// TLS configuration for one service; the error is for its condition.
pub(crate) fn config(
    service: &RemoteService,
    identity: &ProxyIdentity,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|_| "TLS cannot be set up".to_owned())?;
    let verified = if service.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else {
        let pem = STANDARD.decode(&service.ca_bundle);
        let pem = pem.map_err(|_| "its caBundle is not base64".to_owned())?;
        // No other CA signs names that end with `.svc`.
        builder.dangerous().with_custom_certificate_verifier(bundle_verifier(&pem)?)
    };
    let mut config = verified.with_client_cert_resolver(Arc::new(identity.clone()));
    // One request per connection at a time: on a shared one, the watches of one caller could take
    // all streams from everybody.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The name that the certificate must have, whatever address it is found at.
pub(crate) fn server_name(service: &RemoteService) -> Result<ServerName<'static>, String> {
    ServerName::try_from(format!("{}.{}.svc", service.name, service.namespace))
        .map_err(|_| "its name cannot stand in a certificate".to_owned())
}

/// For `insecureSkipTLSVerify`: the connection is encrypted, its other end may be anybody.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

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
