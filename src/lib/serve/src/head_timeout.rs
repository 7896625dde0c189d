//! Times the heads of requests on one connection, and replaces hyper's responses to malformed ones;
//! and the connection's activity.
//!
//! hyper's header timeout also runs while a connection is idle between requests, so a short one
//! would close connections that clients are about to reuse. Here the time starts with the first
//! byte of a head.

use crate::bad_head::{self, MAX_HEAD_PREFIX};
use crate::body::{Body, Chunk, WRITE_BYTES};
use crate::connection::ListenerState;
use crate::frames::{FrameMeter, GO_AWAY};
use crate::gate::WakeGate;
use crate::heads::HeadBytes;
use crate::held::Holdings;
use crate::server::{BodyGuard, ListenerStats};
use crate::slow_client::{CountedChunk, STREAM_BYTES, UnsentBytes, Wait, Waits};
use http::StatusCode;
use http_body::{Body as _, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Counts a connection's requests.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    /// Requests rejected unseen.
    refused: AtomicU32,
    /// No further request is accepted.
    is_closing: AtomicBool,
    /// The connection was upgraded: no longer HTTP.
    upgraded: AtomicBool,
    /// What waits for the client.
    waits: Arc<Waits>,
}

impl Activity {
    pub(crate) fn new(holdings: Holdings) -> Arc<Self> {
        Arc::new(Self { waits: Arc::new(Waits::new(holdings)), ..Self::default() })
    }

    /// Requests begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.begun.load(Ordering::Relaxed) == self.ended.load(Ordering::Relaxed)
    }

    /// Called at each tick of the connection; true if its client has stopped reading.
    pub(crate) fn tick(&self) -> bool {
        self.waits.tick()
    }

    /// Requests between head and end of response.
    pub(crate) fn in_flight(&self) -> u64 {
        self.begun.load(Ordering::Relaxed).saturating_sub(self.ended.load(Ordering::Relaxed))
    }

    /// Accepts no request from now on.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Whether an arrived request may begin; `share` is what the connection may hold. HTTP/2 only,
    /// where the client learns that it may retry.
    pub(crate) fn admits(&self, share: Option<usize>) -> bool {
        let is_refused = self.is_closing.load(Ordering::Relaxed)
            || share.is_some_and(|share| self.waits.bytes() > share);
        if is_refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        !is_refused
    }

    /// Number of requests rejected since the last call.
    fn take_refused(&self) -> u32 {
        if self.refused.load(Ordering::Relaxed) > 0 {
            self.refused.swap(0, Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Whether the client has read everything.
    pub(crate) fn is_done(&self) -> bool {
        self.is_idle() && self.waits.bytes() == 0
    }

    /// A wait that holds `bytes` while it waits for the client.
    pub(crate) fn idle_wait(&self, bytes: usize) -> Wait {
        Wait::idle(&self.waits, bytes)
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.waits.hold(REQUEST_BYTES);
        InFlight { activity: Arc::clone(self), is_answered: false }
    }
}

/// Approximate bytes held by a request until its response: head, task, a small response. Counts a
/// burst before its first response.
const REQUEST_BYTES: usize = 16 * 1024;

/// A request between its head and the end of its response.
#[derive(Debug)]
pub(crate) struct InFlight {
    activity: Arc<Activity>,
    is_answered: bool,
}

impl InFlight {
    /// The handler has responded.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        if status == StatusCode::SWITCHING_PROTOCOLS {
            self.activity.upgraded.store(true, Ordering::Relaxed);
        }
        self.activity.answered.fetch_add(1, Ordering::Relaxed);
        self.is_answered = true;
        self.activity.waits.release(REQUEST_BYTES);
    }

    /// Accepts no further request on the connection.
    pub(crate) fn close(&self) {
        self.activity.close();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_answered {
            self.activity.waits.release(REQUEST_BYTES);
        }
        self.activity.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A response body that tracks whether it is sent or waits for its client.
pub(crate) struct CountedBody {
    body: Body,
    in_flight: InFlight,
    wait: Wait,
    _kept: Option<BodyGuard>,
    /// Set once the first of several chunks was made.
    under_way: Option<Arc<UnsentBytes>>,
}

impl CountedBody {
    pub(crate) fn new(body: Body, in_flight: InFlight, kept: Option<BodyGuard>) -> Self {
        // hyper never polls the body of a client that reads nothing.
        let wait = Wait::begin(&in_flight.activity.waits, STREAM_BYTES);
        Self { body, in_flight, wait, _kept: kept, under_way: None }
    }

    fn piece(&mut self, chunk: Chunk) -> CountedChunk {
        if self.under_way.is_none() && !self.body.is_end_stream() {
            self.under_way = Some(Arc::default());
        }
        CountedChunk::new(chunk, &self.in_flight.activity.waits, self.under_way.as_ref())
    }
}

impl http_body::Body for CountedBody {
    type Data = CountedChunk;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<CountedChunk>>>> {
        let this = &mut *self;
        if this.under_way.as_ref().is_some_and(|under_way| under_way.is_full(task)) {
            // The chunks given to hyper are what waits now.
            this.wait.end();
            return Poll::Pending;
        }
        let polled = Pin::new(&mut this.body).poll_frame(task);
        match &polled {
            Poll::Ready(Some(Ok(_))) => this.wait.restart(),
            Poll::Ready(_) | Poll::Pending => this.wait.end(),
        }
        polled.map_ok(|frame| frame.map_data(|chunk| this.piece(chunk)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How long a connection is read on after a malformed head, so that its client sees the response:
/// unread bytes would reset it.
const LINGER: Duration = Duration::from_millis(500);

/// A byte stream that fails reads when a head takes too long, and replaces hyper's responses to
/// malformed heads.
pub(crate) struct HeadGuard<T> {
    inner: T,
    /// Guards reads: a response being sent polls them with every frame.
    reads: WakeGate,
    activity: Arc<Activity>,
    stats: Arc<ListenerStats>,
    limit: Duration,
    /// Set for HTTP/2: only the first request and header blocks are timed (an idle connection still
    /// reads pings and window updates), and heads are not inspected.
    frames: Option<Box<FrameMeter>>,
    /// Bytes of the unfinished head.
    held: HeadBytes,
    /// HTTP/2: the header block or frame that `since` refers to.
    block: u64,
    /// HTTP/1.1: encrypted bytes wait for the client. (HTTP/2: see [`Turns`](crate::cork::Turns).)
    blocked: Wait,
    /// Since when there is an unfinished head; initially since the handshake, so that silence is
    /// timed, too.
    since: Option<Instant>,
    /// Requests begun at `since`; if there are more now, the head is complete.
    heads: u64,
    timer: Option<Pin<Box<Sleep>>>,
    /// Prefix of the unfinished head.
    head: Vec<u8>,
    /// Its length so far.
    head_bytes: usize,
    /// Number of handler responses partly written.
    written: u64,
    replaced: Option<Replacement>,
    /// When lingering began.
    lingers: Option<Instant>,
}

/// Why reading ends.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum ReadRefused {
    #[error("the client sends more cheap frames than it may")]
    Flood,
    #[error("unfinished heads hold too much memory")]
    Heads,
}

/// A response sent instead of hyper's.
struct Replacement {
    bytes: Vec<u8>,
    sent: usize,
}

impl<T> HeadGuard<T> {
    pub(crate) fn http1(inner: T, activity: Arc<Activity>, shared: &ListenerState) -> Self {
        Self::new(inner, activity, shared, None)
    }

    pub(crate) fn http2(inner: T, activity: Arc<Activity>, shared: &ListenerState) -> Self {
        Self::new(inner, activity, shared, Some(Box::new(FrameMeter::new())))
    }

    fn new(
        inner: T,
        activity: Arc<Activity>,
        shared: &ListenerState,
        frames: Option<Box<FrameMeter>>,
    ) -> Self {
        Self {
            inner,
            reads: WakeGate::new(),
            stats: Arc::clone(&shared.stats),
            limit: shared.limits.header,
            frames,
            held: HeadBytes::new(&shared.heads),
            block: 0,
            blocked: activity.idle_wait(WRITE_BYTES),
            activity,
            since: Some(Instant::now()),
            heads: 0,
            timer: None,
            head: Vec::new(),
            head_bytes: 0,
            written: 0,
            replaced: None,
            lingers: None,
        }
    }

    fn poll_deadline(
        &mut self,
        since: Instant,
        limit: Duration,
        task: &mut Context<'_>,
    ) -> Poll<()> {
        let deadline = since + limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(task)
    }

    /// Accounts for received bytes.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), ReadRefused> {
        if let Some(frames) = &mut self.frames {
            let refused = self.activity.take_refused();
            if refused > 0 && !frames.charge(refused) || !frames.receive(bytes) {
                return Err(ReadRefused::Flood);
            }
            let unfinished_bytes = frames.unfinished_bytes();
            // Until the first request, the time of one head counts.
            if self.heads > 0 {
                if unfinished_bytes == 0 {
                    self.since = None;
                } else if self.since.is_none() || self.block != frames.started() {
                    (self.since, self.block) = (Some(Instant::now()), frames.started());
                }
            }
            self.held.set(unfinished_bytes);
            return Ok(());
        }
        if bytes.is_empty() || !self.activity.is_idle() {
            return Ok(());
        }
        self.since.get_or_insert_with(Instant::now);
        let room = MAX_HEAD_PREFIX - self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.head_bytes += bytes.len();
        self.held.set(self.head_bytes);
        Ok(())
    }

    /// Whether these bytes are hyper's own response to a malformed head. Only checked while no
    /// handler's response is being written.
    fn is_hypers(&self, bytes: &[u8]) -> bool {
        self.frames.is_none()
            && self.activity.answered.load(Ordering::Relaxed) == self.written
            && bad_head::is_hypers_response(bytes)
            && !self.activity.upgraded.load(Ordering::Relaxed)
    }
}

impl<T: AsyncWrite + Unpin> HeadGuard<T> {
    /// Writes the replacement, then claims that hyper's response was written.
    fn poll_replaced(&mut self, task: &mut Context<'_>, answer: &[u8]) -> Poll<io::Result<usize>> {
        let head = &self.head;
        let replaced = self.replaced.get_or_insert_with(|| Replacement {
            bytes: bad_head::replacement(answer, head),
            sent: 0,
        });
        while replaced.sent < replaced.bytes.len() {
            let sent = ready!(
                Pin::new(&mut self.inner).poll_write(task, &replaced.bytes[replaced.sent..])
            )?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            replaced.sent += sent;
        }
        Poll::Ready(Ok(answer.len()))
    }

    fn note(&mut self, sent: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.note_blocked(sent.is_pending());
        if let Poll::Ready(sent) = &sent {
            self.written = self.activity.answered.load(Ordering::Relaxed);
            if let (Some(frames), Ok(sent)) = (&mut self.frames, sent) {
                frames.sent(*sent);
            }
        }
        sent
    }

    fn note_blocked(&mut self, is_blocked: bool) {
        if self.frames.is_none() {
            self.blocked.set(is_blocked);
        }
    }

    /// Fails the connection. A flooding client gets a GOAWAY, if it still reads.
    fn refuse(&mut self, refused: ReadRefused, task: &mut Context<'_>) -> io::Error {
        if matches!(refused, ReadRefused::Flood) {
            self.stats.flooded.fetch_add(1, Ordering::Relaxed);
            // Sent when the connection closes; if it does not fit, that does not matter.
            let _ = Pin::new(&mut self.inner).poll_write(task, &GO_AWAY);
        }
        io::Error::new(io::ErrorKind::InvalidData, refused)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for HeadGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let begun = this.activity.begun();
        if begun != this.heads {
            let is_in_block =
                this.frames.as_ref().is_some_and(|frames| frames.unfinished_bytes() > 0);
            (this.heads, this.since, this.head) =
                (begun, this.since.filter(|_| is_in_block), Vec::new());
            if std::mem::take(&mut this.head_bytes) > 0 {
                this.held.set(0);
            }
        }
        if this.held.is_cut(task.waker()) {
            return Poll::Ready(Err(this.refuse(ReadRefused::Heads, task)));
        }
        if let Poll::Ready(result) =
            this.reads.poll(task, |task| Pin::new(&mut this.inner).poll_read(task, buffer))
        {
            return Poll::Ready(result.and_then(|()| {
                this.keep(&buffer.filled()[before..]).map_err(|refused| this.refuse(refused, task))
            }));
        }
        let Some(since) = this.since else { return Poll::Pending };
        ready!(this.poll_deadline(since, this.limit, task));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the request's head did not arrive in time",
        )))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HeadGuard<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_hypers(bytes) {
            return self.poll_replaced(task, bytes);
        }
        let sent = Pin::new(&mut self.inner).poll_write(task, bytes);
        self.note(sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(task);
        self.note_blocked(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.inner).poll_shutdown(task))?;
        if this.replaced.is_none() {
            return Poll::Ready(Ok(()));
        }
        let since = *this.lingers.get_or_insert_with(Instant::now);
        let mut scratch = [0; 4096];
        while this.poll_deadline(since, LINGER, task).is_pending() {
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = ready!(Pin::new(&mut this.inner).poll_read(task, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [whole] = slices
            && self.is_hypers(whole)
        {
            return self.poll_replaced(task, whole);
        }
        let sent = Pin::new(&mut self.inner).poll_write_vectored(task, slices);
        self.note(sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
