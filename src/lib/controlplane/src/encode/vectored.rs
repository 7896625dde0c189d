//! Parts of stored objects on their way out: long ones are lent from where they are stored, so that
//! on HTTP/1.1 the first copy is the one that is encrypted; short ones are copied together.

use bytes::{Buf, Bytes};
use ferrokube_serve::WRITE_BYTES;
use std::io::IoSlice;
use std::ops::Range;

/// After so many slices a frame is full: hyper hands over 64 in one write, with what it puts around
/// them. (Parts of more than 2 KiB go in several; then a write may be less than full.)
const SLICES: usize = 60;
/// A shorter part is copied, and so is one that would let the slices be shorter than this on
/// average: else they would be used up before a write is full.
const SHORTEST_BYTES: usize = WRITE_BYTES / SLICES + 1;
/// Room for what is copied beside what is lent, to begin with.
const COPIED_BYTES: usize = 16 * 1024;

/// What has bytes to lend.
pub(crate) trait ByteOwner: Unpin + Send + 'static {
    /// The bytes. They do not change.
    fn bytes(&self) -> &[u8];
}

impl ByteOwner for Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

enum Slice {
    /// Of what was copied.
    Copied(Range<usize>),
    /// Of the bytes of a lender.
    Lent(usize, Range<usize>),
}

/// A frame of parts.
pub(crate) struct Lent<L> {
    copied: Vec<u8>,
    lenders: Vec<L>,
    slices: Vec<Slice>,
    /// The first slice that was not taken whole, and how much of it was.
    at: usize,
    taken: usize,
    left: usize,
}

impl<L: ByteOwner> Lent<L> {
    /// An empty frame, when `rest` bytes are still to be sent and the next part is so long: where
    /// that is copied, most will be.
    pub(crate) fn new(rest: usize, next: usize) -> Self {
        let room = if next < SHORTEST_BYTES { WRITE_BYTES } else { COPIED_BYTES };
        let copied = Vec::with_capacity(rest.min(room));
        Self { copied, lenders: Vec::new(), slices: Vec::new(), at: 0, taken: 0, left: 0 }
    }

    /// Whether so many bytes more fit into it. Into an empty one, anything does.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.left == 0 || (self.left + bytes <= WRITE_BYTES && self.slices.len() + 2 <= SLICES)
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Appends a copy.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.copied.len();
        if self.copied.capacity() - start < bytes.len() {
            self.copied.reserve_exact(bytes.len().max(WRITE_BYTES - start.min(WRITE_BYTES)));
        }
        self.copied.extend_from_slice(bytes);
        self.left += bytes.len();
        match self.slices.last_mut() {
            Some(Slice::Copied(last)) => last.end = self.copied.len(),
            _ => self.slices.push(Slice::Copied(start..self.copied.len())),
        }
    }

    /// Appends a part of a lender's bytes between others.
    pub(crate) fn lend(&mut self, lender: L, head: &[u8], part: Range<usize>, tail: &[u8]) {
        self.copy(head);
        if part.len() < SHORTEST_BYTES
            || self.left + part.len() < SHORTEST_BYTES * (self.slices.len() + 1)
        {
            self.copy(&lender.bytes()[part]);
        } else {
            self.left += part.len();
            self.slices.push(Slice::Lent(self.lenders.len(), part));
            self.lenders.push(lender);
        }
        self.copy(tail);
    }

    fn bytes_of(&self, slice: &Slice) -> &[u8] {
        match slice {
            Slice::Copied(range) => &self.copied[range.clone()],
            Slice::Lent(lender, range) => &self.lenders[*lender].bytes()[range.clone()],
        }
    }
}

impl<L: ByteOwner> Buf for Lent<L> {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.slices.get(self.at).map_or(&[], |slice| &self.bytes_of(slice)[self.taken..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut taken, mut count) = (self.taken, 0);
        for slice in &self.slices[self.at..] {
            count +=
                ferrokube_serve::short_slices(&self.bytes_of(slice)[taken..], &mut slices[count..]);
            taken = 0;
        }
        count
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.left, "no more than is there is taken");
        self.left -= count;
        self.taken += count;
        while let Some(slice) = self.slices.get(self.at) {
            let length = match slice {
                Slice::Copied(range) | Slice::Lent(_, range) => range.len(),
            };
            if self.taken < length {
                break;
            }
            self.taken -= length;
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ByteOwner for Vec<u8> {
        fn bytes(&self) -> &[u8] {
            self
        }
    }

    /// Parts of many lengths, and all of their bytes.
    fn frame() -> (Lent<Vec<u8>>, Vec<u8>) {
        let (mut lent, mut all) = (Lent::new(usize::MAX, SHORTEST_BYTES), Vec::new());
        for (length, byte) in
            [0, 1, SHORTEST_BYTES - 1, SHORTEST_BYTES, 5000, 3, 20_000].into_iter().zip(b'a'..)
        {
            let lender = vec![byte; length + 2];
            lent.lend(lender, b"<", 1..length + 1, b">");
            all.extend([b"<".as_slice(), &vec![byte; length], b">"].concat());
        }
        (lent, all)
    }

    #[test]
    fn however_it_is_taken_it_is_the_same() {
        let (lent, all) = frame();
        assert_eq!(lent.remaining(), all.len());
        assert!(
            lent.lenders.len() >= 2 && lent.slices.len() <= 2 * lent.lenders.len() + 1,
            "what is short is joined"
        );
        for step in [1, 7, 1000, 4096, 100_000] {
            let (mut lent, _) = frame();
            let mut taken = Vec::new();
            while lent.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = lent.chunks_vectored(&mut slices);
                assert!(count > 0 && lent.chunk().starts_with(&slices[0]));
                let next: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.to_vec()).take(step).collect();
                taken.extend_from_slice(&next);
                lent.advance(next.len());
            }
            assert_eq!(taken, all);
            assert!(lent.chunk().is_empty());
        }
        assert_eq!(frame().0.copy_to_bytes(all.len()), all);
    }

    #[test]
    fn a_frame_fills_a_write_with_few_slices() {
        for length in [10, 900, 1100, 1400, 1600, 3000, 30_000, 60_000, 200_000] {
            let mut lent = Lent::new(usize::MAX, length);
            while lent.fits(length + 2) {
                lent.lend(vec![b'x'; length], b"{", 0..length, b"}");
            }
            let whole = (WRITE_BYTES / (length + 2)).max(1) * (length + 2);
            assert!(
                (whole.saturating_sub(length + 2)..=whole).contains(&lent.remaining()),
                "{length}: {} bytes",
                lent.remaining()
            );
            assert!(
                lent.slices.len() <= SLICES && lent.lenders.is_empty() == (length < SHORTEST_BYTES),
                "{length}: {} slices",
                lent.slices.len()
            );
            assert!(lent.copied.capacity() <= WRITE_BYTES);
        }
    }
}
