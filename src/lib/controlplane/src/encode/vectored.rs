//! Frames of slices of stored objects. Long slices are referenced, so that on HTTP/1.1 the first
//! copy is the encrypted one; short ones are copied together.

use bytes::{Buf, Bytes};
use ferrokube_serve::WRITE_BYTES;
use std::io::IoSlice;
use std::ops::Range;

/// Max slices per frame: hyper passes 64 to one write, including its own. (Slices of more than 2
/// KiB are split; such a write may be less than full.)
const MAX_SLICES: usize = 60;
/// Shorter slices are copied, and so are slices that would bring the mean below this: else the
/// number of slices, not their bytes, would limit a write.
const MIN_REFERENCED_BYTES: usize = WRITE_BYTES / MAX_SLICES + 1;
/// Initial capacity for copied bytes in a frame of referenced slices.
const COPIED_BYTES: usize = 16 * 1024;

/// Owns bytes that a frame may reference.
pub(crate) trait ByteOwner: Unpin + Send + 'static {
    /// Must return the same bytes every time.
    fn bytes(&self) -> &[u8];
}

impl ByteOwner for Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

enum Slice {
    /// A range of the copied bytes.
    Copied(Range<usize>),
    /// A range of an owner's bytes.
    Referenced(usize, Range<usize>),
}

/// A frame of copied and referenced slices.
pub(crate) struct SliceFrame<L> {
    copied: Vec<u8>,
    owners: Vec<L>,
    slices: Vec<Slice>,
    /// The first slice that is not consumed yet, and how much of it is.
    at: usize,
    taken: usize,
    left: usize,
}

impl<L: ByteOwner> SliceFrame<L> {
    /// An empty frame. `rest` bytes are still to be sent; `next` is the length of the next slice, a
    /// hint how much will be copied.
    pub(crate) fn new(rest: usize, next: usize) -> Self {
        let room = if next < MIN_REFERENCED_BYTES { WRITE_BYTES } else { COPIED_BYTES };
        let copied = Vec::with_capacity(rest.min(room));
        Self { copied, owners: Vec::new(), slices: Vec::new(), at: 0, taken: 0, left: 0 }
    }

    /// Whether a slice of `bytes` fits. Anything fits into an empty frame.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.left == 0 || (self.left + bytes <= WRITE_BYTES && self.slices.len() + 2 <= MAX_SLICES)
    }

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

    /// Appends `part` of the owner's bytes between `head` and `tail`.
    pub(crate) fn reference(&mut self, owner: L, head: &[u8], part: Range<usize>, tail: &[u8]) {
        self.copy(head);
        if part.len() < MIN_REFERENCED_BYTES
            || self.left + part.len() < MIN_REFERENCED_BYTES * (self.slices.len() + 1)
        {
            self.copy(&owner.bytes()[part]);
        } else {
            self.left += part.len();
            self.slices.push(Slice::Referenced(self.owners.len(), part));
            self.owners.push(owner);
        }
        self.copy(tail);
    }

    fn bytes_of(&self, slice: &Slice) -> &[u8] {
        match slice {
            Slice::Copied(range) => &self.copied[range.clone()],
            Slice::Referenced(owner, range) => &self.owners[*owner].bytes()[range.clone()],
        }
    }
}

impl<L: ByteOwner> Buf for SliceFrame<L> {
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
        assert!(count <= self.left, "not more than remaining");
        self.left -= count;
        self.taken += count;
        while let Some(slice) = self.slices.get(self.at) {
            let length = match slice {
                Slice::Copied(range) | Slice::Referenced(_, range) => range.len(),
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

    /// Slices of many lengths, and their concatenation.
    fn frame() -> (SliceFrame<Vec<u8>>, Vec<u8>) {
        let (mut sliced, mut all) = (SliceFrame::new(usize::MAX, MIN_REFERENCED_BYTES), Vec::new());
        for (length, byte) in
            [0, 1, MIN_REFERENCED_BYTES - 1, MIN_REFERENCED_BYTES, 5000, 3, 20_000]
                .into_iter()
                .zip(b'a'..)
        {
            let owner = vec![byte; length + 2];
            sliced.reference(owner, b"<", 1..length + 1, b">");
            all.extend([b"<".as_slice(), &vec![byte; length], b">"].concat());
        }
        (sliced, all)
    }

    #[test]
    fn any_way_of_consuming_gives_the_same_bytes() {
        let (sliced, all) = frame();
        assert_eq!(sliced.remaining(), all.len());
        assert!(
            sliced.owners.len() >= 2 && sliced.slices.len() <= 2 * sliced.owners.len() + 1,
            "short slices are joined"
        );
        for step in [1, 7, 1000, 4096, 100_000] {
            let (mut sliced, _) = frame();
            let mut taken = Vec::new();
            while sliced.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = sliced.chunks_vectored(&mut slices);
                assert!(count > 0 && sliced.chunk().starts_with(&slices[0]));
                let next: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.to_vec()).take(step).collect();
                taken.extend_from_slice(&next);
                sliced.advance(next.len());
            }
            assert_eq!(taken, all);
            assert!(sliced.chunk().is_empty());
        }
        assert_eq!(frame().0.copy_to_bytes(all.len()), all);
    }

    #[test]
    fn a_frame_fills_a_write_with_few_slices() {
        for length in [10, 900, 1100, 1400, 1600, 3000, 30_000, 60_000, 200_000] {
            let mut sliced = SliceFrame::new(usize::MAX, length);
            while sliced.fits(length + 2) {
                sliced.reference(vec![b'x'; length], b"{", 0..length, b"}");
            }
            let whole = (WRITE_BYTES / (length + 2)).max(1) * (length + 2);
            assert!(
                (whole.saturating_sub(length + 2)..=whole).contains(&sliced.remaining()),
                "{length}: {} bytes",
                sliced.remaining()
            );
            assert!(
                sliced.slices.len() <= MAX_SLICES
                    && sliced.owners.is_empty() == (length < MIN_REFERENCED_BYTES),
                "{length}: {} slices",
                sliced.slices.len()
            );
            assert!(sliced.copied.capacity() <= WRITE_BYTES);
        }
    }
}
