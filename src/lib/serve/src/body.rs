//! Bodies: made for answers, read with bounds from requests.

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use std::convert::Infallible;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A response body: whole, or streamed chunk by chunk.
pub type Body = UnsyncBoxBody<Chunk, io::Error>;

/// So many bytes of answers go to the socket in one write. With what TLS adds they fit into one
/// segment of 64 KiB, the largest that Linux sends to a process on the same machine or leaves to a
/// network card to divide. A few bytes more would go as a second one, which costs nearly as much.
pub const WRITE_BYTES: usize = 65_000;

/// Bytes of a body: their own, or lent from where they are kept, perhaps in many places. On
/// HTTP/1.1 what is lent is not copied before it is encrypted.
pub struct Chunk(Kept);

enum Kept {
    Bytes(Bytes),
    Lent(Box<dyn Buf + Send>),
}

impl Chunk {
    /// What lends its bytes. [`Buf::chunks_vectored`] should give as many of its places at a time
    /// as it has.
    pub fn lent(bytes: impl Buf + Send + 'static) -> Self {
        Self(Kept::Lent(Box::new(bytes)))
    }

    /// All of it. Bytes of its own are not copied.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Lent(mut lent) => lent.copy_to_bytes(lent.remaining()),
        }
    }
}

/// How long a slice of [`short_slices`] is at most.
pub(crate) const SLICE_BYTES: usize = 2048;

/// Puts bytes into slices of at most 2 KiB, as far as `slices` have room; gives how many.
///
/// The TLS library copies each slice into a record. glibc copies more than 2,112 bytes with one
/// string instruction where the processor calls that fast, and it takes up to twice as long as the
/// loop that glibc has for less (`docs/speed-log.md`).
pub fn short_slices<'a>(bytes: &'a [u8], slices: &mut [IoSlice<'a>]) -> usize {
    let pieces = bytes.chunks(SLICE_BYTES);
    let count = pieces.len().min(slices.len());
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
    }
    count
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("bytes", &self.remaining()).finish()
    }
}

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self(Kept::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        match &self.0 {
            Kept::Bytes(bytes) => bytes.len(),
            Kept::Lent(lent) => lent.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match &self.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Lent(lent) => lent.chunk(),
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        match &self.0 {
            Kept::Bytes(bytes) => short_slices(bytes, slices),
            Kept::Lent(lent) => lent.chunks_vectored(slices),
        }
    }

    fn advance(&mut self, count: usize) {
        match &mut self.0 {
            Kept::Bytes(bytes) => bytes.advance(count),
            Kept::Lent(lent) => lent.advance(count),
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match &mut self.0 {
            Kept::Bytes(bytes) => bytes.copy_to_bytes(count),
            Kept::Lent(lent) => lent.copy_to_bytes(count),
        }
    }
}

/// Why a request's body cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// More bytes than allowed: 413.
    #[error("the request body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// There is no room for it among the others: 429.
    #[error("too many requests, please try again later")]
    NoRoom,
    /// It did not arrive in time: 408.
    #[error("the request body did not arrive in time")]
    Slow,
    /// The connection or its framing broke: 400, if anybody still listens.
    #[error("the request body broke off")]
    Broken(#[source] hyper::Error),
}

/// A body of one piece.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(Chunk::from(bytes.into())).map_err(never).boxed_unsync()
}

/// No body.
pub fn empty() -> Body {
    Empty::new().map_err(never).boxed_unsync()
}

/// A body of many pieces; an error cuts the connection, so that the client does not take what it
/// got for whole.
pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    chunks(pieces.map(|piece| piece.map(Chunk::from)))
}

/// The same of pieces that may be lent.
pub fn chunks(pieces: impl Stream<Item = io::Result<Chunk>> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync()
}

/// Any body.
pub fn boxed<D: Into<Chunk> + Buf>(
    body: impl http_body::Body<Data = D, Error = io::Error> + Send + Unpin + 'static,
) -> Body {
    Converted(body).boxed_unsync()
}

/// A body whose data become chunks; its length stays known.
struct Converted<B>(B);

impl<D: Into<Chunk> + Buf, B: http_body::Body<Data = D> + Unpin> http_body::Body for Converted<B> {
    type Data = Chunk;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(task).map_ok(|frame| frame.map_data(Into::into))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Reads a request's body whole; its memory is bounded by `limit_bytes` whatever the client
/// announces. Trailers are ignored.
///
/// Dropping the future leaves the rest unread; the connection then closes (HTTP/1.1) or resets the
/// stream (HTTP/2).
///
/// # Errors
/// [`BodyError`].
pub async fn read_body<B>(
    body: B,
    limit_bytes: usize,
    deadline: Duration,
) -> Result<Bytes, BodyError>
where
    B: http_body::Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    read_body_within(body, limit_bytes, deadline, |_| true).await
}

/// The same where `has_room` is given the length of each piece that has arrived, and says whether
/// there is room for it.
///
/// # Errors
/// [`BodyError`].
pub async fn read_body_within<B>(
    body: B,
    limit_bytes: usize,
    deadline: Duration,
    has_room: impl FnMut(usize) -> bool,
) -> Result<Bytes, BodyError>
where
    B: http_body::Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let hint = body.size_hint();
    if hint.lower() > limit_bytes as u64 {
        return Err(BodyError::TooLarge { limit_bytes });
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    tokio::time::timeout(deadline, collect(body, limit_bytes, has_room))
        .await
        .map_err(|_| BodyError::Slow)?
}

async fn collect<B>(
    mut body: B,
    limit_bytes: usize,
    mut has_room: impl FnMut(usize) -> bool,
) -> Result<Bytes, BodyError>
where
    B: http_body::Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    // Most bodies are one frame: then its buffer is the result.
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    if first.len() > limit_bytes {
        return Err(BodyError::TooLarge { limit_bytes });
    }
    if !has_room(first.len()) {
        return Err(BodyError::NoRoom);
    }
    let Some(second) = next(&mut body).await? else { return Ok(first) };
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let capacity = announced.saturating_add(first.len() + second.len()).min(limit_bytes);
    let mut whole = BytesMut::with_capacity(capacity);
    whole.extend_from_slice(&first);
    let mut piece = second;
    loop {
        if piece.len() > limit_bytes - whole.len() {
            return Err(BodyError::TooLarge { limit_bytes });
        }
        if !has_room(piece.len()) {
            return Err(BodyError::NoRoom);
        }
        whole.extend_from_slice(&piece);
        match next(&mut body).await? {
            Some(next) => piece = next,
            None => return Ok(whole.freeze()),
        }
    }
}

async fn next<B>(body: &mut B) -> Result<Option<Bytes>, BodyError>
where
    B: http_body::Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    while let Some(frame) = body.frame().await {
        // Empty frames cost nothing but time, which the deadline bounds.
        match frame.map_err(BodyError::Broken)?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

fn never(never: Infallible) -> io::Error {
    match never {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use std::future::poll_fn;

    type Pieces = Vec<&'static str>;

    fn body(pieces: Pieces) -> impl http_body::Body<Data = Bytes, Error = hyper::Error> + Unpin {
        StreamBody::new(futures::stream::iter(
            pieces.into_iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))),
        ))
    }

    async fn read(pieces: Pieces, limit_bytes: usize) -> Result<Bytes, BodyError> {
        read_body(body(pieces), limit_bytes, Duration::from_secs(5)).await
    }

    #[test]
    fn chunks_give_their_bytes_in_slices_that_are_short() {
        let bytes = Bytes::from((0..=255_u8).cycle().take(10_000).collect::<Vec<u8>>());
        for (mut chunk, longest) in
            [(Chunk::from(bytes.clone()), SLICE_BYTES), (Chunk::lent(bytes.clone()), usize::MAX)]
        {
            let mut taken = Vec::new();
            while chunk.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let count = chunk.chunks_vectored(&mut slices);
                assert!(slices.iter().all(|slice| slice.len() <= longest));
                taken.extend(slices[..count].iter().flat_map(|slice| slice.to_vec()));
                chunk.advance(taken.len() - (bytes.len() - chunk.remaining()));
            }
            assert_eq!(taken, bytes);
        }
        assert_eq!(Chunk::from(bytes.clone()).into_bytes().as_ptr(), bytes.as_ptr(), "not copied");
        assert_eq!(Chunk::lent(bytes.clone()).into_bytes(), bytes);
    }

    #[test]
    fn a_body_that_is_boxed_knows_its_length() {
        let whole = Full::new(Bytes::from_static(b"abc")).map_err(never);
        let body = boxed(whole);
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        assert!(boxed(Empty::<Bytes>::new().map_err(never)).is_end_stream());
    }

    #[tokio::test]
    async fn reads_up_to_the_limit_and_not_a_byte_more() {
        assert_eq!(read(vec![], 4).await.unwrap(), "");
        assert_eq!(read(vec!["abcd"], 4).await.unwrap(), "abcd");
        assert_eq!(read(vec!["", "ab", "", "c", "d"], 4).await.unwrap(), "abcd");
        for pieces in [vec!["abcde"], vec!["ab", "cde"], vec!["a", "b", "c", "de"]] {
            assert!(matches!(read(pieces, 4).await, Err(BodyError::TooLarge { limit_bytes: 4 })));
        }
    }

    #[tokio::test]
    async fn a_body_for_which_there_is_no_room_is_not_kept() {
        for (room, is_read) in [(3, true), (2, false), (0, false)] {
            let mut left = room;
            let has_room = |bytes: usize| {
                let fits = bytes <= left;
                left -= bytes.min(left);
                fits
            };
            let read =
                read_body_within(body(vec!["a", "bc"]), 4, Duration::from_secs(5), has_room).await;
            assert!(
                if is_read {
                    read.unwrap() == "abc"
                } else {
                    matches!(read, Err(BodyError::NoRoom))
                },
                "{room}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fault_38_a_body_that_does_not_come_ends_at_the_deadline() {
        let silent = StreamBody::new(futures::stream::poll_fn(|_| {
            std::task::Poll::<Option<Result<Frame<Bytes>, hyper::Error>>>::Pending
        }));
        assert!(matches!(
            read_body(silent, 10, Duration::from_secs(30)).await,
            Err(BodyError::Slow)
        ));
    }

    #[tokio::test]
    async fn streams_give_their_pieces_in_order() {
        let pieces =
            futures::stream::iter(["a", "b"].map(|piece| Ok(Bytes::from_static(piece.as_bytes()))));
        let mut body = Box::pin(stream(pieces));
        let mut text = String::new();
        while let Some(frame) = poll_fn(|task| body.as_mut().poll_frame(task)).await {
            text += std::str::from_utf8(&frame.unwrap().into_data().unwrap().into_bytes()).unwrap();
        }
        assert_eq!(text, "ab");
    }
}
