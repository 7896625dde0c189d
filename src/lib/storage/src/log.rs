//! In-memory history of one resource, with the snapshots that lists at older revisions start from.

use crate::key::Revision;
use crate::map::EntryMap;
use crate::topic::Topic;
use crate::txn::Event;
use std::collections::{BTreeMap, VecDeque};

/// Requested snapshots remembered: that many paginated lists at a time cost one replay each.
const ASKED: usize = 8;
/// Events of other topics passed by one read, which holds a lock.
const PASSED: usize = 1024;

/// Events in order, complete after `floor`.
pub(crate) struct EventLog {
    events: VecDeque<Event>,
    floor: Revision,
    since_kept: usize,
    kept: BTreeMap<Revision, EntryMap>,
    asked: VecDeque<(Revision, EntryMap)>,
}

/// Bounds one read, which ends with the event that reaches either of them.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    /// Number of events.
    pub events: usize,
    /// Bytes of their values.
    pub bytes: usize,
}

impl ReadLimit {
    /// Takes events of a topic up to the limit, and all of a revision. Also returns the revision of
    /// the last event read: none is taken if a long row of events is of other topics.
    pub(crate) fn of<'a>(
        self,
        topic: &Topic,
        events: impl Iterator<Item = &'a Event>,
    ) -> (Vec<Event>, Option<Revision>) {
        let (mut taken, mut bytes, mut reached) = (Vec::new(), 0, None);
        for (read, event) in events.enumerate() {
            let is_full =
                taken.len() >= self.events || bytes >= self.bytes || read >= taken.len() + PASSED;
            if is_full && reached.is_some_and(|reached| reached < event.revision()) {
                break;
            }
            reached = Some(event.revision());
            if topic.concerns(event) {
                bytes += event.entry.bytes.len();
                taken.push(event.clone());
            }
        }
        (taken, reached)
    }
}

/// Result of reading a log at a position.
pub(crate) enum LogRead {
    /// The next events, and the revision up to which all were read.
    Events { events: Vec<Event>, reached: Revision },
    /// Events up to this revision were evicted.
    Lagging(Revision),
}

impl EventLog {
    /// An empty log that is complete after `floor`.
    pub(crate) fn new(floor: Revision) -> Self {
        Self {
            events: VecDeque::new(),
            floor,
            since_kept: 0,
            kept: BTreeMap::new(),
            asked: VecDeque::new(),
        }
    }

    /// Events up to this revision were evicted.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// Appends an event. Retains the resulting state if `replay_events` have passed since the last
    /// retained one.
    pub(crate) fn push(&mut self, event: Event, map: &EntryMap, replay_events: usize) {
        self.since_kept += 1;
        if self.since_kept >= replay_events {
            self.since_kept = 0;
            self.kept.insert(event.revision(), map.clone());
        }
        self.events.push_back(event);
    }

    /// Evicts the oldest `count` events. Returned, so that the caller frees them outside the lock.
    pub(crate) fn evict(&mut self, count: usize) -> (Vec<Event>, BTreeMap<Revision, EntryMap>) {
        let gone: Vec<Event> = self.events.drain(..count.min(self.events.len())).collect();
        if let Some(last) = gone.last() {
            self.floor = last.revision();
        }
        let kept = self.kept.split_off(&self.floor);
        self.asked.retain(|(revision, _)| *revision >= self.floor);
        (gone, std::mem::replace(&mut self.kept, kept))
    }

    /// The next events of a topic after `position`.
    pub(crate) fn read(&self, position: Revision, most: ReadLimit, topic: &Topic) -> LogRead {
        if position < self.floor {
            return LogRead::Lagging(self.floor);
        }
        let (events, reached) = most.of(topic, self.events.range(self.index(position)..));
        LogRead::Events { events, reached: reached.unwrap_or(position) }
    }

    /// Whether no event follows `position`.
    pub(crate) fn drained(&self, position: Revision) -> bool {
        position >= self.events.back().map_or(self.floor, Event::revision)
    }

    /// Events after a revision.
    pub(crate) fn after(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        self.events.range(self.index(revision)..)
    }

    /// Events at a revision: several only if a remote engine's transaction changed several objects
    /// of the resource.
    pub(crate) fn at(&self, revision: Revision) -> impl Iterator<Item = &Event> {
        let end = self.index(revision);
        let events = self.events.range(..end).rev();
        events.take_while(move |event| event.revision() == revision)
    }

    /// Recipe for the state at `revision`, which must not be below the floor.
    pub(crate) fn replay(&self, revision: Revision, current: &EntryMap) -> Replay {
        let target = self.index(revision);
        let starts = self
            .kept
            .iter()
            .map(|(revision, map)| (*revision, map))
            .chain(self.asked.iter().map(|(revision, map)| (*revision, map)));
        let (mut from, mut map) = (self.events.len(), current);
        for (start, candidate) in starts {
            let index = self.index(start);
            if index.abs_diff(target) < from.abs_diff(target) {
                (from, map) = (index, candidate);
            }
        }
        let events = self.events.range(from.min(target)..from.max(target)).cloned().collect();
        Replay { map: map.clone(), events, backwards: from > target }
    }

    /// Remembers a requested snapshot.
    pub(crate) fn remember(&mut self, revision: Revision, map: EntryMap) {
        if revision < self.floor || self.asked.iter().any(|(known, _)| *known == revision) {
            return;
        }
        if self.asked.len() == ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((revision, map));
    }

    /// Releases excess capacity.
    pub(crate) fn shrink(&mut self) {
        if self.events.capacity() > 4 * self.events.len() {
            self.events.shrink_to(2 * self.events.len());
        }
    }

    /// Number of events held.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    fn index(&self, revision: Revision) -> usize {
        self.events.partition_point(|event| event.revision() <= revision)
    }
}

/// A snapshot and the events from it to the wanted state.
pub(crate) struct Replay {
    map: EntryMap,
    events: Vec<Event>,
    backwards: bool,
}

impl Replay {
    /// Applies the events. The second value says whether there were any.
    pub(crate) fn run(mut self) -> (EntryMap, bool) {
        let worked = !self.events.is_empty();
        if self.backwards {
            for event in self.events.into_iter().rev() {
                self.map.undo(&event.entry.key, event.previous);
            }
        } else {
            for event in self.events {
                if event.deleted {
                    self.map.remove(&event.entry.key);
                } else {
                    self.map.insert(event.entry.key.clone(), event.entry);
                }
            }
        }
        (self.map, worked)
    }
}
