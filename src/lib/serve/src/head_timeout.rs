//! Times the heads of requests on one connection, and replaces hyper's responses to malformed ones.
//!
//! hyper's header timeout also runs while a connection is idle between requests, so a short one
//! would close connections that clients are about to reuse. Here the time starts with the first
//! byte of a head.

use crate::activity::Activity;
use crate::bad_head::{self, MAX_HEAD_PREFIX};
use crate::body::WRITE_BYTES;
use crate::connection::ListenerState;
use crate::frames::{FrameMeter, GO_AWAY};
use crate::framing::RequestFraming;
use crate::gate::WakeGate;
use crate::heads::{FREE_BYTES, HeadBytes};
use crate::slow_client::Wait;
use crate::stats::ListenerStats;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A connection that closes before its client has sent everything (a malformed head, a body that
/// was refused) is read on, so that the client sees the response: unread bytes would reset it. Ends
/// when the client closes, or sends nothing for this long.
const LINGER_QUIET: Duration = Duration::from_millis(500);
/// And after this in all.
const LINGER_IN_ALL: Duration = Duration::from_secs(10);
/// And after this many bytes: a body that is too large by little.
const LINGER_BYTES: usize = 4 << 20;

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
    /// HTTP/1.1: where requests end.
    requests: RequestFraming,
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
    /// Length so far.
    head_bytes: usize,
    /// Number of handler responses partly written.
    written: u64,
    replaced: Option<Replacement>,
    lingers: Option<Lingering>,
}

/// Reading on after the connection was closed for writing.
struct Lingering {
    /// When the connection is cut, whatever still arrives.
    until: Instant,
    /// When bytes arrived last.
    heard: Instant,
    bytes: usize,
}

impl Lingering {
    fn begin() -> Self {
        let now = Instant::now();
        Self { until: now + LINGER_IN_ALL, heard: now, bytes: 0 }
    }
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
            requests: RequestFraming::new(),
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
        self.requests.receive(bytes);
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

    /// HTTP/1.1: bytes of the next head that came with the last request count once that is
    /// answered.
    fn note_next_head(&mut self) {
        if self.frames.is_some() || self.since.is_some() || !self.activity.is_idle() {
            return;
        }
        let begun_bytes = self.requests.unfinished_bytes();
        if begun_bytes > 0 {
            self.since = Some(Instant::now());
            self.head_bytes = begun_bytes;
            self.held.set(begun_bytes);
        }
    }

    /// Whether these bytes are hyper's own response to a malformed head. Only checked while no
    /// handler's response is being written.
    fn is_hypers(&self, bytes: &[u8]) -> bool {
        self.frames.is_none()
            && self.activity.answered() == self.written
            && bad_head::is_hypers_response(bytes)
            && !self.activity.is_upgraded()
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
            self.written = self.activity.answered();
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

impl<T: AsyncRead + Unpin> HeadGuard<T> {
    /// Drops what the client still sends.
    fn poll_linger(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let mut lingering = self.lingers.take().unwrap_or_else(Lingering::begin);
        let mut scratch = [0; 4096];
        while lingering.bytes < LINGER_BYTES && lingering.heard < lingering.until {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.inner).poll_read(task, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    lingering.bytes += buffer.filled().len();
                    lingering.heard = Instant::now();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    let quiet = LINGER_QUIET.min(lingering.until - lingering.heard);
                    if self.poll_deadline(lingering.heard, quiet, task).is_ready() {
                        return Poll::Ready(());
                    }
                    self.lingers = Some(lingering);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for HeadGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.frames.is_none() && this.activity.is_upgraded() {
            // A tunnel has no heads.
            this.held.set(0);
            return this.reads.poll(task, |task| Pin::new(&mut this.inner).poll_read(task, buffer));
        }
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
        this.note_next_head();
        if this.held.is_cut(task.waker()) {
            return Poll::Ready(Err(this.refuse(ReadRefused::Heads, task)));
        }
        // hyper parses a large head again with each read.
        if this.frames.is_none() && this.head_bytes > FREE_BYTES && this.activity.note_large_head()
        {
            task.waker().wake_by_ref();
            return Poll::Pending;
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
        if this.lingers.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(task))?;
            // A tunnel reads on what it closed for writing.
            if this.frames.is_some() || this.activity.is_upgraded() || this.activity.closed_idle() {
                return Poll::Ready(Ok(()));
            }
        }
        ready!(this.poll_linger(task));
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
