//! Reproducible pseudorandom numbers (splitmix64).

/// Generator.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.number() % bound).unwrap_or_default()
    }

    /// Uniformly from all 256.
    pub fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }

    /// One of the items, which must not be empty.
    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}
