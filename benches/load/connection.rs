//! Cheap client connections: one hyper connection each; bodies are dropped or collected.

use crate::target::LoadTarget;
use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// HTTP version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HttpVersion {
    /// HTTP/1.1
    Http1,
    /// HTTP/2
    Http2,
}

enum RequestSender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A connection; HTTP/1.1 handles one request at a time.
pub(crate) struct LoadConnection {
    sender: RequestSender,
    authority: String,
    authorization: Option<String>,
}

/// A request to send.
#[derive(Clone, Default)]
pub(crate) struct LoadRequest {
    /// HTTP method.
    pub(crate) method: &'static str,
    /// Path with query.
    pub(crate) path: String,
    /// `Accept`; empty for the server's default.
    pub(crate) accept: &'static str,
    /// `Content-Type`; empty without a body.
    pub(crate) content_type: &'static str,
    /// Whether to accept gzip.
    pub(crate) gzip: bool,
    /// Request body.
    pub(crate) body: Bytes,
}

impl LoadRequest {
    /// A GET.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: "GET", path: path.into(), ..Self::default() }
    }

    /// A DELETE.
    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self { method: "DELETE", path: path.into(), ..Self::default() }
    }

    /// A write with a JSON body of the given type.
    pub(crate) fn write(
        method: &'static str,
        path: impl Into<String>,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Self {
        Self { method, path: path.into(), content_type, body: body.into(), ..Self::default() }
    }
}

impl LoadConnection {
    /// Connects to a target.
    pub(crate) async fn open(target: &LoadTarget, protocol: HttpVersion) -> anyhow::Result<Self> {
        let mut tls = target.tls.clone();
        tls.alpn_protocols = vec![if protocol == HttpVersion::Http1 {
            b"http/1.1".to_vec()
        } else {
            b"h2".to_vec()
        }];
        let tcp = TcpStream::connect(&target.authority)
            .await
            .with_context(|| format!("cannot connect to {}", target.authority))?;
        tcp.set_nodelay(true)?;
        let stream =
            TlsConnector::from(Arc::new(tls)).connect(target.server_name.clone(), tcp).await?;
        let io = TokioIo::new(stream);
        let sender = match protocol {
            HttpVersion::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                RequestSender::Http1(sender)
            }
            HttpVersion::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(1 << 20)
                    .handshake(io)
                    .await?;
                tokio::spawn(connection);
                RequestSender::Http2(sender)
            }
        };
        Ok(Self {
            sender,
            authority: target.authority.clone(),
            authorization: target.authorization.clone(),
        })
    }

    /// Sends a request. Returns the response head with its body to read.
    pub(crate) async fn start(
        &mut self,
        ask: &LoadRequest,
    ) -> anyhow::Result<http::Response<Incoming>> {
        let mut request = http::Request::builder().method(ask.method);
        request = match &self.sender {
            RequestSender::Http1(_) => request.uri(&ask.path).header("host", &self.authority),
            RequestSender::Http2(_) => {
                request.uri(format!("https://{}{}", self.authority, ask.path))
            }
        };
        for (name, value) in [
            ("accept", ask.accept),
            ("content-type", ask.content_type),
            ("accept-encoding", if ask.gzip { "gzip" } else { "" }),
        ] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(Full::new(ask.body.clone()))?;
        Ok(match &mut self.sender {
            RequestSender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            RequestSender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        })
    }

    /// Sends a request. Returns the whole response, whatever its status.
    pub(crate) async fn ask(
        &mut self,
        ask: &LoadRequest,
    ) -> anyhow::Result<(http::StatusCode, Bytes)> {
        let response = self.start(ask).await?;
        Ok((response.status(), response.into_body().collect().await?.to_bytes()))
    }

    /// Sends a request and requires a 2xx response. Returns the size of its body.
    pub(crate) async fn send(&mut self, ask: &LoadRequest) -> anyhow::Result<usize> {
        let response = self.start(ask).await?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let text = body.collect().await?.to_bytes();
            bail!(
                "{} {} returned {status}: {}",
                ask.method,
                ask.path,
                String::from_utf8_lossy(&text[..text.len().min(300)])
            );
        }
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            size += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(size)
    }
}
