//! One connection: handshake, ALPN, requests, drain.

use crate::activity::{Activity, CountedBody, InFlight};
use crate::bad_head;
use crate::body::{WRITE_BYTES, empty, full, received};
use crate::bounded_tls::BoundedTlsStream;
use crate::cork::{Cork, Turns};
use crate::gate::gated;
use crate::handler::{BodyGuard, CloseConnection, Handler, Request, Response};
use crate::head_timeout::HeadGuard;
use crate::heads::Heads;
use crate::limits::ListenerLimits;
use crate::lobby::{InLobby, Lobby};
use crate::peer::PeerChain;
use crate::plain;
use crate::shutdown::Shutdown;
use crate::slow_client::TICKS;
use crate::socket::Socket;
use crate::stats::ListenerStats;
use crate::tls::Tls;
use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::Acceptor;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// State shared by a listener's connections.
pub(crate) struct ListenerState {
    pub(crate) tls: Tls,
    pub(crate) limits: ListenerLimits,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) shutdown: Shutdown,
    pub(crate) stats: Arc<ListenerStats>,
    pub(crate) lobby: Lobby,
    /// Bytes of unfinished heads.
    pub(crate) heads: Arc<Heads>,
}

/// Serves a connection until it ends or the future is dropped.
pub(crate) fn serve(
    shared: Arc<ListenerState>,
    socket: TcpStream,
    address: SocketAddr,
) -> impl Future<Output = ()> + Send {
    let activity = Activity::new(shared.stats.held.clone());
    let lobby = shared.lobby;
    let connection = connection(shared, socket, address, Arc::clone(&activity));
    InLobby::new(lobby, activity, connection)
}

async fn connection(
    shared: Arc<ListenerState>,
    socket: TcpStream,
    address: SocketAddr,
    activity: Arc<Activity>,
) {
    // Without it, small responses wait for ACKs of earlier ones. A dead socket fails at its first
    // read.
    let _ = socket.set_nodelay(true);
    // Apart, so that its buffers are gone when it is done.
    let accepted = Box::pin(accept(&shared, socket, address));
    let Some((stream, shown)) = accepted.await else { return };
    acknowledge(stream.get_ref().0.stream());
    let result = requests(&shared, stream, shown, &activity).await;
    if let Err(error) = result {
        tracing::debug!(%address, %error, "connection ended");
    }
}

/// A client's session; `None` if there is none within the time of a handshake, or of a drain.
async fn accept(
    shared: &ListenerState,
    socket: TcpStream,
    address: SocketAddr,
) -> Option<(TlsStream<Socket>, Arc<PeerChain>)> {
    let accepted = tokio::select! {
        accepted = handshake(shared, socket, address) => accepted,
        () = tokio::time::sleep(shared.limits.handshake) => Err(io::ErrorKind::TimedOut.into()),
        // No request can be in flight.
        () = drained(&shared.shutdown) => return None,
    };
    match accepted {
        Ok(Some(stream)) => return Some(stream),
        Ok(None) => tracing::debug!(%address, "no TLS handshake"),
        Err(error) => tracing::debug!(%address, %error, "TLS handshake failed"),
    }
    shared.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    None
}

/// Resolves some time after the server began to drain.
async fn drained(shutdown: &Shutdown) {
    shutdown.begun().await;
    tokio::time::sleep(CLOSE_GRACE).await;
}

/// `None` if the client does not speak TLS.
async fn handshake(
    shared: &ListenerState,
    mut socket: TcpStream,
    address: SocketAddr,
) -> io::Result<Option<(TlsStream<Socket>, Arc<PeerChain>)>> {
    if plain::reject_plain(&mut socket).await {
        return Ok(None);
    }
    let hello = LazyConfigAcceptor::new(Acceptor::default(), Socket::new(socket)).await?;
    let stream = hello
        .into_stream_with(shared.tls.server_config(), |session| {
            session.set_buffer_limit(Some(WRITE_BYTES))
        })
        .await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let shown = Arc::new(PeerChain::new(address, chain, &shared.tls));
    Ok(Some((stream, shown)))
}

/// Sends the ACK of the handshake's last flight at once. Nothing else is sent in response unless
/// the client takes session tickets, and a client with Nagle's algorithm (most but Go's) delays its
/// first request until the ACK: 40 ms per connection.
fn acknowledge(socket: &TcpStream) {
    // Best effort: a dead socket fails at its first read.
    #[cfg(target_os = "linux")]
    let _ = socket.set_quickack(true);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Serves a connection's requests. None of our futures holds the stream by value: each would add
/// its size, 4 KiB per connection.
fn requests<'a>(
    shared: &'a Arc<ListenerState>,
    stream: TlsStream<Socket>,
    shown: Arc<PeerChain>,
    activity: &Arc<Activity>,
) -> Pin<Box<dyn Future<Output = hyper::Result<()>> + Send + 'a>> {
    let session = stream.get_ref().1;
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let close = Arc::new(Notify::new());
    let service = Requests {
        shared: Arc::clone(shared),
        shown,
        activity: Arc::clone(activity),
        close: Arc::clone(&close),
    };
    let stream = BoundedTlsStream::new(stream);
    let ending = Closing { shared, activity: Arc::clone(activity), close };
    if is_http2 {
        let cork = Cork::new(stream);
        let io = TokioIo::new(HeadGuard::http2(cork.clone(), Arc::clone(activity), shared));
        let connection = http2_builder(&shared.limits).serve_connection(io, service);
        Box::pin(
            ending.drive(
                Box::pin(Turns::new(connection, cork, Arc::clone(activity))),
                |mut turns| turns.connection().graceful_shutdown(),
            ),
        )
    } else {
        let io = TokioIo::new(HeadGuard::http1(stream, Arc::clone(activity), shared));
        let connection =
            Box::pin(http1_builder(&shared.limits).serve_connection(io, service).with_upgrades());
        Box::pin(ending.drive(connection, |connection| connection.graceful_shutdown()))
    }
}

fn http1_builder(limits: &ListenerLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // `HeadGuard` times heads, `Closing` idle connections.
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(64 << 10));
    builder
}

/// Window of a stream: bytes of an unread body, kept in memory and not counted anywhere.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Window of a connection: the same for all its bodies.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

fn http2_builder(limits: &ListenerLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        // CVE-2023-44487: `FrameMeter` cuts clients that reset what they just requested; it lets
        // more resets pass than this only if responses were sent.
        .max_pending_accept_reset_streams(1000)
        .max_local_error_reset_streams(1000)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(32 << 10)
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.pong);
    builder
}

/// Stall limit while responses hold more memory than they may.
const PRESSED_STALL: Duration = Duration::from_secs(1);

/// How long requests are accepted that a client sent before it knew that the connection closes.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// A closing connection without requests in flight is cut after this, whatever its client
/// acknowledges.
const LINGER: Duration = Duration::from_secs(3);

/// Closes a connection, gracefully or not.
struct Closing<'a> {
    shared: &'a ListenerState,
    activity: Arc<Activity>,
    close: Arc<Notify>,
}

/// Why a connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    /// The client does not read. Cut, as a graceful close would wait for it.
    Stalled,
    /// A handler asked for it; no further request is accepted.
    Closed,
    /// The server drains, or the connection was idle.
    Over,
}

impl Closing<'_> {
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        self,
        mut connection: Pin<Box<C>>,
        end: impl Fn(Pin<&mut C>),
    ) -> hyper::Result<()> {
        let mut stalled = pin!(self.stalled());
        let reason = async {
            tokio::select! {
                biased;
                () = stalled.as_mut() => CloseReason::Stalled,
                reason = self.reason() => reason,
            }
        };
        let reason = tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            reason = gated(reason) => reason,
        };
        if reason == CloseReason::Stalled {
            return Ok(());
        }
        self.activity.end();
        end(connection.as_mut());
        // Boxed, as few connections close at a time.
        let in_flight_done = Box::pin(self.in_flight_done(reason));
        tokio::select! {
            biased;
            result = connection => result,
            () = gated(stalled) => Ok(()),
            () = gated(in_flight_done) => Ok(()),
        }
    }

    /// Resolves when the requests from before the close are done. HTTP/2's graceful shutdown
    /// accepts requests until the client acknowledges a PING.
    async fn in_flight_done(&self, reason: CloseReason) {
        if reason == CloseReason::Over {
            tokio::time::sleep(CLOSE_GRACE).await;
        }
        self.activity.close();
        let mut done = 0;
        while done < TICKS {
            tokio::time::sleep(LINGER / TICKS).await;
            done = if self.activity.is_done() { done + 1 } else { 0 };
        }
    }

    /// Resolves when the client stops reading.
    async fn stalled(&self) {
        let mut pressure = self.shared.stats.held.pressure();
        loop {
            let stall = if *pressure.borrow_and_update() {
                PRESSED_STALL.min(self.shared.limits.stall)
            } else {
                self.shared.limits.stall
            };
            tokio::select! {
                // A suspended process does not blame its clients: each tick starts when the one
                // before was seen.
                () = tokio::time::sleep(stall / TICKS) => {}
                // The sender is shared, so this is never an error.
                _ = pressure.changed() => continue,
            }
            if self.activity.tick() {
                self.shared.stats.stalled.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Resolves when the connection should close.
    async fn reason(&self) -> CloseReason {
        let idle = async {
            let mut tick = tokio::time::interval(self.shared.limits.idle);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            tick.tick().await;
            let mut seen = self.activity.begun();
            loop {
                tick.tick().await;
                let begun = self.activity.begun();
                if begun == seen && self.activity.is_idle() {
                    return;
                }
                seen = begun;
            }
        };
        tokio::select! {
            () = self.shared.shutdown.begun() => CloseReason::Over,
            () = self.close.notified() => CloseReason::Closed,
            () = idle => CloseReason::Over,
        }
    }
}

/// The service of one connection.
pub(crate) struct Requests {
    pub(crate) shared: Arc<ListenerState>,
    pub(crate) shown: Arc<PeerChain>,
    pub(crate) activity: Arc<Activity>,
    /// Notified when a handler asks to close the connection.
    pub(crate) close: Arc<Notify>,
}

type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Service<http::Request<Incoming>> for Requests {
    type Response = http::Response<CountedBody>;
    type Error = Refused;
    type Future = HandlerFuture;

    fn call(&self, request: http::Request<Incoming>) -> HandlerFuture {
        self.respond(request.map(received))
    }
}

impl Requests {
    pub(crate) fn respond(&self, mut request: Request) -> HandlerFuture {
        if request.version() == Version::HTTP_2 && !self.admits() {
            self.shared.stats.shed.fetch_add(1, Ordering::Relaxed);
            return self.answering(None, None);
        }
        let in_flight = self.activity.begin();
        self.shared.stats.requests.fetch_add(1, Ordering::Relaxed);
        let is_bodiless = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
        let answer = match bad_head::rejection(&request) {
            Some(response) => Some(Box::pin(std::future::ready(response)) as ResponseFuture),
            None => {
                request.extensions_mut().insert(self.shown.peer(&self.shared.tls));
                let handler = &self.shared.handler;
                catch_unwind(AssertUnwindSafe(|| Arc::clone(handler).call(request))).ok()
            }
        };
        HandlerFuture { is_bodiless, ..self.answering(answer, Some(in_flight)) }
    }

    fn admits(&self) -> bool {
        let stats = &self.shared.stats;
        self.activity.admits(stats.held.share(|| stats.open.load(Ordering::Relaxed)))
    }

    fn answering(
        &self,
        answer: Option<ResponseFuture>,
        in_flight: Option<InFlight>,
    ) -> HandlerFuture {
        HandlerFuture {
            answer,
            is_bodiless: false,
            in_flight,
            shared: Arc::clone(&self.shared),
            close: Arc::clone(&self.close),
        }
    }
}

/// Rejects a request unseen: HTTP/2 clients may retry it.
type Refused = h2::Error;

/// Runs a handler; turns its panic into a response.
pub(crate) struct HandlerFuture {
    answer: Option<ResponseFuture>,
    is_bodiless: bool,
    /// `None` if the request is rejected.
    in_flight: Option<InFlight>,
    shared: Arc<ListenerState>,
    close: Arc<Notify>,
}

impl Future for HandlerFuture {
    type Output = Result<http::Response<CountedBody>, Refused>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(in_flight) = &mut this.in_flight else {
            return Poll::Ready(Err(h2::Reason::REFUSED_STREAM.into()));
        };
        if Lobby::is_here() {
            // A request may compute for long, and has left the lobby.
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = match &mut this.answer {
            // Not polled again after a panic. State behind locks is consistent at each step.
            Some(answer) => catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(task))).ok(),
            None => None,
        };
        let response = match polled {
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(response)) => response,
            None => after_panic(&this.shared),
        };
        this.answer = None;
        let mut response = if this.is_bodiless { without_body(response) } else { response };
        if response.extensions().get::<CloseConnection>().is_some() {
            in_flight.close();
            this.close.notify_one();
        }
        in_flight.answered(response.status());
        let kept = response.extensions_mut().remove::<BodyGuard>();
        let in_flight = this.in_flight.take().expect("checked above");
        Poll::Ready(Ok(response.map(|body| CountedBody::new(body, in_flight, kept))))
    }
}

fn after_panic(shared: &ListenerState) -> Response {
    shared.stats.panics.fetch_add(1, Ordering::Relaxed);
    tracing::error!("a request handler panicked");
    catch_unwind(AssertUnwindSafe(|| shared.handler.panicked())).unwrap_or_else(|_| {
        let mut response = Response::new(full("internal error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Strips the body of a response to HEAD, keeping its length. hyper only does this for HTTP/1.1,
/// and clients take a body for a broken stream.
fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(head, empty())
}

/// Delay after accept failed: file descriptors are not freed faster.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_stores_its_stream_once() {
        type Arguments = (Arc<ListenerState>, TcpStream, SocketAddr, Arc<Activity>);
        let handshake = size_of::<tokio_rustls::Accept<Socket>>();
        let whole = size_of_future(|(shared, socket, address, activity): Arguments| {
            connection(shared, socket, address, activity)
        });
        assert!(whole < handshake + 512, "{whole} bytes, of which the handshake has {handshake}");
    }
}
