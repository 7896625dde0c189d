//! A connection's requests in flight, and the bytes of responses that wait for its client.

use crate::body::{Body, Chunk};
use crate::handler::BodyGuard;
use crate::held::Holdings;
use crate::slow_client::{CountedChunk, STREAM_BYTES, UnsentBytes, Wait, Waits, polling};
use http::StatusCode;
use http_body::{Body as _, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};

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
    /// The server closed the connection between two requests.
    closed_idle: AtomicBool,
    /// The connection was upgraded: no longer HTTP.
    upgraded: AtomicBool,
    /// The head of its next request is large.
    large_head: AtomicBool,
    /// Bytes waiting for the client.
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

    /// Requests that the handler has answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether the connection is polled in [the lobby](crate::lobby): it has no request yet, or is
    /// receiving a large head.
    pub(crate) fn is_in_lobby(&self) -> bool {
        self.begun() == 0 || self.large_head.load(Ordering::Relaxed)
    }

    /// The unfinished head is large, until the next request begins. Returns whether the
    /// connection was not in the lobby before.
    pub(crate) fn note_large_head(&self) -> bool {
        !self.is_in_lobby() && !self.large_head.swap(true, Ordering::Relaxed)
    }

    /// Whether the connection is no longer HTTP.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
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

    /// The server closes the connection; notes whether a request is in flight.
    pub(crate) fn end(&self) {
        self.closed_idle.store(self.is_idle(), Ordering::Relaxed);
    }

    /// Whether nothing of a request can be unread.
    pub(crate) fn closed_idle(&self) -> bool {
        self.closed_idle.load(Ordering::Relaxed)
    }

    /// Whether a received request may start; `share` is the connection's limit. HTTP/2 only, which
    /// tells clients that they may retry.
    pub(crate) fn admits(&self, share: Option<usize>) -> bool {
        let is_refused = self.is_closing.load(Ordering::Relaxed)
            || share.is_some_and(|share| self.waits.bytes() > share);
        if is_refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        !is_refused
    }

    /// Number of requests rejected since the last call.
    pub(crate) fn take_refused(&self) -> u32 {
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
        self.large_head.store(false, Ordering::Relaxed);
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
            // Exactly the chunks passed to hyper are waiting now.
            this.wait.end();
            return Poll::Pending;
        }
        let polled =
            polling(&this.in_flight.activity.waits, || Pin::new(&mut this.body).poll_frame(task));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow_client::{TICKS, UntakenChunk};
    use http_body_util::BodyExt;
    use parking_lot::Mutex;
    use std::task::Waker;

    /// A body whose chunk another task makes.
    struct MadeElsewhere(Arc<Mutex<Option<UntakenChunk>>>);

    impl http_body::Body for MadeElsewhere {
        type Data = Chunk;
        type Error = io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _task: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Chunk>>>> {
            *self.0.lock() = UntakenChunk::of_polled();
            Poll::Pending
        }
    }

    #[test]
    fn fault_18_a_chunk_that_no_poll_takes_waits_for_its_client() {
        const BYTES: usize = 64 << 10;
        let activity = Activity::new(Holdings::default());
        let made = Arc::<Mutex<Option<UntakenChunk>>>::default();
        let body = MadeElsewhere(Arc::clone(&made)).boxed_unsync();
        let mut body = CountedBody::new(body, activity.begin(), None);
        let mut task = Context::from_waker(Waker::noop());
        let late = || (0..=TICKS).any(|_| activity.tick());
        assert!(http_body::Body::poll_frame(Pin::new(&mut body), &mut task).is_pending());
        assert!(!late(), "it is the server's turn");
        let mut chunk = made.lock().take().expect("it was polled for a connection");
        chunk.begin(BYTES);
        assert!(activity.waits.bytes() > BYTES && late());
        drop(chunk);
        assert!(activity.waits.bytes() < BYTES && !late());
        assert!(UntakenChunk::of_polled().is_none());
    }
}
