//! The existing quotas, and when each is counted again.

use super::{DEBOUNCE, MAX_PAUSE, PAUSES, QuotaKey};
use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;
use tokio::time::Instant;

/// Existing quotas by namespace and name.
#[derive(Default)]
pub(super) struct KnownQuotas(HashMap<String, BTreeMap<String, KnownQuota>>);

#[derive(Default)]
struct KnownQuota {
    /// How long the last recount took, and when it ended.
    took: Duration,
    ended: Option<Instant>,
    /// When the next recount is due. `None`: whenever the quota leaves the queue.
    due: Option<Instant>,
}

impl KnownQuotas {
    /// Whether the quota is a new one.
    pub(super) fn insert(&mut self, quota: &QuotaKey) -> bool {
        let quotas = self.0.entry(quota.namespace.clone()).or_default();
        let entry = quotas.entry(quota.name.clone());
        let is_new = matches!(entry, Entry::Vacant(_));
        entry.or_default();
        is_new
    }

    pub(super) fn remove(&mut self, quota: &QuotaKey) {
        let QuotaKey { namespace, name } = quota;
        let Some(quotas) = self.0.get_mut(namespace) else { return };
        quotas.remove(name);
        if quotas.is_empty() {
            self.0.remove(namespace);
        }
    }

    fn get_mut(&mut self, quota: &QuotaKey) -> Option<&mut KnownQuota> {
        self.0.get_mut(&quota.namespace)?.get_mut(&quota.name)
    }

    /// Makes a recount due after `delay`. An earlier one stays.
    pub(super) fn want(&mut self, quota: &QuotaKey, delay: Duration) {
        let due = Instant::now() + delay;
        if let Some(known) = self.get_mut(quota) {
            known.due = Some(known.due.map_or(due, |earlier| earlier.min(due)));
        }
    }

    /// Begins a recount: if one is due, or if the quota was edited and the last one ended a
    /// [rest](Self::rest) ago.
    ///
    /// # Errors
    /// The time until then.
    pub(super) fn begin(&mut self, quota: &QuotaKey, is_edited: bool) -> Result<(), Duration> {
        let rest = self.rest(&quota.namespace);
        let Some(known) = self.get_mut(quota) else { return Ok(()) };
        let now = Instant::now();
        let until = |when: Option<Instant>| {
            when.map_or(Duration::ZERO, |when| when.saturating_duration_since(now))
        };
        let mut left = until(known.due);
        if is_edited {
            left = left.min(until(known.ended.map(|ended| ended + rest)));
        }
        if !left.is_zero() {
            return Err(left);
        }
        known.due = None;
        Ok(())
    }

    /// A recount has ended.
    pub(super) fn took(&mut self, quota: &QuotaKey, took: Duration) {
        if let Some(known) = self.get_mut(quota) {
            (known.took, known.ended) = (took, Some(Instant::now()));
        }
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn keys(&self, namespace: &str) -> impl Iterator<Item = QuotaKey> {
        let names = self.0.get(namespace).into_iter().flat_map(BTreeMap::keys);
        names.map(move |name| QuotaKey { namespace: namespace.to_owned(), name: name.clone() })
    }

    /// Until the next recount of a namespace.
    pub(super) fn pause(&self, namespace: &str) -> Duration {
        (self.all(namespace) * PAUSES).clamp(DEBOUNCE, MAX_PAUSE)
    }

    /// Until a quota is read again, which may have been edited: an edit ends the pause.
    pub(super) fn rest(&self, namespace: &str) -> Duration {
        self.all(namespace).clamp(DEBOUNCE, MAX_PAUSE)
    }

    fn all(&self, namespace: &str) -> Duration {
        self.0.get(namespace).into_iter().flat_map(BTreeMap::values).map(|known| known.took).sum()
    }
}
