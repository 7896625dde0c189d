//! The published state as a journal would hold it.

use crate::clock::{self, Clock};
use crate::entry::Entry;
use crate::expiry::Expiry;
use crate::key::Key;
use crate::map::EntryMap;
use crate::published::{Published, PublishedResource};
use crate::txn::Expires;
use std::collections::HashMap;
use std::sync::Arc;

/// The committer's view of the state. Between batches it is exactly the journaled state.
pub(crate) struct LiveState<'a> {
    pub(crate) published: &'a Published,
    pub(crate) expiry: &'a Expiry,
    pub(crate) clock: &'a dyn Clock,
}

impl LiveState<'_> {
    /// The state as of now. Shares the values.
    pub(crate) fn image(&self) -> StateImage {
        let resources = self.published.resources();
        let map = |resource: &PublishedResource| {
            let prefix = resource.prefix.as_str().into();
            (prefix, resource.state.read().map.clone())
        };
        StateImage {
            maps: resources.values().map(|resource| map(resource)).collect(),
            expires: self.expiry.all(clock::monotonic_ms(self.clock), clock::wall_ms(self.clock)),
        }
    }
}

/// The state at one revision.
pub(crate) struct StateImage {
    /// By prefix.
    maps: HashMap<Box<str>, EntryMap>,
    expires: HashMap<Key, Expires>,
}

impl StateImage {
    pub(crate) fn has(&self, prefix: &str, key: &str) -> bool {
        self.maps.get(prefix).is_some_and(|map| map.get(key).is_some())
    }

    pub(crate) fn expires(&self, key: &Key) -> Option<Expires> {
        self.expires.get(key).copied()
    }

    /// All entries, by revision.
    pub(crate) fn entries(&self) -> Vec<&Arc<Entry>> {
        use std::ops::Bound::Unbounded;
        let mut entries: Vec<&Arc<Entry>> =
            self.maps.values().flat_map(|map| map.range(Unbounded, Unbounded)).collect();
        entries.sort_unstable_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
        entries
    }
}
