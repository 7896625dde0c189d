//! One gzip member of parts that are deflated independently.

use bytes::Bytes;
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

/// Raw deflate of the whole input, independent of earlier input. In one call, with room for input
/// that cannot be compressed: a sync flush that is resumed with more room may end without its
/// marker, at no byte boundary (Frommi/miniz_oxide#105).
fn deflate(input: &[u8], flush: FlushCompress) -> Bytes {
    COMPRESS.with_borrow_mut(|compress| {
        compress.reset();
        let mut out = Vec::with_capacity(input.len() + input.len() / 8 + 256);
        let status = compress
            .compress_vec(input, &mut out, flush)
            .expect("deflating memory into memory cannot fail");
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
