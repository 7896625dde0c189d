//! The server side of a websocket (RFC 6455): handshake and frames.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use ring::digest;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

/// Max bytes of a client's frame; kubectl's are at most 64 KiB.
pub(crate) const MAX_FRAME: usize = 1 << 20;
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Whether the client offers a subprotocol.
pub(crate) fn offered(headers: &HeaderMap, wanted: &str) -> bool {
    let all = headers.get_all(SEC_WEBSOCKET_PROTOCOL);
    all.iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|protocol| protocol.trim() == wanted)
}

/// Headers of the handshake response; `None` if the client's key is missing.
pub(crate) fn answer(headers: &HeaderMap, protocol: &'static str) -> Option<HeaderMap> {
    let key = headers.get(SEC_WEBSOCKET_KEY)?;
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key.as_bytes());
    context.update(GUID);
    let accept = HeaderValue::from_str(&STANDARD.encode(context.finish())).ok()?;
    let fields: [(HeaderName, HeaderValue); 4] = [
        (UPGRADE, HeaderValue::from_static("websocket")),
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (SEC_WEBSOCKET_ACCEPT, accept),
        (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol)),
    ];
    Some(fields.into_iter().collect())
}

/// Longest payload of a control frame (RFC 6455, section 5.5): replies to pings wait in a queue.
const MAX_CONTROL: usize = 125;
/// Control frames that a client may send at once, and per second after these. kubectl sends one in
/// five seconds; the server responds to each.
const CONTROLS: u32 = 100;
const CONTROLS_PER_SECOND: u32 = 10;

/// A parsed websocket frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientFrame {
    /// Bytes of a message, as they arrive. `begins`: its first ones, at least two if there are.
    Data {
        data: Bytes,
        begins: bool,
    },
    Ping(Bytes),
    Close,
}

/// Reads frames. Holds no more than it reads at a time: clients announce long messages at no cost.
pub(crate) struct WebsocketReader<R> {
    from: R,
    buffer: BytesMut,
    message: Option<PartialMessage>,
    controls: ControlCredit,
}

/// Control frames that the client may still send.
struct ControlCredit {
    left: u32,
    /// When time was last credited. The clock is only read when nothing is left.
    since: Instant,
}

/// A message that has not arrived in full.
struct PartialMessage {
    /// Bytes.
    left: usize,
    mask: [u8; 4],
    begins: bool,
}

/// A frame's head, parsed and checked.
struct FrameHead {
    /// The opcode.
    kind: u8,
    mask: [u8; 4],
    /// Bytes of the payload.
    length: usize,
    /// Bytes of the head.
    bytes: usize,
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<R: AsyncRead + Unpin> WebsocketReader<R> {
    pub(crate) fn new(from: R) -> Self {
        let controls = ControlCredit { left: CONTROLS, since: Instant::now() };
        Self { from, buffer: BytesMut::new(), message: None, controls }
    }

    /// The next frame, or a part of one; cancel safe. Yields regularly, so that a client that
    /// never pauses does not starve other tasks. The end of the stream is returned as
    /// [`ClientFrame::Close`].
    pub(crate) async fn next(&mut self) -> io::Result<ClientFrame> {
        consume_budget().await;
        loop {
            if let Some(frame) = self.parse()? {
                return Ok(frame);
            }
            self.buffer.reserve(16 << 10);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(ClientFrame::Close);
            }
        }
    }

    /// `None` if the buffer has too little. Fragments are refused: only the bytes of a message
    /// matter, of which the first names the channel.
    fn parse(&mut self) -> io::Result<Option<ClientFrame>> {
        loop {
            if let Some(message) = &mut self.message {
                let begins = message.begins;
                let Some(data) = message.take(&mut self.buffer) else { return Ok(None) };
                if message.left == 0 {
                    self.message = None;
                }
                return Ok(Some(ClientFrame::Data { data, begins }));
            }
            let Some(FrameHead { kind, mask, length, bytes }) = FrameHead::parse(&self.buffer)?
            else {
                return Ok(None);
            };
            if matches!(kind, 1 | 2) {
                self.buffer.advance(bytes);
                self.message = Some(PartialMessage { left: length, mask, begins: true });
                continue;
            }
            if self.buffer.len() < bytes + length {
                return Ok(None);
            }
            self.controls.pay()?;
            self.buffer.advance(bytes);
            let mut data = self.buffer.split_to(length);
            unmask(&mut data, mask);
            match kind {
                8 => return Ok(Some(ClientFrame::Close)),
                9 => return Ok(Some(ClientFrame::Ping(data.freeze()))),
                _ => {}
            }
        }
    }
}

impl ControlCredit {
    fn pay(&mut self) -> io::Result<()> {
        if self.left == 0 {
            let earned = self.since.elapsed().as_secs_f32() * CONTROLS_PER_SECOND as f32;
            self.left = CONTROLS.min(earned as u32);
            self.since = Instant::now();
        }
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| broken("the websocket's client sends too many control frames"))?;
        Ok(())
    }
}

impl FrameHead {
    /// `None` if it is incomplete.
    fn parse(buffer: &[u8]) -> io::Result<Option<Self>> {
        let [first, second, ..] = buffer[..] else { return Ok(None) };
        let (length, head) = match second & 0x7f {
            126 => match buffer.get(2..4) {
                Some(bytes) => (usize::from(u16::from_be_bytes([bytes[0], bytes[1]])), 4),
                None => return Ok(None),
            },
            127 => match buffer.get(2..10).and_then(|bytes| bytes.try_into().ok()) {
                Some(bytes) => {
                    (usize::try_from(u64::from_be_bytes(bytes)).unwrap_or(usize::MAX), 10)
                }
                None => return Ok(None),
            },
            length => (usize::from(length), 2),
        };
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(broken("a frame of the websocket is malformed"));
        }
        if first & 0x80 == 0 || first & 0x0f == 0 {
            return Err(broken("the websocket's message is in fragments"));
        }
        let most = match first & 0x0f {
            1 | 2 => MAX_FRAME,
            8..=10 => MAX_CONTROL,
            _ => return Err(broken("a frame of the websocket has an unknown type")),
        };
        if length > most {
            return Err(broken("a frame of the websocket is too long"));
        }
        let mask = buffer.get(head..head + 4).and_then(|bytes| bytes.try_into().ok());
        let kind = first & 0x0f;
        Ok(mask.map(|mask| Self { kind, mask, length, bytes: head + 4 }))
    }
}

impl PartialMessage {
    /// The bytes of the message that have arrived; `None` if too few to be used.
    fn take(&mut self, buffer: &mut BytesMut) -> Option<Bytes> {
        let count = self.left.min(buffer.len());
        let least = if self.begins { 2 } else { 1 };
        if count < self.left.min(least) {
            return None;
        }
        let mut data = buffer.split_to(count);
        unmask(&mut data, self.mask);
        self.mask.rotate_left(count % 4);
        self.left -= count;
        self.begins = false;
        Some(data.freeze())
    }
}

fn unmask(data: &mut [u8], mask: [u8; 4]) {
    for (at, byte) in data.iter_mut().enumerate() {
        *byte ^= mask[at % 4];
    }
}

/// Types of frames that are sent.
#[derive(Clone, Copy)]
pub(crate) enum ServerFrame {
    Binary = 2,
    Close = 8,
    Pong = 10,
}

/// Encodes a frame with a payload of these parts.
pub(crate) fn frame(of: ServerFrame, parts: [&[u8]; 2]) -> Vec<u8> {
    let length = parts[0].len() + parts[1].len();
    let mut out = Vec::with_capacity(length + 10);
    out.push(0x80 | of as u8);
    match length {
        0..126 => out.push(u8::try_from(length).unwrap_or(0)),
        126..0x1_0000 => {
            out.push(126);
            out.extend(u16::try_from(length).unwrap_or(0).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(parts[0]);
    out.extend_from_slice(parts[1]);
    out
}

/// A client's frame, for tests.
#[cfg(test)]
pub(crate) fn masked(first: u8, data: &[u8]) -> Vec<u8> {
    let mut out = frame(ServerFrame::Binary, [data, b""]);
    out[0] = first;
    let head = out.len() - data.len();
    out[1] |= 0x80;
    let body = out.split_off(head);
    out.extend([1, 2, 3, 4]);
    out.extend(body.iter().enumerate().map(|(at, byte)| byte ^ (at % 4 + 1) as u8));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The payloads of messages, and of pings.
    async fn read_all(reader: &mut WebsocketReader<impl AsyncRead + Unpin>) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                ClientFrame::Data { data, begins: true } => all.push(data.to_vec()),
                ClientFrame::Data { data, .. } => all.last_mut().unwrap().extend(data),
                ClientFrame::Ping(data) => all.push(data.to_vec()),
                ClientFrame::Close => return all,
            }
        }
    }

    #[tokio::test]
    async fn messages_are_read_in_order_however_they_arrive() {
        let long: Vec<u8> = (0..70_000).map(|at| (at % 251) as u8).collect();
        let mut wire = masked(0x82, b"abc");
        wire.extend(masked(0x8a, b""));
        wire.extend(masked(0x82, &long));
        wire.extend(masked(0x82, b""));
        wire.extend(masked(0x89, b"ping"));
        wire.extend(masked(0x88, b""));
        let expected = [b"abc".to_vec(), long, Vec::new(), b"ping".to_vec()];
        let mut reader = WebsocketReader::new(wire.as_slice());
        assert!(read_all(&mut reader).await == expected);
        for step in [1, 2, 3, 5, 7] {
            let (mut to, from) = tokio::io::duplex(step);
            let wire = wire.clone();
            let writing =
                tokio::spawn(
                    async move { tokio::io::AsyncWriteExt::write_all(&mut to, &wire).await },
                );
            assert!(read_all(&mut WebsocketReader::new(from)).await == expected, "{step}");
            drop(writing);
        }
    }

    #[tokio::test]
    async fn fault_38_an_unfinished_message_is_not_kept() {
        let mut wire = masked(0x82, &vec![7; MAX_FRAME]);
        wire.pop();
        let mut reader = WebsocketReader::new(wire.as_slice());
        let mut read = 0;
        while let ClientFrame::Data { data, begins } = reader.next().await.unwrap() {
            assert_eq!(begins, read == 0);
            assert!(reader.buffer.capacity() <= 64 << 10, "{}", reader.buffer.capacity());
            read += data.len();
        }
        assert_eq!(read, MAX_FRAME - 1);
        let ping = masked(0x89, &[7; MAX_CONTROL + 1]);
        WebsocketReader::new(ping.as_slice()).next().await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn fault_37_a_flood_of_control_frames_ends_the_websocket() {
        for kind in [0x89, 0x8a] {
            let mut wire = masked(kind, b"").repeat(CONTROLS as usize);
            wire.extend(masked(0x82, b"a"));
            let (mut to, from) = tokio::io::duplex(1 << 16);
            let mut reader = WebsocketReader::new(from);
            tokio::io::AsyncWriteExt::write_all(&mut to, &wire).await.unwrap();
            while !matches!(reader.next().await.unwrap(), ClientFrame::Data { .. }) {}
            for _ in 0..2 {
                // Honest clients do not pay for the past.
                tokio::time::advance(std::time::Duration::from_secs(5)).await;
                let mut wire = masked(kind, b"").repeat(5);
                wire.extend(masked(0x82, b"a"));
                tokio::io::AsyncWriteExt::write_all(&mut to, &wire).await.unwrap();
                while !matches!(reader.next().await.unwrap(), ClientFrame::Data { .. }) {}
            }
            let flood = masked(kind, b"").repeat(2 * CONTROLS as usize);
            tokio::io::AsyncWriteExt::write_all(&mut to, &flood).await.unwrap();
            drop(to);
            let ended = async {
                while !matches!(reader.next().await?, ClientFrame::Close) {}
                io::Result::Ok(())
            };
            assert!(ended.await.is_err(), "{kind:x}");
        }
    }

    #[tokio::test]
    async fn fault_37_a_client_that_never_pauses_lets_others_run() {
        let wire = masked(0x82, b"a").repeat(100_000);
        let mut reader = WebsocketReader::new(std::io::Cursor::new(wire));
        let reading =
            tokio::spawn(
                async move { while reader.next().await.unwrap() != ClientFrame::Close {} },
            );
        tokio::task::yield_now().await;
        assert!(!reading.is_finished(), "all frames were read in one turn");
        reading.await.unwrap();
    }

    #[tokio::test]
    async fn malformed_frames_are_refused() {
        let unmasked = frame(ServerFrame::Binary, [b"abc", b""]);
        let fragment = masked(0x02, b"abc");
        let too_long = [0x82, 0xff, 0, 0, 0, 0, 0, 0x20, 0, 0, 1, 2, 3, 4];
        let unknown = masked(0x83, b"");
        for wire in [&unmasked[..], &fragment, &too_long, &unknown] {
            WebsocketReader::new(wire).next().await.unwrap_err();
        }
    }

    #[test]
    fn the_key_is_answered_as_the_standard_says() {
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_KEY, key)]);
        let answer = answer(&headers, "v5.channel.k8s.io").unwrap();
        assert_eq!(answer[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
