//! A map of bounded size that evicts one entry at a time: one that was not read since the hand of
//! the clock last passed it.
//!
//! Clearing the whole map instead would let one caller with many keys (tokens, certificates) evict
//! the entries of all others.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicBool, Ordering};

/// Keys should be cheap to clone: each is held twice.
pub(crate) struct ClockCache<K, V> {
    capacity: usize,
    places: HashMap<K, usize>,
    slots: Vec<CacheSlot<K, V>>,
    hand: usize,
}

struct CacheSlot<K, V> {
    key: K,
    value: V,
    is_used: AtomicBool,
}

impl<K: Clone + Eq + Hash, V> ClockCache<K, V> {
    /// `capacity`: at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, places: HashMap::new(), slots: Vec::new(), hand: 0 }
    }

    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let slot = &self.slots[*self.places.get(key)?];
        // Readers of a busy entry share its cache line.
        if !slot.is_used.load(Ordering::Relaxed) {
            slot.is_used.store(true, Ordering::Relaxed);
        }
        Some(&slot.value)
    }

    /// A hash that differs from process to process.
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.places.hasher().hash_one(key)
    }

    pub(crate) fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let slot = &mut self.slots[*self.places.get(key)?];
        *slot.is_used.get_mut() = true;
        Some(&mut slot.value)
    }

    /// Adds or replaces an entry. A new one counts as not read yet.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(known) = self.get_mut(&key) {
            *known = value;
            return;
        }
        let slot = CacheSlot { key: key.clone(), value, is_used: AtomicBool::new(false) };
        let place = if self.slots.len() < self.capacity {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.victim();
            let evicted = std::mem::replace(&mut self.slots[place], slot);
            self.places.remove(&evicted.key);
            place
        };
        self.places.insert(key, place);
    }

    /// The first entry from the hand on that was not read; those that the hand passes count as not
    /// read from then on. At most one round.
    fn victim(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (place + 1) % self.slots.len();
            if !std::mem::take(self.slots[place].is_used.get_mut()) {
                return place;
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.slots.clear();
        self.hand = 0;
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_read_outlive_any_number_of_new_ones() {
        let mut cache = ClockCache::new(100);
        cache.insert("hot".to_owned(), 0);
        for number in 1..=10_000 {
            cache.insert(format!("k{number}"), number);
            assert_eq!(cache.get("hot"), Some(&0), "after {number}");
        }
        assert_eq!((cache.len(), cache.places.len()), (100, 100));
        assert_eq!((cache.get("k10000"), cache.get("k1")), (Some(&10_000), None));
    }

    #[test]
    fn one_entry_goes_for_a_new_one() {
        let mut cache = ClockCache::new(3);
        for key in ["a", "b", "c"] {
            cache.insert(key, 1);
        }
        cache.insert("b", 2);
        assert_eq!(cache.get("a"), Some(&1));
        cache.insert("d", 4);
        assert_eq!(
            ["a", "b", "c", "d"].map(|key| cache.get(key).copied()),
            [Some(1), Some(2), None, Some(4)]
        );
        // All were read: the hand goes round once.
        cache.insert("e", 5);
        assert_eq!(cache.len(), 3);
        cache.clear();
        assert_eq!((cache.get("e"), cache.len()), (None, 0));
        cache.insert("f", 6);
        assert_eq!(cache.get("f"), Some(&6));
    }
}
