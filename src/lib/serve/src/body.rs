//! Response bodies, and bounded reading of request bodies.

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A response body, whole or streamed.
pub type Body = UnsyncBoxBody<Chunk, io::Error>;

/// Bytes of a response per write to the socket. With TLS framing they fit into one segment of 64
/// KiB, the largest that Linux sends over loopback or hands to a network card. A few bytes more
/// would be a second segment, which costs nearly as much.
pub const WRITE_BYTES: usize = 65_000;

/// Bytes of a body: owned, or referenced in one or many places. On HTTP/1.1 referenced bytes are
/// not copied before they are encrypted.
pub struct Chunk(ChunkData);

enum ChunkData {
    Bytes(Bytes),
    Lent(Box<dyn Buf + Send>),
}

impl Chunk {
    /// References the bytes of `bytes`. Its [`Buf::chunks_vectored`] should return as many slices
    /// at a time as it has.
    pub fn lent(bytes: impl Buf + Send + 'static) -> Self {
        Self(ChunkData::Lent(Box::new(bytes)))
    }

    /// Owned bytes are not copied.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            ChunkData::Bytes(bytes) => bytes,
            ChunkData::Lent(mut lent) => lent.copy_to_bytes(lent.remaining()),
        }
    }
}

/// Max length of a slice of [`short_slices`].
pub(crate) const SLICE_BYTES: usize = 2048;

/// Splits bytes into slices of at most 2 KiB, as far as `slices` have room; returns their number.
///
/// The TLS library copies each slice into a record. glibc copies more than 2,112 bytes with one
/// string instruction where the processor calls that fast, and that takes up to twice as long as
/// its loop for shorter copies (`docs/speed-log.md`).
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
        Self(ChunkData::Bytes(bytes))
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
            ChunkData::Bytes(bytes) => bytes.len(),
            ChunkData::Lent(lent) => lent.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match &self.0 {
            ChunkData::Bytes(bytes) => bytes,
            ChunkData::Lent(lent) => lent.chunk(),
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        match &self.0 {
            ChunkData::Bytes(bytes) => short_slices(bytes, slices),
            ChunkData::Lent(lent) => lent.chunks_vectored(slices),
        }
    }

    fn advance(&mut self, count: usize) {
        match &mut self.0 {
            ChunkData::Bytes(bytes) => bytes.advance(count),
            ChunkData::Lent(lent) => lent.advance(count),
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match &mut self.0 {
            ChunkData::Bytes(bytes) => bytes.copy_to_bytes(count),
            ChunkData::Lent(lent) => lent.copy_to_bytes(count),
        }
    }
}

/// Why a request body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// 413.
    #[error("the request body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// Limit of this request's body.
        limit_bytes: usize,
    },
    /// 429: no room for it.
    #[error("too many requests, please try again later")]
    NoRoom,
    /// 408.
    #[error("the request body did not arrive in time")]
    Slow,
    /// 400: the connection or its framing broke.
    #[error("the request body broke off")]
    Broken(#[source] io::Error),
}

/// A body of known length.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(Chunk::from(bytes.into())).map_err(never).boxed_unsync()
}

/// A body without bytes or trailers.
pub fn empty() -> Body {
    Empty::new().map_err(never).boxed_unsync()
}

/// A streamed body. An error cuts the connection, so that the client does not take a part for the
/// whole.
pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    chunks(pieces.map(|piece| piece.map(Chunk::from)))
}

/// A streamed body of [`Chunk`]s.
pub fn chunks(pieces: impl Stream<Item = io::Result<Chunk>> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync()
}

/// The body of a request: without an allocation if there is none.
pub(crate) fn received<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    if body.is_end_stream() { empty() } else { boxed(body.map_err(io::Error::other)) }
}

/// Boxes any body.
pub fn boxed<D: Into<Chunk> + Buf>(
    body: impl http_body::Body<Data = D, Error = io::Error> + Send + Unpin + 'static,
) -> Body {
    IntoChunks(body).boxed_unsync()
}

/// Converts the data to chunks and keeps the size hint.
struct IntoChunks<B>(B);

impl<D: Into<Chunk> + Buf, B: http_body::Body<Data = D> + Unpin> http_body::Body for IntoChunks<B> {
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

/// Reads a whole request body, with at most `limit_bytes` of memory whatever its announced length.
/// Trailers are ignored.
///
/// Dropping the future leaves the rest unread; the connection then closes (HTTP/1.1) or the stream
/// is reset (HTTP/2).
///
/// # Errors
/// [`BodyError`].
pub async fn read_body(
    body: Body,
    limit_bytes: usize,
    deadline: Duration,
) -> Result<Bytes, BodyError> {
    read_body_within(body, limit_bytes, deadline, |_| true).await
}

/// As [`read_body`]; `has_room` gets the length of each frame and may refuse it.
///
/// # Errors
/// [`BodyError`].
pub async fn read_body_within(
    body: Body,
    limit_bytes: usize,
    deadline: Duration,
    has_room: impl FnMut(usize) -> bool,
) -> Result<Bytes, BodyError> {
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

async fn collect(
    mut body: Body,
    limit_bytes: usize,
    mut has_room: impl FnMut(usize) -> bool,
) -> Result<Bytes, BodyError> {
    // Most bodies are one frame, whose buffer becomes the result.
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

async fn next(body: &mut Body) -> Result<Option<Bytes>, BodyError> {
    while let Some(frame) = body.frame().await {
        // Empty frames only cost time, which the deadline bounds.
        match frame.map_err(BodyError::Broken)?.into_data() {
            Ok(data) if data.has_remaining() => return Ok(Some(data.into_bytes())),
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
    use std::future::poll_fn;

    type Pieces = Vec<&'static str>;

    fn body(pieces: Pieces) -> Body {
        stream(futures::stream::iter(
            pieces.into_iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))),
        ))
    }

    async fn read(pieces: Pieces, limit_bytes: usize) -> Result<Bytes, BodyError> {
        read_body(body(pieces), limit_bytes, Duration::from_secs(5)).await
    }

    #[test]
    fn chunks_are_split_into_short_slices() {
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
    fn a_boxed_body_keeps_its_length() {
        let whole = Full::new(Bytes::from_static(b"abc")).map_err(never);
        let body = boxed(whole);
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        assert!(boxed(Empty::<Bytes>::new().map_err(never)).is_end_stream());
    }

    #[tokio::test]
    async fn reads_exactly_up_to_the_limit() {
        assert_eq!(read(vec![], 4).await.unwrap(), "");
        assert_eq!(read(vec!["abcd"], 4).await.unwrap(), "abcd");
        assert_eq!(read(vec!["", "ab", "", "c", "d"], 4).await.unwrap(), "abcd");
        for pieces in [vec!["abcde"], vec!["ab", "cde"], vec!["a", "b", "c", "de"]] {
            assert!(matches!(read(pieces, 4).await, Err(BodyError::TooLarge { limit_bytes: 4 })));
        }
    }

    #[tokio::test]
    async fn a_body_without_room_is_dropped() {
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
    async fn fault_38_a_stalled_body_ends_at_the_deadline() {
        let silent = stream(futures::stream::pending());
        assert!(matches!(
            read_body(silent, 10, Duration::from_secs(30)).await,
            Err(BodyError::Slow)
        ));
    }

    #[tokio::test]
    async fn streams_keep_the_order_of_their_frames() {
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
