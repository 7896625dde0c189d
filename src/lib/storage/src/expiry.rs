//! Deadlines of published entries. Owned by the committer, which deletes expired entries with
//! ordinary transactions.

use crate::key::Key;
use crate::txn::{Expires, TxnEvent};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Delay before a delete that did not go through is retried.
const RETRY_MS: u64 = 1000;

/// Deadlines by time and by key, at most one per key.
#[derive(Default)]
pub(crate) struct Expiry {
    by_key: HashMap<Key, u64>,
    by_time: BTreeSet<(u64, Key)>,
}

impl Expiry {
    /// Records a published change. `now_ms` is monotonic.
    pub(crate) fn published(&mut self, change: &TxnEvent, now_ms: u64) {
        let deadline = change
            .expires
            .filter(|_| !change.event.deleted)
            .map(|expires| now_ms.saturating_add(expires.ttl_ms));
        self.set(&change.event.entry.key, deadline);
    }

    /// Records a recovered entry: its remaining time, at most its full TTL.
    pub(crate) fn recovered(
        &mut self,
        key: &Key,
        expires: Option<Expires>,
        now_ms: u64,
        wall_ms: u64,
    ) {
        let deadline = expires.map(|expires| {
            now_ms.saturating_add(expires.wall_ms.saturating_sub(wall_ms).min(expires.ttl_ms))
        });
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

    /// Time until the next deadline.
    pub(crate) fn wait(&self, now_ms: u64) -> Option<Duration> {
        self.by_time
            .first()
            .map(|(deadline, _)| Duration::from_millis(deadline.saturating_sub(now_ms)))
    }

    /// Expired keys, at most `max`. Each comes up again after [`RETRY_MS`] unless its delete is
    /// published.
    pub(crate) fn due(&mut self, now_ms: u64, max: usize) -> Vec<Key> {
        let keys: Vec<Key> = self
            .by_time
            .iter()
            .take_while(|(deadline, _)| *deadline <= now_ms)
            .take(max)
            .map(|(_, key)| key.clone())
            .collect();
        for key in &keys {
            self.set(key, Some(now_ms.saturating_add(RETRY_MS)));
        }
        keys
    }

    /// The deadlines as they would be journaled now.
    pub(crate) fn all(&self, now_ms: u64, wall_ms: u64) -> HashMap<Key, Expires> {
        let expires = |(key, deadline): (&Key, &u64)| {
            let ttl_ms = deadline.saturating_sub(now_ms);
            (key.clone(), Expires { ttl_ms, wall_ms: wall_ms.saturating_add(ttl_ms) })
        };
        self.by_key.iter().map(expires).collect()
    }

    /// Number of deadlines.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}
