//! Trace and span ids: text form, parsing, generation.

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;

/// 16 bytes, never all zero; 32 lower hex digits in text (W3C Trace Context).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId([u8; 16]);

/// 8 bytes, never all zero; 16 lower hex digits in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId([u8; 8]);

/// The trace id of the request that created the first of a family of related objects (KEP-1668).
pub type InitialTraceId = TraceId;

/// Not an id: wrong length, not lower-case hex, or all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of {digits} lower hex digits, at least one of them not zero")]
pub struct IdError {
    /// The expected number of digits.
    pub digits: usize,
}

/// An id's hex digits, on the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<const N: usize>([u8; N]);

impl<const N: usize> Hex<N> {
    /// The digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hex digits are ASCII")
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<const N: usize> std::ops::Deref for Hex<N> {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl TraceId {
    /// A new random id.
    pub fn random() -> Self {
        let [high, low] = [next(), next()];
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.max(1).to_be_bytes());
        Self(bytes)
    }

    /// `None` when all zero.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// The bytes, in the order of the text.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// The text, without allocating.
    pub fn hex(&self) -> Hex<32> {
        Hex(encode(&self.0))
    }
}

impl SpanId {
    /// A new random id.
    pub fn random() -> Self {
        Self(next().max(1).to_be_bytes())
    }

    /// `None` when all zero.
    pub fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// The bytes, in the order of the text.
    pub fn bytes(&self) -> [u8; 8] {
        self.0
    }

    /// The text, without allocating.
    pub fn hex(&self) -> Hex<16> {
        Hex(encode(&self.0))
    }
}

impl FromStr for TraceId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        decode(text.as_bytes()).and_then(Self::from_bytes).ok_or(IdError { digits: 32 })
    }
}

impl FromStr for SpanId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        decode(text.as_bytes()).and_then(Self::from_bytes).ok_or(IdError { digits: 16 })
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.hex())
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.hex())
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

/// The hex digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

fn encode<const B: usize, const N: usize>(bytes: &[u8; B]) -> [u8; N] {
    const { assert!(N == 2 * B) };
    let mut text = [0; N];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&PAIRS[usize::from(*byte)]);
    }
    text
}

/// Parses lower-case hex digits of exactly `B` bytes.
pub(crate) fn decode<const B: usize>(text: &[u8]) -> Option<[u8; B]> {
    if text.len() != 2 * B {
        return None;
    }
    let (mut bytes, mut wrong) = ([0; B], 0);
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = [VALUES[usize::from(pair[0])], VALUES[usize::from(pair[1])]];
        wrong |= high | low;
        *byte = high << 4 | low;
    }
    (wrong < 16).then_some(bytes)
}

/// The value of each byte as a hex digit; 255 if it is none.
const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut digit = 0;
    while digit < 16 {
        values[b"0123456789abcdef"[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};

thread_local! {
    /// Fast rather than secure: ids must be unique, not secret. Seeded by the system, once per
    /// thread.
    static GENERATOR: RefCell<SmallRng> = RefCell::new(SmallRng::from_os_rng());
}

fn next() -> u64 {
    GENERATOR.with_borrow_mut(SmallRng::next_u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn l04_text_forms_have_32_and_16_lower_hex_digits() {
        let trace: TraceId = "4bf92f3577b34da6a3ce929d0e0e4736".parse().unwrap();
        assert_eq!(trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let span: SpanId = "00f067aa0ba902b7".parse().unwrap();
        assert_eq!(span.to_string(), "00f067aa0ba902b7");
        assert_eq!(&*span.hex(), "00f067aa0ba902b7");
    }

    #[test]
    fn l22_wrong_texts_are_refused() {
        for text in [
            "",
            "0",
            "00000000000000000000000000000000",
            "4BF92F3577B34DA6A3CE929D0E0E4736",
            "4bf92f3577b34da6a3ce929d0e0e473",
            "4bf92f3577b34da6a3ce929d0e0e4736a",
            "4bf92f3577b34da6a3ce929d0e0e473g",
        ] {
            assert_eq!(text.parse::<TraceId>(), Err(IdError { digits: 32 }), "{text}");
        }
        assert!("0000000000000000".parse::<SpanId>().is_err());
    }

    #[test]
    fn random_ids_do_not_repeat_over_threads() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| (0..1000).map(|_| TraceId::random()).collect::<Vec<_>>())
            })
            .collect();
        let ids: HashSet<_> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids.len(), 4000);
    }
}
