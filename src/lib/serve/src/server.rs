//! The listener: bind, accept within limits, drain.

use crate::body::{Body, full};
use crate::connection::{ACCEPT_PAUSE, Shared, serve};
use crate::held::Holdings;
use crate::shutdown::Shutdown;
use crate::tls::{Tls, TlsError};
use http::StatusCode;
use socket2::{SockRef, TcpKeepalive};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A request as it arrives; its body is bounded by who reads it. [`Peer`](crate::Peer) is in its extensions as `Arc<Peer>`.
pub type Request = http::Request<hyper::body::Incoming>;
/// A response.
pub type Response = http::Response<Body>;

/// Answers requests. A panic is caught per request (500), the connection lives on.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Dropped when the client goes away: after any await, state must be consistent.
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>>;

    /// The answer to a request whose handler panicked; must not tell why.
    fn panicked(&self) -> Response {
        let mut response = Response::new(full("internal error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    }
}

/// In a response's extensions: close the connection after it (HTTP/2: GOAWAY, other streams finish). For clients that did not say who they are,
/// so that they cannot cheaply reuse a connection.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// Bounds of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Of the TLS handshake.
    pub handshake: Duration,
    /// Of a request's head: after the handshake, and from its first byte on.
    pub header: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Header fields of a request (HTTP/1.1; HTTP/2 counts bytes).
    pub headers: usize,
    /// After this long without a request a connection is closed; at the latest after twice as long.
    pub idle: Duration,
    /// After this long without taking anything of an answer (HTTP/2: of one of its answers) a client's connection is cut; at the latest after half as long again.
    pub stall: Duration,
    /// Bytes that answers may hold while their clients take them, over all connections; above, clients that take nothing are cut within two seconds.
    pub held_bytes: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Connections at a time from one address; loopback is exempt.
    pub connections_per_address: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// How often a silent HTTP/2 client is asked whether it lives.
    pub ping: Duration,
    /// How long it may take to answer.
    pub pong: Duration,
    /// How long a drain waits for requests in flight.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            header_bytes: 128 << 10,
            headers: 256,
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(60),
            held_bytes: 64 << 20,
            connections: 20_000,
            connections_per_address: 4_096,
            streams: 250,
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(20),
            drain: Duration::from_secs(20),
        }
    }
}

/// What a listener has done; counters only grow, `open` is a gauge.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections that are open now.
    pub open: AtomicU64,
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections closed at once because of a limit.
    pub refused: AtomicU64,
    /// Failed or late TLS handshakes.
    pub handshakes_failed: AtomicU64,
    /// Connections cut because their client took nothing of an answer.
    pub stalled: AtomicU64,
    /// Requests begun.
    pub requests: AtomicU64,
    /// Handlers that panicked.
    pub panics: AtomicU64,
}

/// Why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificate or key cannot be used.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
}

/// A bound listener; connections wait in the system's queue until [`Self::serve`].
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    tls: Tls,
    limits: Limits,
    stats: Arc<Stats>,
    holdings: Holdings,
}

impl Server {
    /// Listens on an address (port 0: any free one). Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn bind(address: SocketAddr, tls: Tls, limits: Limits) -> Result<Self, ServerError> {
        let acceptor = TlsAcceptor::from(Arc::new(tls.server_config()?));
        let refused = |source| ServerError::Bind { address, source };
        let listener = listen(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let holdings = Holdings::new(limits.held_bytes);
        Ok(Self { listener, address, acceptor, tls, limits, stats: Arc::default(), holdings })
    }

    /// The address with its real port.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Counters, for metrics.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// What answers hold.
    pub fn holdings(&self) -> Holdings {
        self.holdings.clone()
    }

    /// Serves until the shutdown begins, then drains: accepts no more, tells clients to go (HTTP/2 GOAWAY, HTTP/1.1 close), waits for requests in
    /// flight as long as [`Limits::drain`] says, and cuts what is left. Long answers (watches) must end by themselves when they see the shutdown.
    ///
    /// Returns how many connections were cut.
    pub async fn serve(self, handler: Arc<dyn Handler>, shutdown: Shutdown) -> usize {
        let Self { listener, acceptor, tls, limits, stats, holdings, .. } = self;
        let drain = limits.drain;
        let admission = Arc::new(Admission { limits: limits.clone(), by_address: Mutex::default(), stats: Arc::clone(&stats) });
        let shared = Arc::new(Shared { acceptor, tls, limits, handler, shutdown: shutdown.clone(), stats, holdings });
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.begun() => break,
                Some(ended) = connections.join_next() => report(ended),
                accepted = accept(&listener) => {
                    let (socket, address) = accepted;
                    if let Some(slot) = admission.admit(address.ip()) {
                        let shared = Arc::clone(&shared);
                        connections.spawn(async move {
                            let _slot = slot;
                            serve(shared, socket, address).await;
                        });
                    }
                }
            }
        }
        drop(listener);
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

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait for connections of the former process; two listeners at once are still refused.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(1024)?;
    // Accepted sockets inherit these: clients that vanished, and clients that stopped reading, go away.
    let options = SockRef::from(&listener);
    options.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15)).with_retries(4))?;
    options.set_tcp_user_timeout(Some(Duration::from_secs(120)))?;
    Ok(listener)
}

/// The next connection, whatever it takes: a listener must outlive every error of accept (no file handles, aborted connections).
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_about_the_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_about_the_connection(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted)
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!("a connection's task panicked");
    }
}

/// Counts connections, in total and by address.
struct Admission {
    limits: Limits,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    stats: Arc<Stats>,
}

impl Admission {
    fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Slot> {
        self.stats.accepted.fetch_add(1, Ordering::Relaxed);
        let counted = if address.to_canonical().is_loopback() { None } else { Some(address) };
        if self.stats.open.load(Ordering::Relaxed) >= self.limits.connections as u64 || !self.count(counted) {
            self.stats.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%address, "connection refused: too many");
            return None;
        }
        self.stats.open.fetch_add(1, Ordering::Relaxed);
        Some(Slot { admission: Arc::clone(self), counted })
    }

    fn count(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address else { return true };
        let mut by_address = self.by_address.lock().expect("no panic while held");
        let count = by_address.entry(address).or_default();
        if *count >= self.limits.connections_per_address {
            return false;
        }
        *count += 1;
        true
    }
}

/// An admitted connection; dropping it gives its place back.
struct Slot {
    admission: Arc<Admission>,
    counted: Option<IpAddr>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.admission.stats.open.fetch_sub(1, Ordering::Relaxed);
        let Some(address) = self.counted else { return };
        let mut by_address = self.admission.by_address.lock().expect("no panic while held");
        if let Some(count) = by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&address);
            }
        }
    }
}
