//! What one connection is doing, and the byte stream that ends when a request's head takes too long.
//!
//! hyper's own header timeout also runs while a connection is idle between requests, so it cannot be short without closing connections that clients
//! are about to use again. Here the time starts with a head's first byte.

use crate::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How many requests a connection has begun and ended.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Activity {
    /// Requests begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether no request is between its head and the end of its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.begun.load(Ordering::Relaxed) == self.ended.load(Ordering::Relaxed)
    }

    /// Counts a request until what is returned is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.begun.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }
}

/// One request between its head and the end of its answer.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A response body that knows when it is sent.
pub(crate) struct CountedBody {
    pub(crate) body: Body,
    pub(crate) _in_flight: InFlight,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(task)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A byte stream whose reads fail when a head that has begun does not end in time.
pub(crate) struct HeadTimeout<T> {
    inner: T,
    activity: Arc<Activity>,
    limit: Duration,
    /// Only until the first request: an idle HTTP/2 connection still reads pings and window updates.
    first_only: bool,
    /// Since when bytes of an unfinished head are there; at the start of a connection since its handshake, so that silence counts too.
    since: Option<Instant>,
    /// Requests begun when `since` was set: more of them mean that the head is complete.
    heads: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> HeadTimeout<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>, limit: Duration, first_only: bool) -> Self {
        Self { inner, activity, limit, first_only, since: Some(Instant::now()), heads: 0, timer: None }
    }

    fn poll_deadline(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let Some(since) = self.since else { return Poll::Pending };
        let deadline = since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(task)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadTimeout<T> {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let begun = this.activity.begun();
        if begun != this.heads {
            (this.heads, this.since) = (begun, None);
        }
        if let Poll::Ready(result) = Pin::new(&mut this.inner).poll_read(task, buffer) {
            if buffer.filled().len() > before && this.since.is_none() && !this.first_only && this.activity.is_idle() {
                this.since = Some(Instant::now());
            }
            return Poll::Ready(result);
        }
        ready!(this.poll_deadline(task));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request's head did not arrive in time")))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(task, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(task)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, task: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(task, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
