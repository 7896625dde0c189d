//! A kubelet in this process that accepts every command, and drops what it reads.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

/// The kubelet; stops when dropped.
pub(crate) struct DeafKubelet {
    pub(crate) port: u16,
    _accepting: JoinSet<()>,
}

impl DeafKubelet {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let pair = ferrokube_pki::self_signed(&["127.0.0.1".to_owned()])?;
        let chain = CertificateDer::pem_slice_iter(pair.chain_pem.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes())?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain.collect::<Result<Vec<_>, _>>()?, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(run(acceptor.clone(), stream));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { port, _accepting: accepting })
    }
}

/// Switches to the command's protocol, and reads until the server closes the connection.
async fn run(acceptor: TlsAcceptor, stream: TcpStream) -> anyhow::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        anyhow::ensure!(stream.read_buf(&mut head).await? > 0, "the server is gone");
    }
    stream.write_all(SWITCHED).await?;
    let mut dropped = vec![0; 64 << 10];
    while stream.read(&mut dropped).await? > 0 {}
    Ok(())
}
