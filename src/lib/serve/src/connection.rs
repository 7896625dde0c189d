//! One connection: handshake, protocol by ALPN, requests, drain.

use crate::bad_head;
use crate::body::{WRITE_BYTES, empty, full};
use crate::cork::{Cork, Turns};
use crate::drained::Drained;
use crate::gate::gated;
use crate::head_timeout::{Activity, CountedBody, HeadGuard, InFlight};
use crate::heads::Heads;
use crate::peer::Shown;
use crate::plain;
use crate::server::{CloseConnection, Handler, Kept, Limits, Request, Response, Stats};
use crate::shutdown::Shutdown;
use crate::slow_client::TICKS;
use crate::socket::Socket;
use crate::tls::Tls;
use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode, Version};
use hyper::body::Body as _;
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
use tokio::sync::{Notify, Semaphore};
use tokio::time::MissedTickBehavior;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// What all connections of a listener share.
pub(crate) struct Shared {
    pub(crate) tls: Tls,
    pub(crate) limits: Limits,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) shutdown: Shutdown,
    pub(crate) stats: Arc<Stats>,
    /// Key exchanges and signatures at a time, see [`HANDSHAKES`].
    pub(crate) turns: Semaphore,
    /// What unfinished heads hold.
    pub(crate) heads: Arc<Heads>,
}

/// So many handshakes compute at a time (0.2 ms each). The others wait in a queue of their own
/// instead of the runtime's, where a thousand that arrive together would hold up every request by
/// as much as all of them take.
pub(crate) const HANDSHAKES: usize = 2;

/// Serves a connection to its end. Returns early only when it is dropped.
pub(crate) async fn serve(shared: Arc<Shared>, socket: TcpStream, address: SocketAddr) {
    // Small answers must not wait for acknowledgements of earlier ones; a socket that is gone
    // already fails at its first read.
    let _ = socket.set_nodelay(true);
    // Apart, so that its buffers are gone when it is done.
    let accepted = Box::pin(handshake(&shared, socket, address));
    let (stream, shown) = match tokio::time::timeout(shared.limits.handshake, accepted).await {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => {
            shared.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%address, "no TLS handshake");
            return;
        }
        Ok(Err(error)) => {
            shared.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%address, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            shared.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%address, "TLS handshake took too long");
            return;
        }
    };
    acknowledge(&stream.get_ref().0.0);
    let result = requests(&shared, stream, shown).await;
    if let Err(error) = result {
        tracing::debug!(%address, %error, "connection ended");
    }
}

/// `None`: the client does not speak TLS.
async fn handshake(
    shared: &Shared,
    mut socket: TcpStream,
    address: SocketAddr,
) -> io::Result<Option<(TlsStream<Socket>, Arc<Shown>)>> {
    if plain::refused(&mut socket).await {
        return Ok(None);
    }
    let hello = LazyConfigAcceptor::new(Acceptor::default(), Socket(socket)).await?;
    let accepted = {
        let _turn = shared.turns.acquire().await;
        hello.into_stream_with(shared.tls.server_config(), |session| {
            session.set_buffer_limit(Some(WRITE_BYTES))
        })
    };
    let stream = accepted.await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    // Verified in a turn, too: it may take as long as all the rest.
    let _turn = if chain.is_empty() { None } else { shared.turns.acquire().await.ok() };
    let shown = Arc::new(Shown::new(address, chain, &shared.tls));
    Ok(Some((stream, shown)))
}

/// Acknowledges the end of the handshake now. Nothing is sent in answer to it unless the client
/// takes session tickets, and a client that gathers small writes (Nagle's algorithm, which most but
/// Go's leave on) holds back its first request until it is acknowledged: 40 ms of each connection.
fn acknowledge(socket: &TcpStream) {
    // It is a favor: a socket that is gone already fails at its first read.
    #[cfg(target_os = "linux")]
    let _ = socket.set_quickack(true);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// The requests of a connection, to its end. No future of ours holds the stream or what is made of
/// it: it would hold each in a place of its own, 4 KiB of every connection.
fn requests(
    shared: &Arc<Shared>,
    stream: TlsStream<Socket>,
    shown: Arc<Shown>,
) -> Pin<Box<dyn Future<Output = hyper::Result<()>> + Send + '_>> {
    let session = stream.get_ref().1;
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let activity = Activity::new(shared.stats.held.clone());
    let close = Arc::new(Notify::new());
    let service = Requests {
        shared: Arc::clone(shared),
        shown,
        activity: Arc::clone(&activity),
        close: Arc::clone(&close),
    };
    let stream = Drained(stream);
    let ending = Ending { shared, activity: Arc::clone(&activity), close };
    if is_http2 {
        let cork = Cork::new(stream);
        let io = TokioIo::new(HeadGuard::http2(cork.clone(), Arc::clone(&activity), shared));
        let connection = http2_builder(&shared.limits).serve_connection(io, service);
        Box::pin(ending.drive(Box::pin(Turns::new(connection, cork, activity)), |mut turns| {
            turns.connection().graceful_shutdown()
        }))
    } else {
        let io = TokioIo::new(HeadGuard::http1(stream, activity, shared));
        let connection =
            Box::pin(http1_builder(&shared.limits).serve_connection(io, service).with_upgrades());
        Box::pin(ending.drive(connection, |connection| connection.graceful_shutdown()))
    }
}

fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // The head's time is kept by `HeadGuard`, idle time by `Ending`.
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(64 << 10));
    builder
}

/// What a client may send of a body that nobody reads yet: it is kept in memory, and counted
/// nowhere.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The same of all bodies of one connection.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

fn http2_builder(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        // CVE-2023-44487: `Frames` cuts a client off that resets what it just asked for, and lets
        // more pass than this only to one that was served.
        .max_pending_accept_reset_streams(1000)
        .max_local_error_reset_streams(1000)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(32 << 10)
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.pong);
    builder
}

/// How long a client may take nothing while answers hold more memory than they may.
const PRESSED_STALL: Duration = Duration::from_secs(1);

/// So long requests are taken that a client sent before it could know that the connection ends.
const GRACE: Duration = Duration::from_secs(1);
/// After this long without a request in flight a connection that ends is cut, whatever its client
/// acknowledges.
const LINGER: Duration = Duration::from_secs(3);

/// Ends a connection: in good order, or at once.
struct Ending<'a> {
    shared: &'a Shared,
    activity: Arc<Activity>,
    close: Arc<Notify>,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Its client takes nothing. Good order would wait for just that client: it is cut.
    Stalled,
    /// A handler wants it closed, and no further request of it.
    Closed,
    /// The server drains, or nothing was asked for long.
    Over,
}

impl Ending<'_> {
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        self,
        mut connection: Pin<Box<C>>,
        end: impl Fn(Pin<&mut C>),
    ) -> hyper::Result<()> {
        let mut stalled = pin!(self.stalled());
        let reason = async {
            tokio::select! {
                biased;
                () = stalled.as_mut() => Reason::Stalled,
                reason = self.reason() => reason,
            }
        };
        let reason = tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            reason = gated(reason) => reason,
        };
        if reason == Reason::Stalled {
            return Ok(());
        }
        end(connection.as_mut());
        // Boxed: few connections are at their end at a time.
        let left = Box::pin(self.left(reason));
        tokio::select! {
            biased;
            result = connection => result,
            () = gated(stalled) => Ok(()),
            () = gated(left) => Ok(()),
        }
    }

    /// Resolves when nothing is in flight any more of what was asked before the end. HTTP/2's own
    /// good order goes on as long as the client pleases: it takes requests until a PING is
    /// acknowledged.
    async fn left(&self, reason: Reason) {
        if reason == Reason::Over {
            tokio::time::sleep(GRACE).await;
        }
        self.activity.close();
        let mut done = 0;
        while done < TICKS {
            tokio::time::sleep(LINGER / TICKS).await;
            done = if self.activity.is_done() { done + 1 } else { 0 };
        }
    }

    /// Resolves when the client takes nothing of what it asked for.
    async fn stalled(&self) {
        let mut pressure = self.shared.stats.held.pressure();
        loop {
            let stall = if *pressure.borrow_and_update() {
                PRESSED_STALL.min(self.shared.limits.stall)
            } else {
                self.shared.limits.stall
            };
            tokio::select! {
                // A process that was stopped does not blame its clients for it: each tick begins
                // when the one before was seen.
                () = tokio::time::sleep(stall / TICKS) => {}
                // Never an error: the sender is shared.
                _ = pressure.changed() => continue,
            }
            if self.activity.tick() {
                self.shared.stats.stalled.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Resolves when the server drains, a handler wants the connection closed, or nothing was asked
    /// for long.
    async fn reason(&self) -> Reason {
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
            () = self.shared.shutdown.begun() => Reason::Over,
            () = self.close.notified() => Reason::Closed,
            () = idle => Reason::Over,
        }
    }
}

/// The requests of one connection.
struct Requests {
    shared: Arc<Shared>,
    shown: Arc<Shown>,
    activity: Arc<Activity>,
    close: Arc<Notify>,
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Service<Request> for Requests {
    type Response = http::Response<CountedBody>;
    type Error = Refused;
    type Future = Answering;

    fn call(&self, mut request: Request) -> Answering {
        if request.version() == Version::HTTP_2 && !self.admits() {
            self.shared.stats.shed.fetch_add(1, Ordering::Relaxed);
            return self.answering(None, None);
        }
        let in_flight = self.activity.begin();
        self.shared.stats.requests.fetch_add(1, Ordering::Relaxed);
        let is_bodiless = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
        let answer = match bad_head::refused(&request) {
            Some(response) => Some(Box::pin(std::future::ready(response)) as Answer),
            None => {
                request.extensions_mut().insert(self.shown.peer(&self.shared.tls));
                let handler = &self.shared.handler;
                catch_unwind(AssertUnwindSafe(|| Arc::clone(handler).call(request))).ok()
            }
        };
        Answering { is_bodiless, ..self.answering(answer, Some(in_flight)) }
    }
}

impl Requests {
    fn admits(&self) -> bool {
        let stats = &self.shared.stats;
        self.activity.admits(stats.held.share(|| stats.open.load(Ordering::Relaxed)))
    }

    fn answering(&self, answer: Option<Answer>, in_flight: Option<InFlight>) -> Answering {
        Answering {
            answer,
            is_bodiless: false,
            in_flight,
            shared: Arc::clone(&self.shared),
            close: Arc::clone(&self.close),
        }
    }
}

/// A request that was not begun: HTTP/2 clients may send it again.
type Refused = h2::Error;

/// A handler at work; its panic becomes an answer.
struct Answering {
    answer: Option<Answer>,
    is_bodiless: bool,
    /// `None`: the request is refused.
    in_flight: Option<InFlight>,
    shared: Arc<Shared>,
    close: Arc<Notify>,
}

impl Future for Answering {
    type Output = Result<http::Response<CountedBody>, Refused>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(in_flight) = &mut this.in_flight else {
            return Poll::Ready(Err(h2::Reason::REFUSED_STREAM.into()));
        };
        let polled = match &mut this.answer {
            // The future is dropped after a panic, never polled again; what it shares with others
            // is guarded by locks that poison.
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
        let kept = response.extensions_mut().remove::<Kept>();
        let in_flight = this.in_flight.take().expect("looked at above");
        Poll::Ready(Ok(response.map(|body| CountedBody::new(body, in_flight, kept))))
    }
}

fn after_panic(shared: &Shared) -> Response {
    shared.stats.panics.fetch_add(1, Ordering::Relaxed);
    tracing::error!("a request handler panicked");
    catch_unwind(AssertUnwindSafe(|| shared.handler.panicked())).unwrap_or_else(|_| {
        let mut response = Response::new(full("internal error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// The answer to HEAD: the length stays, the body goes. hyper does this for HTTP/1.1 only, and
/// clients take a body as a broken stream.
fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(head, empty())
}

/// The pause after the system refused to give us a connection: file handles do not come back
/// faster.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_holds_its_stream_once() {
        type Arguments = (Arc<Shared>, TcpStream, SocketAddr);
        let handshake = size_of::<tokio_rustls::Accept<Socket>>();
        let whole =
            size_of_future(|(shared, socket, address): Arguments| serve(shared, socket, address));
        assert!(whole < handshake + 512, "{whole} bytes, of which the handshake has {handshake}");
    }
}
