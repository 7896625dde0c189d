//! Follows HTTP/1.1 requests in the bytes that a client sends (RFC 9112, sections 2.2, 6.3, 7.1).
//!
//! hyper reads ahead: bytes of the next head may come with the request before it, and hyper does
//! not say so. This decides how long a connection may stay idle, nothing else; hyper closes one
//! whose requests are malformed.

/// Prefix of a line that is kept: enough for the fields that delimit bodies.
const LINE_BYTES: usize = 48;

/// Position in a client's bytes.
pub(crate) struct RequestFraming {
    next: NextByte,
    /// Bytes of the unfinished head, without empty lines before it.
    head_bytes: usize,
    line: [u8; LINE_BYTES],
    /// Length of the line so far, beyond what is kept.
    line_bytes: usize,
}

/// Part of a message that contains the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextByte {
    /// A head, of a request with this body.
    Head(BodyFraming),
    /// A body, or a chunk with its line end, of which this many bytes are missing.
    Body(u64),
    Chunk(u64),
    ChunkSize,
    Trailers,
}

/// How a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFraming {
    Length(u64),
    Chunked,
}

const NEXT_HEAD: NextByte = NextByte::Head(BodyFraming::Length(0));

impl RequestFraming {
    /// Before the first head.
    pub(crate) fn new() -> Self {
        Self { next: NEXT_HEAD, head_bytes: 0, line: [0; LINE_BYTES], line_bytes: 0 }
    }

    /// Bytes of a head that has begun and is not finished.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Follows received bytes.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let missing = match self.next {
                NextByte::Body(missing) | NextByte::Chunk(missing) => missing,
                NextByte::Head(_) | NextByte::ChunkSize | NextByte::Trailers => {
                    bytes = self.receive_line(bytes);
                    continue;
                }
            };
            let taken = bytes.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            bytes = &bytes[taken..];
            let missing = missing - taken as u64;
            self.next = match self.next {
                NextByte::Chunk(_) if missing > 0 => NextByte::Chunk(missing),
                NextByte::Chunk(_) => NextByte::ChunkSize,
                _ if missing > 0 => NextByte::Body(missing),
                _ => NEXT_HEAD,
            };
        }
    }

    /// Takes bytes up to the end of the line; returns the others.
    fn receive_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if let Some(kept) = self.line.get_mut(self.line_bytes..) {
            let length = kept.len().min(part.len());
            kept[..length].copy_from_slice(&part[..length]);
        }
        self.line_bytes += part.len();
        if matches!(self.next, NextByte::Head(_)) {
            self.head_bytes += part.len();
        }
        if end.is_some() {
            let length = std::mem::take(&mut self.line_bytes);
            let line = self.line;
            self.end_line(line[..length.min(LINE_BYTES)].trim_ascii_end(), length);
        }
        rest
    }

    /// `length` includes the line's end.
    fn end_line(&mut self, line: &[u8], length: usize) {
        self.next = match self.next {
            NextByte::Head(body) if !line.is_empty() => NextByte::Head(body_after(line, body)),
            // Empty lines before a head are none of its.
            NextByte::Head(_) if self.head_bytes == length => {
                self.head_bytes = 0;
                return;
            }
            NextByte::Head(BodyFraming::Length(0)) => NEXT_HEAD,
            NextByte::Head(BodyFraming::Length(length)) => NextByte::Body(length),
            NextByte::Head(BodyFraming::Chunked) => NextByte::ChunkSize,
            NextByte::ChunkSize => match chunk_size(line) {
                Some(0) => NextByte::Trailers,
                Some(size) => NextByte::Chunk(size.saturating_add(2)),
                None => NEXT_HEAD,
            },
            NextByte::Trailers if line.is_empty() => NEXT_HEAD,
            next => next,
        };
        if !matches!(self.next, NextByte::Head(_)) || line.is_empty() {
            self.head_bytes = 0;
        }
    }
}

/// The body of a head that continues with this line. Chunks outweigh a length, as in hyper.
fn body_after(line: &[u8], body: BodyFraming) -> BodyFraming {
    if !matches!(line.first(), Some(b'C' | b'c' | b'T' | b't')) {
        // Most lines, which are another field's.
        return body;
    }
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return body };
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if name.eq_ignore_ascii_case(b"transfer-encoding") {
        return BodyFraming::Chunked;
    }
    let length = || std::str::from_utf8(value).ok()?.parse().ok();
    match body {
        BodyFraming::Length(_) if name.eq_ignore_ascii_case(b"content-length") => {
            BodyFraming::Length(length().unwrap_or(0))
        }
        body => body,
    }
}

/// Hexadecimal, perhaps followed by extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    u64::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: [&str; 7] = [
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\nhost: x\n\n",
        "POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\n\r\n\r\nabc",
        "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nG\r\n\r\nA;x=y\r\n0123\r\n\r\n\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\r\nc: d\r\n\r\n",
        "GET / HTTP/1.1\r\nlong: content-length: 9 transfer-encoding: chunked xxxxxxxxxxxxxxxxxxxxxxx\r\n\r\n",
    ];

    /// Wherever the bytes are cut.
    fn unfinished(text: &str) -> usize {
        let bytes = text.as_bytes();
        let found = |pieces: &[&[u8]]| {
            let mut framing = RequestFraming::new();
            pieces.iter().for_each(|piece| framing.receive(piece));
            framing.unfinished_bytes()
        };
        let whole = found(&[bytes]);
        for cut in 0..bytes.len() {
            assert_eq!(found(&[&bytes[..cut], &bytes[cut..]]), whole, "{text:?} cut at {cut}");
        }
        assert_eq!(found(&bytes.chunks(1).collect::<Vec<_>>()), whole, "{text:?} byte by byte");
        whole
    }

    #[test]
    fn a_head_begins_where_the_request_before_it_ends() {
        for one in REQUESTS {
            for other in REQUESTS {
                let both = format!("{one}{other}");
                assert_eq!(unfinished(&both), 0, "{both:?}");
                for begun in ["G", "GET / HTTP/1.1\r", "POST / HTTP/1.1\r\ncontent-length: 5\r\n"] {
                    assert_eq!(unfinished(&format!("{both}{begun}")), begun.len(), "{both:?}");
                }
            }
            assert_eq!(unfinished(&format!("{one}\r\n\r\n")), 0, "{one:?}");
        }
    }

    #[test]
    fn bytes_of_a_body_are_no_head() {
        let heads = ["content-length: 9", "transfer-encoding: chunked"];
        for (head, body) in heads.into_iter().zip(["GET / HT", "9\r\nGET / HT"]) {
            let begun = format!("POST / HTTP/1.1\r\n{head}\r\n\r\n{body}");
            assert_eq!(unfinished(&begun), 0, "{begun:?}");
        }
    }

    #[test]
    fn no_length_overflows() {
        for head in ["content-length: 18446744073709551615\r\n", "transfer-encoding: chunked\r\n"] {
            let text = format!("POST / HTTP/1.1\r\n{head}\r\nffffffffffffffff\r\n\r\n");
            unfinished(&text);
        }
    }
}
