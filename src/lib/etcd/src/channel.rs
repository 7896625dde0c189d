//! Connections for gRPC, directly on HTTP/2: only the caller's task and the connection's work on a
//! call, and its head and message leave together. With the queues of a general transport each call
//! wakes several tasks, here and in etcd.

use crate::cork::CallCork;
use crate::tls;
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, Shared};
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
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
type Sender = SendRequest<Bytes>;
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
                ChannelConnection::Open { generation, sender } => match sender.ready().await {
                    Ok(sender) => return Ok(sender),
                    Err(_) => broken = Some(generation),
                },
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
        let sent = sender.send_request(head, false);
        let (response, stream) = sent.map_err(|error| unsent(Box::new(error)))?;
        let pump = message.send(stream, body);
        let reply = response.await?;
        Ok(reply.map(|stream| Reply { stream, _pump: pump }))
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
    let (sender, mut connection) = handshake.await.map_err(io::Error::other)?;
    let pings = connection.ping_pong().expect("taken once");
    tokio::spawn(drive(connection, cork, pings));
    Ok(sender)
}

/// Runs a connection until it ends or its server falls silent: then its calls fail.
async fn drive(
    mut connection: Connection<CallCork<Box<dyn ByteStream>>, Bytes>,
    cork: CallCork<Box<dyn ByteStream>>,
    mut pings: PingPong,
) {
    let exchange = poll_fn(|task| {
        let ended = Pin::new(&mut connection).poll(task);
        let written = cork.poll_drain(task);
        if ended.is_ready() || matches!(written, Poll::Ready(Err(_))) {
            return Poll::Ready(());
        }
        Poll::Pending
    });
    let silence = async {
        loop {
            tokio::time::sleep(KEEPALIVE).await;
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
    stream: RecvStream,
    _pump: Option<Pump>,
}

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let stream = &mut self.stream;
        if let Some(data) = ready!(stream.poll_data(task)) {
            return Poll::Ready(Some(data.map(|data| {
                // Fails for a stream that has ended, which needs no more room.
                let _ = stream.flow_control().release_capacity(data.len());
                Frame::data(data)
            })));
        }
        let trailers = ready!(stream.poll_trailers(task));
        Poll::Ready(trailers.transpose().map(|trailers| trailers.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::is_unsent;
    use http_body_util::StreamBody;
    use std::sync::atomic::AtomicUsize;
    use tokio::net::TcpListener;
    use tokio::sync::{mpsc, watch};

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
