//! One gzip member of parts that are deflated independently.

use bytes::Bytes;
use ferrokube_apimachinery::work;
use flate2::{Compress, Compression, FlushCompress};
use std::cell::RefCell;

/// A gzip header: magic, deflate, no flags, no time, fastest, unknown system.
pub(crate) const HEADER: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// Ends a sync flush.
const SYNC_MARKER: &[u8] = &[0, 0, 0xff, 0xff];

/// Checksum and length of a gzip member so far.
#[derive(Clone, Default)]
pub(crate) struct GzipSum {
    checksum: crc32fast::Hasher,
    raw_bytes: u64,
}

impl GzipSum {
    /// Compresses the next part, independent of the parts before.
    pub(crate) fn deflate(&mut self, raw: &[u8], flush: FlushCompress) -> Bytes {
        self.checksum.update(raw);
        self.raw_bytes += raw.len() as u64;
        deflate(raw, flush)
    }

    /// Counts a part that was deflated before, with a sum of its own.
    pub(crate) fn combine(&mut self, part: &Self) {
        self.checksum.combine(&part.checksum);
        self.raw_bytes += part.raw_bytes;
    }

    pub(crate) fn trailer(&self) -> [u8; 8] {
        // The length modulo 2^32.
        let length =
            u32::try_from(self.raw_bytes & u64::from(u32::MAX)).expect("masked to 32 bits");
        let mut trailer = [0; 8];
        trailer[..4].copy_from_slice(&self.checksum.clone().finalize().to_le_bytes());
        trailer[4..].copy_from_slice(&length.to_le_bytes());
        trailer
    }
}

thread_local! {
    /// Reused per thread: its state is large.
    static COMPRESS: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

/// Bytes that are deflated in some hundred microseconds.
const PIECE_BYTES: usize = 32 * 1024;

/// Raw deflate of the whole input, independent of earlier input. With room for input that cannot be
/// compressed: a sync flush that is resumed with more room may end without its marker, at no byte
/// boundary (Frommi/miniz_oxide#105).
fn deflate(input: &[u8], flush: FlushCompress) -> Bytes {
    COMPRESS.with_borrow_mut(|compress| {
        compress.reset();
        let mut out = Vec::with_capacity(input.len() + input.len() / 8 + 256);
        let mut rest = input;
        let status = loop {
            let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES));
            let flush = if after.is_empty() { flush } else { FlushCompress::None };
            let status = compress
                .compress_vec(piece, &mut out, flush)
                .expect("deflating memory into memory cannot fail");
            if after.is_empty() {
                break status;
            }
            rest = after;
            work::breathe_now();
        };
        let is_whole = match flush {
            FlushCompress::Finish => status == flate2::Status::StreamEnd,
            _ => out.ends_with(SYNC_MARKER) && compress.total_in() == input.len() as u64,
        };
        // A body that breaks off is better than a corrupt one.
        assert!(is_whole, "{} bytes were not deflated whole into {}", input.len(), out.len());
        out.shrink_to_fit();
        out.into()
    })
}

#[cfg(test)]
mod tests {
    use super::{GzipSum, PIECE_BYTES};
    use ferrokube_apimachinery::work;
    use flate2::FlushCompress;
    use flate2::read::GzDecoder;
    use std::io::Read;

    /// Bytes that compress well, or hardly.
    fn bytes(length: usize, is_random: bool) -> Vec<u8> {
        let mut state = 1_u64;
        let byte = |at: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if is_random { (state >> 56) as u8 } else { (at / 100) as u8 }
        };
        (0..length).map(byte).collect()
    }

    #[test]
    fn parts_are_whole_at_any_length() {
        for is_random in [false, true] {
            for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7]
            {
                let raw = bytes(length, is_random);
                let mut sum = GzipSum::default();
                let mut sent = super::HEADER.to_vec();
                sent.extend_from_slice(&sum.deflate(&raw, FlushCompress::Sync));
                sent.extend_from_slice(&sum.deflate(&raw, FlushCompress::Finish));
                sent.extend_from_slice(&sum.trailer());
                let mut read = Vec::new();
                GzDecoder::new(&sent[..]).read_to_end(&mut read).unwrap();
                assert!(read == [&raw[..], &raw].concat(), "{length} bytes");
            }
        }
    }

    #[test]
    fn fault_34_a_long_part_gives_way() {
        let raw = bytes(1_400_000, false);
        let deflate = || GzipSum::default().deflate(&raw, FlushCompress::Finish);
        let (_, breaths) = work::breaths(deflate);
        assert!(breaths as usize >= raw.len() / PIECE_BYTES, "{breaths}");
    }
}
