//! Clients in the process of the listener. Their requests take the path of those from connections,
//! with the same peer, guards and drain, but are neither encoded nor encrypted.
//!
//! There is no address to connect to: only code that has the listener makes such a client, and one
//! with an identity takes the key of a certificate, as a handshake would. Limits on connections and
//! frames do not apply, those of the handler do.

use crate::activity::{Activity, CountedBody};
use crate::body::received;
use crate::connection::{HandlerFuture, ListenerState, Requests};
use crate::gate::WakeGate;
use crate::handler::Request;
use crate::open_calls::{OpenCalls, OpenEntry};
use crate::peer::PeerChain;
use crate::slow_client::CountedChunk;
use crate::tls::{Tls, TlsError};
use bytes::{Buf, Bytes};
use ferrokube_pki::Pair;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::service::Service;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;

/// Unanswered requests of the process; more wait.
const PROCESS_REQUESTS: u32 = 1_000;

/// Makes clients of one listener. Clones make the same.
#[derive(Clone)]
pub struct InProcess(Arc<ProcessListener>);

struct ProcessListener {
    /// Source address of all requests.
    address: SocketAddr,
    tls: Tls,
    /// See [`ProcessAcceptor`].
    serving: watch::Receiver<Option<Arc<ListenerState>>>,
    /// Held by requests until they are answered. Their bodies are the client's.
    slots: Arc<Semaphore>,
    open: Arc<OpenCalls>,
}

/// The listener's end. While it does not serve, requests wait, as connections do in the backlog;
/// they fail once it is dropped.
pub(crate) struct ProcessAcceptor {
    /// `None` unless it serves: a client keeps nothing of a server that has ended.
    serving: watch::Sender<Option<Arc<ListenerState>>>,
    slots: Arc<Semaphore>,
    /// Requests and streams. Cut off with the listener, unless that has shut down.
    open: Arc<OpenCalls>,
    has_shut_down: bool,
}

impl ProcessAcceptor {
    /// Accepts requests from now on.
    pub(crate) fn serve(&self, state: &Arc<ListenerState>) {
        self.serving.send_replace(Some(Arc::clone(state)));
    }

    /// Resolves when all requests are answered, once the shutdown has begun and no more are
    /// accepted.
    pub(crate) async fn drained(&self) {
        let _ = self.slots.acquire_many(PROCESS_REQUESTS).await;
    }

    /// Ends after a shutdown: what is unanswered or unread is left to its client.
    pub(crate) fn finish(mut self) {
        self.has_shut_down = true;
    }

    /// Unanswered requests.
    pub(crate) fn in_flight(&self) -> usize {
        (PROCESS_REQUESTS as usize).saturating_sub(self.slots.available_permits())
    }
}

impl Drop for ProcessAcceptor {
    fn drop(&mut self) {
        self.serving.send_replace(None);
        self.slots.close();
        if !self.has_shut_down {
            self.open.cut();
        }
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("address", &self.0.address).finish_non_exhaustive()
    }
}

impl InProcess {
    pub(crate) fn new(address: SocketAddr, tls: Tls) -> (Self, ProcessAcceptor) {
        let slots = Arc::new(Semaphore::new(PROCESS_REQUESTS as usize));
        let (sender, serving) = watch::channel(None);
        let open = Arc::<OpenCalls>::default();
        let acceptor = ProcessAcceptor {
            serving: sender,
            slots: Arc::clone(&slots),
            open: Arc::clone(&open),
            has_shut_down: false,
        };
        (Self(Arc::new(ProcessListener { address, tls, serving, slots, open })), acceptor)
    }

    /// A client that shows a certificate, which is verified like that of a connection: with the
    /// CAs and the clock at each request.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Pair`]: the key does not belong to the certificate.
    pub fn client(&self, identity: &Pair) -> Result<InProcessClient, TlsError> {
        let chain = self.0.tls.proven_chain(identity)?;
        let shown = PeerChain::new(self.0.address, &chain, &self.0.tls);
        Ok(self.showing(shown))
    }

    /// A client that shows no certificate: anonymous, but for its requests' own credentials.
    pub fn anonymous_client(&self) -> InProcessClient {
        self.showing(PeerChain::new(self.0.address, &[], &self.0.tls))
    }

    fn showing(&self, shown: PeerChain) -> InProcessClient {
        let (shown, close) = (Arc::new(shown), Arc::new(Notify::new()));
        InProcessClient { listener: Arc::clone(&self.0), shown, close }
    }
}

/// Sends requests to the listener's handler, as one peer. Clones share the peer.
///
/// Requests wait until the listener serves, and fail once it shuts down. Dropping a request or its
/// response cancels it, as closing its stream would. Those of a listener that is dropped fail, too.
#[derive(Clone)]
pub struct InProcessClient {
    listener: Arc<ProcessListener>,
    shown: Arc<PeerChain>,
    /// No connection waits for it: each request is one of its own.
    close: Arc<Notify>,
}

impl fmt::Debug for InProcessClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessClient").finish_non_exhaustive()
    }
}

impl<B> Service<http::Request<B>> for InProcessClient
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = http::Response<InProcessBody>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn call(&self, request: http::Request<B>) -> Self::Future {
        let (client, request) = (self.clone(), request.map(received));
        let open = Arc::clone(&self.listener.open);
        Box::pin(async move {
            let mut task = client.begin(request).await?;
            let handle = task.0.abort_handle();
            let _open = open.add(move || handle.abort());
            // A panic of the handler has become a response, so it was cut off.
            let response = (&mut task.0).await.map_err(|_| ended())?;
            Ok(response.map_err(io::Error::other)?.map(|body| InProcessBody::new(body, &open)))
        })
    }
}

impl InProcessClient {
    async fn begin(self, mut request: Request) -> io::Result<RequestTask> {
        let slots = Arc::clone(&self.listener.slots);
        let slot = slots.acquire_owned().await.map_err(|_| ended())?;
        let shared = self.serving().await?;
        // Independent of others, as a stream is.
        *request.version_mut() = Version::HTTP_2;
        let activity = Activity::new(shared.stats.held.clone());
        let requests = Requests { shared, shown: self.shown, activity, close: self.close };
        let response = requests.respond(request);
        // A task as for a stream: what is local to the client's task (trace context, budgets) is
        // not the request's.
        Ok(RequestTask(tokio::spawn(async move {
            let _slot = slot;
            response.await
        })))
    }

    async fn serving(&self) -> io::Result<Arc<ListenerState>> {
        let mut serving = self.listener.serving.clone();
        let state = serving.wait_for(Option::is_some).await.map_err(|_| ended())?;
        state.as_ref().filter(|state| !state.shutdown.is_begun()).cloned().ok_or_else(ended)
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, "the server accepts no more requests")
}

/// A request's task, which ends when its client drops it.
struct RequestTask(JoinHandle<<HandlerFuture as Future>::Output>);

impl Drop for RequestTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A response to a client in the process.
pub struct InProcessBody {
    /// `None` once it was cut off.
    body: Option<CountedBody>,
    /// `None` for a body that is complete.
    stream: Option<OpenStream>,
}

/// A stream would be polled all the way down to the store with every wake of the client's task,
/// which may wait for several.
struct OpenStream {
    gate: WakeGate,
    entry: OpenEntry,
}

impl InProcessBody {
    fn new(body: CountedBody, open: &Arc<OpenCalls>) -> Self {
        let stream = body.size_hint().exact().is_none().then(|| {
            let gate = WakeGate::new();
            let waker = gate.waker();
            OpenStream { gate, entry: open.add(move || waker.wake_by_ref()) }
        });
        Self { body: Some(body), stream }
    }
}

impl fmt::Debug for InProcessBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessBody").finish_non_exhaustive()
    }
}

fn poll_body(
    body: &mut Option<CountedBody>,
    task: &mut Context<'_>,
) -> Poll<Option<io::Result<Frame<CountedChunk>>>> {
    match body {
        Some(body) => Pin::new(body).poll_frame(task),
        None => Poll::Ready(None),
    }
}

impl Body for InProcessBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Self { body, stream } = &mut *self;
        let polled = match stream {
            // Within the gate, which has the task by then: a cut after the check wakes it.
            Some(OpenStream { gate, entry }) => gate.poll(task, |task| match entry.is_cut() {
                // Of the server nothing stays open.
                true => Poll::Ready(body.take().map(|_| Err(ended()))),
                false => poll_body(body, task),
            }),
            None => poll_body(body, task),
        };
        // Not copied, unless the chunk references bytes in several places.
        let whole = |mut chunk: CountedChunk| chunk.copy_to_bytes(chunk.remaining());
        polled.map_ok(|frame| frame.map_data(whole))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
