//! An admission webhook in this process that allows everything, so that what is measured is the
//! server's part: HTTP/1.1 over TLS, one task per connection.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The webhook; stops when dropped.
pub(crate) struct Reviewer {
    /// A `clientConfig` of it.
    pub(crate) config: Value,
    _accepting: JoinSet<()>,
}

impl Reviewer {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let pair = ferrokube_pki::self_signed(&["127.0.0.1".to_owned()])?;
        let chain = CertificateDer::pem_slice_iter(pair.chain_pem.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes())?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain.collect::<Result<Vec<_>, _>>()?, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/", listener.local_addr()?);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // Ends with its client.
                        let _ = answer_all(stream).await;
                    }
                });
            }
        });
        let ca = STANDARD.encode(pair.chain_pem);
        Ok(Self { config: json!({"url": url, "caBundle": ca}), _accepting: accepting })
    }
}

async fn answer_all(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "the client is gone");
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(Ok(0), |value| value.trim().parse::<usize>())?;
        while bytes.len() < head + length {
            anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "the client is gone");
        }
        let review: Value = serde_json::from_slice(&bytes[head..head + length])?;
        bytes.drain(..head + length);
        let body = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "response": {"uid": review["request"]["uid"], "allowed": true}})
        .to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
    }
}
