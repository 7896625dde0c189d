//! Bodies that are encoded while they are sent, and such a body of sliced items between a head and
//! a tail.

use super::slices::ItemSlice;
use super::vectored::{ByteOwner, SliceFrame};
use crate::{body, compress, status};
use bytes::{Buf, BufMut};
use ferrokube_registry::offload::{caller, compute};
use ferrokube_serve::{Chunk, Response, UntakenChunk};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec::IntoIter;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Number of items that are prefetched together.
pub(crate) const PREFETCHED_ITEMS: usize = 16;
/// And max bytes of each.
const PREFETCHED_BYTES: usize = 2 * 1024;

/// A body that is encoded frame by frame.
pub(crate) trait Fill: Unpin + Send + 'static {
    /// Bytes after which the body yields: about 0.6 ms of sliced items. More often would be slower,
    /// as another worker may continue it with cold caches.
    const TURN_BYTES: usize = 1024 * 1024;

    /// The next frame; `None` at the end.
    fn fill(&mut self) -> Option<Chunk>;

    /// Whether the next `fill` returns `None`.
    fn is_done(&self) -> bool;

    /// Whether the next frame costs little, because its bytes exist or nearly so. Other frames are
    /// made off the workers if the body is [`OffloadedBody`].
    fn is_cheap(&mut self) -> bool {
        true
    }

    /// Remaining bytes, if known.
    fn left(&self) -> Option<u64> {
        None
    }

    /// Encodes everything.
    fn collect(mut self) -> Vec<u8>
    where
        Self: Sized,
    {
        let mut all =
            Vec::with_capacity(self.left().map_or(0, |left| usize::try_from(left).unwrap_or(0)));
        while let Some(frame) = self.fill() {
            all.put(frame);
        }
        all
    }
}

/// Sends a [`Fill`].
pub(crate) struct Streamed<F> {
    fill: F,
    since_yield: usize,
}

impl<F: Fill> Streamed<F> {
    pub(crate) fn new(fill: F) -> Self {
        Self { fill, since_yield: 0 }
    }
}

impl<F: Fill> http_body::Body for Streamed<F> {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        let this = self.get_mut();
        if this.since_yield >= F::TURN_BYTES {
            this.since_yield = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = this.fill.fill();
        this.since_yield += frame.as_ref().map_or(0, Chunk::remaining);
        Poll::Ready(frame.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.fill.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        self.fill.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Sends a [`Fill`] whose expensive frames are made off the workers.
pub(crate) struct OffloadedBody<F> {
    state: OffloadState<F>,
    caller: u64,
}

enum OffloadState<F> {
    Here(Streamed<F>),
    Away(Pin<Box<dyn Future<Output = Option<NextFrame<F>>> + Send>>),
    Over,
}

impl<F: Fill> OffloadedBody<F> {
    /// For the caller of this task's request.
    pub(crate) fn new(fill: F) -> Self {
        Self::of(caller(), fill)
    }

    pub(crate) fn of(caller: u64, fill: F) -> Self {
        Self { state: OffloadState::Here(Streamed::new(fill)), caller }
    }
}

/// A body and its next frame, which waits for its client if it is made in a task of its own.
struct NextFrame<F> {
    streamed: Streamed<F>,
    frame: Option<Chunk>,
    _untaken: Option<UntakenChunk>,
}

/// Makes the next frame off the workers; `None` if that panicked.
async fn away<F: Fill>(
    caller: u64,
    mut streamed: Streamed<F>,
    mut untaken: Option<UntakenChunk>,
) -> Option<NextFrame<F>> {
    let made = compute(caller, || {
        // The panic drops the half-made body.
        catch_unwind(AssertUnwindSafe(move || {
            let frame = streamed.fill.fill();
            (streamed, frame)
        }))
    });
    let (streamed, frame) = made.await.ok()?;
    if let (Some(untaken), Some(frame)) = (&mut untaken, &frame) {
        untaken.begin(frame.remaining());
    }
    Some(NextFrame { streamed, frame, _untaken: untaken })
}

/// The same in a task of its own: nothing polls a body whose client has closed its window, and a
/// slot that it is granted then would be held until the client is cut.
fn away_from_client<F: Fill>(
    caller: u64,
    streamed: Streamed<F>,
) -> Pin<Box<dyn Future<Output = Option<NextFrame<F>>> + Send>> {
    let made = away(caller, streamed, UntakenChunk::of_polled());
    let Ok(runtime) = Handle::try_current() else { return Box::pin(made) };
    let mut task = JoinSet::new();
    task.spawn_on(made, &runtime);
    Box::pin(async move { task.join_next().await?.ok().flatten() })
}

impl<F: Fill> http_body::Body for OffloadedBody<F> {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        let Self { state, caller } = self.get_mut();
        if let OffloadState::Here(streamed) = state {
            if streamed.fill.is_done() || streamed.fill.is_cheap() {
                return Pin::new(streamed).poll_frame(context);
            }
            if let OffloadState::Here(streamed) = std::mem::replace(state, OffloadState::Over) {
                *state = OffloadState::Away(away_from_client(*caller, streamed));
            }
        }
        let OffloadState::Away(away) = state else { return Poll::Ready(None) };
        let made = std::task::ready!(away.as_mut().poll(context));
        let Some(NextFrame { streamed, frame, _untaken }) = made else {
            *state = OffloadState::Over;
            return Poll::Ready(Some(Err(io::Error::other(
                "a part of the response could not be encoded",
            ))));
        };
        *state = OffloadState::Here(streamed);
        Poll::Ready(frame.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            OffloadState::Here(streamed) => streamed.is_end_stream(),
            OffloadState::Away(_) => false,
            OffloadState::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        if let OffloadState::Here(streamed) = &self.state {
            streamed.size_hint()
        } else {
            SizeHint::default()
        }
    }
}

/// Shorter bodies are sent whole, with their length.
const WHOLE_BYTES: usize = 32 * 1024;

/// Streams a body, compressed if the client accepts gzip and it is large; a short one is sent
/// whole.
pub(crate) fn respond(mut fill: impl Fill, media_type: &'static str, gzip: bool) -> Response {
    let most = if gzip { compress::MIN_BYTES } else { WHOLE_BYTES };
    if fill.left().is_some() && !gzip {
        return status::with_type(200, media_type, OffloadedBody::new(fill).boxed_unsync());
    }
    let mut encoded = Vec::new();
    while encoded.len() < most {
        match fill.fill() {
            Some(frame) => encoded.put(frame),
            None => return status::with_type(200, media_type, body::full(encoded)),
        }
    }
    if !gzip {
        return status::with_type(
            200,
            media_type,
            OffloadedBody::new(PartlyEncoded { encoded, fill }).boxed_unsync(),
        );
    }
    let mut response = status::with_type(
        200,
        media_type,
        OffloadedBody::new(compress::Gzipped::new(encoded, fill)).boxed_unsync(),
    );
    compress::mark(response.headers_mut());
    response
}

/// A body whose first bytes are made already.
struct PartlyEncoded<F> {
    encoded: Vec<u8>,
    fill: F,
}

impl<F: Fill> Fill for PartlyEncoded<F> {
    const TURN_BYTES: usize = F::TURN_BYTES;

    fn fill(&mut self) -> Option<Chunk> {
        if self.encoded.is_empty() {
            self.fill.fill()
        } else {
            Some(std::mem::take(&mut self.encoded).into())
        }
    }

    fn is_done(&self) -> bool {
        self.encoded.is_empty() && self.fill.is_done()
    }

    fn is_cheap(&mut self) -> bool {
        !self.encoded.is_empty() || self.fill.is_cheap()
    }
}

/// Sliced items separated by commas.
pub(crate) struct SlicedItems<I, C> {
    head: Vec<u8>,
    items: IntoIter<I>,
    cut: C,
    /// The next items and their slices, prefetched.
    ahead: VecDeque<(I, ItemSlice)>,
    tail: &'static [u8],
    first: bool,
    /// Bytes still to be sent.
    left: usize,
    done: bool,
}

impl<I: ByteOwner, C: Fn(&I) -> ItemSlice + Unpin + Send + 'static> SlicedItems<I, C> {
    /// `items_bytes` is the items' total length without commas.
    pub(crate) fn new(
        head: Vec<u8>,
        items: Vec<I>,
        tail: &'static [u8],
        items_bytes: usize,
        cut: C,
    ) -> Self {
        let left = head.len() + items_bytes + items.len().saturating_sub(1) + tail.len();
        Self {
            head,
            items: items.into_iter(),
            cut,
            ahead: VecDeque::new(),
            tail,
            first: true,
            left,
            done: false,
        }
    }

    /// Length of the next item with its comma.
    fn peek(&mut self) -> Option<usize> {
        if self.ahead.is_empty() {
            let cut = &self.cut;
            self.ahead.extend(self.items.by_ref().take(PREFETCHED_ITEMS).map(|item| {
                let cut = cut(&item);
                (item, cut)
            }));
            prefetch(self.ahead.iter().map(|(item, cut)| &item.bytes()[cut.part.clone()]));
        }
        self.ahead.front().map(|(_, cut)| cut.len() + 1)
    }
}

impl<I: ByteOwner, C: Fn(&I) -> ItemSlice + Unpin + Send + 'static> Fill for SlicedItems<I, C> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let next = self.peek().unwrap_or(0);
        let mut frame = SliceFrame::new(self.left, next);
        frame.copy(&std::mem::take(&mut self.head));
        while let Some(length) = self.peek()
            && frame.fits(length)
            && let Some((item, ItemSlice { head, part, tail })) = self.ahead.pop_front()
        {
            if !std::mem::take(&mut self.first) {
                frame.copy(b",");
            }
            frame.reference(item, head, part, tail);
        }
        self.done = self.ahead.is_empty() && self.items.len() == 0;
        if self.done {
            frame.copy(self.tail);
        }
        self.left = self.left.saturating_sub(frame.remaining());
        Some(Chunk::lent(frame))
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn left(&self) -> Option<u64> {
        Some(self.left as u64)
    }
}

/// Touches every cache line of the next items. These independent loads overlap; copying alone would
/// wait for one object after the other.
pub(crate) fn prefetch<'a>(parts: impl Iterator<Item = &'a [u8]>) {
    let lines = parts.flat_map(|part| part[..part.len().min(PREFETCHED_BYTES)].iter().step_by(64));
    black_box(lines.fold(0, |seen, byte| seen ^ byte));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::slices::tests::entry;
    use bytes::Bytes;
    use ferrokube_serve::{Holdings, WRITE_BYTES};
    use ferrokube_storage::Entry;
    use std::sync::Arc;
    use std::task::Waker;
    use std::time::Duration;

    fn items(count: u64, length: usize) -> Vec<Arc<Entry>> {
        let value = "v".repeat(length);
        let tail = format!("}},\"data\":{{\"k\":\"{value}\"}}}}");
        (0..count)
            .map(|at| {
                Arc::new(entry(
                    100 + at,
                    &format!(
                        "{{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"c{at}\""
                    ),
                    &tail,
                ))
            })
            .collect()
    }

    fn list(
        items: Vec<Arc<Entry>>,
        cut: fn(&Entry) -> ItemSlice,
    ) -> SlicedItems<Arc<Entry>, impl Fn(&Arc<Entry>) -> ItemSlice + Unpin + Send + 'static> {
        let bytes = items.iter().map(|entry| cut(entry).len()).sum();
        SlicedItems::new(b"[".to_vec(), items, b"]", bytes, move |entry: &Arc<Entry>| cut(entry))
    }

    tokio::task_local! {
        static CLIENT: ();
    }

    /// A frame that takes long to make.
    struct LongFrame {
        text: &'static [u8],
        is_done: bool,
    }

    impl LongFrame {
        fn new(text: &'static [u8]) -> Self {
            Self { text, is_done: false }
        }
    }

    impl Fill for LongFrame {
        fn fill(&mut self) -> Option<Chunk> {
            if std::mem::replace(&mut self.is_done, true) {
                return None;
            }
            assert!(CLIENT.try_with(|()| ()).is_err(), "it is no part of the client's task");
            Some(Bytes::from_static(self.text).into())
        }

        fn is_done(&self) -> bool {
            self.is_done
        }

        fn is_cheap(&mut self) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_frame_that_takes_long_is_made_without_its_client() {
        let body = OffloadedBody::of(1, LongFrame::new(b"x"));
        let sent = CLIENT.scope((), body.collect()).await.expect("it is encoded");
        assert_eq!(sent.to_bytes(), "x");
    }

    /// Such as one that has closed its window since the frame was begun.
    #[tokio::test]
    async fn fault_18_a_frame_that_its_client_does_not_take_is_counted() {
        const TEXT: &[u8] = &[b'x'; 64 << 10];
        let holdings = Holdings::default();
        let mut body = OffloadedBody::of(1, LongFrame::new(TEXT));
        let mut context = Context::from_waker(Waker::noop());
        let poll = || http_body::Body::poll_frame(Pin::new(&mut body), &mut context).is_pending();
        assert!(UntakenChunk::polled_in(&holdings, poll));
        let counted = async {
            while holdings.bytes() < TEXT.len() {
                tokio::task::yield_now().await;
            }
        };
        let counted = tokio::time::timeout(Duration::from_secs(60), counted).await;
        assert!(counted.is_ok(), "{} bytes", holdings.bytes());
        let sent = body.collect().await.expect("it is encoded");
        assert_eq!((sent.to_bytes().len(), holdings.bytes()), (TEXT.len(), 0));
    }

    #[test]
    fn a_body_is_its_items_and_has_the_announced_length() {
        let partial = |entry: &Entry| ItemSlice::partial(entry, "v1");
        for (count, length) in
            [(0, 700), (1, 700), (3, 1500), (500, 700), (500, 1500), (500, 5000), (5, 300_000)]
        {
            for cut in [ItemSlice::whole, ItemSlice::untyped, partial] {
                let items = items(count, length);
                let texts: Vec<Vec<u8>> = items
                    .iter()
                    .map(|entry| {
                        [cut(entry).head, &entry.bytes[cut(entry).part], cut(entry).tail].concat()
                    })
                    .collect();
                let want = [b"[".as_slice(), &texts.join(&b','), b"]"].concat();
                let mut body = list(items, cut);
                let mut all = Vec::new();
                while !body.is_done() {
                    assert_eq!(body.left(), Some((want.len() - all.len()) as u64));
                    all.put(body.fill().unwrap());
                }
                assert_eq!((body.left(), body.fill().is_none()), (Some(0), true));
                assert!(all == want, "{count} items of {length} bytes");
            }
        }
    }

    #[test]
    fn frames_fill_a_write_and_the_body_yields() {
        const TURN_BYTES: usize =
            <SlicedItems<Arc<Entry>, fn(&Arc<Entry>) -> ItemSlice> as Fill>::TURN_BYTES;
        for (count, length) in [(10_000, 100), (3000, 700), (2000, 1500), (30, 100_000)] {
            let longest = WRITE_BYTES.max(length + 200);
            let mut list = Streamed::new(list(items(count, length), ItemSlice::whole));
            let mut context = Context::from_waker(std::task::Waker::noop());
            let (mut sizes, mut turn) = (Vec::new(), 0);
            loop {
                match http_body::Body::poll_frame(Pin::new(&mut list), &mut context) {
                    Poll::Ready(Some(frame)) => {
                        sizes.push(frame.unwrap().into_data().unwrap().remaining());
                        turn += sizes[sizes.len() - 1];
                        assert!(turn < TURN_BYTES + longest, "did not yield for {turn} bytes");
                    }
                    Poll::Pending => assert!(std::mem::take(&mut turn) >= TURN_BYTES),
                    Poll::Ready(None) => break,
                }
            }
            let full = (longest - length - 200)..=longest;
            assert!(sizes[..sizes.len() - 1].iter().all(|size| full.contains(size)), "{sizes:?}");
            assert!(sizes.iter().sum::<usize>() > TURN_BYTES);
        }
    }
}
