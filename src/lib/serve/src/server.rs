//! The listener: bind, accept within limits, drain.

use crate::connection::{ACCEPT_PAUSE, ListenerState, serve};
use crate::connection_gate::ConnectionGate;
use crate::handler::Handler;
use crate::heads::Heads;
use crate::held::Holdings;
use crate::in_process::{InProcess, ProcessAcceptor};
use crate::limits::ListenerLimits;
use crate::lobby::Lobby;
use crate::shutdown::Shutdown;
use crate::stats::ListenerStats;
use crate::tls::{Tls, TlsError};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use or not local.
    #[error("cannot listen on {address}")]
    Bind {
        /// As configured.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No threads for new connections.
    #[error("cannot start threads for new connections")]
    Threads(#[source] io::Error),
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
    lobby: Lobby,
    in_process: InProcess,
    acceptor: ProcessAcceptor,
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
        let limits = limits.of_process();
        let refused = |source| ServerError::Bind { address, source };
        let listener = listen(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let stats =
            ListenerStats { held: Holdings::new(limits.held_bytes), ..ListenerStats::default() };
        let lobby = Lobby::open().map_err(ServerError::Threads)?;
        let source = SocketAddr::new(from_here(address.ip()), 0);
        let (in_process, acceptor) = InProcess::new(source, tls.clone());
        let stats = Arc::new(stats);
        Ok(Self { listener, address, tls, limits, stats, lobby, in_process, acceptor })
    }

    /// With the actual port.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// [`Self::local_address`] for clients on this machine, with an IP that is theirs, too.
    pub fn loopback_address(&self) -> SocketAddr {
        SocketAddr::new(from_here(self.address.ip()), self.address.port())
    }

    /// Makes clients in this process, which need no connection.
    pub fn in_process(&self) -> InProcess {
        self.in_process.clone()
    }

    /// Counters, for metrics.
    pub fn stats(&self) -> Arc<ListenerStats> {
        Arc::clone(&self.stats)
    }

    /// Serves until shutdown, then drains: stops accepting, asks clients to disconnect (HTTP/2
    /// GOAWAY, HTTP/1.1 close), waits [`ListenerLimits::drain`] for requests in flight, and cuts
    /// the rest. Long responses (watches) must end themselves on shutdown. Requests of
    /// [this process](Self::in_process) that are not answered in time are left to their tasks.
    /// Dropping it cuts off everything.
    ///
    /// Returns the number of connections cut, and of such requests.
    pub async fn serve(self, handler: Arc<dyn Handler>, shutdown: Shutdown) -> usize {
        let Self { listener, tls, limits, stats, lobby, acceptor: own, .. } = self;
        let drain = limits.drain;
        let gate = ConnectionGate::new(limits.connections, Arc::clone(&stats));
        let heads = Heads::new(limits.unfinished_bytes);
        let shared = Arc::new(ListenerState {
            tls,
            limits,
            handler,
            shutdown: shutdown.clone(),
            stats,
            lobby,
            heads,
        });
        own.serve(&shared);
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
            own.drained().await;
        };
        let _ = tokio::time::timeout(drain, ended).await;
        let left = connections.len() + own.in_flight();
        connections.shutdown().await;
        // Else it is being dropped, which cuts off everything.
        if shutdown.is_ordered() {
            own.finish();
        }
        left
    }
}

/// The address that clients on this machine connect to, and from.
fn from_here(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
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
