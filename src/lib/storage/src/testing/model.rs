//! What a store should hold, by the simplest means.

use super::text;
use crate::{Cursor, Entry, Event, Key, Prefix, Revision, Store, Txn, WatchError, Write};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A value of the model: its revision, its first revision, its text.
type Value = (u64, u64, String);

/// Every transaction that happened, by revision.
#[derive(Clone, Debug, Default)]
pub struct Model {
    txns: BTreeMap<u64, Vec<ModelWrite>>,
}

#[derive(Clone, Debug)]
struct ModelWrite {
    key: Key,
    /// The text of a put, or the last text of a delete that has one of its own.
    text: Option<String>,
    deleted: bool,
}

/// What an event should say.
#[derive(Debug, PartialEq, Eq)]
struct ModelEvent {
    key: Key,
    value: Value,
    previous: Option<Value>,
    deleted: bool,
}

fn put_text(put: &crate::Put) -> String {
    let value = String::from_utf8(put.value.to_vec()).unwrap();
    value.trim_start_matches("{\"v\":\"").trim_end_matches("\",\"z\":1}").to_owned()
}

impl Model {
    /// A transaction happened; further changes of one resource have the revisions right before.
    pub fn record(&mut self, revision: Revision, txn: &Txn) {
        let write = |write: &Write| match write {
            Write::Put(put) => ModelWrite { key: put.key.clone(), text: Some(put_text(put)), deleted: false },
            Write::Delete { key, last } => ModelWrite { key: key.clone(), text: last.as_ref().map(put_text), deleted: true },
        };
        let is_other = |index: usize| txn.writes[..index].iter().any(|other| other.key().prefix() == txn.writes[index].key().prefix());
        let (others, main): (Vec<usize>, Vec<usize>) = (0..txn.writes.len()).partition(|index| is_other(*index));
        let first = revision.0 - others.len() as u64;
        for (at, group) in (first..).zip(others.into_iter().map(|index| vec![index]).chain([main])) {
            let writes = group.into_iter().map(|index| write(&txn.writes[index])).collect();
            assert!(self.txns.insert(at, writes).is_none(), "revision {at} was given twice");
        }
    }

    /// What came after a revision did not happen.
    pub fn forget_after(&mut self, revision: Revision) {
        self.txns.split_off(&(revision.0 + 1));
    }

    /// The last revision.
    pub fn revision(&self) -> Revision {
        Revision(self.txns.keys().next_back().copied().unwrap_or(0))
    }

    /// The first revision after this one.
    pub fn first_after(&self, revision: Revision) -> Option<Revision> {
        self.txns.range(revision.0 + 1..).next().map(|(first, _)| Revision(*first))
    }

    /// Every key that ever was.
    pub fn keys(&self) -> BTreeSet<Key> {
        self.txns.values().flatten().map(|write| write.key.clone()).collect()
    }

    /// Whether it lies where a start has left revisions out.
    fn is_unknown(&self, revision: Revision) -> bool {
        let last = self.txns.range(..=revision.0).next_back().map_or(0, |(last, _)| *last);
        let next = self.txns.range(revision.0 + 1..).next().map(|(next, _)| *next);
        last < revision.0 && next.is_none_or(|next| next - last > 1000)
    }

    /// Whether a start has left it out for sure; what comes right before a revision may also have been taken by a batch that was refused.
    fn is_lost(&self, revision: Revision) -> bool {
        let next = self.txns.range(revision.0 + 1..).next().map_or(u64::MAX, |(next, _)| *next);
        self.is_unknown(revision) && next - revision.0 > 400
    }

    /// What is there after a revision.
    fn state_at(&self, revision: Revision) -> BTreeMap<Key, Value> {
        let mut state = BTreeMap::new();
        for (revision, writes) in self.txns.range(..=revision.0) {
            for write in writes {
                step(&mut state, *revision, write);
            }
        }
        state
    }

    fn events(&self, prefix: &str, after: Revision) -> Vec<ModelEvent> {
        let mut state = BTreeMap::new();
        let mut events = Vec::new();
        for (revision, writes) in &self.txns {
            for write in writes {
                let event = step(&mut state, *revision, write);
                if *revision > after.0 && write.key.prefix() == prefix {
                    events.push(event);
                }
            }
        }
        events
    }
}

fn step(state: &mut BTreeMap<Key, Value>, revision: u64, write: &ModelWrite) -> ModelEvent {
    let key = write.key.clone();
    let previous = if write.deleted { state.remove(&key) } else { state.get(&key).cloned() };
    let created = previous.as_ref().map_or(revision, |previous| previous.1);
    let text = write.text.clone().unwrap_or_else(|| previous.as_ref().unwrap().2.clone());
    let value = (revision, created, text);
    if !write.deleted {
        state.insert(key.clone(), value.clone());
    }
    ModelEvent { key, value, previous, deleted: write.deleted }
}

fn value(entry: &Entry) -> Value {
    let spliced = String::from_utf8(entry.bytes[entry.spliced()].to_vec()).unwrap();
    assert_eq!(spliced, format!(",\"resourceVersion\":\"{}\"", entry.revision), "{:?}", entry.key);
    let expected = super::put(&entry.key, &text(entry)).sidecar;
    assert_eq!(entry.sidecar, expected, "the sidecar of {:?}", entry.key);
    (entry.revision.0, entry.create_revision.0, text(entry))
}

fn event(event: Event) -> ModelEvent {
    let Event { entry, previous, deleted } = event;
    ModelEvent { key: entry.key.clone(), value: value(&entry), previous: previous.as_deref().map(value), deleted }
}

/// The store holds what the model says, at present: by get, by list, by what guards see.
pub fn check_present(store: &Store, model: &Model) {
    let revision = store.revision();
    assert_eq!(revision, model.revision(), "the published revision");
    let state = model.state_at(revision);
    let mut listed = 0;
    for key in model.keys() {
        assert_eq!(store.get(&key).as_deref().map(value).as_ref(), state.get(&key), "get of {key:?}");
        assert_eq!(store.pending(&key).as_deref().map(value).as_ref(), state.get(&key), "pending of {key:?}");
        let snapshot = store.snapshot(&key.to_prefix());
        assert_eq!(snapshot.get(key.rest()).map(|entry| value(entry)).as_ref(), state.get(&key), "list of {key:?}");
        listed = store.stats().entries.iter().map(|(_, count)| count).sum();
    }
    assert_eq!(listed, state.len(), "nothing else is there");
}

/// The store holds what the model says: by get, by list, by list at older revisions, by watch from every revision (fault 10).
pub async fn check_store(store: &Store, model: &Model) {
    check_present(store, model);
    let prefixes: BTreeSet<Prefix> = model.keys().iter().map(Key::to_prefix).collect();
    // Every revision, and the ones beside it, of which some were never given.
    let given = [0].into_iter().chain(model.txns.keys().flat_map(|revision| [revision.saturating_sub(500), revision - 1, *revision]));
    let given: BTreeSet<u64> = given.filter(|at| *at <= store.revision().0).collect();
    for prefix in prefixes {
        for at in given.iter().rev().step_by(1 + given.len() / 48) {
            check_at(store, model, &prefix, Revision(*at)).await;
        }
    }
}

async fn check_at(store: &Store, model: &Model, prefix: &Prefix, at: Revision) {
    match store.snapshot_at(prefix, at) {
        Ok(snapshot) => {
            assert_eq!(snapshot.revision, at);
            let listed: Vec<(Key, Value)> = snapshot.range(None, None).map(|entry| (entry.key.clone(), value(entry))).collect();
            let expected: Vec<(Key, Value)> = model.state_at(at).into_iter().filter(|(key, _)| key.prefix() == prefix.as_str()).collect();
            assert_eq!(listed, expected, "list of {prefix:?} at {at}");
            assert_eq!(snapshot.count(None, None), expected.len());
        }
        Err(WatchError::Compacted(_)) => {
            let listed = store.history(prefix).listed;
            assert!(at < listed || model.is_unknown(at), "a list of {prefix:?} at {at}, though history goes back to {listed}");
        }
        Err(error) => panic!("{error}"),
    }
    let is_gone = || at < store.history(prefix).watched || model.is_unknown(at);
    let Ok(mut cursor) = store.watch(prefix, at) else {
        assert!(is_gone(), "a watch of {prefix:?} after {at}, though history goes back to {}", store.history(prefix).watched);
        return;
    };
    assert!(!model.is_lost(at), "a watch after {at}, which was never given");
    let expected = model.events(prefix.as_str(), at);
    let mut given = Vec::new();
    while given.len() < expected.len() {
        match tokio::time::timeout(Duration::from_secs(20), cursor.next(3)).await.expect("events that were expected") {
            Ok(events) => given.extend(events.into_iter().map(event)),
            // What was there when the watch began may be merged meanwhile.
            Err(WatchError::Compacted(_)) => return assert!(is_gone(), "a watch of {prefix:?} after {at} broke off"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(given, expected, "watch of {prefix:?} after {at}");
    assert_eq!(drained(&mut cursor).await, store.revision(), "a bookmark at the end");
}

/// Waits for a bookmark of a cursor that has nothing more to give.
async fn drained(cursor: &mut Cursor) -> Revision {
    for _ in 0..1000 {
        if let Some(revision) = cursor.bookmark() {
            return revision;
        }
        if let Ok(more) = tokio::time::timeout(Duration::from_millis(10), cursor.next(1)).await {
            panic!("an event that is not in the model: {more:?}");
        }
    }
    panic!("no bookmark");
}
