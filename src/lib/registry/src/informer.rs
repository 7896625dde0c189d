//! List and watch of a resource within the process, for caches. Lists again when its history was
//! compacted.

use crate::catalog::Served;
use crate::pipeline::{Registry, prefix, view};
use ferrokube_apimachinery::document::Document;
use ferrokube_storage::{Cursor, Entry, Event, Key, Prefix, ReadLimit, Store, Topic, WatchError};
use std::sync::Arc;

/// Limits of a batch: its documents are in memory at once.
const BATCH: ReadLimit = ReadLimit { events: 256, bytes: 2 << 20 };

/// A change of the cache, in the order of the history.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The whole state: at the start, and after a compaction.
    Replaced(Vec<(Key, Arc<Document>)>),
    /// Added or changed.
    Changed(Key, Arc<Document>),
    /// Deleted.
    Removed(Key),
}

/// Changes that are not parsed yet. Parsing may take long, so the owner chooses where it runs.
pub struct InformerBatch<'a> {
    served: &'a Served,
    what: BatchContent,
}

enum BatchContent {
    State(Vec<Arc<Entry>>),
    Events(Vec<Event>),
}

impl InformerBatch<'_> {
    /// Parses the changes: at least one notice.
    pub fn read(self) -> Vec<Notice> {
        let view = |entry: &Entry| Arc::new(view(entry, self.served));
        match self.what {
            BatchContent::State(entries) => vec![Notice::Replaced(
                entries.into_iter().map(|entry| (entry.key.clone(), view(&entry))).collect(),
            )],
            BatchContent::Events(events) => events
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

/// Follows the objects of a resource in one of its versions.
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
    /// Objects elsewhere are neither parsed nor reported.
    namespace: Option<&'static str>,
    /// `None`: list next.
    cursor: Option<Cursor>,
}

impl Informer {
    /// `None` if the resource is not served or not stored.
    pub fn new(registry: &Registry, group: &str, version: &str, plural: &str) -> Option<Self> {
        let served = registry.catalog().find(group, version, plural)?;
        let prefix = prefix(&served).ok()?;
        Some(Self {
            store: registry.store().clone(),
            prefix,
            served,
            namespace: None,
            cursor: None,
        })
    }

    /// Follows one namespace only.
    #[must_use]
    pub fn within(mut self, namespace: &'static str) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Current state. [`Self::next`] continues from it; without this call it starts with
    /// [`Notice::Replaced`].
    pub fn snapshot(&mut self) -> Vec<(Key, Arc<Document>)> {
        self.state()
            .into_iter()
            .map(|entry| (entry.key.clone(), Arc::new(view(&entry, &self.served))))
            .collect()
    }

    fn state(&mut self) -> Vec<Arc<Entry>> {
        loop {
            let snapshot = self.store.snapshot(&self.prefix);
            let topic = self.namespace.map_or_else(Topic::everything, Topic::namespace);
            match self.store.watch_topic(&self.prefix, topic, snapshot.revision) {
                Ok(cursor) => self.cursor = Some(cursor),
                // The history moved past the snapshot: take a newer one.
                Err(WatchError::Compacted(_)) => continue,
                // The store is closing, which `next` reports.
                Err(_) => {}
            }
            return snapshot.range(self.namespace, None).cloned().collect();
        }
    }

    /// Waits for the next changes, at least one and at most a batch. `None` if the store closes.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<InformerBatch<'_>> {
        let what = match &mut self.cursor {
            None => {
                let state = self.state();
                self.cursor.is_some().then_some(BatchContent::State(state))?
            }
            Some(cursor) => match cursor.next_within(BATCH).await {
                Ok(events) => BatchContent::Events(events),
                Err(WatchError::Compacted(revision)) => {
                    tracing::warn!(prefix = self.prefix.as_str(), %revision, "a cache fell behind the history and lists again");
                    BatchContent::State(self.state())
                }
                Err(_) => return None,
            },
        };
        Some(InformerBatch { served: &self.served, what })
    }
}
