//! gzip for large responses: one member, compressed off the workers.

use crate::encode::gzip::{GzipSum, HEADER};
use crate::encode::stream::{Fill, OffloadedBody};
use bytes::{BufMut, Bytes};
use ferrokube_serve::{Chunk, HeldBytes, Holdings, Response};
use flate2::FlushCompress;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::collections::VecDeque;

/// Smaller responses are sent as they are.
pub(crate) const MIN_BYTES: usize = 128 * 1024;

/// Whether an `Accept-Encoding` header admits gzip.
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

/// Compresses a large response of known length (a watch has none) while it is sent. Meanwhile it
/// counts as held by its client.
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
                tracing::error!(error = %error, "cannot read a response to compress it");
                return crate::status::text(500, "internal error\n");
            }
        }
    }
    mark(&mut head.headers);
    let held = holdings.map(|holdings| holdings.hold(frames.iter().map(Bytes::len).sum()));
    Response::from_parts(
        head,
        OffloadedBody::of(caller, Gzipped::new(Vec::new(), ReadyFrames { frames, _held: held }))
            .boxed_unsync(),
    )
}

/// Compresses bytes that many clients get.
pub(crate) fn whole(bytes: Bytes) -> Bytes {
    let frames = VecDeque::from([bytes]);
    Gzipped::new(Vec::new(), ReadyFrames { frames, _held: None }).collect().into()
}

/// Frames that exist already.
struct ReadyFrames {
    frames: VecDeque<Bytes>,
    _held: Option<HeldBytes>,
}

impl Fill for ReadyFrames {
    fn fill(&mut self) -> Option<Chunk> {
        let mut first = self.frames.pop_front()?;
        if first.len() > CHUNK_BYTES {
            let rest = first.split_off(CHUNK_BYTES);
            self.frames.push_front(rest);
        }
        Some(first.into())
    }

    fn is_done(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Max uncompressed bytes per chunk.
const CHUNK_BYTES: usize = 128 * 1024;

/// A body compressed while it is sent: one gzip member of deflate chunks, as in
/// [`chunk_cache`](crate::encode::chunk_cache). It holds no compressor between chunks, whose state
/// is larger than they are.
pub(crate) struct Gzipped<F> {
    raw: Vec<u8>,
    fill: F,
    sum: GzipSum,
    begun: bool,
    done: bool,
}

impl<F: Fill> Gzipped<F> {
    /// `begun` is the start of the body.
    pub(crate) fn new(begun: Vec<u8>, fill: F) -> Self {
        Self { raw: begun, fill, sum: GzipSum::default(), begun: false, done: false }
    }
}

impl<F: Fill> Fill for Gzipped<F> {
    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let mut raw = std::mem::take(&mut self.raw);
        while raw.len() < CHUNK_BYTES && !self.done {
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

/// Sets the headers of a compressed body.
pub(crate) fn mark(headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.remove(CONTENT_LENGTH);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_is_parsed() {
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
    async fn only_large_responses_are_compressed() {
        let answer = |length: usize| Response::new(crate::body::full(vec![b'x'; length]));
        let holdings = Holdings::default();
        let small = maybe(answer(1000), Some(&holdings), 1).await;
        assert!(!small.headers().contains_key(CONTENT_ENCODING));
        let large = maybe(answer(200_000), Some(&holdings), 1).await;
        assert_eq!(holdings.bytes(), 200_000);
        assert_eq!(large.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(large.headers()[VARY], "Accept-Encoding");
        assert_eq!(large.body().size_hint().exact(), None, "compressed only while it is read");
        let bytes = large.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(holdings.bytes(), 0);
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut plain)
            .unwrap();
        assert_eq!(plain.len(), 200_000);
    }
}
