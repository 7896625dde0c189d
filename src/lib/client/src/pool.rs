//! Connections of all clients with one server and one TLS identity: few, however many watches there
//! are.
//!
//! kube's own client opens a connection per concurrent request, so a controller for each of
//! thousands of resources would hold as many descriptors, and twice that with the server in the
//! same process. Here requests share HTTP/2 connections, [`STREAMS`] each; another is opened when
//! all are full.

use crate::kubeconfig;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt};
use kube::config::{AuthInfo, KubeConfigOptions};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tower::BoxError;

/// Concurrent requests per connection, as kube-apiserver permits.
pub(crate) const STREAMS: usize = 100;
/// Unread bytes per response. A connection has room for all its streams, so that a slow reader
/// blocks no other.
const WINDOW_BYTES: u32 = 256 << 10;
/// Interval of HTTP/2 pings to a silent server, and their timeout.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);
/// Timeout for TCP and TLS together.
const CONNECT: Duration = Duration::from_secs(10);
/// Retries on another connection if one closed before accepting the request.
const RESENDS: usize = 3;

/// Source of a pool's TLS configuration.
#[derive(Clone, Debug)]
pub(crate) enum TlsSource {
    /// Fixed configuration.
    Fixed(Box<Config>),
    /// Read again for each connection, since the certificates may be rotated. With or without our
    /// identity.
    File {
        /// Kubeconfig.
        path: PathBuf,
        /// Whether connections show the client certificate.
        shows_certificate: bool,
    },
}

impl TlsSource {
    async fn config(&self) -> Result<Config, BoxError> {
        match self {
            Self::Fixed(config) => Ok(Config::clone(config)),
            Self::File { path, shows_certificate } => {
                let mut config = Config::from_custom_kubeconfig(
                    kubeconfig::read(path)?,
                    &KubeConfigOptions::default(),
                )
                .await?;
                if !shows_certificate {
                    config.auth_info = AuthInfo::default();
                }
                Ok(config)
            }
        }
    }
}

/// Shared connections to one server. Clones share them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<PoolInner>);

struct PoolInner {
    source: TlsSource,
    connections: Mutex<Vec<Arc<PooledConnection>>>,
    /// Held while opening a connection: the last failure, for the tasks that waited for it.
    opening: tokio::sync::Mutex<Option<(Instant, Arc<ConnectFailure>)>>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {address}")]
struct ConnectFailure {
    address: String,
    #[source]
    source: BoxError,
}

/// One failure, shared by several requests.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct SharedFailure(Arc<ConnectFailure>);

struct PooledConnection {
    sender: HttpSender,
    in_flight: AtomicUsize,
    /// Accepts no more requests.
    retired: AtomicBool,
}

enum HttpSender {
    Http2(http2::SendRequest<Body>),
    /// One request at a time; `None` while it is in flight.
    Http1(Mutex<Option<http1::SendRequest<Body>>>),
}

impl PooledConnection {
    fn is_closed(&self) -> bool {
        let is_closed = match &self.sender {
            HttpSender::Http2(sender) => sender.is_closed(),
            HttpSender::Http1(sender) => {
                sender.lock().as_ref().is_some_and(http1::SendRequest::is_closed)
            }
        };
        is_closed || self.retired.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> usize {
        match self.sender {
            HttpSender::Http2(_) => STREAMS,
            HttpSender::Http1(_) => 1,
        }
    }
}

/// One request's slot on a connection, released on drop.
struct StreamSlot {
    connection: Arc<PooledConnection>,
    /// Returned to the connection when the response is done.
    http1: Option<http1::SendRequest<Body>>,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        if let (Some(sender), HttpSender::Http1(idle)) =
            (self.http1.take(), &self.connection.sender)
        {
            *idle.lock() = Some(sender);
        }
        self.connection.in_flight.fetch_sub(1, Ordering::Release);
    }
}

impl StreamSlot {
    /// Sends a request. One that the connection did not accept comes back with the error.
    async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match &self.connection.sender {
            HttpSender::Http2(sender) => sender.clone().try_send_request(request).await,
            HttpSender::Http1(idle) => {
                let sender =
                    self.http1.insert(idle.lock().take().expect("exclusive to one request"));
                // An unread response has closed the connection, which this reports at once.
                let _ = sender.ready().await;
                sender.try_send_request(origin_form(request)).await
            }
        }
    }
}

/// Origin form for HTTP/1.1: the path alone in the request line, the authority in Host.
fn origin_form(mut request: Request<Body>) -> Request<Body> {
    if let Some(authority) = request.uri().authority()
        && let Ok(host) = http::HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(|| http::Uri::from_static("/"), http::Uri::from);
    request
}

impl Pool {
    pub(crate) fn new(source: TlsSource) -> Self {
        Self(Arc::new(PoolInner {
            source,
            connections: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }))
    }

    fn free(&self) -> Option<StreamSlot> {
        let mut connections = self.0.connections.lock();
        connections.retain(|connection| !connection.is_closed());
        let connection = connections.iter().find(|connection| {
            connection.in_flight.load(Ordering::Acquire) < connection.capacity()
        })?;
        // Only incremented under the lock.
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(StreamSlot { connection: Arc::clone(connection), http1: None })
    }

    async fn slot(&self, uri: &http::Uri) -> Result<StreamSlot, BoxError> {
        if let Some(slot) = self.free() {
            return Ok(slot);
        }
        let begun = Instant::now();
        let mut failed = self.0.opening.lock().await;
        if let Some(slot) = self.free() {
            return Ok(slot);
        }
        if let Some((_, failure)) = failed.as_ref().filter(|(at, _)| *at >= begun) {
            return Err(SharedFailure(Arc::clone(failure)).into());
        }
        let opened = match tokio::time::timeout(CONNECT, self.open(uri)).await {
            Ok(opened) => opened,
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        };
        match opened {
            Ok(sender) => {
                let connection = Arc::new(PooledConnection {
                    sender,
                    in_flight: AtomicUsize::new(1),
                    retired: AtomicBool::new(false),
                });
                self.0.connections.lock().push(Arc::clone(&connection));
                Ok(StreamSlot { connection, http1: None })
            }
            Err(source) => {
                let failure = Arc::new(ConnectFailure {
                    address: uri.authority().map(ToString::to_string).unwrap_or_default(),
                    source,
                });
                *failed = Some((Instant::now(), Arc::clone(&failure)));
                Err(SharedFailure(failure).into())
            }
        }
    }

    async fn open(&self, uri: &http::Uri) -> Result<HttpSender, BoxError> {
        let config = self.0.source.config().await?;
        let mut tls = config.rustls_client_config()?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(config.tls_server_name.unwrap_or_else(|| host.to_owned()))?;
        let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(443))).await?;
        socket.set_nodelay(true)?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection.with_upgrades());
            return Ok(HttpSender::Http1(Mutex::new(Some(sender))));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(
                u32::try_from(STREAMS).unwrap_or(u32::MAX).saturating_mul(WINDOW_BYTES),
            )
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await?;
        // Ends with the connection, which fails its requests.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the API server ended");
            }
        });
        Ok(HttpSender::Http2(sender))
    }

    /// Sends a request with an absolute URI; up to [`RESENDS`] times more if its connection was
    /// closing.
    pub(crate) async fn send(
        self,
        mut request: Request<Body>,
    ) -> Result<Response<PooledBody>, BoxError> {
        let mut resends = 0;
        loop {
            let mut slot = self.slot(request.uri()).await?;
            match slot.send(request).await {
                Ok(response) => {
                    if response.status() == http::StatusCode::UNAUTHORIZED
                        && matches!(self.0.source, TlsSource::File { shows_certificate: true, .. })
                    {
                        // The certificate may have expired, and the file may hold a new one.
                        slot.connection.retired.store(true, Ordering::Relaxed);
                    }
                    return Ok(response.map(|body| PooledBody { body, _slot: slot }));
                }
                Err(mut failed) => match failed.take_message() {
                    // Not sent: the connection was closing.
                    Some(unsent) if resends < RESENDS => {
                        slot.connection.retired.store(true, Ordering::Relaxed);
                        (request, resends) = (unsent, resends + 1);
                    }
                    _ => return Err(failed.into_error().into()),
                },
            }
        }
    }
}

/// A response body, which holds its slot until dropped.
pub(crate) struct PooledBody {
    body: Incoming,
    _slot: StreamSlot,
}

impl http_body::Body for PooledBody {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(task)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a repeated key, of which the last wins, as for kubectl.
    const FILE: &str = "\
current-context: none
current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: 'https://192.0.2.1'}}]
";

    #[tokio::test]
    async fn connections_read_the_file_as_their_client_has_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, FILE).unwrap();
        crate::Connection::from_kubeconfig(&path).await.unwrap();
        let source = TlsSource::File { path, shows_certificate: true };
        let config = source.config().await.unwrap();
        assert_eq!(config.cluster_url.host(), Some("192.0.2.1"));
    }
}
