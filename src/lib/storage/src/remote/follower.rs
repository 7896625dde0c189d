//! Publishes what the feed gives.

use super::decoded::Decoding;
use super::{FeedItem, Remote, RemoteChange, RemoteFeed, WaitReport};
use crate::clock;
use crate::config::OpenError;
use crate::entry::{DraftEntry, Entry};
use crate::key::{Key, Revision};
use crate::txn::{Event, TxnEvent};
use std::collections::HashMap;
use std::sync::Arc;

impl Remote {
    /// Publishes the first state.
    pub(super) async fn load(
        self: &Arc<Self>,
        feed: &mut dyn RemoteFeed,
        waits: WaitReport<'_>,
    ) -> Result<(), OpenError> {
        let mut state = Decoding::new(self);
        loop {
            match feed.next().await {
                FeedItem::State { revision, values, is_first, is_last } => {
                    if is_first {
                        state = Decoding::new(self);
                    }
                    state.add(values).await;
                    if is_last {
                        self.replace(revision, state).await;
                        return Ok(());
                    }
                }
                FeedItem::Changes { .. } => {}
                FeedItem::Lost(why) => {
                    waits(&why);
                    self.lose(why);
                }
                FeedItem::Failed(why) => return Err(OpenError::Remote(why)),
            }
        }
    }

    /// Runs until the engine fails or the store is closed.
    pub(super) async fn follow(self: Arc<Self>, mut feed: Box<dyn RemoteFeed>) {
        let mut state = Decoding::new(&self);
        loop {
            match feed.next().await {
                FeedItem::State { revision, values, is_first, is_last } => {
                    if is_first {
                        state = Decoding::new(&self);
                    }
                    state.add(values).await;
                    if is_last {
                        tracing::warn!(%revision, "the history of the storage has a gap: watches from before it end");
                        let whole = std::mem::replace(&mut state, Decoding::new(&self));
                        self.replace(revision, whole).await;
                    }
                }
                FeedItem::Changes { revision, changes } => self.publish(revision, changes).await,
                FeedItem::Lost(why) => self.lose(why),
                FeedItem::Failed(why) => {
                    tracing::error!(why, "the storage failed: no more writes are accepted");
                    self.core.fail(&why);
                    self.core.end();
                    return;
                }
            }
        }
    }

    /// The feed is interrupted: writes of others may be missed.
    fn lose(&self, why: String) {
        self.sole.disturb();
        self.reach.lost(why);
    }

    async fn replace(&self, revision: Revision, state: Decoding) {
        let entries = state.end().await.into_iter().filter_map(|change| change.entry);
        self.sole.disturb();
        self.core.published.replace(entries.collect(), revision);
        self.reach.found();
    }

    async fn publish(self: &Arc<Self>, revision: Revision, mut changes: Vec<RemoteChange>) {
        let core = &self.core;
        let before = core.published.revision();
        changes.retain(|change| change.revision > before);
        let mut decoding = Decoding::new(self);
        decoding.add(changes).await;
        // Changes may follow each other on a key within the batch.
        let mut newest: HashMap<Key, Option<Arc<Entry>>> = HashMap::new();
        let mut events = Vec::new();
        for change in decoding.end().await {
            let previous = newest.get(&change.key).cloned();
            let previous = previous.unwrap_or_else(|| core.published.get(&change.key));
            let event = match (change.entry, previous) {
                (Some(entry), previous) => {
                    newest.insert(change.key, Some(Arc::clone(&entry)));
                    Event { entry, previous, deleted: false }
                }
                // Deleted, or replaced by what cannot be read.
                (None, Some(previous)) => {
                    newest.insert(change.key, None);
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
        let own = self.own.lock().deleted(&key, previous.revision);
        if own.is_none() && !self.codec.may_expire(&key) {
            self.sole.disturb();
        }
        let draft = match own.flatten() {
            Some(put) => DraftEntry::new([&put.value, b""], put.sidecar, revision),
            None => DraftEntry::new(previous.value(), previous.sidecar.clone(), revision),
        };
        Arc::new(draft.finish(key, revision, created))
    }
}
