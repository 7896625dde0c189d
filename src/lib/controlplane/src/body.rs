//! Bodies: request bodies read within bounds, response bodies made of frames.

use bytes::{Buf, Bytes, BytesMut};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_serve::{Body, Chunk};
pub(crate) use ferrokube_serve::{empty, full};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Several frames that exist already.
pub(crate) fn frames(frames: impl IntoIterator<Item = Bytes>) -> Body {
    Frames(frames.into_iter().filter(|frame| !frame.is_empty()).collect()).boxed_unsync()
}

struct Frames(VecDeque<Bytes>);

impl http_body::Body for Frames {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        Poll::Ready(self.0.pop_front().map(|frame| Ok(Frame::data(frame.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|frame| frame.len() as u64).sum())
    }
}

/// A body that is too large is read and dropped up to this, so that its sender gets to see the answer before the connection closes.
const DRAINED_BYTES: usize = 4 * 1024 * 1024;

/// Reads a request body of at most `limit` bytes.
///
/// # Errors
/// 413 beyond the limit, 500 when the connection breaks or its framing is wrong.
pub(crate) async fn read(mut body: Body, limit: usize) -> Result<Bytes, Failure> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(data) = next(&mut body).await? {
        if first.len().max(rest.len()) + data.len() > limit {
            drain(body, DRAINED_BYTES).await;
            return Err(Failure::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {limit}")));
        }
        if first.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            rest.reserve(announced.saturating_add(first.len() + data.len()).min(limit));
            rest.extend_from_slice(&first);
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// The next bytes that are any.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::bare(500, format!("the body of the request cannot be read: {error}")))?;
        match frame.into_data() {
            Ok(data) if data.has_remaining() => return Ok(Some(data.into_bytes())),
            _ => {}
        }
    }
    Ok(None)
}

/// Reads and drops the body of a request that was answered without it, within bounds: a connection that closes on unread bytes can lose the answer.
pub(crate) async fn discard(body: Option<Body>) {
    const BYTES: usize = 256 * 1024;
    const PATIENCE: Duration = Duration::from_secs(1);
    if let Some(body) = body.filter(|body| !body.is_end_stream()) {
        let _ = tokio::time::timeout(PATIENCE, drain(body, BYTES)).await;
    }
}

async fn drain(mut body: Body, mut most: usize) {
    while let Ok(Some(data)) = next(&mut body).await {
        most = most.saturating_sub(data.len());
        if most == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        let pieces = || frames([Bytes::from_static(b"ab"), Bytes::from_static(b""), Bytes::from_static(b"cd"), Bytes::from_static(b"e")]);
        assert_eq!(run(read(pieces(), 5)).unwrap(), "abcde");
        assert_eq!(run(read(pieces(), 4)).unwrap_err().code, 413);
        assert_eq!(run(read(pieces(), 3)).unwrap_err().code, 413);
        assert_eq!(run(read(full("abc"), 3)).unwrap(), "abc");
        assert_eq!(run(read(empty(), 0)).unwrap(), "");
    }
}
