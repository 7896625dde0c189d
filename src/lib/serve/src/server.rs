//! The listener: bind, accept within limits, drain.

use crate::body::{Body, full};
use crate::connection::{ACCEPT_PAUSE, HANDSHAKES, ListenerState, serve};
use crate::connection_gate::ConnectionGate;
use crate::heads::Heads;
use crate::held::Holdings;
use crate::shutdown::Shutdown;
use crate::tls::{Tls, TlsError};
use http::StatusCode;
use rustix::process::{Resource, getrlimit};
use socket2::{SockRef, TcpKeepalive};
use std::any::Any;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// An incoming request. Its body is not bounded yet; its extensions have an
/// `Arc<`[`Peer`](crate::Peer)`>`.
pub type Request = http::Request<hyper::body::Incoming>;
/// A response.
pub type Response = http::Response<Body>;

/// Handles requests. A panic is caught per request (500); the connection continues.
pub trait Handler: Send + Sync + 'static {
    /// Handles one request. Dropped if the client goes away: state must be consistent at every
    /// await.
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>>;

    /// The response after a panic. Must not reveal why.
    fn panicked(&self) -> Response {
        let mut response = Response::new(full("internal error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    }
}

/// In a response's extensions: closes the connection after it (HTTP/2: GOAWAY, other streams
/// finish). For unauthenticated clients, which should not reuse connections cheaply.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// In a response's extensions: dropped with its body, sent or not.
#[derive(Clone)]
pub struct BodyGuard(pub Arc<dyn Any + Send + Sync>);

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Of the TLS handshake.
    pub handshake: Duration,
    /// Of a request's head: from the handshake for the first, from its first byte for others.
    pub header: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Bytes of unfinished heads over all connections, beyond 4 KiB each; above, the oldest are
    /// cut.
    pub unfinished_bytes: usize,
    /// Header fields of a request (HTTP/1.1; HTTP/2 counts bytes).
    pub headers: usize,
    /// An idle connection is closed after this long, at most twice as long.
    pub idle: Duration,
    /// A client that reads nothing of a response (HTTP/2: of one of them) is cut after this long,
    /// at most half as long again.
    pub stall: Duration,
    /// Bytes that responses may hold while their clients read them, over all connections. Above,
    /// clients that read nothing are cut within two seconds, and connections with more than their
    /// share accept no request.
    pub held_bytes: usize,
    /// Concurrent connections. A source may have as many as are free.
    pub connections: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams: u32,
    /// Interval of PINGs to a silent HTTP/2 client.
    pub ping: Duration,
    /// Time to acknowledge them.
    pub pong: Duration,
    /// How long a drain waits for requests in flight.
    pub drain: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            header_bytes: 1 << 20,
            unfinished_bytes: 16 << 20,
            headers: 512,
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(60),
            held_bytes: 32 << 20,
            connections: 5_000,
            streams: 250,
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(20),
            drain: Duration::from_secs(20),
        }
    }
}

impl ListenerLimits {
    /// Leaves descriptors for files and outgoing connections: a quarter of the process's limit, and
    /// at least 256 unless that is more than half.
    #[must_use]
    pub fn of_process(self) -> Self {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        self.within(descriptors)
    }

    fn within(self, descriptors: usize) -> Self {
        let reserve = (descriptors / 4).max(256).min(descriptors / 2);
        Self { connections: self.connections.min(descriptors - reserve), ..self }
    }
}

/// Counters of a listener; `open` is a gauge.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Open connections.
    pub open: AtomicU64,
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections closed at once because of a limit.
    pub refused: AtomicU64,
    /// Failed or late TLS handshakes.
    pub handshakes_failed: AtomicU64,
    /// Connections cut because their client read nothing.
    pub stalled: AtomicU64,
    /// HTTP/2 connections cut because their client exceeded its credit.
    pub flooded: AtomicU64,
    /// HTTP/2 requests rejected unseen: their connection was closing, or held more than its share.
    pub shed: AtomicU64,
    /// Requests begun.
    pub requests: AtomicU64,
    /// Handlers that panicked.
    pub panics: AtomicU64,
    /// Bytes held by responses.
    pub held: Holdings,
}

/// Why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use or not local.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate or key cannot be used.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
}

/// A bound listener. Connections wait in the backlog until [`Self::serve`].
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Tls,
    limits: ListenerLimits,
    stats: Arc<ListenerStats>,
}

impl Server {
    /// Listens on an address (port 0: any free one). Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn bind(
        address: SocketAddr,
        tls: Tls,
        limits: ListenerLimits,
    ) -> Result<Self, ServerError> {
        let refused = |source| ServerError::Bind { address, source };
        let listener = listen(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let stats =
            ListenerStats { held: Holdings::new(limits.held_bytes), ..ListenerStats::default() };
        Ok(Self { listener, address, tls, limits, stats: Arc::new(stats) })
    }

    /// With the actual port.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Counters, for metrics.
    pub fn stats(&self) -> Arc<ListenerStats> {
        Arc::clone(&self.stats)
    }

    /// Serves until shutdown, then drains: accepts no more, tells clients to go (HTTP/2 GOAWAY,
    /// HTTP/1.1 close), waits [`ListenerLimits::drain`] for requests in flight, and cuts the rest.
    /// Long responses (watches) must end themselves on shutdown.
    ///
    /// Returns the number of connections cut.
    pub async fn serve(self, handler: Arc<dyn Handler>, shutdown: Shutdown) -> usize {
        let Self { listener, tls, limits, stats, .. } = self;
        let drain = limits.drain;
        let gate = ConnectionGate::new(limits.connections, Arc::clone(&stats));
        let (turns, heads) = (Semaphore::new(HANDSHAKES), Heads::new(limits.unfinished_bytes));
        let shared = Arc::new(ListenerState {
            tls,
            limits,
            handler,
            shutdown: shutdown.clone(),
            stats,
            turns,
            heads,
        });
        let mut accepting = Acceptor { listener, failing: false };
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.begun() => break,
                Some(ended) = connections.join_next() => report(ended),
                accepted = accepting.next() => {
                    let (socket, address) = accepted;
                    if let Some(slot) = gate.admit(address.ip()) {
                        let shared = Arc::clone(&shared);
                        connections.spawn(async move {
                            let _slot = slot;
                            serve(shared, socket, address).await;
                        });
                    }
                }
            }
        }
        drop(accepting);
        let ended = async {
            while let Some(ended) = connections.join_next().await {
                report(ended);
            }
        };
        let _ = tokio::time::timeout(drain, ended).await;
        let left = connections.len();
        connections.shutdown().await;
        left
    }
}

/// Unsent bytes in a socket buffer: enough to keep the network card busy until the next write, even
/// at 10 Gbit/s.
const UNSENT_BYTES: u32 = 128 * 1024;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait for connections of the previous process; two listeners at once still
    // fail.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(1024)?;
    // Inherited by accepted sockets: detects clients that vanished or stopped reading.
    let options = SockRef::from(&listener);
    options.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(15))
            .with_retries(4),
    )?;
    // Bounds the kernel memory of a client that does not read.
    options.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    options.set_tcp_user_timeout(Some(Duration::from_secs(120)))?;
    Ok(listener)
}

/// Accepts connections.
struct Acceptor {
    listener: TcpListener,
    /// The last attempt failed. Logged once until one succeeds.
    failing: bool,
}

impl Acceptor {
    /// The next connection. A listener must survive every error of accept (no descriptors, aborted
    /// connections). Cancel safe.
    async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    self.failing = false;
                    return accepted;
                }
                Err(error) if is_about_the_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn is_about_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!("a connection's task panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_38_connections_leave_descriptors_for_files() {
        let cases = [
            (0, 0),
            (1, 1),
            (80, 40),
            (512, 256),
            (1024, 768),
            (4096, 3072),
            (6000, 4500),
            (1 << 20, 5000),
            (usize::MAX, 5000),
        ];
        for (descriptors, connections) in cases {
            let limits = ListenerLimits::default().within(descriptors);
            assert_eq!(limits.connections, connections, "{descriptors}");
        }
        let few = ListenerLimits { connections: 10, ..ListenerLimits::default() };
        assert_eq!(few.within(1024).connections, 10);
    }
}
