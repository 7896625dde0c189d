//! Prices HTTP/2 frames before hyper sees them: clients pay for frames that cost them less than the
//! server.
//!
//! The library responds to every PING and SETTINGS and discards most other frames, so a flood of
//! them runs as fast as a core allows (47 million in 9 s); and it cuts a connection at a fixed
//! number of resets that arrive together, even if an honest client cancelled requests. Here every
//! such frame has a price. Credit accrues with time and with bytes sent: a client that is served
//! may acknowledge, adjust windows and cancel in proportion.

use tokio::time::Instant;

/// Length of the client preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
/// Smaller DATA frames are mostly their own header.
const SMALL_DATA_BYTES: usize = 64;

/// Credit of a new connection, and the most that time accrues: 500 resets, or 2,000 pings.
const CREDIT: u32 = 2_000;
const CREDIT_PER_SECOND: u32 = 200;
/// Bytes sent per unit of credit.
const BYTES_PER_CREDIT: usize = 32;
/// Credit that bytes sent can accrue: window updates for a large response come late and together.
const MAX_CREDIT: u32 = 20_000;

/// Price of a request rejected before a handler saw it.
const REJECTED_PRICE: u32 = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// GOAWAY with ENHANCE_YOUR_CALM.
pub(crate) const GO_AWAY: [u8; 17] =
    [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0xb];

/// Position in the byte stream.
#[derive(Debug)]
enum FramePosition {
    /// In the preface, with this many bytes left.
    Preface(usize),
    /// In a frame header, with this many bytes read.
    Header([u8; HEADER_BYTES], usize),
    Payload(usize),
}

/// Meters the incoming frames of one connection.
#[derive(Debug)]
pub(crate) struct FrameMeter {
    position: FramePosition,
    credit: u32,
    /// When time was last credited. The clock is only read when the credit is used up.
    since: Instant,
    /// Bytes sent that are not credited yet.
    sent: usize,
    /// Bytes of an unfinished header block, or of an unfinished frame other than DATA; 0 if there
    /// is none.
    unfinished_bytes: usize,
    /// Whether it ends with the current frame.
    is_last: bool,
    /// Number of header blocks and frames begun.
    started: u64,
}

impl FrameMeter {
    pub(crate) fn new() -> Self {
        Self {
            position: FramePosition::Preface(PREFACE_BYTES),
            credit: CREDIT,
            since: Instant::now(),
            sent: 0,
            unfinished_bytes: 0,
            is_last: true,
            started: 0,
        }
    }

    /// Credits bytes sent to the client.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= BYTES_PER_CREDIT {
            let earned = u32::try_from(self.sent / BYTES_PER_CREDIT).unwrap_or(u32::MAX);
            self.sent %= BYTES_PER_CREDIT;
            self.credit = self.credit.max(self.credit.saturating_add(earned).min(MAX_CREDIT));
        }
    }

    /// Bytes of the unfinished header block or frame: frame headers, and the announced payload, as
    /// the library allocates that. 0 between them, and in DATA.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.unfinished_bytes
    }

    /// Number of header blocks and frames begun, which distinguishes them.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Charges for requests rejected unseen.
    #[must_use]
    pub(crate) fn charge(&mut self, rejected: u32) -> bool {
        self.pay(rejected.saturating_mul(REJECTED_PRICE))
    }

    /// Processes received bytes. False if the client has exceeded its credit and should be cut off.
    #[must_use]
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match &mut self.position {
                FramePosition::Preface(left) | FramePosition::Payload(left) => {
                    let count = bytes.len().min(*left);
                    *left -= count;
                    bytes = &bytes[count..];
                    if *left == 0 {
                        self.position = FramePosition::Header([0; HEADER_BYTES], 0);
                        self.end_frame();
                    }
                }
                FramePosition::Header(header, have) => {
                    let count = bytes.len().min(HEADER_BYTES - *have);
                    header[*have..*have + count].copy_from_slice(&bytes[..count]);
                    *have += count;
                    bytes = &bytes[count..];
                    if *have == HEADER_BYTES {
                        let [high, middle, low, kind, flags, ..] = *header;
                        let payload =
                            usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                        self.position = if payload == 0 {
                            FramePosition::Header([0; HEADER_BYTES], 0)
                        } else {
                            FramePosition::Payload(payload)
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
            self.started += u64::from(self.unfinished_bytes == 0);
            self.unfinished_bytes += HEADER_BYTES + payload;
            self.is_last = !matches!(kind, HEADERS | CONTINUATION) || flags & END_HEADERS != 0;
        }
        let price = match kind {
            // Requests are accounted for where they are handled.
            HEADERS => 0,
            DATA if payload >= SMALL_DATA_BYTES || flags & END_STREAM != 0 => 0,
            // May change the windows of all streams.
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

    /// How many of these frames pass, up to 100,000, when fed in chunks of `piece` bytes.
    fn passed(frames: &mut FrameMeter, frame: &[u8], piece: usize) -> usize {
        (0..100_000)
            .find(|_| !frame.chunks(piece).all(|piece| frames.receive(piece)))
            .unwrap_or(100_000)
    }

    fn started() -> FrameMeter {
        let mut frames = FrameMeter::new();
        assert!(frames.receive(&[b'x'; PREFACE_BYTES - 1]) && frames.receive(b"x"));
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_has_its_price_in_chunks_of_any_size() {
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
                    passed(&mut started(), &frame(kind, flags, payload), piece),
                    wanted,
                    "{kind} {flags} {payload}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_and_bytes_sent_earn_bounded_credit() {
        let (mut frames, ping) = (started(), frame(0x77, 0, 0));
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
    async fn a_header_block_or_frame_is_unfinished_until_its_end() {
        let mut frames = started();
        assert!(frames.receive(&frame(HEADERS, 0, 100)));
        assert_eq!((frames.unfinished_bytes(), frames.started()), (109, 1));
        assert!(frames.receive(&frame(CONTINUATION, 0, 50)));
        assert_eq!((frames.unfinished_bytes(), frames.started()), (168, 1));
        assert!(frames.receive(&frame(CONTINUATION, END_HEADERS, 50)));
        assert_eq!(frames.unfinished_bytes(), 0);
        for kind in [HEADERS, SETTINGS, 0x77] {
            let (whole, before) = (frame(kind, END_HEADERS, 1000), frames.started());
            assert!(frames.receive(&whole[..10]));
            assert_eq!((frames.unfinished_bytes(), frames.started()), (1009, before + 1));
            assert!(frames.receive(&whole[10..]) && frames.receive(&frame(kind, END_HEADERS, 0)));
            assert_eq!((frames.unfinished_bytes(), frames.started()), (0, before + 2));
        }
        assert!(frames.receive(&frame(DATA, 0, 1000)[..10]));
        assert_eq!(frames.unfinished_bytes(), 0, "DATA has a window");
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_requests_cost_credit() {
        let mut frames = started();
        assert!(frames.charge(CREDIT / REJECTED_PRICE) && !frames.charge(1));
    }
}
