//! Bodies that are written while they are sent, in frames of some size; and items between a head
//! and a tail as such a body.

use super::slices::ItemSlice;
use super::vectored::{ByteOwner, Lent};
use crate::{body, compress, status};
use bytes::{Buf, BufMut};
use ferrokube_registry::offload::{caller, compute};
use ferrokube_serve::{Chunk, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec::IntoIter;

/// So many items ahead are touched together.
pub(crate) const WARMED: usize = 16;
/// And so much of each.
const WARMED_BYTES: usize = 2 * 1024;

/// What is written while it is sent.
pub(crate) trait Fill: Unpin + Send + 'static {
    /// After so many bytes another task gets its turn: some 0.6 ms where stored bytes are lent.
    /// What is woken for it may be another worker, which then waits for this one's cache.
    const TURN_BYTES: usize = 1024 * 1024;

    /// The next frame; `None` at the end.
    fn fill(&mut self) -> Option<Chunk>;

    /// Whether nothing follows.
    fn is_done(&self) -> bool;

    /// Whether the next frame costs little: bytes that are there already, or nearly. Others are
    /// made off the workers, if the body is [`Offloaded`].
    fn is_cheap(&mut self) -> bool {
        true
    }

    /// Bytes that are still to come, when that is known.
    fn left(&self) -> Option<u64> {
        None
    }

    /// All of it.
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

/// The body of what is written while it is sent.
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

/// The body of what costs much to write: each frame that is not cheap is made off the workers.
pub(crate) struct Offloaded<F> {
    place: Place<F>,
    caller: u64,
}

enum Place<F> {
    Here(Streamed<F>),
    Away(Pin<Box<dyn Future<Output = Option<Made<F>>> + Send>>),
    Over,
}

impl<F: Fill> Offloaded<F> {
    /// For whose request it is made.
    pub(crate) fn new(fill: F) -> Self {
        Self::of(caller(), fill)
    }

    pub(crate) fn of(caller: u64, fill: F) -> Self {
        Self { place: Place::Here(Streamed::new(fill)), caller }
    }
}

/// A list and the next frame of it.
type Made<F> = (Streamed<F>, Option<Chunk>);

/// Makes the next frame off the workers; `None` when that failed.
async fn away<F: Fill>(caller: u64, mut streamed: Streamed<F>) -> Option<Made<F>> {
    let made = compute(caller, || {
        // What is half written is dropped.
        catch_unwind(AssertUnwindSafe(move || {
            let frame = streamed.fill.fill();
            (streamed, frame)
        }))
    });
    made.await.ok()
}

impl<F: Fill> http_body::Body for Offloaded<F> {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        let Self { place, caller } = self.get_mut();
        if let Place::Here(streamed) = place {
            if streamed.fill.is_done() || streamed.fill.is_cheap() {
                return Pin::new(streamed).poll_frame(context);
            }
            if let Place::Here(streamed) = std::mem::replace(place, Place::Over) {
                *place = Place::Away(Box::pin(away(*caller, streamed)));
            }
        }
        let Place::Away(away) = place else { return Poll::Ready(None) };
        let made = std::task::ready!(away.as_mut().poll(context));
        let Some((streamed, frame)) = made else {
            *place = Place::Over;
            return Poll::Ready(Some(Err(io::Error::other(
                "a part of the answer could not be written",
            ))));
        };
        *place = Place::Here(streamed);
        Poll::Ready(frame.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.place {
            Place::Here(streamed) => streamed.is_end_stream(),
            Place::Away(_) => false,
            Place::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        if let Place::Here(streamed) = &self.place {
            streamed.size_hint()
        } else {
            SizeHint::default()
        }
    }
}

/// Shorter answers are written whole, so that their length is known.
const WHOLE_BYTES: usize = 32 * 1024;

/// An answer that is written while it is sent, compressed if the client takes that and it is large.
/// A short one is sent whole.
pub(crate) fn respond(mut fill: impl Fill, media_type: &'static str, gzip: bool) -> Response {
    let most = if gzip { compress::MIN_BYTES } else { WHOLE_BYTES };
    if fill.left().is_some() && !gzip {
        return status::with_type(200, media_type, Offloaded::new(fill).boxed_unsync());
    }
    let mut begun = Vec::new();
    while begun.len() < most {
        match fill.fill() {
            Some(frame) => begun.put(frame),
            None => return status::with_type(200, media_type, body::full(begun)),
        }
    }
    if !gzip {
        return status::with_type(
            200,
            media_type,
            Offloaded::new(Begun { begun, fill }).boxed_unsync(),
        );
    }
    let mut response = status::with_type(
        200,
        media_type,
        Offloaded::new(compress::Zipping::new(begun, fill)).boxed_unsync(),
    );
    compress::mark(response.headers_mut());
    response
}

/// What was begun before its answer.
struct Begun<F> {
    begun: Vec<u8>,
    fill: F,
}

impl<F: Fill> Fill for Begun<F> {
    const TURN_BYTES: usize = F::TURN_BYTES;

    fn fill(&mut self) -> Option<Chunk> {
        if self.begun.is_empty() {
            self.fill.fill()
        } else {
            Some(std::mem::take(&mut self.begun).into())
        }
    }

    fn is_done(&self) -> bool {
        self.begun.is_empty() && self.fill.is_done()
    }

    fn is_cheap(&mut self) -> bool {
        !self.begun.is_empty() || self.fill.is_cheap()
    }
}

/// Items, separated by commas.
pub(crate) struct Items<I, C> {
    head: Vec<u8>,
    items: IntoIter<I>,
    cut: C,
    /// The next items, touched, and what is cut out of them.
    ahead: VecDeque<(I, ItemSlice)>,
    tail: &'static [u8],
    first: bool,
    /// Bytes that are still to be sent.
    left: usize,
    done: bool,
}

impl<I: ByteOwner, C: Fn(&I) -> ItemSlice + Unpin + Send + 'static> Items<I, C> {
    /// `items_bytes` is how long the items are together without their commas.
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

    /// How long the next item is with its comma.
    fn peek(&mut self) -> Option<usize> {
        if self.ahead.is_empty() {
            let cut = &self.cut;
            self.ahead.extend(self.items.by_ref().take(WARMED).map(|item| {
                let cut = cut(&item);
                (item, cut)
            }));
            warm(self.ahead.iter().map(|(item, cut)| &item.bytes()[cut.part.clone()]));
        }
        self.ahead.front().map(|(_, cut)| cut.len() + 1)
    }
}

impl<I: ByteOwner, C: Fn(&I) -> ItemSlice + Unpin + Send + 'static> Fill for Items<I, C> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let next = self.peek().unwrap_or(0);
        let mut frame = Lent::new(self.left, next);
        frame.copy(&std::mem::take(&mut self.head));
        while let Some(length) = self.peek()
            && frame.fits(length)
            && let Some((item, ItemSlice { head, part, tail })) = self.ahead.pop_front()
        {
            if !std::mem::take(&mut self.first) {
                frame.copy(b",");
            }
            frame.lend(item, head, part, tail);
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

/// Touches every cache line of what comes next. These loads do not depend on each other and wait
/// for the memory together; writing would wait for one object after the other.
pub(crate) fn warm<'a>(parts: impl Iterator<Item = &'a [u8]>) {
    let lines = parts.flat_map(|part| part[..part.len().min(WARMED_BYTES)].iter().step_by(64));
    black_box(lines.fold(0, |seen, byte| seen ^ byte));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::slices::tests::entry;
    use ferrokube_serve::WRITE_BYTES;
    use ferrokube_storage::Entry;
    use std::sync::Arc;

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
    ) -> Items<Arc<Entry>, impl Fn(&Arc<Entry>) -> ItemSlice + Unpin + Send + 'static> {
        let bytes = items.iter().map(|entry| cut(entry).len()).sum();
        Items::new(b"[".to_vec(), items, b"]", bytes, move |entry: &Arc<Entry>| cut(entry))
    }

    #[test]
    fn a_body_is_its_items_and_as_long_as_it_said() {
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
    fn frames_fill_a_write_and_others_get_their_turn() {
        const TURN_BYTES: usize =
            <Items<Arc<Entry>, fn(&Arc<Entry>) -> ItemSlice> as Fill>::TURN_BYTES;
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
                        assert!(turn < TURN_BYTES + longest, "no turn for {turn} bytes");
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
