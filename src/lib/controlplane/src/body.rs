//! Bodies: request bodies read within bounds, response bodies made of frames.

use bytes::{Bytes, BytesMut};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_serve::Body;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

fn never<T>(error: Infallible) -> T {
    match error {}
}

/// No bytes.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(never).boxed_unsync()
}

/// One frame.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(never).boxed_unsync()
}

/// Several frames that exist already.
pub(crate) fn frames(frames: impl IntoIterator<Item = Bytes>) -> Body {
    Frames(frames.into_iter().filter(|frame| !frame.is_empty()).collect()).boxed_unsync()
}

struct Frames(VecDeque<Bytes>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.0.pop_front().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|frame| frame.len() as u64).sum())
    }
}

/// Reads a request body of at most `limit` bytes.
///
/// # Errors
/// 413 beyond the limit, 500 when the connection breaks or its framing is wrong.
pub(crate) async fn read(mut body: Body, limit: usize) -> Result<Bytes, Failure> {
    let too_large = || Failure::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {limit}"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::bare(500, format!("the body of the request cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.as_ref().map_or(0, Bytes::len) + rest.len() + data.len() > limit {
            return Err(too_large());
        }
        match &first {
            None => first = Some(data),
            Some(head) => {
                if rest.is_empty() {
                    rest.extend_from_slice(head);
                    first = Some(Bytes::new());
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    Ok(if rest.is_empty() { first.unwrap_or_default() } else { rest.freeze() })
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
        assert_eq!(run(read(full("abc"), 3)).unwrap(), "abc");
        assert_eq!(run(read(empty(), 0)).unwrap(), "");
    }
}
