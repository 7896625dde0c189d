//! gzip for large answers: one member, made off the workers.

use crate::encode::chunk_cache::{HEADER, Sum};
use crate::encode::stream::{Fill, Offloaded};
use bytes::{BufMut, Bytes};
use ferrokube_serve::{Chunk, Held, Holdings, Response};
use flate2::FlushCompress;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::collections::VecDeque;

/// Smaller answers are sent as they are.
pub(crate) const MIN_BYTES: usize = 128 * 1024;

/// Whether an `Accept-Encoding` takes gzip.
pub(crate) fn accepts(header: &str) -> bool {
    header.split(',').any(|part| {
        let (name, parameters) = part.split_once(';').unwrap_or((part, ""));
        name.trim() == "gzip"
            && parameters
                .trim()
                .trim_start_matches("q=")
                .parse::<f32>()
                .map_or(parameters.trim().is_empty(), |quality| quality > 0.0)
    })
}

/// Compresses an answer that is large and has a known length (a watch has none), while it is sent.
/// Until then it is counted as what its client holds.
pub(crate) async fn maybe(
    response: Response,
    holdings: Option<&Holdings>,
    caller: u64,
) -> Response {
    let large = response.body().size_hint().exact().is_some_and(|bytes| bytes >= MIN_BYTES as u64);
    if !large
        || !response.status().is_success()
        || response.headers().contains_key(CONTENT_ENCODING)
    {
        return response;
    }
    let (mut head, mut body) = response.into_parts();
    let mut frames = VecDeque::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => frames.extend(frame.into_data().map(Chunk::into_bytes)),
            Err(error) => {
                tracing::error!(error = %error, "an answer could not be compressed");
                return crate::status::text(500, "internal error\n");
            }
        }
    }
    mark(&mut head.headers);
    let held = holdings.map(|holdings| holdings.hold(frames.iter().map(Bytes::len).sum()));
    Response::from_parts(
        head,
        Offloaded::of(caller, Zipping::new(Vec::new(), Frames { frames, _held: held }))
            .boxed_unsync(),
    )
}

/// What is there already.
struct Frames {
    frames: VecDeque<Bytes>,
    _held: Option<Held>,
}

impl Fill for Frames {
    fn fill(&mut self) -> Option<Chunk> {
        let mut first = self.frames.pop_front()?;
        if first.len() > PIECE_BYTES {
            let rest = first.split_off(PIECE_BYTES);
            self.frames.push_front(rest);
        }
        Some(first.into())
    }

    fn is_done(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Compressed in one piece.
const PIECE_BYTES: usize = 128 * 1024;

/// A body that is compressed while it is sent: one member of deflate pieces, as
/// [`pieces`](crate::encode::chunk_cache) has it. Between two pieces it holds no compressor, whose
/// state is larger than the pieces.
pub(crate) struct Zipping<F> {
    raw: Vec<u8>,
    fill: F,
    sum: Sum,
    begun: bool,
    done: bool,
}

impl<F: Fill> Zipping<F> {
    /// `begun` comes first.
    pub(crate) fn new(begun: Vec<u8>, fill: F) -> Self {
        Self { raw: begun, fill, sum: Sum::default(), begun: false, done: false }
    }
}

impl<F: Fill> Fill for Zipping<F> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let mut raw = std::mem::take(&mut self.raw);
        while raw.len() < PIECE_BYTES && !self.done {
            match self.fill.fill() {
                Some(frame) => raw.put(frame),
                None => self.done = true,
            }
        }
        let mut out =
            if std::mem::replace(&mut self.begun, true) { Vec::new() } else { HEADER.to_vec() };
        out.extend_from_slice(
            &self
                .sum
                .deflate(&raw, if self.done { FlushCompress::Finish } else { FlushCompress::Sync }),
        );
        if self.done {
            out.extend_from_slice(&self.sum.trailer());
        }
        Some(out.into())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_cheap(&mut self) -> bool {
        false
    }
}

/// Says that a body is compressed.
pub(crate) fn mark(headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.remove(CONTENT_LENGTH);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_reads() {
        for (header, want) in [
            ("", false),
            ("gzip", true),
            ("br, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("deflate", false),
            ("x-gzip", false),
        ] {
            assert_eq!(accepts(header), want, "{header}");
        }
    }

    #[tokio::test]
    async fn only_large_answers_are_compressed() {
        let answer = |length: usize| Response::new(crate::body::full(vec![b'x'; length]));
        let holdings = Holdings::default();
        let small = maybe(answer(1000), Some(&holdings), 1).await;
        assert!(!small.headers().contains_key(CONTENT_ENCODING));
        let large = maybe(answer(200_000), Some(&holdings), 1).await;
        assert_eq!(holdings.bytes(), 200_000);
        assert_eq!(large.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(large.headers()[VARY], "Accept-Encoding");
        assert_eq!(
            large.body().size_hint().exact(),
            None,
            "it is compressed while it is sent, and not at all when nobody reads it"
        );
        let bytes = large.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(holdings.bytes(), 0);
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut plain)
            .unwrap();
        assert_eq!(plain.len(), 200_000);
    }
}
