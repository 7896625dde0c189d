//! In-memory history of one resource, with the snapshots that lists at older revisions start from.

use crate::entry::Entry;
use crate::key::Revision;
use crate::map::EntryMap;
use crate::topic::Topic;
use crate::txn::Event;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Requested snapshots remembered: that many paginated lists at a time cost one replay each.
const ASKED: usize = 8;
/// Events of other topics passed by one read, which holds a lock.
const PASSED: usize = 1024;

/// Events in order, complete after `floor`.
pub(crate) struct EventLog {
    events: VecDeque<Event>,
    floor: Revision,
    /// Whether the floor's revision has several events, of which at least one was evicted.
    is_floor_shared: bool,
    /// Objects that the floor's revision wrote, if the log follows a state that has several.
    at_floor: Vec<Event>,
    since_kept: usize,
    kept: BTreeMap<Revision, EntryMap>,
    asked: VecDeque<(Revision, EntryMap)>,
}

/// Bounds one read, which ends with the event that reaches either of them.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    /// Number of events.
    pub events: usize,
    /// Bytes that they keep alive ([`Event::value_bytes`]).
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
                bytes += event.value_bytes();
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
            is_floor_shared: false,
            at_floor: Vec::new(),
            since_kept: 0,
            kept: BTreeMap::new(),
            asked: VecDeque::new(),
        }
    }

    /// The log after a state that was read at `floor`: the events that led there are unknown. A
    /// watch from there may have ended between those of its last revision, and gets the objects
    /// that this one wrote again: refusing it would let those list again, and at the same revision.
    pub(crate) fn after_state(floor: Revision, entries: &[Arc<Entry>]) -> Self {
        let written = entries.iter().filter(|entry| entry.revision == floor);
        let seen: Vec<Event> = written.map(Event::of_state).collect();
        let at_floor = if seen.len() > 1 { seen } else { Vec::new() };
        Self { at_floor, ..Self::new(floor) }
    }

    /// Events up to this revision were evicted.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// Lowest revision that a reader may have seen up to and miss nothing. If several objects
    /// changed at the floor, it may have seen only some of them.
    pub(crate) fn watched(&self) -> Revision {
        Revision(self.floor.0 + u64::from(self.is_floor_shared))
    }

    /// Appends an event. Retains the resulting state if `replay_events` have passed since the last
    /// retained one, and after each further event of that revision.
    pub(crate) fn push(&mut self, event: Event, map: &EntryMap, replay_events: usize) {
        self.since_kept += 1;
        let is_of_kept =
            self.kept.last_key_value().is_some_and(|(last, _)| *last == event.revision());
        if self.since_kept >= replay_events || is_of_kept {
            self.since_kept = 0;
            self.kept.insert(event.revision(), map.clone());
        }
        self.events.push_back(event);
    }

    /// Evicts the oldest `count` events. Returned, so that the caller frees them outside the lock.
    pub(crate) fn evict(&mut self, count: usize) -> (Vec<Event>, BTreeMap<Revision, EntryMap>) {
        let gone: Vec<Event> = self.events.drain(..count.min(self.events.len())).collect();
        if let Some(last) = gone.last() {
            let floor = last.revision();
            let before = gone.iter().nth_back(1).map(Event::revision);
            let after = self.events.front().map(Event::revision);
            self.is_floor_shared = [Some(self.floor), before, after].contains(&Some(floor));
            self.floor = floor;
            self.at_floor = Vec::new();
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

    /// Events of a topic for a watch from `revision`, before those that are read after it; see
    /// [`Self::after_state`].
    pub(crate) fn again(&self, revision: Revision, topic: &Topic) -> Vec<Event> {
        let events = self.at_floor.iter().filter(|event| event.revision() == revision);
        events.filter(|event| topic.concerns(event)).cloned().collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{CheckedEpoch, Sidecar};
    use crate::key::Prefix;

    fn entry(revision: u64, name: &str, len: usize) -> Arc<Entry> {
        let revision = Revision(revision);
        Arc::new(Entry {
            key: Prefix::new("pods").unwrap().key(Some("ns"), name).unwrap(),
            revision,
            create_revision: revision,
            bytes: vec![b' '; len].into(),
            sidecar: Sidecar::default(),
            checked: CheckedEpoch::default(),
        })
    }

    fn event(revision: u64, name: &str) -> Event {
        Event { entry: entry(revision, name, 10), previous: None, deleted: false }
    }

    fn revisions(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.revision().0).collect()
    }

    /// A log of one event at each of these revisions.
    fn log(revisions: &[u64]) -> EventLog {
        let (mut log, mut map) = (EventLog::new(Revision(0)), EntryMap::new());
        for (index, revision) in revisions.iter().enumerate() {
            let event = event(*revision, &format!("n{index}"));
            map.insert(event.entry.key.clone(), event.entry.clone());
            log.push(event, &map, 2);
        }
        log
    }

    #[test]
    fn a_read_is_bounded_by_the_values_that_its_events_replaced() {
        let shrunk = |revision| Event {
            entry: entry(revision, "a", 10),
            previous: Some(entry(revision - 1, "a", 1000)),
            deleted: false,
        };
        let events: Vec<Event> = (2..100).map(shrunk).collect();
        let most = ReadLimit { events: 50, bytes: 3000 };
        let (taken, reached) = most.of(&Topic::everything(), events.iter());
        assert_eq!((taken.len(), reached), (3, Some(Revision(4))), "the third one is too much");
    }

    #[test]
    fn a_long_row_of_other_topics_ends_a_read_between_two_revisions() {
        let passed = PASSED as u64;
        let most = ReadLimit { events: 50, bytes: 1 << 20 };
        let topic = Topic::name("wanted");
        // One event at the first revision, two at each of the others.
        let others = (3..2 * passed + 10).map(|number| event(number / 2, "other"));
        let others: Vec<Event> = others.chain([event(5000, "wanted")]).collect();
        let (taken, reached) = most.of(&topic, others.iter());
        let first = Revision(passed / 2 + 1);
        assert_eq!((taken.len(), reached), (0, Some(first)), "and all of the last revision");
        let rest = others.partition_point(|event| event.revision() <= first);
        assert_eq!(rest, PASSED + 1);
        let (taken, reached) = most.of(&topic, others[rest..].iter());
        assert_eq!((taken.len(), reached), (0, Some(Revision(passed + 1))));
        let (taken, reached) = most.of(&topic, others[others.len() - 9..].iter());
        assert_eq!((revisions(&taken), reached), (vec![5000], Some(Revision(5000))));
        // Each event of the topic allows for as many others.
        let mixed: Vec<Event> = (1..3 * passed)
            .map(|number| event(number, if number % 100 == 0 { "wanted" } else { "other" }))
            .collect();
        let (taken, reached) = most.of(&topic, mixed.iter());
        let few = passed / 100;
        assert_eq!((taken.len() as u64, reached), (few, Some(Revision(passed + few))));
    }

    #[test]
    fn a_revision_of_which_any_event_was_evicted_is_not_watched_from() {
        for count in 1..=3 {
            let mut log = log(&[1, 2, 2, 2, 3, 4]);
            log.evict(1);
            assert_eq!(log.watched(), Revision(1), "it was the only one");
            log.evict(count);
            assert_eq!((log.floor(), log.watched()), (Revision(2), Revision(3)), "{count} gone");
            while log.floor() < Revision(3) {
                assert_eq!(log.watched(), Revision(3), "one at a time");
                log.evict(1);
            }
            assert_eq!(log.watched(), Revision(3));
            log.evict(1);
            assert_eq!(log.watched(), Revision(4));
        }
    }

    #[test]
    fn a_retained_state_has_all_of_its_revision() {
        let log = log(&[1, 2, 2, 2, 3]);
        assert_eq!(log.kept.keys().map(|at| at.0).collect::<Vec<_>>(), [2]);
        assert_eq!(log.kept[&Revision(2)].len(), 4);
    }
}
