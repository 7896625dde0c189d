//! What one connection is doing, and the byte stream that watches over the heads of its requests:
//! it ends when one takes too long, and words the answer to one that is broken.
//!
//! hyper's own header timeout also runs while a connection is idle between requests, so it cannot
//! be short without closing connections that clients are about to use again. Here the time starts
//! with a head's first byte.

use crate::bad_head::{self, KEPT_BYTES};
use crate::body::{Body, Chunk, WRITE_BYTES};
use crate::connection::Shared;
use crate::frames::{Frames, GO_AWAY};
use crate::gate::Gate;
use crate::heads::HeadBytes;
use crate::held::Holdings;
use crate::server::{Kept, Stats};
use crate::slow_client::{Piece, STREAM_BYTES, UnderWay, Wait, Waits};
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

/// How many requests a connection has begun, answered and ended.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    /// Requests refused unseen.
    refused: AtomicU32,
    /// No further request is begun.
    is_closing: AtomicBool,
    /// What goes over the connection is no longer HTTP.
    upgraded: AtomicBool,
    /// What waits for the client to take it.
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

    /// Whether no request is between its head and the end of its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.begun.load(Ordering::Relaxed) == self.ended.load(Ordering::Relaxed)
    }

    /// Called at each tick of the connection: true when its client takes nothing of what it asked
    /// for.
    pub(crate) fn tick(&self) -> bool {
        self.waits.tick()
    }

    /// Requests between their heads and the ends of their answers.
    pub(crate) fn in_flight(&self) -> u64 {
        self.begun.load(Ordering::Relaxed).saturating_sub(self.ended.load(Ordering::Relaxed))
    }

    /// From now on no request is begun.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Whether a request that has arrived is begun; `share`: what the connection may hold. HTTP/2
    /// only, where the client learns that it may try again.
    pub(crate) fn admits(&self, share: Option<usize>) -> bool {
        let is_refused = self.is_closing.load(Ordering::Relaxed)
            || share.is_some_and(|share| self.waits.bytes() > share);
        if is_refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        !is_refused
    }

    /// Requests refused since the last call.
    fn take_refused(&self) -> u32 {
        if self.refused.load(Ordering::Relaxed) > 0 {
            self.refused.swap(0, Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Whether the client has taken all that there is for it.
    pub(crate) fn is_done(&self) -> bool {
        self.is_idle() && self.waits.bytes() == 0
    }

    /// What holds so many bytes when it waits for the client.
    pub(crate) fn idle_wait(&self, bytes: usize) -> Wait {
        Wait::idle(&self.waits, bytes)
    }

    /// Counts a request until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.waits.hold(REQUEST_BYTES);
        InFlight { activity: Arc::clone(self), is_answered: false }
    }
}

/// What a request holds until it is answered, about: its head, its task and a small answer. A burst
/// of requests is counted before the first of them is answered.
const REQUEST_BYTES: usize = 16 * 1024;

/// One request between its head and the end of its answer.
#[derive(Debug)]
pub(crate) struct InFlight {
    activity: Arc<Activity>,
    is_answered: bool,
}

impl InFlight {
    /// Its handler gave a response.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        if status == StatusCode::SWITCHING_PROTOCOLS {
            self.activity.upgraded.store(true, Ordering::Relaxed);
        }
        self.activity.answered.fetch_add(1, Ordering::Relaxed);
        self.is_answered = true;
        self.activity.waits.release(REQUEST_BYTES);
    }

    /// No request is begun on its connection after it.
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

/// A response body that knows when it is sent, and whether it waits for its client.
pub(crate) struct CountedBody {
    body: Body,
    in_flight: InFlight,
    wait: Wait,
    _kept: Option<Kept>,
    /// From the first piece on that others follow.
    under_way: Option<Arc<UnderWay>>,
}

impl CountedBody {
    pub(crate) fn new(body: Body, in_flight: InFlight, kept: Option<Kept>) -> Self {
        // A client that takes nothing at all never lets it be polled.
        let wait = Wait::begin(&in_flight.activity.waits, STREAM_BYTES);
        Self { body, in_flight, wait, _kept: kept, under_way: None }
    }

    fn piece(&mut self, chunk: Chunk) -> Piece {
        if self.under_way.is_none() && !self.body.is_end_stream() {
            self.under_way = Some(Arc::default());
        }
        Piece::new(chunk, &self.in_flight.activity.waits, self.under_way.as_ref())
    }
}

impl http_body::Body for CountedBody {
    type Data = Piece;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Piece>>>> {
        let this = &mut *self;
        if this.under_way.as_ref().is_some_and(|under_way| under_way.is_full(task)) {
            // What is under way is what waits for the client.
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

/// How long a connection that ends on a broken head is read on, so that its client gets to see why:
/// unread bytes would reset it.
const LINGER: Duration = Duration::from_millis(500);

/// A byte stream whose reads fail when a head that has begun does not end in time, and whose own
/// answers to broken heads have a text.
pub(crate) struct HeadGuard<T> {
    inner: T,
    /// Before reads: an answer that goes on polls them with every frame.
    reads: Gate,
    activity: Arc<Activity>,
    stats: Arc<Stats>,
    limit: Duration,
    /// HTTP/2: time counts until the first request and in header blocks (an idle connection still
    /// reads pings and window updates), and heads are not looked at.
    frames: Option<Box<Frames>>,
    /// Of the unfinished head.
    held: HeadBytes,
    /// HTTP/2: which header block or frame `since` is of.
    block: u64,
    /// HTTP/1.1: what is encrypted waits for the client. (HTTP/2: see
    /// [`Turns`](crate::cork::Turns).)
    blocked: Wait,
    /// Since when bytes of an unfinished head are there; at the start of a connection since its
    /// handshake, so that silence counts too.
    since: Option<Instant>,
    /// Requests begun when `since` was set: more of them mean that the head is complete.
    heads: u64,
    timer: Option<Pin<Box<Sleep>>>,
    /// The beginning of the unfinished head.
    head: Vec<u8>,
    /// How long it is so far.
    head_bytes: usize,
    /// Responses of handlers of which something was written.
    written: u64,
    replaced: Option<Replaced>,
    /// Since when the connection only lingers.
    lingers: Option<Instant>,
}

/// Why a client's bytes are not taken.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Refused {
    #[error("the client sends more cheap frames than it may")]
    Flood,
    #[error("unfinished heads hold too much memory")]
    Heads,
}

/// An answer that goes out instead of hyper's.
struct Replaced {
    bytes: Vec<u8>,
    sent: usize,
}

impl<T> HeadGuard<T> {
    pub(crate) fn http1(inner: T, activity: Arc<Activity>, shared: &Shared) -> Self {
        Self::new(inner, activity, shared, None)
    }

    pub(crate) fn http2(inner: T, activity: Arc<Activity>, shared: &Shared) -> Self {
        Self::new(inner, activity, shared, Some(Box::new(Frames::new())))
    }

    fn new(
        inner: T,
        activity: Arc<Activity>,
        shared: &Shared,
        frames: Option<Box<Frames>>,
    ) -> Self {
        Self {
            inner,
            reads: Gate::new(),
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

    /// Bytes came in.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if let Some(frames) = &mut self.frames {
            let refused = self.activity.take_refused();
            if refused > 0 && !frames.charge(refused) || !frames.take(bytes) {
                return Err(Refused::Flood);
            }
            let unfinished_bytes = frames.unfinished_bytes();
            // Until the first request all of it has to come in the time of one head.
            if self.heads > 0 {
                if unfinished_bytes == 0 {
                    self.since = None;
                } else if self.since.is_none() || self.block != frames.begun() {
                    (self.since, self.block) = (Some(Instant::now()), frames.begun());
                }
            }
            self.held.set(unfinished_bytes);
            return Ok(());
        }
        if bytes.is_empty() || !self.activity.is_idle() {
            return Ok(());
        }
        self.since.get_or_insert_with(Instant::now);
        let room = KEPT_BYTES - self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.head_bytes += bytes.len();
        self.held.set(self.head_bytes);
        Ok(())
    }

    /// Whether these bytes are hyper's own answer to a broken head. Nothing is looked at closely
    /// unless no handler's response is being written.
    fn is_hypers(&self, bytes: &[u8]) -> bool {
        self.frames.is_none()
            && self.activity.answered.load(Ordering::Relaxed) == self.written
            && bad_head::is_own_answer(bytes)
            && !self.activity.upgraded.load(Ordering::Relaxed)
    }
}

impl<T: AsyncWrite + Unpin> HeadGuard<T> {
    /// Writes the other answer whole; then says that hyper's was.
    fn poll_replaced(&mut self, task: &mut Context<'_>, answer: &[u8]) -> Poll<io::Result<usize>> {
        let head = &self.head;
        let replaced = self.replaced.get_or_insert_with(|| Replaced {
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

    /// Ends the connection; of a flood the client learns that it was one, if it still reads.
    fn refuse(&mut self, refused: Refused, task: &mut Context<'_>) -> io::Error {
        if matches!(refused, Refused::Flood) {
            self.stats.flooded.fetch_add(1, Ordering::Relaxed);
            // Gathered, and sent when the connection has ended; what does not fit is not missed.
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
            return Poll::Ready(Err(this.refuse(Refused::Heads, task)));
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
