//! A cache's feed: list a resource, then follow its history, and list again when the history was compacted.

use crate::catalog::Served;
use crate::pipeline::{Registry, prefix, view};
use ferrokube_apimachinery::document::Document;
use ferrokube_storage::{Cursor, Event, Key, Prefix, Store, WatchError};
use std::sync::Arc;

/// At most so many notices of changes at once.
const BATCH: usize = 256;

/// What an informer tells its owner, in the history's order.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Forget everything: this is all there is (at the start, and after a compaction).
    Replaced(Vec<(Key, Arc<Document>)>),
    /// New or changed.
    Changed(Key, Arc<Document>),
    /// Gone.
    Removed(Key),
}

/// Follows all objects of one resource, in one of its versions.
///
/// ```text
/// let mut informer = Informer::new(&registry, "rbac.authorization.k8s.io", "v1", "roles").expect("served");
/// let first = informer.snapshot();
/// while let Some(notices) = informer.next().await { .. }
/// ```
pub struct Informer {
    store: Store,
    prefix: Prefix,
    served: Served,
    /// `None`: list first.
    cursor: Option<Cursor>,
}

impl Informer {
    /// For one resource; `None` when it is not served or not stored.
    pub fn new(registry: &Registry, group: &str, version: &str, plural: &str) -> Option<Self> {
        let served = registry.catalog().find(group, version, plural)?;
        let prefix = prefix(&served).ok()?;
        Some(Self { store: registry.store().clone(), prefix, served, cursor: None })
    }

    /// The present state, at once; [`Self::next`] then gives what follows it. Without this call `next` begins with [`Notice::Replaced`].
    pub fn snapshot(&mut self) -> Vec<(Key, Arc<Document>)> {
        loop {
            let snapshot = self.store.snapshot(&self.prefix);
            match self.store.watch(&self.prefix, snapshot.revision) {
                Ok(cursor) => self.cursor = Some(cursor),
                // The history moved on past the snapshot: take a newer one.
                Err(WatchError::Compacted(_)) => continue,
                // The store closes: `next` will say so.
                Err(_) => {}
            }
            return snapshot.range(None, None).map(|entry| (entry.key.clone(), Arc::new(view(entry, &self.served)))).collect();
        }
    }

    /// Waits for the next notices (at least one, bounded); `None` when the store closes. Cancel safe.
    pub async fn next(&mut self) -> Option<Vec<Notice>> {
        let Some(cursor) = &mut self.cursor else {
            let state = self.snapshot();
            return self.cursor.is_some().then(|| vec![Notice::Replaced(state)]);
        };
        match cursor.next(BATCH).await {
            Ok(events) => Some(events.into_iter().map(|event| self.notice(event)).collect()),
            Err(WatchError::Compacted(revision)) => {
                tracing::warn!(prefix = self.prefix.as_str(), %revision, "a cache fell behind the history and lists again");
                Some(vec![Notice::Replaced(self.snapshot())])
            }
            Err(_) => None,
        }
    }

    fn notice(&self, event: Event) -> Notice {
        let key = event.entry.key.clone();
        if event.deleted { Notice::Removed(key) } else { Notice::Changed(key, Arc::new(view(&event.entry, &self.served))) }
    }
}
