//! Raw TLS connections: HTTP/1.1 text, and HTTP/2 frames that no client library would send.

use crate::testbed::Testbed;
use anyhow::{Context, bail};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// ALPN protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireProtocol {
    Http1,
    Http2,
}

/// Frame types of RFC 9113.
pub(crate) mod frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
}

/// A raw connection.
pub(crate) struct Wire {
    /// Plain-text stream.
    pub(crate) stream: TlsStream<TcpStream>,
    authority: String,
}

impl Wire {
    /// Connects and performs the TLS handshake.
    pub(crate) async fn connect(stage: &Testbed, protocol: WireProtocol) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(&stage.authority).await?;
        tcp.set_nodelay(true)?;
        Self::over(stage, protocol, tcp).await
    }

    /// Performs the TLS handshake on a TCP connection.
    pub(crate) async fn over(
        stage: &Testbed,
        protocol: WireProtocol,
        tcp: TcpStream,
    ) -> anyhow::Result<Self> {
        let mut tls = stage.tls.clone();
        tls.alpn_protocols = vec![if protocol == WireProtocol::Http1 {
            b"http/1.1".to_vec()
        } else {
            b"h2".to_vec()
        }];
        let stream =
            TlsConnector::from(Arc::new(tls)).connect(stage.server_name.clone(), tcp).await?;
        Ok(Self { stream, authority: stage.authority.clone() })
    }

    /// A TCP connection from a loopback address, optionally with a small receive buffer.
    pub(crate) async fn tcp(
        stage: &Testbed,
        from: Ipv4Addr,
        receive_bytes: Option<u32>,
    ) -> anyhow::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.bind((from, 0).into())?;
        Ok(socket.connect(stage.authority.parse()?).await?)
    }

    /// Head of an HTTP/1.1 request, with its Content-Length.
    pub(crate) fn head(
        &self,
        method: &str,
        path: &str,
        token: &str,
        content_type: &str,
        length: usize,
    ) -> String {
        let authorization = if token.is_empty() {
            String::new()
        } else {
            format!("authorization: Bearer {token}\r\n")
        };
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{authorization}content-type: {content_type}\r\ncontent-length: {length}\r\n\r\n",
            self.authority
        )
    }

    /// An HTTP/1.1 POST. Returns status and body.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        token: &str,
        content_type: &str,
        body: &[u8],
    ) -> anyhow::Result<(u16, String)> {
        self.send("POST", path, token, content_type, body).await
    }

    /// An HTTP/1.1 request. Returns status and body.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        token: &str,
        content_type: &str,
        body: &[u8],
    ) -> anyhow::Result<(u16, String)> {
        let mut bytes = self.head(method, path, token, content_type, body.len()).into_bytes();
        bytes.extend_from_slice(body);
        // A server that rejects a body may respond and close before reading all of it.
        let written = self.stream.write_all(&bytes).await;
        let answer = self.answer().await;
        if answer.is_err() {
            written?;
        }
        answer
    }

    async fn answer(&mut self) -> anyhow::Result<(u16, String)> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 16 * 1024];
        let (mut end, mut length) = (None, 0);
        loop {
            if end.is_none()
                && let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n")
            {
                let head = String::from_utf8_lossy(&bytes[..at]).to_ascii_lowercase();
                end = Some(at + 4);
                length = match head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
                    Some(text) => text.trim().parse().context("content-length")?,
                    // Chunked: callers use only the status.
                    None => bytes.len() - at - 4,
                };
            }
            if let Some(at) = end.filter(|at| bytes.len() >= at + length) {
                let status =
                    std::str::from_utf8(bytes.get(9..12).context("no status")?)?.parse()?;
                return Ok((status, String::from_utf8_lossy(&bytes[at..]).into_owned()));
            }
            match self.stream.read(&mut buffer).await? {
                0 => bail!("closed before an answer"),
                read => bytes.extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Starts HTTP/2 with these settings (identifier, value).
    pub(crate) async fn preface(&mut self, settings: &[(u16, u32)]) -> anyhow::Result<()> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut payload = Vec::new();
        for (identifier, value) in settings {
            payload.extend(identifier.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        push_frame(&mut bytes, frame::SETTINGS, 0, 0, &payload);
        push_frame(&mut bytes, frame::SETTINGS, 1, 0, &[]);
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// An uncompressed header block.
    pub(crate) fn header_block(&self, method: &str, path: &str, token: &str) -> Vec<u8> {
        let mut block = Vec::new();
        let authorization = format!("Bearer {token}");
        let mut fields = vec![
            (":method", method),
            (":scheme", "https"),
            (":authority", &self.authority),
            (":path", path),
        ];
        if !token.is_empty() {
            fields.push(("authorization", &authorization));
        }
        for (name, value) in fields {
            push_field(&mut block, name, value);
        }
        block
    }
}

/// Appends a header field without indexing.
pub(crate) fn push_field(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        push_length(block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

/// An HPACK integer with a 7-bit prefix.
fn push_length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return block.push(length as u8);
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}

/// Appends a frame.
pub(crate) fn push_frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}
