//! TLS with the CA bundle of a webhook.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use std::sync::Arc;

/// A configuration that trusts only the certificates of a PEM bundle, with a client certificate if
/// there is one.
///
/// # Errors
/// The bundle has no usable certificates.
pub(crate) fn client_config(
    pem: &[u8],
    identity: Option<&Arc<CertifiedKey>>,
) -> Result<ClientConfig, String> {
    let verified = with_versions(Arc::new(ring::default_provider()))?
        .dangerous()
        .with_custom_certificate_verifier(bundle_verifier(pem)?);
    let mut config = match identity {
        Some(key) => {
            verified.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))))
        }
        None => verified.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Trusts only the certificates of a PEM bundle: those that they sign, and they themselves.
///
/// # Errors
/// The bundle has no usable certificates.
pub fn bundle_verifier(pem: &[u8]) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let wrong = || "its caBundle has no certificates".to_owned();
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        return Err(wrong());
    }
    let provider = Arc::new(ring::default_provider());
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|_| wrong())?;
    Ok(Arc::new(BundleVerifier { chains, certificates }))
}

fn with_versions(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
}

/// Verifies chains to the bundle. A certificate that is in the bundle itself is trusted too, also
/// if it may sign others: webhooks often use such a self-signed one, which Go's clients accept.
#[derive(Debug)]
struct BundleVerifier {
    chains: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for BundleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let by_chain = self.chains.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match by_chain {
            Err(error) if may_sign(&error) && self.certificates.contains(end_entity) => {
                // Its time was verified before that it may sign others was noticed.
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Whether the only fault is that the server's certificate may sign others.
fn may_sign(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            other.to_string().contains("CaUsedAsEndEntity")
        }
        _ => false,
    }
}
