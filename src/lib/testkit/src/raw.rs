//! TLS connections on which a test writes raw bytes.

use crate::cluster::Cluster;
use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Raw TLS connection.
pub type RawStream = TlsStream<TcpStream>;

/// Connects with the administrator's certificate; `protocol` is `h2` or `http/1.1`.
///
/// # Errors
/// No connection, or an unusable kubeconfig.
pub async fn raw(cluster: &Cluster, protocol: &str) -> anyhow::Result<RawStream> {
    let text = std::fs::read_to_string(cluster.kubeconfig())?;
    let data = |name: &str| -> anyhow::Result<Vec<u8>> {
        let value = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "))
            .with_context(|| format!("no {name}"))?;
        Ok(STANDARD.decode(value)?)
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&data("certificate-authority-data")?)?)?;
    let chain = vec![CertificateDer::from_pem_slice(&data("client-certificate-data")?)?];
    let key = PrivateKeyDer::from_pem_slice(&data("client-key-data")?)?;
    let mut config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let socket = TcpStream::connect(cluster.url().trim_start_matches("https://")).await?;
    Ok(TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost")?, socket)
        .await?)
}
