//! Publishes what the feed gives.

use super::{FeedItem, Remote, RemoteChange, RemoteFeed, WaitReport};
use crate::clock;
use crate::config::OpenError;
use crate::entry::{DraftEntry, Entry, Sidecar};
use crate::key::{Key, Revision};
use crate::txn::{Event, TxnEvent};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

impl Remote {
    /// Publishes the first state.
    pub(super) async fn load(
        &self,
        feed: &mut dyn RemoteFeed,
        waits: WaitReport<'_>,
    ) -> Result<(), OpenError> {
        loop {
            match feed.next().await {
                FeedItem::State { revision, values } => {
                    self.replace(revision, values);
                    return Ok(());
                }
                FeedItem::Changes { .. } => {}
                FeedItem::Lost(why) => {
                    waits(&why);
                    self.reach.lost(why);
                }
                FeedItem::Failed(why) => return Err(OpenError::Remote(why)),
            }
        }
    }

    /// Runs until the engine fails or the store is closed.
    pub(super) async fn follow(self: Arc<Self>, mut feed: Box<dyn RemoteFeed>) {
        loop {
            match feed.next().await {
                FeedItem::State { revision, values } => {
                    tracing::warn!(%revision, "the history of the storage has a gap: watches from before it end");
                    self.replace(revision, values);
                }
                FeedItem::Changes { revision, changes } => self.publish(revision, changes),
                FeedItem::Lost(why) => self.reach.lost(why),
                FeedItem::Failed(why) => {
                    tracing::error!(why, "the storage failed: no more writes are accepted");
                    self.core.fail(&why);
                    self.core.end();
                    return;
                }
            }
        }
    }

    fn key(&self, text: &str) -> Option<Key> {
        let Some(prefix) = self.codec.prefix(text) else {
            self.unserved.note(text);
            return None;
        };
        let key = Key::from_journal(text, prefix.len());
        if key.is_none()
            && let Some(left_out) = self.unreadable.take()
        {
            tracing::error!(
                key = text,
                left_out,
                "a key in the storage is malformed: it is not served"
            );
        }
        key
    }

    /// The value in this store's form; `None` if it cannot be read.
    fn read(&self, key: &Key, value: &Bytes) -> Option<(Bytes, Sidecar)> {
        if let Some(own) = self.own.lock().written(key, value) {
            return Some(own);
        }
        match self.codec.read(key, value) {
            Ok((value, sidecar)) if sidecar.revision_at as usize <= value.len() => {
                Some((value, sidecar))
            }
            outcome => {
                let why = outcome.err().unwrap_or_else(|| "the codec is wrong".to_owned());
                if let Some(left_out) = self.unreadable.take() {
                    tracing::error!(
                        key = key.as_str(),
                        why,
                        left_out,
                        "a value in the storage cannot be read: it is not served"
                    );
                }
                None
            }
        }
    }

    fn entry(&self, key: Key, change: &RemoteChange, value: &Bytes) -> Option<Arc<Entry>> {
        let (value, sidecar) = self.read(&key, value)?;
        let draft = DraftEntry::new([&value, b""], sidecar, change.revision);
        Some(Arc::new(draft.finish(key, change.revision, change.create_revision)))
    }

    fn replace(&self, revision: Revision, values: Vec<RemoteChange>) {
        let mut entries = Vec::with_capacity(values.len());
        for change in values {
            let (Some(key), Some(value)) = (self.key(&change.key), &change.value) else { continue };
            let present = self.core.published.get(&key);
            let unchanged = present.filter(|entry| entry.revision == change.revision);
            entries.extend(unchanged.or_else(|| self.entry(key, &change, value)));
        }
        self.core.published.replace(entries, revision);
        self.reach.found();
    }

    fn publish(&self, revision: Revision, changes: Vec<RemoteChange>) {
        let core = &self.core;
        let before = core.published.revision();
        // Changes may follow each other on a key within the batch.
        let mut newest: HashMap<Key, Option<Arc<Entry>>> = HashMap::new();
        let mut events = Vec::with_capacity(changes.len());
        for change in changes.into_iter().filter(|change| change.revision > before) {
            let Some(key) = self.key(&change.key) else { continue };
            let previous = newest.get(&key).cloned();
            let previous = previous.unwrap_or_else(|| core.published.get(&key));
            let entry = match &change.value {
                Some(value) => self.entry(key.clone(), &change, value),
                None => None,
            };
            let event = match (entry, previous) {
                (Some(entry), previous) => {
                    newest.insert(key, Some(Arc::clone(&entry)));
                    Event { entry, previous, deleted: false }
                }
                // Deleted, or replaced by what cannot be read.
                (None, Some(previous)) => {
                    newest.insert(key, None);
                    let entry = self.last_state(&previous, change.revision);
                    Event { entry, previous: Some(previous), deleted: true }
                }
                (None, None) => continue,
            };
            events.push(TxnEvent { event, own_last: false, expires: None });
        }
        if revision > before || !events.is_empty() {
            let now_ms = clock::monotonic_ms(&*core.clock);
            let woken = core.published.publish(events.iter(), revision.max(before), now_ms);
            core.published.wake(&woken);
        }
        self.reach.found();
    }

    /// The state that a DELETED event shows.
    fn last_state(&self, previous: &Arc<Entry>, revision: Revision) -> Arc<Entry> {
        let (key, created) = (previous.key.clone(), previous.create_revision);
        let draft = match self.own.lock().last_state(&key, previous.revision) {
            Some(put) => DraftEntry::new([&put.value, b""], put.sidecar, revision),
            None => DraftEntry::new(previous.value(), previous.sidecar.clone(), revision),
        };
        Arc::new(draft.finish(key, revision, created))
    }
}
