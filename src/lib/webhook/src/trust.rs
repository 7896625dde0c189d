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

/// Installs the process's crypto provider unless the program has: clients without a TLS
/// configuration need one, and a program that uses the library need not know that.
pub(crate) fn ensure_provider() {
    let _ = ring::default_provider().install_default();
}

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

/// Verifies chains to the bundle. A certificate that is in the bundle itself is trusted too, as in
/// Go: also if it may sign others, as self-signed ones often may, and if its issuer is not in the
/// bundle, as with controller-runtime's envtest.
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
            Err(error) if is_about_others(&error) && self.certificates.contains(end_entity) => {
                // Validity period and purpose are verified before the issuer is searched for.
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

/// Whether the only fault is that the server's certificate may sign others, or has no issuer.
fn is_about_others(error: &Error) -> bool {
    match error {
        // The latter if another issuer has the name of a certificate in the bundle.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => true,
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            other.to_string().contains("CaUsedAsEndEntity")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType,
        ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
    };

    fn issuer() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// A certificate of `localhost`, signed by another, after a change.
    fn issued(change: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        change(&mut params);
        params.signed_by(&KeyPair::generate().unwrap(), &issuer()).unwrap()
    }

    fn verified(bundle: &Certificate, shown: &Certificate, name: &str) -> Result<(), Error> {
        let verifier = bundle_verifier(bundle.pem().as_bytes()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::now();
        verifier.verify_server_cert(shown.der(), &[], &name, &[], now).map(drop)
    }

    #[test]
    fn a_certificate_in_the_bundle_needs_no_issuer() {
        // Of an issuer with the same name, and with another.
        let plain = issued(|_| {});
        verified(&plain, &plain, "localhost").unwrap();
        let named = issued(|params| params.distinguished_name.push(DnType::CommonName, "n"));
        verified(&named, &named, "localhost").unwrap();
        verified(&plain, &plain, "example.com").unwrap_err();
        verified(&plain, &issued(|_| {}), "localhost").unwrap_err();
        let expired = issued(|params| params.not_after = date_time_ymd(2020, 1, 1));
        verified(&expired, &expired, "localhost").unwrap_err();
        let of_a_client = issued(|params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        verified(&of_a_client, &of_a_client, "localhost").unwrap_err();
    }
}
