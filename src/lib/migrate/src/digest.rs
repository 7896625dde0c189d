//! Count and hash of keys with their values, in any order: the two stores order keys differently.

use sha2::{Digest, Sha256};
use std::fmt;

/// The sum of the entries' hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateDigest {
    count: u64,
    sum: [u64; 4],
}

impl StateDigest {
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut hasher = Sha256::new();
        hasher.update((key.len() as u64).to_le_bytes());
        hasher.update(key);
        hasher.update(value);
        let hash: [u8; 32] = hasher.finalize().into();
        self.count += 1;
        for (sum, bytes) in self.sum.iter_mut().zip(hash.chunks_exact(8)) {
            let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            *sum = sum.wrapping_add(word);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn hash(&self) -> String {
        self.sum.iter().map(|word| format!("{word:016x}")).collect()
    }
}

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys, hash {}", self.count, self.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_shows_and_order_does_not() {
        let digest = |entries: &[(&str, &str)]| {
            let mut digest = StateDigest::default();
            for (key, value) in entries {
                digest.add(key.as_bytes(), value.as_bytes());
            }
            digest
        };
        let one = digest(&[("a", "1"), ("b", "2")]);
        assert_eq!(one, digest(&[("b", "2"), ("a", "1")]));
        for other in [
            digest(&[("a", "1")]),
            digest(&[("a", "2"), ("b", "1")]),
            digest(&[("a", "12"), ("b", "")]),
            digest(&[("a1", ""), ("b", "2")]),
            digest(&[("a", "1"), ("b", "2"), ("b", "2")]),
        ] {
            assert_ne!(one, other, "{other}");
        }
    }
}
