//! Judges what clients of several stores saw by the one history that there is.
//!
//! Revisions are a total order, so replaying the history tells at each of them what is stored. From
//! that follows what an acknowledged write, a linearizable read and a watch may have seen; no
//! search for an order is needed.

use super::shared::stored_text;
use super::{has_fields, text};
use crate::remote::RemoteChange;
use crate::{Event, Key, Revision};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Violations that are listed.
const MAX_LISTED: usize = 20;

/// Value of a key: the revision and the text; `None`: absent.
pub type SeenValue = Option<(Revision, String)>;

/// An event, as a watch gave it or as the history has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedEvent {
    /// Key of the changed value.
    pub key: Key,
    /// At which it changed.
    pub revision: Revision,
    /// Text; `None`: deleted.
    pub text: Option<String>,
}

impl JudgedEvent {
    /// An event of a watch.
    pub fn new(event: &Event) -> Self {
        Self {
            key: event.entry.key.clone(),
            revision: event.revision(),
            text: (!event.deleted).then(|| text(&event.entry)),
        }
    }

    /// An event of an engine's history; `None` for a key or a value that is not of the tests.
    pub fn of(change: &RemoteChange) -> Option<Self> {
        let prefix = change.key.match_indices('/').nth(2)?.0 + 1;
        let read = |value: &Bytes| stored_text(std::str::from_utf8(value).ok()?).map(str::to_owned);
        let text = match &change.value {
            Some(value) => Some(read(value)?),
            None => None,
        };
        let key = Key::from_journal(&change.key, prefix)?;
        Some(Self { key, revision: change.revision, text })
    }
}

/// Outcome of a write for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// It happened, at this revision.
    Written(Revision),
    /// It happened; its client was not told where, as for a delete over HTTP.
    Done,
    /// It did not happen.
    Refused,
    /// The outcome is unknown.
    Unknown,
}

#[derive(Clone, Debug)]
enum Act {
    /// A linearizable read.
    Read(SeenValue),
    /// A write of a text that no other write has, or a delete, which is guarded by a revision, or
    /// by the absence of the key.
    Write { text: Option<String>, guard: Option<Revision>, outcome: Acknowledgement },
}

/// A write of a client.
#[derive(Clone, Debug)]
pub struct JudgedWrite {
    /// A text that no other write has; `None`: a delete.
    pub text: Option<String>,
    /// The revision that guards it; `None`: the absence of the key.
    pub guard: Option<Revision>,
    /// Reply of the store.
    pub outcome: Acknowledgement,
}

/// An operation of a client, with its time span.
#[derive(Clone, Debug)]
struct ClientOperation {
    began: u64,
    ended: u64,
    store: usize,
    key: Key,
    act: Act,
}

/// A watch, from its start until it ended.
#[derive(Debug)]
pub struct WatchRecord {
    /// Index of the store that gave the events.
    pub store: usize,
    /// Whether it is of the topic of values without fields ([`has_fields`]).
    pub is_of_topic: bool,
    /// Events after this one.
    pub after: Revision,
    /// Every event up to here is expected; `None`: up to the last one given.
    pub until: Option<Revision>,
    /// In the order given.
    pub events: Vec<JudgedEvent>,
}

/// Operations and observations of all clients; clones share it.
#[derive(Clone, Debug, Default)]
pub struct ClientRecorder(Arc<Mutex<ClientRecord>>);

#[derive(Debug, Default)]
struct ClientRecord {
    moment: u64,
    operations: Vec<ClientOperation>,
    watches: Vec<WatchRecord>,
}

impl ClientRecorder {
    /// A moment after all others so far.
    pub fn now(&self) -> u64 {
        let mut record = self.0.lock();
        record.moment += 1;
        record.moment
    }

    /// Notes a read that began at a moment and ends now.
    pub fn read(&self, store: usize, began: u64, key: &Key, seen: SeenValue) {
        self.note(store, began, key, Act::Read(seen));
    }

    /// Notes a write that began at a moment and ends now.
    pub fn write(&self, store: usize, began: u64, key: &Key, write: JudgedWrite) {
        let JudgedWrite { text, guard, outcome } = write;
        self.note(store, began, key, Act::Write { text, guard, outcome });
    }

    fn note(&self, store: usize, began: u64, key: &Key, act: Act) {
        let ended = self.now();
        let key = key.clone();
        self.0.lock().operations.push(ClientOperation { began, ended, store, key, act });
    }

    /// Notes a watch that ended.
    pub fn watch(&self, watch: WatchRecord) {
        self.0.lock().watches.push(watch);
    }

    /// Number of acknowledged writes, of reads, and of events that watches gave.
    pub fn counts(&self) -> [usize; 3] {
        let record = self.0.lock();
        let is_written = |operation: &&ClientOperation| {
            use Acknowledgement::{Done, Written};
            matches!(operation.act, Act::Write { outcome: Written(_) | Done, .. })
        };
        let is_read = |operation: &&ClientOperation| matches!(operation.act, Act::Read(_));
        let events = record.watches.iter().map(|watch| watch.events.len());
        [
            record.operations.iter().filter(is_written).count(),
            record.operations.iter().filter(is_read).count(),
            events.sum(),
        ]
    }

    /// Contradictions to the history, which is complete.
    pub fn violations(&self, history: &[JudgedEvent]) -> Vec<String> {
        let record = self.0.lock();
        let mut judge = Judge::new(history);
        let operations = judge.located(&record.operations);
        judge.check_origin(&operations);
        judge.check_deletes(&operations);
        judge.check_writes(&operations);
        judge.check_times(&operations);
        for watch in &record.watches {
            judge.check_watch(history, watch);
        }
        judge.violations.truncate(MAX_LISTED);
        judge.violations
    }
}

/// Index of the state of this revision.
fn at(states: &[&JudgedEvent], revision: Revision) -> Option<usize> {
    states.binary_search_by_key(&revision, |event| event.revision).ok()
}

/// Number of states up to this revision.
fn count_until(states: &[&JudgedEvent], revision: Revision) -> usize {
    states.partition_point(|event| event.revision <= revision)
}

/// States of the keys, in order; before the first one a key is absent. Long histories have
/// many of each key: they are found by revision or text, not one by one.
struct Judge<'a> {
    states: BTreeMap<&'a Key, Vec<&'a JudgedEvent>>,
    /// Indexes of the states by key and text, which only one write has.
    texts: HashMap<(&'a Key, &'a str), usize>,
    violations: Vec<String>,
}

impl<'a> Judge<'a> {
    fn new(history: &'a [JudgedEvent]) -> Self {
        let mut judge =
            Self { states: BTreeMap::new(), texts: HashMap::new(), violations: Vec::new() };
        if !history.is_sorted_by_key(|event| event.revision) {
            judge.violations.push("the history is out of order".to_owned());
        }
        for event in history {
            let states = judge.states.entry(&event.key).or_default();
            if states.last().is_some_and(|last| last.revision >= event.revision) {
                judge.violations.push(format!("the history is out of order: {event:?}"));
            }
            if let Some(text) = &event.text {
                judge.texts.entry((&event.key, text)).or_insert(states.len());
            }
            states.push(event);
        }
        judge
    }

    fn of(&self, key: &Key) -> &[&'a JudgedEvent] {
        self.states.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Index of the state that has this text.
    fn found(&self, key: &Key, text: &Option<String>) -> Option<usize> {
        self.texts.get(&(key, text.as_deref()?)).copied()
    }

    fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(violation());
        }
    }

    /// The operations, with the revisions of writes whose clients were not told: such a write
    /// follows what its guard required.
    fn located(&mut self, operations: &[ClientOperation]) -> Vec<ClientOperation> {
        let mut located = operations.to_vec();
        for operation in &mut located {
            let Act::Write { text, guard, outcome: outcome @ Acknowledgement::Done } =
                &mut operation.act
            else {
                continue;
            };
            let states = self.of(&operation.key);
            let after = guard.and_then(|guard| at(states, guard));
            let next = after.and_then(|at| states.get(at + 1)).filter(|next| next.text == *text);
            match next.map(|next| next.revision) {
                Some(revision) => *outcome = Acknowledgement::Written(revision),
                None => {
                    self.violations.push(format!("an acknowledged write is lost: {operation:?}"))
                }
            }
        }
        located
    }

    /// Every value was written once, by a client that was not refused.
    fn check_origin(&mut self, operations: &[ClientOperation]) {
        let mut writers: BTreeMap<&str, Acknowledgement> = BTreeMap::new();
        for operation in operations {
            if let Act::Write { text: Some(text), outcome, .. } = &operation.act {
                writers.insert(text, *outcome);
            }
        }
        let states: Vec<&JudgedEvent> = self.states.values().flatten().copied().collect();
        for event in states {
            let Some(text) = &event.text else { continue };
            match writers.remove(text.as_str()) {
                Some(Acknowledgement::Written(revision)) => {
                    self.check(revision == event.revision, || {
                        format!("acknowledged at {revision}, but at another revision: {event:?}")
                    });
                }
                Some(Acknowledgement::Unknown | Acknowledgement::Done) => {}
                Some(Acknowledgement::Refused) => {
                    self.violations.push(format!("a refused write was applied: {event:?}"));
                }
                None => self.violations.push(format!("written twice, or by no client: {event:?}")),
            }
        }
    }

    /// Every delete was done by a client that was not refused, and acknowledged to one at most.
    fn check_deletes(&mut self, operations: &[ClientOperation]) {
        let mut able: BTreeMap<(&Key, Revision), Vec<Acknowledgement>> = BTreeMap::new();
        for operation in operations {
            if let Act::Write { text: None, guard: Some(guard), outcome } = &operation.act {
                able.entry((&operation.key, *guard)).or_default().push(*outcome);
            }
        }
        for states in self.states.values() {
            let deletes = states.windows(2).filter(|pair| pair[1].text.is_none());
            for (head, delete) in deletes.map(|pair| (pair[0], pair[1])) {
                let able = able.get(&(&delete.key, head.revision)).map(Vec::as_slice);
                let able = able.unwrap_or_default();
                let written = Acknowledgement::Written(delete.revision);
                let acknowledged = able.iter().filter(|outcome| **outcome == written).count();
                let is_done = able.iter().any(|outcome| *outcome != Acknowledgement::Refused);
                if acknowledged > 1 || !is_done {
                    let what = format!("{acknowledged} clients were told of a delete by {able:?}");
                    self.violations.push(format!("{what}: {delete:?}"));
                }
            }
        }
    }

    /// Acknowledged writes are in the history. They, and recorded writes without a reply, follow
    /// the state that their guard required.
    fn check_writes(&mut self, operations: &[ClientOperation]) {
        for operation in operations {
            let Act::Write { text, guard, outcome } = &operation.act else { continue };
            let states = self.of(&operation.key);
            let at = match outcome {
                Acknowledgement::Written(revision) => {
                    let found = at(states, *revision);
                    let Some(at) = found.filter(|at| states[*at].text == *text) else {
                        let what = format!("an acknowledged write is lost: {operation:?}");
                        self.violations.push(what);
                        continue;
                    };
                    Some(at)
                }
                _ => self.found(&operation.key, text),
            };
            let Some(at) = at else { continue };
            let before = at.checked_sub(1).map(|at| states[at]);
            let before = before.filter(|event| event.text.is_some()).map(|event| event.revision);
            self.check(before == *guard, || {
                format!("an update is lost: {operation:?} was applied after {before:?}")
            });
        }
    }

    /// An operation that begins after another one ended sees what that one saw or wrote, or
    /// something later.
    fn check_times(&mut self, operations: &[ClientOperation]) {
        let mut beginning: Vec<&ClientOperation> = operations.iter().collect();
        beginning.sort_by_key(|operation| operation.began);
        let mut ending = beginning.clone();
        ending.sort_by_key(|operation| operation.ended);
        let mut ending = ending.into_iter().peekable();
        let mut floor = Revision::default();
        // The revision from which on each operation's view holds.
        let mut since: BTreeMap<u64, Revision> = BTreeMap::new();
        for operation in beginning {
            while let Some(ended) = ending.next_if(|ended| ended.ended < operation.began) {
                floor = floor.max(since.get(&ended.ended).copied().unwrap_or_default());
            }
            let found = match &operation.act {
                Act::Write { outcome: Acknowledgement::Written(revision), .. } => {
                    self.check(*revision > floor, || {
                        format!("a write is before what preceded it ({floor}): {operation:?}")
                    });
                    Some(*revision)
                }
                Act::Write { text, .. } => {
                    let states = self.of(&operation.key);
                    let found = self.found(&operation.key, text);
                    let revision = found.map(|at| states[at].revision);
                    self.check(revision.is_none_or(|revision| revision > floor), || {
                        format!("a write is before what preceded it ({floor}): {operation:?}")
                    });
                    None
                }
                Act::Read(seen) => {
                    let found = self.first_view(&operation.key, seen, floor);
                    if found.is_none() {
                        let (store, present) =
                            (operation.store, self.state_at(&operation.key, floor));
                        let what = format!("a read of store {store} is older than {floor}");
                        let what = format!("{what}: {operation:?}, when it was {present:?}");
                        self.violations.push(what);
                    }
                    found
                }
            };
            since.insert(operation.ended, found.unwrap_or_default());
        }
    }

    /// When a key was first as seen, if it still was so at `floor` or later.
    fn first_view(&self, key: &Key, seen: &SeenValue, floor: Revision) -> Option<Revision> {
        let states = self.of(key);
        let is_seen = |event: &JudgedEvent| match seen {
            Some((revision, text)) => {
                event.revision == *revision && event.text.as_ref() == Some(text)
            }
            None => event.text.is_none(),
        };
        let ends_after =
            |next: Option<&&JudgedEvent>| next.is_none_or(|next| next.revision > floor);
        if seen.is_none() && ends_after(states.first()) {
            return Some(Revision::default());
        }
        let mut candidates = match seen {
            Some((revision, _)) => {
                let found = at(states, *revision)?;
                found..found + 1
            }
            // The state at the floor, or a later one.
            None => count_until(states, floor).saturating_sub(1)..states.len(),
        };
        let at = candidates.find(|at| is_seen(states[*at]) && ends_after(states.get(at + 1)))?;
        Some(states[at].revision)
    }

    fn state_at(&self, key: &Key, revision: Revision) -> Option<&'a JudgedEvent> {
        let states = self.of(key);
        count_until(states, revision).checked_sub(1).map(|at| states[at])
    }

    /// Whether the value before or after an event has no fields.
    fn is_of_topic(&self, event: &JudgedEvent) -> bool {
        let states = self.of(&event.key);
        let before = at(states, event.revision).and_then(|at| at.checked_sub(1));
        let before = before.map(|at| states[at]);
        let before = before.and_then(|before| before.text.as_ref());
        before.into_iter().chain(&event.text).any(|text| !has_fields(text))
    }

    /// A watch is the history, or that of its topic; nothing else.
    fn check_watch(&mut self, history: &[JudgedEvent], watch: &WatchRecord) {
        let last = watch.events.last().map_or(watch.after, |event| event.revision);
        let until = watch.until.unwrap_or(last);
        let index = |revision| history.partition_point(|event| event.revision <= revision);
        let within = history.get(index(watch.after)..index(until)).unwrap_or_default();
        let expected: Vec<&JudgedEvent> =
            within.iter().filter(|event| !watch.is_of_topic || self.is_of_topic(event)).collect();
        let mut given = watch.events.iter();
        for event in expected {
            let next = given.next();
            if next != Some(event) {
                let store = watch.store;
                let what = format!("a watch of store {store} gave {next:?}, not {event:?}");
                return self.violations.push(what);
            }
        }
        let more = given.next();
        self.check(more.is_none(), || format!("a watch gave what did not happen: {more:?}"));
    }
}
