//! The client side of SPDY/3.1 as used by `exec` and `attach`: named streams of bytes.
//!
//! Only the subset that kubelets and runtimes use: no flow control, no push. Stream headers are
//! sent as stored blocks, which every inflater reads; received ones are skipped, so no untrusted
//! data is decompressed.

use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::coop::consume_budget;

/// Max bytes of a received frame of data, which is passed on as it arrives.
const MAX_FRAME: usize = 1 << 20;
/// Max bytes of another one.
const MAX_CONTROL: usize = 64 << 10;
const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
/// Adler-32 of SPDY/3's dictionary, by which the header of a zlib stream names it.
const DICTIONARY: u32 = 0xe3c6_a7c2;

/// Received frames that matter here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SpdyFrame {
    /// A frame, or the part of it that has arrived.
    Data {
        stream: u32,
        data: Bytes,
        is_last: bool,
    },
    /// Must be echoed.
    Ping(u32),
    Reset(u32),
    GoAway,
}

/// Reads frames. Holds no more than it reads at a time, or one control frame.
pub(crate) struct SpdyReader<R> {
    from: R,
    buffer: BytesMut,
    partial: Option<PartialData>,
}

/// A frame of data that has not arrived in full.
struct PartialData {
    stream: u32,
    /// Bytes.
    left: usize,
    is_last: bool,
}

impl<R: AsyncRead + Unpin> SpdyReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, buffer: BytesMut::new(), partial: None }
    }

    /// The next frame, or a part of one; cancel safe. `None`: the end. Yields regularly, so that a
    /// peer that never pauses does not starve other tasks.
    pub(crate) async fn next(&mut self) -> io::Result<Option<SpdyFrame>> {
        consume_budget().await;
        loop {
            if let Some(frame) = self.parse()? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(16 << 10);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// `None` if the buffer has too little.
    fn parse(&mut self) -> io::Result<Option<SpdyFrame>> {
        loop {
            if let Some(mut partial) = self.partial.take() {
                let data = self.buffer.split_to(partial.left.min(self.buffer.len())).freeze();
                let is_stalled = data.is_empty() && partial.left > 0;
                partial.left -= data.len();
                let PartialData { stream, left, is_last } = partial;
                if left > 0 {
                    self.partial = Some(partial);
                }
                let frame = SpdyFrame::Data { stream, data, is_last: is_last && left == 0 };
                return Ok((!is_stalled).then_some(frame));
            }
            let Some(head) = self.buffer.get(..8) else { return Ok(None) };
            let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
            let is_last = head[4] & 1 != 0;
            let is_data = word & 0x8000_0000 == 0;
            let most = if is_data { MAX_FRAME } else { MAX_CONTROL };
            if length > most {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a SPDY frame is too long"));
            }
            if is_data {
                self.buffer.advance(8);
                self.partial = Some(PartialData { stream: word, left: length, is_last });
                continue;
            }
            if self.buffer.len() < 8 + length {
                return Ok(None);
            }
            self.buffer.advance(8);
            let mut data = self.buffer.split_to(length);
            let number = data.try_get_u32().unwrap_or(0);
            match (word & 0xffff) as u16 {
                PING => return Ok(Some(SpdyFrame::Ping(number))),
                RST_STREAM => return Ok(Some(SpdyFrame::Reset(number))),
                GOAWAY => return Ok(Some(SpdyFrame::GoAway)),
                // SYN_REPLY, SETTINGS, HEADERS, WINDOW_UPDATE.
                _ => {}
            }
        }
    }
}

/// Writes frames. Keeps the state of the header compression.
#[derive(Default)]
pub(crate) struct SpdyWriter {
    has_begun: bool,
}

impl SpdyWriter {
    pub(crate) fn open(&mut self, stream: u32, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        let mut text = |text: &str| {
            block.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
            block.extend(text.as_bytes());
        };
        for (name, value) in headers {
            text(name);
            text(value);
        }
        let count = u32::try_from(headers.len()).unwrap_or(0).to_be_bytes();
        let block = [count.as_slice(), &block].concat();
        let mut data = Vec::new();
        data.extend(stream.to_be_bytes());
        // Not associated with another stream; priority 0.
        data.extend([0; 6]);
        if !std::mem::replace(&mut self.has_begun, true) {
            // zlib with a preset dictionary.
            data.extend([0x78, 0x20 | check(0x78, 0x20)]);
            data.extend(DICTIONARY.to_be_bytes());
        }
        // A stored block that is not the last one.
        let length = u16::try_from(block.len()).unwrap_or(0);
        data.push(0);
        data.extend(length.to_le_bytes());
        data.extend((!length).to_le_bytes());
        data.extend(block);
        // An empty block acts as a flush: the peer processes everything up to here.
        data.extend([0, 0, 0, 0xff, 0xff]);
        control(SYN_STREAM, &data)
    }

    pub(crate) fn data(stream: u32, data: &[u8], is_last: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + data.len());
        out.extend(stream.to_be_bytes());
        out.extend(flagged(u8::from(is_last), data.len()));
        out.extend_from_slice(data);
        out
    }

    pub(crate) fn ping(id: u32) -> Vec<u8> {
        control(PING, &id.to_be_bytes())
    }
}

/// The check bits that make the first two bytes of a zlib stream a multiple of 31.
fn check(first: u8, second: u8) -> u8 {
    let rest = (u16::from(first) << 8 | u16::from(second)) % 31;
    u8::try_from((31 - rest) % 31).unwrap_or(0)
}

fn flagged(flags: u8, length: usize) -> [u8; 4] {
    let [_, high, middle, low] = u32::try_from(length).unwrap_or(0).to_be_bytes();
    [flags, high, middle, low]
}

fn control(of: u16, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + data.len());
    out.extend((0x8000 | VERSION).to_be_bytes());
    out.extend(of.to_be_bytes());
    out.extend(flagged(0, data.len()));
    out.extend_from_slice(data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_zlib_stream_of_stored_blocks() {
        let mut writer = SpdyWriter::default();
        let first = writer.open(1, &[("streamtype", "error")]);
        assert_eq!(first[..8], [0x80, 3, 0, 1, 0, 0, 0, (first.len() - 8) as u8]);
        assert_eq!(first[8..18], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        let zlib = &first[18..];
        assert_eq!((u16::from(zlib[0]) << 8 | u16::from(zlib[1])) % 31, 0);
        assert_eq!(zlib[2..6], DICTIONARY.to_be_bytes());
        let length = u16::from_le_bytes([zlib[7], zlib[8]]);
        assert_eq!(usize::from(length), zlib.len() - 16);
        assert_eq!(length, !u16::from_le_bytes([zlib[9], zlib[10]]));
        let second = writer.open(3, &[]);
        assert_eq!(second[18..], [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    }

    #[tokio::test]
    async fn frames_are_read_and_others_are_left_out() {
        let reply = control(2, &[0, 0, 0, 1, 1, 2, 3]);
        let wire = [
            reply,
            SpdyWriter::data(3, b"out", false),
            SpdyWriter::ping(7),
            control(RST_STREAM, &[0, 0, 0, 5, 0, 0, 0, 1]),
            SpdyWriter::data(1, b"", true),
            control(GOAWAY, &[0; 8]),
        ]
        .concat();
        let mut reader = SpdyReader::new(wire.as_slice());
        let data = |stream, data: &'static [u8], is_last| SpdyFrame::Data {
            stream,
            data: Bytes::from_static(data),
            is_last,
        };
        for wanted in [
            data(3, b"out", false),
            SpdyFrame::Ping(7),
            SpdyFrame::Reset(5),
            data(1, b"", true),
            SpdyFrame::GoAway,
        ] {
            assert_eq!(reader.next().await.unwrap(), Some(wanted));
        }
        assert_eq!(reader.next().await.unwrap(), None);
        let long = [0, 0, 0, 1, 0, 0x20, 0, 0];
        SpdyReader::new(&long[..]).next().await.unwrap_err();
    }

    #[tokio::test]
    async fn fault_38_a_frame_is_passed_on_as_it_arrives() {
        let mut wire = SpdyWriter::data(3, &vec![7; MAX_FRAME], true);
        wire.extend(SpdyWriter::data(1, b"x", true));
        let mut reader = SpdyReader::new(wire.as_slice());
        let mut read = 0;
        while read < MAX_FRAME {
            let Some(SpdyFrame::Data { stream: 3, data, is_last }) = reader.next().await.unwrap()
            else {
                panic!("not the stream's data");
            };
            assert!(reader.buffer.capacity() <= 64 << 10, "{}", reader.buffer.capacity());
            read += data.len();
            assert_eq!(is_last, read == MAX_FRAME);
        }
        let data = Bytes::from_static(b"x");
        let next = reader.next().await.unwrap();
        assert_eq!(next, Some(SpdyFrame::Data { stream: 1, data, is_last: true }));
        wire.truncate(MAX_FRAME);
        let mut reader = SpdyReader::new(wire.as_slice());
        while let Some(frame) = reader.next().await.unwrap() {
            assert!(matches!(frame, SpdyFrame::Data { is_last: false, .. }));
        }
        let long = control(2, &[0; MAX_CONTROL + 1]);
        SpdyReader::new(long.as_slice()).next().await.unwrap_err();
    }
}
