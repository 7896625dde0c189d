//! Watch cursors. A cursor is a position, not a queue, so ten thousand watchers cost ten thousand
//! integers.

use crate::key::{Prefix, Revision};
use crate::log::{LogRead, ReadLimit};
use crate::published::{Published, PublishedResource};
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

/// A watcher's position in the history of one resource.
pub struct Cursor {
    published: Arc<Published>,
    resource: Arc<PublishedResource>,
    position: Revision,
}

impl Cursor {
    pub(crate) fn new(
        published: &Arc<Published>,
        prefix: &Prefix,
        after: Revision,
    ) -> Result<Self, WatchError> {
        let resource = published.resource(prefix);
        let (floor, is_shared) = {
            let log = &resource.state.read().log;
            (log.floor(), log.at(after).nth(1).is_some())
        };
        let in_archive =
            || published.replay_cache().archive().is_some_and(|archive| archive.floor() <= after);
        if (after < floor && !in_archive()) || published.is_unknown(after) {
            return Err(WatchError::Compacted(after));
        }
        // A watch may have ended between two events of one revision: give them all again.
        let position = if is_shared { Revision(after.0 - 1) } else { after };
        Ok(Self { published: published.clone(), resource, position })
    }

    /// Last revision up to which every event was returned or skipped.
    pub fn position(&self) -> Revision {
        self.position
    }

    /// Whether events after the position were published. One load.
    pub fn is_behind(&self) -> bool {
        self.resource.has_after(self.position)
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
        loop {
            // Register before reading the log, so that a publish in between wakes us.
            let changed = self.resource.changed.notified();
            let closed = self.published.is_closed();
            // Check without the lock: otherwise a thousand watchers that wait again after an event
            // would all take it to find nothing.
            let read = if self.resource.has_after(self.position) || closed {
                self.resource.state.read().log.read(self.position, most)
            } else {
                LogRead::Events(Vec::new())
            };
            match read {
                LogRead::Events(events) if !events.is_empty() => {
                    drop(changed);
                    return Ok(self.give(events));
                }
                LogRead::Events(_) if closed => return Err(WatchError::Closed),
                LogRead::Events(_) => changed.await,
                LogRead::Lagging(floor) => {
                    drop(changed);
                    let events = self.older(floor, most).await?;
                    if !events.is_empty() {
                        return Ok(self.give(events));
                    }
                }
            }
        }
    }

    fn give(&mut self, events: Vec<Event>) -> Vec<Event> {
        self.position = events.last().map_or(self.position, Event::revision);
        events
    }

    /// Reads from the archive; advances the position if it holds nothing for this resource.
    async fn older(&mut self, until: Revision, most: ReadLimit) -> Result<Vec<Event>, WatchError> {
        let after = self.position;
        let older =
            self.published.replay_cache().read(&self.resource.prefix, after, until, most).await?;
        if older.events.is_empty() {
            // An archive that does not advance would be polled forever.
            if older.reached <= after {
                return Err(WatchError::Compacted(after));
            }
            self.position = older.reached;
        }
        Ok(older.events)
    }

    /// The revision for a bookmark: every event up to it was returned by [`Self::next`]. Loads the
    /// published revision first, then requires a drained log.
    pub fn bookmark(&self) -> Option<Revision> {
        let published = self.published.revision();
        (self.position <= published && self.resource.state.read().log.drained(self.position))
            .then_some(published)
    }
}
