//! The history of one resource in memory, and the states that lists at an older revision start from.

use crate::key::Revision;
use crate::map::EntryMap;
use crate::txn::Event;
use std::collections::{BTreeMap, VecDeque};

/// How many states that were asked for are remembered: the pages of so many lists at a time cost one replay each.
const ASKED: usize = 8;

/// Events in order. What was dropped from its front is at most `floor`.
pub(crate) struct EventLog {
    events: VecDeque<Event>,
    floor: Revision,
    since_kept: usize,
    kept: BTreeMap<Revision, EntryMap>,
    asked: VecDeque<(Revision, EntryMap)>,
}

/// How much a reader takes at once: it ends with the event that reaches either bound.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    /// Events.
    pub events: usize,
    /// Bytes of their values.
    pub bytes: usize,
}

impl ReadLimit {
    /// The first of some events; at least one if there is any.
    pub(crate) fn of<'a>(self, events: impl Iterator<Item = &'a Event>) -> Vec<Event> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for event in events {
            taken.push(event.clone());
            bytes += event.entry.bytes.len();
            if taken.len() >= self.events || bytes >= self.bytes {
                break;
            }
        }
        taken
    }
}

/// What a reader of the log finds after its position.
pub(crate) enum LogRead {
    /// The next events; none when it is drained.
    Events(Vec<Event>),
    /// Events up to this revision are no longer here.
    Lagging(Revision),
}

impl EventLog {
    /// A log that is complete after `floor`.
    pub(crate) fn new(floor: Revision) -> Self {
        Self { events: VecDeque::new(), floor, since_kept: 0, kept: BTreeMap::new(), asked: VecDeque::new() }
    }

    /// Events up to here are gone.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// Appends; keeps the state after the event when `replay_events` went by since the last kept one.
    pub(crate) fn push(&mut self, event: Event, map: &EntryMap, replay_events: usize) {
        self.since_kept += 1;
        if self.since_kept >= replay_events {
            self.since_kept = 0;
            self.kept.insert(event.revision(), map.clone());
        }
        self.events.push_back(event);
    }

    /// Drops the oldest `count` events; the caller frees them outside of its lock.
    pub(crate) fn evict(&mut self, count: usize) -> (Vec<Event>, BTreeMap<Revision, EntryMap>) {
        let gone: Vec<Event> = self.events.drain(..count.min(self.events.len())).collect();
        if let Some(last) = gone.last() {
            self.floor = last.revision();
        }
        let kept = self.kept.split_off(&self.floor);
        self.asked.retain(|(revision, _)| *revision >= self.floor);
        (gone, std::mem::replace(&mut self.kept, kept))
    }

    /// The next events after `position`: at least one if there is any.
    pub(crate) fn read(&self, position: Revision, most: ReadLimit) -> LogRead {
        if position < self.floor {
            return LogRead::Lagging(self.floor);
        }
        LogRead::Events(most.of(self.events.range(self.index(position)..)))
    }

    /// Whether nothing follows `position`.
    pub(crate) fn drained(&self, position: Revision) -> bool {
        position >= self.events.back().map_or(self.floor, Event::revision)
    }

    /// How to get the state at `revision`, which must not be below the floor, from `current`.
    pub(crate) fn replay(&self, revision: Revision, current: &EntryMap) -> Replay {
        let target = self.index(revision);
        let starts = self.kept.iter().map(|(revision, map)| (*revision, map)).chain(self.asked.iter().map(|(revision, map)| (*revision, map)));
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

    /// Remembers a state that was asked for.
    pub(crate) fn remember(&mut self, revision: Revision, map: EntryMap) {
        if revision < self.floor || self.asked.iter().any(|(known, _)| *known == revision) {
            return;
        }
        if self.asked.len() == ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((revision, map));
    }

    /// Gives back room that events no longer need.
    pub(crate) fn shrink(&mut self) {
        if self.events.capacity() > 4 * self.events.len() {
            self.events.shrink_to(2 * self.events.len());
        }
    }

    /// How many events are held.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    fn index(&self, revision: Revision) -> usize {
        self.events.partition_point(|event| event.revision() <= revision)
    }
}

/// A state and the events between it and the one that is wanted.
pub(crate) struct Replay {
    map: EntryMap,
    events: Vec<Event>,
    backwards: bool,
}

impl Replay {
    /// Does it; the second value says whether it took any work.
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
