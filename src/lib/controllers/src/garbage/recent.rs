//! A bounded map that forgets its oldest entry for a new one.

use super::graph::Uid;
use std::collections::{HashMap, VecDeque};

/// Entries remembered. A forgotten one costs a read.
const MAX_ENTRIES: usize = 10_000;
/// Longest key remembered. Uids and names in owner references are arbitrary client input.
const MAX_KEY_BYTES: usize = 1024;

/// Facts that stay true, by key.
#[derive(Default)]
pub(super) struct RecentMap<V> {
    values: HashMap<Uid, V>,
    /// Keys of `values`, oldest first.
    order: VecDeque<Uid>,
}

impl<V> RecentMap<V> {
    pub(super) fn get(&self, key: &str) -> Option<&V> {
        self.values.get(key)
    }

    pub(super) fn insert(&mut self, key: &str, value: V) {
        if key.len() > MAX_KEY_BYTES {
            return;
        }
        if let Some(present) = self.values.get_mut(key) {
            *present = value;
            return;
        }
        if self.order.len() >= MAX_ENTRIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
        let key = Uid::from(key);
        self.order.push_back(key.clone());
        self.values.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_alone() {
        let mut recent = RecentMap::default();
        (0..=MAX_ENTRIES).for_each(|number| recent.insert(&number.to_string(), number));
        recent.insert(&"x".repeat(MAX_KEY_BYTES + 1), 0);
        assert_eq!(
            (recent.get("0"), recent.get("1"), recent.values.len()),
            (None, Some(&1), MAX_ENTRIES)
        );
        recent.insert("1", 7);
        assert_eq!(
            (recent.get("1"), recent.get("2"), recent.order.len()),
            (Some(&7), Some(&2), MAX_ENTRIES)
        );
    }
}
