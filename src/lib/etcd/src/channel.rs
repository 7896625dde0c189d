//! Connections for gRPC, directly on HTTP/2: only the caller's task and the connection's work on a
//! call, and its head and message leave together. With the queues of a general transport each call
//! wakes several tasks, here and in etcd.

use crate::cork::{ACK_DELAY, CallCork};
use crate::tls;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::task::AtomicWaker;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::Uri;
use http_body::{Body as _, Frame};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsConnector;
use tonic::ConnectError;
use tonic::body::Body;
use tonic::client::GrpcService;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// As kube-apiserver's.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Unread bytes of a stream and of a connection: a watch that is not read leaves room for others.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// Largest head or end of a response.
const HEADER_BYTES: u32 = 16 << 10;

type BoxError = Box<dyn Error + Send + Sync>;
type Connecting = Shared<BoxFuture<'static, Result<Sender, DialFailure>>>;

/// A connection to a server that is made when it is needed, and again after it broke. Cheap to
/// clone.
#[derive(Clone)]
pub(crate) struct Http2Channel(Arc<ChannelState>);

struct ChannelState {
    dialer: Arc<EtcdDialer>,
    connection: Mutex<Option<ChannelConnection>>,
    next_generation: AtomicU64,
}

/// Where to connect to, and how.
struct EtcdDialer {
    /// Host and port.
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// An open connection's end for calls.
#[derive(Clone)]
struct Sender {
    requests: SendRequest<Bytes>,
    ended: EndedStreams,
}

#[derive(Clone)]
enum ChannelConnection {
    Connecting(Connecting),
    Open { generation: u64, sender: Sender },
}

/// Why there is no connection; shared by the calls that needed it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot connect")]
struct DialFailure(#[source] Arc<io::Error>);

impl Http2Channel {
    /// `uri` has a host; TLS is used if there is a connector.
    pub(crate) fn new(uri: &Uri, connector: Option<TlsConnector>) -> Result<Self, BoxError> {
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(if connector.is_some() { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = match connector {
            Some(connector) => Some((connector, ServerName::try_from(bare)?)),
            None => None,
        };
        let dialer = Arc::new(EtcdDialer { address: format!("{host}:{port}"), tls });
        Ok(Self(Arc::new(ChannelState {
            dialer,
            connection: Mutex::default(),
            next_generation: AtomicU64::default(),
        })))
    }

    /// A connection that takes a request.
    async fn ready(&self) -> Result<Sender, DialFailure> {
        let mut broken = None;
        loop {
            match self.present(broken) {
                ChannelConnection::Open { generation, sender: Sender { requests, ended } } => {
                    match requests.ready().await {
                        Ok(requests) => return Ok(Sender { requests, ended }),
                        Err(_) => broken = Some(generation),
                    }
                }
                ChannelConnection::Connecting(connecting) => return connecting.await,
            }
        }
    }

    /// The connection, or the attempt at one, unless it is the broken one. Callers share attempts,
    /// which continue without them.
    fn present(&self, broken: Option<u64>) -> ChannelConnection {
        let mut connection = self.0.connection.lock();
        match &*connection {
            Some(ChannelConnection::Open { generation, .. }) if Some(*generation) == broken => {}
            Some(present) => return present.clone(),
            None => {}
        }
        let (dialer, state) = (Arc::clone(&self.0.dialer), Arc::downgrade(&self.0));
        let attempt = tokio::spawn(async move {
            let outcome = dialer.connect().await;
            if let Some(state) = state.upgrade() {
                state.connected(outcome.as_ref().ok());
            }
            outcome
        });
        let ended = |_| Err(DialFailure(Arc::new(io::Error::other("this process ends"))));
        let connecting = async move { attempt.await.unwrap_or_else(ended) }.boxed().shared();
        connection.insert(ChannelConnection::Connecting(connecting)).clone()
    }

    async fn send(self, request: http::Request<Body>) -> Result<http::Response<Reply>, BoxError> {
        let unsent = |cause: BoxError| BoxError::from(ConnectError(cause));
        let (head, mut body) = request.into_parts();
        let message = MessageStart::of(&mut body).await?;
        let mut sender = self.ready().await.map_err(|failure| unsent(Box::new(failure)))?;
        let head = http::Request::from_parts(head, ());
        let sent = sender.requests.send_request(head, false);
        let (response, stream) = sent.map_err(|error| unsent(Box::new(error)))?;
        let pump = message.send(stream, body);
        let reply = response.await?;
        let ended = sender.ended;
        Ok(reply.map(|stream| Reply { stream: Some(stream), is_over: false, ended, _pump: pump }))
    }
}

impl GrpcService<Body> for Http2Channel {
    type ResponseBody = Reply;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<http::Response<Reply>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

impl ChannelState {
    /// Ends an attempt.
    fn connected(&self, sender: Option<&Sender>) {
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let open = |sender: &Sender| ChannelConnection::Open { generation, sender: sender.clone() };
        *self.connection.lock() = sender.map(open);
    }
}

impl EtcdDialer {
    async fn connect(&self) -> Result<Sender, DialFailure> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.dial()).await;
        connected.unwrap_or_else(|_| Err(late())).map_err(|error| DialFailure(Arc::new(error)))
    }

    async fn dial(&self) -> io::Result<Sender> {
        let socket = self.socket().await?;
        socket.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else { return open(Box::new(socket)).await };
        let stream = connector.connect(name.clone(), socket).await?;
        if !tls::is_http2(stream.get_ref().1) {
            return Err(io::Error::other("it does not offer HTTP/2"));
        }
        open(Box::new(stream)).await
    }

    /// Tries the addresses of the name, each for its part of the time.
    async fn socket(&self) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = lookup_host(&*self.address).await?.collect();
        let share = CONNECT_TIMEOUT / u32::try_from(addresses.len() + 1).unwrap_or(u32::MAX);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in addresses {
            let connected = tokio::time::timeout(share, TcpStream::connect(address)).await;
            match connected.unwrap_or_else(|_| Err(late())) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")
}

/// With or without TLS. Boxed: HTTP/2 is compiled once for both.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

async fn open(stream: Box<dyn ByteStream>) -> io::Result<Sender> {
    let stream = CallCork::new(stream);
    let cork = stream.clone();
    let handshake = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_BYTES)
        .enable_push(false)
        .handshake(stream);
    let (requests, mut connection) = handshake.await.map_err(io::Error::other)?;
    let pings = connection.ping_pong().expect("taken once");
    let ended = EndedStreams::default();
    // Weak: the last call's stream would keep an unused connection open.
    tokio::spawn(drive(connection, cork, pings, Arc::downgrade(&ended.0)));
    Ok(Sender { requests, ended })
}

/// Runs a connection until it ends or its server falls silent: then its calls fail.
async fn drive(
    mut connection: Connection<CallCork<Box<dyn ByteStream>>, Bytes>,
    cork: CallCork<Box<dyn ByteStream>>,
    mut pings: PingPong,
    ended_streams: Weak<Mutex<Vec<RecvStream>>>,
) {
    let wakes = Arc::new(MutedWaker::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut delay: Option<Pin<Box<Sleep>>> = None;
    let exchange = poll_fn(|task| {
        wakes.task.register(task.waker());
        if let Some(streams) = ended_streams.upgrade() {
            wakes.drop_muted(std::mem::take(&mut *streams.lock()));
        }
        let ended = Pin::new(&mut connection).poll(&mut Context::from_waker(&waker));
        if cork.has_acks() {
            let left = delay.get_or_insert_with(|| Box::pin(sleep(ACK_DELAY)));
            if left.as_mut().poll(task).is_ready() {
                cork.release_acks();
                delay = None;
            }
        }
        let written = cork.poll_drain(task);
        if ended.is_ready() || matches!(written, Poll::Ready(Err(_))) {
            return Poll::Ready(());
        }
        Poll::Pending
    });
    let silence = async {
        loop {
            sleep(KEEPALIVE).await;
            let pong = tokio::time::timeout(KEEPALIVE_TIMEOUT, pings.ping(Ping::opaque())).await;
            if !matches!(pong, Ok(Ok(_))) {
                return;
            }
        }
    };
    tokio::select! {
        // Its calls fail.
        () = exchange => {}
        () = silence => {}
    }
}

/// Streams that are read to their ends. h2 polls the connection for each one that is dropped, so
/// they are dropped before its next poll.
#[derive(Clone, Default)]
struct EndedStreams(Arc<Mutex<Vec<RecvStream>>>);

impl EndedStreams {
    /// Streams that are kept: more would take memory while no message comes. Others are dropped at
    /// once.
    const MAX: usize = 32;

    fn push(&self, stream: RecvStream) {
        let mut streams = self.0.lock();
        if streams.len() < Self::MAX {
            streams.push(stream);
        }
    }
}

/// Wakes the task, unless it is about to poll the connection anyway: h2's lock, which that poll
/// takes, orders it after what the wake was for.
#[derive(Default)]
struct MutedWaker {
    is_muted: AtomicBool,
    task: AtomicWaker,
}

impl MutedWaker {
    /// Drops streams, which want a poll of the connection. It must follow.
    fn drop_muted(&self, streams: Vec<RecvStream>) {
        if !streams.is_empty() {
            self.is_muted.swap(true, Ordering::AcqRel);
            drop(streams);
            self.is_muted.swap(false, Ordering::AcqRel);
        }
    }
}

impl Wake for MutedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_muted.load(Ordering::Acquire) {
            self.task.wake();
        }
    }
}

/// The part of a request's body that is ready when the call begins: all of it, unless it is a
/// stream.
struct MessageStart {
    chunks: Vec<Bytes>,
    is_whole: bool,
}

impl MessageStart {
    async fn of(body: &mut Body) -> Result<Self, BoxError> {
        let mut start = Self { chunks: Vec::new(), is_whole: false };
        poll_fn(|task| {
            loop {
                match Pin::new(&mut *body).poll_frame(task) {
                    Poll::Ready(Some(Ok(frame))) => start.chunks.extend(frame.into_data()),
                    Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                    Poll::Ready(None) => {
                        start.is_whole = true;
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Pending => return Poll::Ready(Ok(())),
                }
            }
        })
        .await?;
        Ok(start)
    }

    /// Sends it; the task sends the rest. A stream that was reset fails its response.
    fn send(self, mut stream: SendStream<Bytes>, body: Body) -> Option<Pump> {
        let Self { chunks, is_whole } = self;
        let last = chunks.len().checked_sub(1).filter(|_| is_whole);
        if is_whole && last.is_none() {
            let _ = stream.send_data(Bytes::new(), true);
        }
        for (at, chunk) in chunks.into_iter().enumerate() {
            let _ = stream.send_data(chunk, Some(at) == last);
        }
        (!is_whole).then(|| Pump(tokio::spawn(pump(stream, body)).abort_handle()))
    }
}

/// The task that sends a stream of requests; ends when it is dropped.
struct Pump(AbortHandle);

impl Drop for Pump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends as fast as the server reads.
async fn pump(mut stream: SendStream<Bytes>, mut body: Body) {
    while let Some(frame) = poll_fn(|task| Pin::new(&mut body).poll_frame(task)).await {
        let Ok(frame) = frame else { return stream.send_reset(Reason::CANCEL) };
        let Ok(data) = frame.into_data() else { continue };
        stream.reserve_capacity(data.len());
        while stream.capacity() < data.len() {
            let Some(Ok(_)) = poll_fn(|task| stream.poll_capacity(task)).await else { return };
        }
        if stream.send_data(data, false).is_err() {
            return;
        }
    }
    let _ = stream.send_data(Bytes::new(), true);
}

/// The body of a response.
pub(crate) struct Reply {
    /// `None` once it is dropped.
    stream: Option<RecvStream>,
    /// Read to its end.
    is_over: bool,
    ended: EndedStreams,
    _pump: Option<Pump>,
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take()
            && self.is_over
        {
            self.ended.push(stream);
        }
    }
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        if let Some(data) = ready!(stream.poll_data(task)) {
            return Poll::Ready(Some(data.map(|data| {
                // Fails for a stream that has ended, which needs no more room.
                let _ = stream.flow_control().release_capacity(data.len());
                Frame::data(data)
            })));
        }
        let trailers = ready!(stream.poll_trailers(task));
        self.is_over = trailers.is_ok();
        Poll::Ready(trailers.transpose().map(|trailers| trailers.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.as_ref().is_none_or(RecvStream::is_end_stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::is_unsent;
    use http_body_util::{BodyExt as _, StreamBody};
    use std::sync::atomic::AtomicUsize;
    use tokio::net::TcpListener;
    use tokio::sync::{mpsc, oneshot, watch};
    use tokio::task::JoinHandle;

    /// Answers each request at once, and tells when its body has ended and how.
    struct RecordingServer {
        channel: Http2Channel,
        origin: Uri,
        connections: Arc<AtomicUsize>,
        ends: mpsc::UnboundedReceiver<Result<(), h2::Error>>,
        /// Closes all connections.
        closer: watch::Sender<()>,
    }

    impl RecordingServer {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let origin: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            let connections = Arc::new(AtomicUsize::default());
            let (told, ends) = mpsc::unbounded_channel();
            let (closer, closed) = watch::channel(());
            let count = Arc::clone(&connections);
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    count.fetch_add(1, Ordering::Relaxed);
                    let (told, mut closed) = (told.clone(), closed.clone());
                    closed.mark_unchanged();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = Self::answer(socket, told) => {}
                            _ = closed.changed() => {}
                        }
                    });
                }
            });
            let channel = Http2Channel::new(&origin, None).unwrap();
            Self { channel, origin, connections, ends, closer }
        }

        async fn answer(socket: TcpStream, told: mpsc::UnboundedSender<Result<(), h2::Error>>) {
            let mut connection = h2::server::handshake(socket).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let mut body = request.into_body();
                let mut reply = respond.send_response(http::Response::new(()), false).unwrap();
                let told = told.clone();
                tokio::spawn(async move {
                    let end = loop {
                        match body.data().await {
                            Some(Ok(_)) => {}
                            Some(Err(error)) => break Err(error),
                            None => break Ok(()),
                        }
                    };
                    let _ = reply.send_data(Bytes::new(), true);
                    let _ = told.send(end);
                });
            }
        }

        async fn call(&self, body: Body) -> Result<http::Response<Reply>, BoxError> {
            let request = http::Request::post(self.origin.clone()).body(body).unwrap();
            self.channel.clone().send(request).await
        }
    }

    #[tokio::test]
    async fn calls_share_a_connection_and_one_that_broke_is_replaced() {
        let mut server = RecordingServer::start().await;
        for attempt in 1..4 {
            let calls = (0..8).map(|_| server.call(Body::empty()));
            for reply in futures::future::join_all(calls).await {
                reply.expect("it is sent");
                server.ends.recv().await.unwrap().expect("it ends");
            }
            assert_eq!(server.connections.load(Ordering::Relaxed), attempt);
            server.closer.send_replace(());
            // What is sent before the end arrives fails; nothing is sent on what has ended.
            let ready = || async { server.channel.ready().await.expect("it listens again") };
            let replaced = async {
                while server.connections.load(Ordering::Relaxed) == attempt {
                    ready().await;
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(CONNECT_TIMEOUT, replaced).await.expect("it is replaced");
        }
    }

    /// A server of one connection, with its pings. Its task ends with the connection.
    async fn serve_one() -> (Http2Channel, Uri, oneshot::Receiver<PingPong>, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (sender, pings) = oneshot::channel();
        let served = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let _ = sender.send(connection.ping_pong().unwrap());
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let mut reply = respond.send_response(http::Response::new(()), false).unwrap();
                reply.send_data(Bytes::from_static(b"reply"), true).unwrap();
            }
        });
        (Http2Channel::new(&origin, None).unwrap(), origin, pings, served)
    }

    async fn call_whole(channel: &Http2Channel, origin: &Uri) {
        let request = http::Request::post(origin.clone()).body(Body::empty()).unwrap();
        let reply = channel.clone().send(request).await.expect("it is sent");
        let body = reply.into_body().collect().await.expect("it ends");
        assert_eq!(body.to_bytes(), "reply");
    }

    #[tokio::test]
    async fn calls_follow_those_that_have_ended_and_the_connection_ends_with_its_channel() {
        let (channel, origin, _pings, served) = serve_one().await;
        for _ in 0..3 {
            let calls = (0..2 * EndedStreams::MAX).map(|_| call_whole(&channel, &origin));
            let calls = futures::future::join_all(calls);
            tokio::time::timeout(CONNECT_TIMEOUT, calls).await.expect("they end");
            let last = call_whole(&channel, &origin);
            tokio::time::timeout(CONNECT_TIMEOUT, last).await.expect("it ends");
        }
        drop(channel);
        tokio::time::timeout(CONNECT_TIMEOUT, served).await.expect("it ends").expect("no panic");
    }

    #[tokio::test]
    async fn a_silent_connection_acknowledges_pings() {
        let (channel, origin, pings, _served) = serve_one().await;
        call_whole(&channel, &origin).await;
        let mut pings = pings.await.unwrap();
        for _ in 0..3 {
            let pong = tokio::time::timeout(CONNECT_TIMEOUT, pings.ping(Ping::opaque())).await;
            pong.expect("it comes").expect("no error");
        }
    }

    #[tokio::test]
    async fn a_stream_without_a_reader_is_reset() {
        let mut server = RecordingServer::start().await;
        let first = Frame::data(Bytes::from_static(b"first"));
        let endless = futures::stream::iter([Ok::<_, tonic::Status>(first)]);
        let endless = futures::StreamExt::chain(endless, futures::stream::pending());
        let reply = server.call(Body::new(StreamBody::new(endless))).await.expect("it is sent");
        assert!(server.ends.try_recv().is_err());
        drop(reply);
        server.ends.recv().await.unwrap().expect_err("it does not end by itself");
    }

    /// Otherwise its outcome would be an answer to a later call.
    #[tokio::test]
    async fn an_attempt_without_a_caller_ends() {
        let server = RecordingServer::start().await;
        let given_up = server.channel.ready().now_or_never();
        assert!(given_up.is_none());
        let open = async {
            let is_open = || {
                let connection = server.channel.0.connection.lock();
                matches!(&*connection, Some(ChannelConnection::Open { .. }))
            };
            while !is_open() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, open).await.expect("it continues");
        server.call(Body::empty()).await.expect("it is sent");
        assert_eq!(server.connections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn without_a_server_nothing_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        drop(listener);
        let channel = Http2Channel::new(&origin, None).unwrap();
        let request = http::Request::post(origin).body(Body::empty()).unwrap();
        let error = channel.send(request).await.err().expect("nothing listens");
        assert!(is_unsent(&tonic::Status::from_error(error)));
    }
}
