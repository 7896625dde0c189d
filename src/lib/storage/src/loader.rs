//! Loads the state and the history from a journal.

use crate::entry::Entry;
use crate::key::{Key, Revision};
use crate::published::{Published, PublishedResource, Retention, growth};
use crate::txn::Event;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Loader with exclusive access to a store that is not shared yet.
pub(crate) struct StateLoader<'a> {
    published: &'a Published,
    retention: MutexGuard<'a, Retention>,
    /// The last resource used, which is usually the next one too.
    resource: Option<Arc<PublishedResource>>,
    live: i64,
}

impl<'a> StateLoader<'a> {
    pub(crate) fn new(published: &'a Published, retention: MutexGuard<'a, Retention>) -> Self {
        Self { published, retention, resource: None, live: 0 }
    }

    /// Sets the revision at which the history starts. Called first.
    pub(crate) fn origin(&self, revision: Revision) {
        self.published.set_origin(revision);
    }

    fn resource(&mut self, key: &Key) -> Arc<PublishedResource> {
        match &self.resource {
            Some(resource) if resource.prefix.as_str() == key.prefix() => resource.clone(),
            _ => {
                let resource = self.published.resource(&key.to_prefix());
                self.resource.insert(resource).clone()
            }
        }
    }

    /// Loads an entry of the initial state, without an event; replaces any earlier one.
    pub(crate) fn entry(&mut self, entry: Arc<Entry>) {
        self.live += bytes(Some(&entry));
        let resource = self.resource(&entry.key);
        let before = resource.state.write().map.insert(entry.key.clone(), entry);
        self.live -= bytes(before.as_deref());
    }

    /// Removes a key from the initial state.
    pub(crate) fn absent(&mut self, key: &Key) {
        let resource = self.resource(key);
        let before = resource.state.write().map.remove(key);
        self.live -= bytes(before.as_deref());
    }

    pub(crate) fn present(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let resource = self.resource(key);
        let state = resource.state.read();
        state.map.get(key.as_str()).cloned()
    }

    /// Applies an event. Returns whether it replaced the entry that it claims to replace.
    pub(crate) fn event(&mut self, event: &Event) -> bool {
        self.live += growth(event);
        let resource = self.resource(&event.entry.key);
        // Retain no snapshots on the way: they would make every change copy a path of the tree.
        let before = resource.state.write().apply(event, usize::MAX);
        self.published.retain(&mut self.retention, resource, event);
        before.map(|before| before.revision)
            == event.previous.as_ref().map(|previous| previous.revision)
    }

    /// Ends loading at `revision`.
    pub(crate) fn end(&mut self, revision: Revision) {
        self.published.filled(&mut self.retention, revision, u64::try_from(self.live).unwrap_or(0));
    }
}

fn bytes(entry: Option<&Entry>) -> i64 {
    entry.map_or(0, |entry| i64::try_from(entry.bytes.len()).unwrap_or(i64::MAX))
}
