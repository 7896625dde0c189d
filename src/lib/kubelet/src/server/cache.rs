//! A bounded cache with expiring entries.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// Max entries. At the limit, expired ones are dropped, or all if none is expired.
pub(super) const MAX_ENTRIES: usize = 1000;

/// Values by key, each until its time.
pub(super) struct ExpiringCache<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K: Eq + Hash, V: Clone> ExpiringCache<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock();
        let (value, until) = entries.get(key)?;
        (*until > Instant::now()).then(|| value.clone())
    }

    pub(super) fn insert(&self, key: K, value: V, life: Duration) {
        let now = Instant::now();
        let mut entries = self.0.lock();
        if entries.len() >= MAX_ENTRIES {
            entries.retain(|_, (_, until)| *until > now);
        }
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert(key, (value, now + life));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_expire_and_are_bounded() {
        let cache = ExpiringCache::new();
        cache.insert(0, "a", Duration::from_secs(1));
        assert_eq!(cache.get(&0), Some("a"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cache.get(&0), None);
        for key in 0..3 * MAX_ENTRIES {
            cache.insert(key, "b", Duration::from_secs(1));
            assert!(cache.0.lock().len() <= MAX_ENTRIES);
        }
    }
}
