//! The existing quotas, and when each is counted again.

use super::{DEBOUNCE, MAX_PAUSE, PAUSES, QuotaKey};
use std::collections::HashMap;
use std::collections::btree_map::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Existing quotas by namespace. A deletion, or a change of a quota, costs the same however many a
/// namespace has: only [`Self::want_all`] reads all of them.
#[derive(Default)]
pub(super) struct KnownQuotas(HashMap<String, NamespaceQuotas>);

#[derive(Default)]
struct NamespaceQuotas {
    by_name: BTreeMap<String, KnownQuota>,
    /// How long the last recounts took, of all of them.
    took: Duration,
}

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
        let quotas = &mut self.0.entry(quota.namespace.clone()).or_default().by_name;
        let count = quotas.len();
        quotas.entry(quota.name.clone()).or_default();
        quotas.len() > count
    }

    pub(super) fn remove(&mut self, quota: &QuotaKey) {
        let QuotaKey { namespace, name } = quota;
        let Some(quotas) = self.0.get_mut(namespace) else { return };
        if let Some(removed) = quotas.by_name.remove(name) {
            quotas.took -= removed.took;
        }
        if quotas.by_name.is_empty() {
            self.0.remove(namespace);
        }
    }

    fn get_mut(&mut self, quota: &QuotaKey) -> Option<&mut KnownQuota> {
        self.0.get_mut(&quota.namespace)?.by_name.get_mut(&quota.name)
    }

    /// Makes a recount due after `delay`. An earlier one stays.
    pub(super) fn want(&mut self, quota: &QuotaKey, delay: Duration) {
        if let Some(known) = self.get_mut(quota) {
            known.want_at(Instant::now() + delay);
        }
    }

    /// Makes recounts of all quotas of a namespace due; returns these.
    pub(super) fn want_all(&mut self, namespace: &str) -> Vec<QuotaKey> {
        let Some(quotas) = self.0.get_mut(namespace) else { return Vec::new() };
        let now = Instant::now();
        let want = |(name, known): (&String, &mut KnownQuota)| {
            known.want_at(now);
            QuotaKey { namespace: namespace.to_owned(), name: name.clone() }
        };
        quotas.by_name.iter_mut().map(want).collect()
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
        let Some(quotas) = self.0.get_mut(&quota.namespace) else { return };
        if let Some(known) = quotas.by_name.get_mut(&quota.name) {
            quotas.took = quotas.took - known.took + took;
            (known.took, known.ended) = (took, Some(Instant::now()));
        }
    }

    /// Whether a namespace has quotas.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.0.contains_key(namespace)
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
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
        self.0.get(namespace).map_or(Duration::ZERO, |quotas| quotas.took)
    }
}

impl KnownQuota {
    fn want_at(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }
}
