//! The frames that an HTTP/2 client sends, counted before hyper sees them: a client pays for those
//! that cost it less than the server.
//!
//! The library answers every PING and SETTINGS and forgets most other frames, so a flood of them
//! runs as fast as a core goes (47 million in 9 s); and it cuts a connection at a fixed number of
//! resets that arrive together, also when they are the cancelled requests of an honest client. Here
//! every such frame has a price. Credit comes with time and with bytes that are sent: who is served
//! may acknowledge, adjust windows and cancel as much as that takes.

use tokio::time::Instant;

/// Of the client's first bytes (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
/// DATA frames below this are mostly their own header.
const SMALL_DATA_BYTES: usize = 64;

/// Credit of a new connection, and what time alone fills up to: 500 resets, or 2,000 pings.
const CREDIT: u32 = 2_000;
/// By time.
const CREDIT_PER_SECOND: u32 = 200;
/// One for so many bytes that are sent.
const BYTES_PER_CREDIT: usize = 32;
/// With what is sent: window updates of a large answer come late and together.
const MAX_CREDIT: u32 = 20_000;

/// Of a request that is refused before a handler sees it.
const REFUSED_PRICE: u32 = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// GOAWAY with ENHANCE_YOUR_CALM; no stream is named as the last, since none is taken back.
pub(crate) const GO_AWAY: [u8; 17] =
    [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0xb];

/// Where the byte stream is.
#[derive(Debug)]
enum Position {
    /// Before the first frame: so many bytes are left of the preface.
    Preface(usize),
    /// In a frame's header, of which so much is there.
    Header([u8; HEADER_BYTES], usize),
    /// In a frame's payload.
    Payload(usize),
}

/// The incoming frames of one connection.
#[derive(Debug)]
pub(crate) struct Frames {
    position: Position,
    credit: u32,
    /// Since when time has not been credited. The clock is read only when the credit is used up.
    since: Instant,
    /// Bytes sent that have not been credited.
    sent: usize,
    /// Bytes of what is under way and has no end yet: a header block, or a frame other than DATA;
    /// 0: nothing is.
    unfinished_bytes: usize,
    /// It ends with the frame.
    is_last: bool,
    /// How many of such were begun.
    begun: u64,
}

impl Frames {
    pub(crate) fn new() -> Self {
        Self {
            position: Position::Preface(PREFACE_BYTES),
            credit: CREDIT,
            since: Instant::now(),
            sent: 0,
            unfinished_bytes: 0,
            is_last: true,
            begun: 0,
        }
    }

    /// So many bytes were sent to the client.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= BYTES_PER_CREDIT {
            let earned = u32::try_from(self.sent / BYTES_PER_CREDIT).unwrap_or(u32::MAX);
            self.sent %= BYTES_PER_CREDIT;
            self.credit = self.credit.max(self.credit.saturating_add(earned).min(MAX_CREDIT));
        }
    }

    /// Bytes of the header block or frame that is not whole yet, frames' headers included: as much
    /// as it has announced, since the library makes room for that. 0 between them, and in DATA.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.unfinished_bytes
    }

    /// How many header blocks and frames were begun: another number is another one.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Takes the price of a request that was refused unseen.
    #[must_use]
    pub(crate) fn charge(&mut self, refused: u32) -> bool {
        self.pay(refused.saturating_mul(REFUSED_PRICE))
    }

    /// Bytes came in. False: the client has sent more than it may, and should be cut off.
    #[must_use]
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match &mut self.position {
                Position::Preface(left) | Position::Payload(left) => {
                    let count = bytes.len().min(*left);
                    *left -= count;
                    bytes = &bytes[count..];
                    if *left == 0 {
                        self.position = Position::Header([0; HEADER_BYTES], 0);
                        self.end_frame();
                    }
                }
                Position::Header(header, have) => {
                    let count = bytes.len().min(HEADER_BYTES - *have);
                    header[*have..*have + count].copy_from_slice(&bytes[..count]);
                    *have += count;
                    bytes = &bytes[count..];
                    if *have == HEADER_BYTES {
                        let [high, middle, low, kind, flags, ..] = *header;
                        let payload =
                            usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                        self.position = if payload == 0 {
                            Position::Header([0; HEADER_BYTES], 0)
                        } else {
                            Position::Payload(payload)
                        };
                        if !self.frame(kind, flags, payload) {
                            return false;
                        }
                        if payload == 0 {
                            self.end_frame();
                        }
                    }
                }
            }
        }
        true
    }

    fn frame(&mut self, kind: u8, flags: u8, payload: usize) -> bool {
        if kind != DATA {
            self.begun += u64::from(self.unfinished_bytes == 0);
            self.unfinished_bytes += HEADER_BYTES + payload;
            self.is_last = !matches!(kind, HEADERS | CONTINUATION) || flags & END_HEADERS != 0;
        }
        let price = match kind {
            // What a request costs is counted where it is handled.
            HEADERS => 0,
            DATA if payload >= SMALL_DATA_BYTES || flags & END_STREAM != 0 => 0,
            // All streams may get another window.
            RST_STREAM | SETTINGS => 4,
            _ => 1,
        };
        self.pay(price)
    }

    fn end_frame(&mut self) {
        if self.is_last {
            self.unfinished_bytes = 0;
        }
    }

    fn pay(&mut self, price: u32) -> bool {
        if price > self.credit {
            self.credit_time();
        }
        let paid = self.credit.checked_sub(price);
        self.credit = paid.unwrap_or(0);
        paid.is_some()
    }

    fn credit_time(&mut self) {
        let now = Instant::now();
        let earned = (now - self.since).as_millis() * u128::from(CREDIT_PER_SECOND) / 1000;
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned > 0 {
            self.since = now;
            self.credit = self.credit.max(self.credit.saturating_add(earned).min(CREDIT));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], &vec![0xff; payload]].concat()
    }

    /// How many of these frames are let through, 100,000 at most, cut into pieces of so many bytes.
    fn passed(frames: &mut Frames, frame: &[u8], piece: usize) -> usize {
        (0..100_000)
            .find(|_| !frame.chunks(piece).all(|piece| frames.take(piece)))
            .unwrap_or(100_000)
    }

    fn begun() -> Frames {
        let mut frames = Frames::new();
        assert!(frames.take(&[b'x'; PREFACE_BYTES - 1]) && frames.take(b"x"));
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_has_its_price_however_the_bytes_are_cut() {
        for piece in [1, 3, 9, 1000] {
            for (kind, flags, payload, wanted) in [
                (6, 0, 8, 2000),
                (6, 1, 8, 2000),
                (SETTINGS, 0, 0, 500),
                (SETTINGS, 1, 0, 500),
                (RST_STREAM, 0, 4, 500),
                (8, 0, 4, 2000),
                (2, 0, 5, 2000),
                (0x77, 0, 0, 2000),
                (DATA, 0, 0, 2000),
                (DATA, 8, 1, 2000),
                (DATA, END_STREAM, 0, 100_000),
                (DATA, 0, 64, 100_000),
                (HEADERS, 5, 3, 100_000),
            ] {
                assert_eq!(
                    passed(&mut begun(), &frame(kind, flags, payload), piece),
                    wanted,
                    "{kind} {flags} {payload}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_and_what_is_sent_earn_credit_up_to_a_bound() {
        let (mut frames, ping) = (begun(), frame(0x77, 0, 0));
        assert_eq!(passed(&mut frames, &ping, 17), 2000);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(passed(&mut frames, &ping, 17), 200);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(passed(&mut frames, &ping, 17), 2000);
        for _ in 0..10 {
            frames.sent(BYTES_PER_CREDIT / 2);
        }
        assert_eq!(passed(&mut frames, &ping, 17), 5);
        frames.sent(1 << 30);
        assert_eq!(passed(&mut frames, &ping, 17), 20_000);
    }

    #[tokio::test]
    async fn a_header_block_or_a_frame_is_under_way_until_it_is_whole() {
        let mut frames = begun();
        assert!(frames.take(&frame(HEADERS, 0, 100)));
        assert_eq!((frames.unfinished_bytes(), frames.begun()), (109, 1));
        assert!(frames.take(&frame(CONTINUATION, 0, 50)));
        assert_eq!((frames.unfinished_bytes(), frames.begun()), (168, 1));
        assert!(frames.take(&frame(CONTINUATION, END_HEADERS, 50)));
        assert_eq!(frames.unfinished_bytes(), 0);
        for kind in [HEADERS, SETTINGS, 0x77] {
            let (whole, before) = (frame(kind, END_HEADERS, 1000), frames.begun());
            assert!(frames.take(&whole[..10]));
            assert_eq!((frames.unfinished_bytes(), frames.begun()), (1009, before + 1));
            assert!(frames.take(&whole[10..]) && frames.take(&frame(kind, END_HEADERS, 0)));
            assert_eq!((frames.unfinished_bytes(), frames.begun()), (0, before + 2));
        }
        assert!(frames.take(&frame(DATA, 0, 1000)[..10]));
        assert_eq!(frames.unfinished_bytes(), 0, "DATA has a window");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_refused_cost_credit() {
        let mut frames = begun();
        assert!(frames.charge(CREDIT / REFUSED_PRICE) && !frames.charge(1));
    }
}
