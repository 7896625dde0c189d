//! Deadlines of published entries. Owned by the committer, which deletes what is due by ordinary transactions.

use crate::key::Key;
use crate::txn::{Expires, TxnEvent};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// How long after an attempt the next one is made, if its delete did not happen.
const RETRY_MS: u64 = 1000;

/// The deadlines by time and by key; one for each key that has one.
#[derive(Default)]
pub(crate) struct Expiry {
    by_key: HashMap<Key, u64>,
    by_time: BTreeSet<(u64, Key)>,
}

impl Expiry {
    /// Takes note of a published change. `now_ms` goes by the clock that only moves forward.
    pub(crate) fn published(&mut self, change: &TxnEvent, now_ms: u64) {
        let deadline = change.expires.filter(|_| !change.event.deleted).map(|expires| now_ms.saturating_add(expires.ttl_ms));
        self.set(&change.event.entry.key, deadline);
    }

    /// Takes note of an entry that was read back: what is left of its time, and never more than its time.
    pub(crate) fn recovered(&mut self, key: &Key, expires: Option<Expires>, now_ms: u64, wall_ms: u64) {
        let deadline = expires.map(|expires| now_ms.saturating_add(expires.wall_ms.saturating_sub(wall_ms).min(expires.ttl_ms)));
        self.set(key, deadline);
    }

    fn set(&mut self, key: &Key, deadline: Option<u64>) {
        if self.by_key.is_empty() && deadline.is_none() {
            return;
        }
        if let Some(old) = self.by_key.remove(key) {
            self.by_time.remove(&(old, key.clone()));
        }
        if let Some(deadline) = deadline {
            self.by_key.insert(key.clone(), deadline);
            self.by_time.insert((deadline, key.clone()));
        }
    }

    /// How long until something is due.
    pub(crate) fn wait(&self, now_ms: u64) -> Option<Duration> {
        self.by_time.first().map(|(deadline, _)| Duration::from_millis(deadline.saturating_sub(now_ms)))
    }

    /// The keys that are due, at most `max`. They come again after a while unless their delete is published.
    pub(crate) fn due(&mut self, now_ms: u64, max: usize) -> Vec<Key> {
        let keys: Vec<Key> = self.by_time.iter().take_while(|(deadline, _)| *deadline <= now_ms).take(max).map(|(_, key)| key.clone()).collect();
        for key in &keys {
            self.set(key, Some(now_ms.saturating_add(RETRY_MS)));
        }
        keys
    }

    /// How many entries have a deadline.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}
