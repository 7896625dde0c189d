//! TLS to etcd: its authorities, and the certificate of this client.

use crate::connection::{ConfigError, EtcdTls};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Protocol of gRPC.
const HTTP2: &[u8] = b"h2";

pub(crate) fn connector(tls: &EtcdTls) -> Result<TlsConnector, ConfigError> {
    let ca = tls.ca.as_ref().ok_or(ConfigError::NoAuthority)?;
    let config = config(ca, tls.identity.as_ref()).map_err(ConfigError::Tls)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Whether the server chose HTTP/2.
pub(crate) fn is_http2(session: &rustls::ClientConnection) -> bool {
    session.alpn_protocol() == Some(HTTP2)
}

fn config(
    ca: &[u8],
    identity: Option<&(Vec<u8>, Vec<u8>)>,
) -> Result<ClientConfig, Box<dyn Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    let (added, ignored) = roots.add_parsable_certificates(certificates(ca)?);
    if added == 0 {
        return Err("the file of authorities has no certificate that can be used".into());
    }
    if ignored > 0 {
        tracing::warn!(ignored, "authorities of etcd have certificates that cannot be used");
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key)?;
            builder.with_client_auth_cert(certificates(chain)?, key)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}
