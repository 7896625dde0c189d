//! Bodies that are written while they are sent, in frames of some size; and items between a head and a tail as such a body.

use bytes::Bytes;
use ferrokube_storage::Entry;
use http_body::{Frame, SizeHint};
use std::hint::black_box;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec::IntoIter;

/// A frame is sent when it has grown to this. The connection gathers several for each TLS record and write; larger ones leave the processor's nearest cache
/// before they are encrypted (64 KiB cost a large list a third more).
pub(crate) const FRAME_BYTES: usize = 12 * 1024;
/// Room for what exceeds a frame.
pub(crate) const SLACK_BYTES: usize = 4 * 1024;
/// So many items ahead are touched together.
pub(crate) const WARMED: usize = 16;
/// And so much of each.
const WARMED_BYTES: usize = 2 * 1024;
/// After so many bytes another task gets its turn.
const YIELD_BYTES: usize = 256 * 1024;

/// What is written while it is sent.
pub(crate) trait Fill: Unpin + Send + 'static {
    /// The next frame's bytes; `None` at the end.
    fn fill(&mut self) -> Option<Vec<u8>>;

    /// Whether nothing follows.
    fn is_done(&self) -> bool;

    /// Bytes that are still to come, when that is known.
    fn left(&self) -> Option<u64> {
        None
    }

    /// All of it.
    fn collect(mut self) -> Vec<u8>
    where
        Self: Sized,
    {
        let mut all = Vec::with_capacity(self.left().map_or(0, |left| usize::try_from(left).unwrap_or(0)));
        while let Some(frame) = self.fill() {
            all.extend_from_slice(&frame);
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
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if this.since_yield >= YIELD_BYTES {
            this.since_yield = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = this.fill.fill();
        this.since_yield += frame.as_ref().map_or(0, Vec::len);
        Poll::Ready(frame.map(|bytes| Ok(Frame::data(bytes.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.fill.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        self.fill.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// What an item is cut out of.
pub(crate) trait Cut: Unpin + Send + 'static {
    /// The stored object, if it is one.
    fn entry(&self) -> Option<&Entry>;
}

impl Cut for Arc<Entry> {
    fn entry(&self) -> Option<&Entry> {
        Some(self)
    }
}

/// Items, separated by commas.
pub(crate) struct Items<I, W> {
    head: Vec<u8>,
    items: IntoIter<I>,
    write: W,
    tail: &'static [u8],
    first: bool,
    /// So many of the next items were touched.
    warmed: usize,
    /// Bytes that are still to be sent, when that is known.
    left: Option<u64>,
    done: bool,
}

impl<I: Cut, W: FnMut(&I, &mut Vec<u8>) + Unpin + Send + 'static> Items<I, W> {
    /// `items_bytes` is how long the items are together without their commas, if that is known.
    pub(crate) fn new(head: Vec<u8>, items: Vec<I>, tail: &'static [u8], items_bytes: Option<usize>, write: W) -> Self {
        let around = head.len() + items.len().saturating_sub(1) + tail.len();
        let left = items_bytes.map(|bytes| (around + bytes) as u64);
        Self { head, items: items.into_iter(), write, tail, first: true, warmed: 0, left, done: false }
    }
}

impl<I: Cut, W: FnMut(&I, &mut Vec<u8>) + Unpin + Send + 'static> Fill for Items<I, W> {
    fn fill(&mut self) -> Option<Vec<u8>> {
        if self.done {
            return None;
        }
        let left = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let mut out = Vec::with_capacity(left.min(FRAME_BYTES + SLACK_BYTES));
        out.append(&mut self.head);
        while out.len() < FRAME_BYTES {
            if self.warmed == 0 {
                self.warmed = WARMED;
                warm(&self.items.as_slice()[..WARMED.min(self.items.len())]);
            }
            self.warmed -= 1;
            let Some(item) = self.items.next() else {
                out.extend_from_slice(self.tail);
                self.done = true;
                break;
            };
            if !std::mem::take(&mut self.first) {
                out.push(b',');
            }
            (self.write)(&item, &mut out);
        }
        self.left = self.left.map(|left| left.saturating_sub(out.len() as u64));
        Some(out)
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn left(&self) -> Option<u64> {
        self.left
    }
}

/// Touches every cache line of the next items. These loads do not depend on each other and wait for the memory together; writing would wait for one object
/// after the other.
pub(crate) fn warm<I: Cut>(items: &[I]) {
    let mut seen = 0;
    for entry in items.iter().filter_map(Cut::entry) {
        let bytes = &entry.bytes[..entry.bytes.len().min(WARMED_BYTES)];
        seen = bytes.iter().step_by(64).fold(seen, |seen, byte| seen ^ byte);
    }
    black_box(seen);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::slices::tests::entry;

    fn items(count: u64) -> Vec<Arc<Entry>> {
        let value = "v".repeat(700);
        let tail = format!("}},\"data\":{{\"k\":\"{value}\"}}}}");
        (0..count).map(|at| Arc::new(entry(100 + at, &format!("{{\"kind\":\"C\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"c{at}\""), &tail))).collect()
    }

    fn write(entry: &Arc<Entry>, out: &mut Vec<u8>) {
        out.extend_from_slice(&entry.bytes);
    }

    #[test]
    fn a_body_is_as_long_as_it_said() {
        for count in [0, 1, 3, 500] {
            let items = items(count);
            let bytes = items.iter().map(|entry| entry.bytes.len()).sum();
            let body = Items::new(b"[".to_vec(), items, b"]", Some(bytes), write);
            let said = body.left();
            let all = body.collect();
            assert_eq!(said, Some(all.len() as u64));
            assert_eq!(serde_json::from_slice::<Vec<serde_json::Value>>(&all).unwrap().len() as u64, count);
        }
    }

    #[test]
    fn frames_are_large_and_others_get_their_turn() {
        let mut list = Streamed::new(Items::new(b"[".to_vec(), items(1000), b"]", None, write));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut sizes, mut yields) = (Vec::new(), 0);
        loop {
            match http_body::Body::poll_frame(Pin::new(&mut list), &mut context) {
                Poll::Ready(Some(frame)) => sizes.push(frame.unwrap().into_data().unwrap().len()),
                Poll::Ready(None) => break,
                Poll::Pending => yields += 1,
            }
        }
        assert!(sizes[..sizes.len() - 1].iter().all(|size| *size >= FRAME_BYTES), "{sizes:?}");
        assert!(yields >= 2);
    }
}
