//! Watch cursors. A cursor is a position and a topic, not a queue: an event costs nothing for a
//! cursor of another topic, and ten thousand watchers cost ten thousand small entries of an index.

use crate::key::{Prefix, Revision};
use crate::log::{LogRead, ReadLimit};
use crate::published::{Published, PublishedResource};
use crate::topic::{Subscription, Topic};
use crate::txn::Event;
use std::sync::Arc;

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Events after this revision were compacted; answered with 410.
    #[error("revision {0} is compacted")]
    Compacted(Revision),
    /// The store is closing.
    #[error("the store is closing")]
    Closed,
}

/// A watcher's position in the history of one resource, of which it reads one topic.
pub struct Cursor {
    published: Arc<Published>,
    resource: Arc<PublishedResource>,
    subscription: Arc<Subscription>,
    position: Revision,
    /// Events of the revision after the position, to be returned first.
    again: Vec<Event>,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.resource.state.write().subscriptions.remove(&self.subscription);
    }
}

impl Cursor {
    pub(crate) fn new(
        published: &Arc<Published>,
        prefix: &Prefix,
        topic: Topic,
        after: Revision,
    ) -> Result<Self, WatchError> {
        let resource = published.resource(prefix);
        let (is_gone, is_shared, again) = {
            let log = &resource.state.read().log;
            (after < log.watched(), log.at(after).nth(1).is_some(), log.again(after, &topic))
        };
        let in_archive =
            || published.replay_cache().archive().is_some_and(|archive| archive.floor() <= after);
        if (is_gone && !in_archive()) || published.is_unknown(after) {
            return Err(WatchError::Compacted(after));
        }
        // A watch may have ended between two events of one revision: give them all again.
        let is_repeated = is_shared || !again.is_empty();
        let position = if is_repeated { Revision(after.0 - 1) } else { after };
        let subscription = {
            let mut state = resource.state.write();
            let is_drained = again.is_empty() && state.log.drained(position);
            state.subscriptions.add(topic, is_drained)
        };
        Ok(Self { published: published.clone(), resource, subscription, position, again })
    }

    /// Seeded bug: unread events are taken for read.
    pub(crate) fn miss(&self) {
        self.subscription.clear();
    }

    /// Revision up to which every event of the topic was returned. Behind the published revision
    /// also if only other events follow.
    pub fn position(&self) -> Revision {
        self.position
    }

    /// Whether there may be events after the position. One load.
    pub fn is_behind(&self) -> bool {
        self.subscription.has_unread()
    }

    /// Waits for the next events, at least one and at most `max`, in order. Cancel safe.
    ///
    /// # Errors
    /// [`WatchError`]; `Closed` only after the last event was returned.
    pub async fn next(&mut self, max: usize) -> Result<Vec<Event>, WatchError> {
        self.next_within(ReadLimit { events: max, bytes: usize::MAX }).await
    }

    /// Like [`Self::next`], also bounded in bytes: a held event keeps its value alive.
    ///
    /// # Errors
    /// See [`Self::next`].
    pub async fn next_within(&mut self, most: ReadLimit) -> Result<Vec<Event>, WatchError> {
        if let Some(event) = self.again.first() {
            self.position = event.revision();
            return Ok(std::mem::take(&mut self.again));
        }
        loop {
            let closed = self.published.is_closed();
            // Without the lock: otherwise a thousand watchers that wait again after an event would
            // all take it to find nothing.
            if !self.subscription.has_unread() {
                if closed {
                    return Err(WatchError::Closed);
                }
                self.subscription.changed().await;
                continue;
            }
            let events = match self.read(most) {
                LogRead::Events { events, .. } => events,
                LogRead::Lagging(floor) => self.older(floor, most).await?,
            };
            if !events.is_empty() {
                return Ok(events);
            }
            // A long history may have no event of the topic.
            tokio::task::consume_budget().await;
        }
    }

    /// Reads from memory.
    fn read(&mut self, most: ReadLimit) -> LogRead {
        let state = self.resource.state.read();
        let from = self.subscription.read_after(self.position);
        let read = state.log.read(from, most, self.subscription.topic());
        if let LogRead::Events { reached, .. } = &read {
            self.position = *reached;
            if state.log.drained(self.position) {
                self.subscription.clear();
            }
        }
        read
    }

    /// Reads from the archive.
    async fn older(&mut self, until: Revision, most: ReadLimit) -> Result<Vec<Event>, WatchError> {
        let (position, prefix) = (self.position, &self.resource.prefix);
        let (archive, topic) = (self.published.replay_cache(), self.subscription.topic());
        let after = self.subscription.read_after(position);
        let older = archive.read(prefix, after, until, most, topic).await;
        // An archive that does not advance would be polled forever.
        let older = older.ok().filter(|older| older.reached > after);
        let older = older.ok_or(WatchError::Compacted(position))?;
        self.position = older.reached;
        Ok(older.events)
    }

    /// The revision for a bookmark: every event up to it was returned by [`Self::next`]. Loads the
    /// published revision first: its events are marked as unread before.
    pub fn bookmark(&self) -> Option<Revision> {
        let published = self.published.revision();
        let is_drained = || {
            let state = self.resource.state.read();
            let is_drained = state.log.drained(self.position);
            if is_drained {
                self.subscription.clear();
            }
            is_drained
        };
        let is_complete = !self.subscription.has_unread() || is_drained();
        (self.position <= published && is_complete).then_some(published)
    }
}
