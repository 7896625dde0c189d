//! Fills the state and the history from a journal.

use crate::entry::Entry;
use crate::key::{Key, Revision};
use crate::published::{Published, PublishedResource, Retention, growth};
use crate::sync;
use crate::txn::Event;
use std::sync::{Arc, MutexGuard};

/// Fills while nobody else uses it yet.
pub(crate) struct StateLoader<'a> {
    published: &'a Published,
    retention: MutexGuard<'a, Retention>,
    /// The one that was used last: mostly the next one too.
    resource: Option<Arc<PublishedResource>>,
    live: i64,
}

impl<'a> StateLoader<'a> {
    pub(crate) fn new(published: &'a Published, retention: MutexGuard<'a, Retention>) -> Self {
        Self { published, retention, resource: None, live: 0 }
    }

    /// The history begins after this revision; called before anything else.
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

    /// An entry that is there without an event; what it replaces is forgotten.
    pub(crate) fn entry(&mut self, entry: Arc<Entry>) {
        self.live += bytes(Some(&entry));
        let resource = self.resource(&entry.key);
        let before = sync::write(&resource.state).map.insert(entry.key.clone(), entry);
        self.live -= bytes(before.as_deref());
    }

    /// A key is not there, whatever was said before.
    pub(crate) fn absent(&mut self, key: &Key) {
        let resource = self.resource(key);
        let before = sync::write(&resource.state).map.remove(key);
        self.live -= bytes(before.as_deref());
    }

    /// What is there now.
    pub(crate) fn present(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let resource = self.resource(key);
        let state = sync::read(&resource.state);
        state.map.get(key.as_str()).cloned()
    }

    /// The next event; whether it has replaced what it says.
    pub(crate) fn event(&mut self, event: &Event) -> bool {
        self.live += growth(event);
        let resource = self.resource(&event.entry.key);
        // No states are kept on the way: they would make every change copy a path of the tree.
        let before = sync::write(&resource.state).apply(event, usize::MAX);
        self.published.retain(&mut self.retention, resource, event);
        before.map(|before| before.revision) == event.previous.as_ref().map(|previous| previous.revision)
    }

    /// Everything up to this revision was given.
    pub(crate) fn end(&mut self, revision: Revision) {
        self.published.filled(&mut self.retention, revision, u64::try_from(self.live).unwrap_or(0));
    }
}

fn bytes(entry: Option<&Entry>) -> i64 {
    entry.map_or(0, |entry| i64::try_from(entry.bytes.len()).unwrap_or(i64::MAX))
}
