//! Request bodies, read within bounds, and response bodies made of frames.

use bytes::{Buf, Bytes, BytesMut};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_flow::{self as flow, BudgetCaller, BudgetGrant, Class, Flow, Loan};
use ferrokube_serve::{Body, Chunk};
pub(crate) use ferrokube_serve::{empty, full};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// A body of existing frames.
pub(crate) fn frames(frames: impl IntoIterator<Item = Bytes>) -> Body {
    ExistingFrames(frames.into_iter().filter(|frame| !frame.is_empty()).collect()).boxed_unsync()
}

struct ExistingFrames(VecDeque<Bytes>);

impl http_body::Body for ExistingFrames {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        Poll::Ready(self.0.pop_front().map(|frame| Ok(Frame::data(frame.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|frame| frame.len() as u64).sum())
    }
}

/// Up to this much of an oversized body is read and dropped, so that the client sees the response
/// before the connection closes.
const DRAINED_BYTES: usize = 4 * 1024 * 1024;

/// Limits of one body.
pub(crate) struct BodyReader<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) class: Class,
    /// Bytes.
    pub(crate) limit: usize,
}

impl BodyReader<'_> {
    /// Reads a body; returns it with the bytes reserved for it.
    ///
    /// # Errors
    /// 413 beyond the limit, 429 when there is no room or others need it more, 500 when the
    /// connection breaks or its framing is wrong.
    pub(crate) async fn read(&self, body: Body) -> Result<(Bytes, Option<BudgetGrant>), Failure> {
        let mut reading = pin!(self.collect(body));
        // Most bodies have arrived already.
        if let Poll::Ready(read) = futures::poll!(reading.as_mut()) {
            return read;
        }
        let Some(mut slow) = self.flow.slow_body(self.class).await? else { return reading.await };
        tokio::select! {
            biased;
            read = reading => read,
            () = slow.revoked() => Err(flow::too_many()),
        }
    }

    async fn collect(&self, mut body: Body) -> Result<(Bytes, Option<BudgetGrant>), Failure> {
        let mut held = None;
        let hint = body.size_hint();
        let announced = hint.exact().and_then(|bytes| usize::try_from(bytes).ok());
        if hint.lower() > self.limit as u64 {
            return Err(self.refuse(body).await);
        }
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(data) = next_or_revoked(&mut body, &mut held).await? {
            let arrived = first.len().max(rest.len()) + data.len();
            if arrived > self.limit {
                drop(held);
                return Err(self.refuse(body).await);
            }
            self.flow.body(self.class, &mut held, arrived).await?;
            if first.is_empty() {
                first = data;
                continue;
            }
            if rest.is_empty() {
                rest.reserve(announced.unwrap_or(0).max(arrived));
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
        let bytes = if rest.is_empty() { first } else { rest.freeze() };
        let mut held = held.map(Loan::into_grant);
        if let Some(held) = &mut held {
            held.shrink(bytes.len());
        }
        Ok((bytes, held))
    }

    async fn refuse(&self, body: Body) -> Failure {
        drain(body, DRAINED_BYTES).await;
        Failure::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: limit is {}", self.limit),
        )
    }
}

/// The next bytes of a body; 429 if its memory loan is revoked.
async fn next_or_revoked(
    body: &mut Body,
    held: &mut Option<Loan>,
) -> Result<Option<Bytes>, Failure> {
    let Some(loan) = held else { return next(body).await };
    tokio::select! {
        biased;
        data = next(body) => data,
        () = loan.revoked() => Err(flow::too_many()),
    }
}

/// The next non-empty frame.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = body.frame().await {
        // kube-apiserver's status code, without a library's message.
        let frame = frame.map_err(|_| Failure::bare(500, "malformed chunked encoding"))?;
        match frame.into_data() {
            Ok(data) if data.has_remaining() => return Ok(Some(data.into_bytes())),
            _ => {}
        }
    }
    Ok(None)
}

/// Reads and drops a body that was not needed, within bounds: closing a connection with unread
/// bytes can lose the response. Without room it stays unread.
pub(crate) async fn discard(body: Option<Body>, flow: &Flow, caller: BudgetCaller) {
    const BYTES: usize = 256 * 1024;
    const MAX_WAIT: Duration = Duration::from_secs(1);
    if let Some(body) = body.filter(|body| !body.is_end_stream())
        && let Some(_room) = flow.drain(caller)
    {
        let _ = tokio::time::timeout(MAX_WAIT, drain(body, BYTES)).await;
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
    use ferrokube_flow::Limits;
    use http_body_util::StreamBody;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        let flow = Flow::new(&Limits::default());
        let read = |body: Body, limit| {
            run(async {
                BodyReader { flow: &flow, class: Class::default(), limit }
                    .read(body)
                    .await
                    .map(|(bytes, _)| bytes)
            })
        };
        let pieces = || {
            frames([
                Bytes::from_static(b"ab"),
                Bytes::from_static(b""),
                Bytes::from_static(b"cd"),
                Bytes::from_static(b"e"),
            ])
        };
        assert_eq!(read(pieces(), 5).unwrap(), "abcde");
        assert_eq!(read(pieces(), 4).unwrap_err().code, 413);
        assert_eq!(read(pieces(), 3).unwrap_err().code, 413);
        assert_eq!(read(full("abc"), 3).unwrap(), "abc");
        assert_eq!(read(empty(), 0).unwrap(), "");
    }

    #[test]
    fn a_malformed_body_is_answered_as_by_kube_apiserver() {
        let flow = Flow::new(&Limits::default());
        let error = || io::Error::new(io::ErrorKind::InvalidInput, "words of a library");
        let body = StreamBody::new(futures::stream::iter([Err(error())])).boxed_unsync();
        let intake = BodyReader { flow: &flow, class: Class::default(), limit: 9 };
        let failure = run(intake.read(body)).unwrap_err();
        assert_eq!((failure.code, failure.reason), (500, None));
        assert_eq!(failure.message, "malformed chunked encoding");
    }
}
