//! A cache's feed: list a resource, then follow its history, and list again when the history was
//! compacted.

use crate::catalog::Served;
use crate::pipeline::{Registry, prefix, view};
use ferrokube_apimachinery::document::Document;
use ferrokube_storage::{Cursor, Entry, Event, Key, Prefix, ReadLimit, Store, WatchError};
use std::sync::Arc;

/// Changes are given together up to so many, and so many bytes: their trees are in memory
/// afterwards.
const BATCH: ReadLimit = ReadLimit { events: 256, bytes: 2 << 20 };

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

/// What an [`Informer`] has found, not yet read: that may take long, and is up to its owner.
pub struct Found<'a> {
    served: &'a Served,
    what: What,
}

enum What {
    State(Vec<Arc<Entry>>),
    Events(Vec<Event>),
}

impl Found<'_> {
    /// Reads it: at least one notice.
    pub fn read(self) -> Vec<Notice> {
        let view = |entry: &Entry| Arc::new(view(entry, self.served));
        match self.what {
            What::State(entries) => vec![Notice::Replaced(
                entries.into_iter().map(|entry| (entry.key.clone(), view(&entry))).collect(),
            )],
            What::Events(events) => events
                .into_iter()
                .map(|event| {
                    let key = event.entry.key.clone();
                    if event.deleted {
                        Notice::Removed(key)
                    } else {
                        Notice::Changed(key, view(&event.entry))
                    }
                })
                .collect(),
        }
    }
}

/// Follows all objects of one resource, in one of its versions.
///
/// ```text
/// let mut informer = Informer::new(&registry, "rbac.authorization.k8s.io", "v1", "roles").expect("served");
/// let first = informer.snapshot();
/// while let Some(found) = informer.next().await { found.read() .. }
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

    /// The present state, at once; [`Self::next`] then gives what follows it. Without this call
    /// `next` begins with [`Notice::Replaced`].
    pub fn snapshot(&mut self) -> Vec<(Key, Arc<Document>)> {
        self.state()
            .into_iter()
            .map(|entry| (entry.key.clone(), Arc::new(view(&entry, &self.served))))
            .collect()
    }

    fn state(&mut self) -> Vec<Arc<Entry>> {
        loop {
            let snapshot = self.store.snapshot(&self.prefix);
            match self.store.watch(&self.prefix, snapshot.revision) {
                Ok(cursor) => self.cursor = Some(cursor),
                // The history moved on past the snapshot: take a newer one.
                Err(WatchError::Compacted(_)) => continue,
                // The store closes: `next` will say so.
                Err(_) => {}
            }
            return snapshot.range(None, None).cloned().collect();
        }
    }

    /// Waits for the next changes (at least one, bounded); `None` when the store closes. Cancel
    /// safe.
    pub async fn next(&mut self) -> Option<Found<'_>> {
        let what = match &mut self.cursor {
            None => {
                let state = self.state();
                self.cursor.is_some().then_some(What::State(state))?
            }
            Some(cursor) => match cursor.next_within(BATCH).await {
                Ok(events) => What::Events(events),
                Err(WatchError::Compacted(revision)) => {
                    tracing::warn!(prefix = self.prefix.as_str(), %revision, "a cache fell behind the history and lists again");
                    What::State(self.state())
                }
                Err(_) => return None,
            },
        };
        Some(Found { served: &self.served, what })
    }
}
