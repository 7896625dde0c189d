//! Reference model of a store.

use super::{PATIENCE, text};
use crate::{Cursor, Entry, Event, Key, Prefix, Revision, Store, Txn, WatchError, Write};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A modelled value: revision, create revision, text.
type ModelValue = (u64, u64, String);

/// All committed transactions, by revision.
#[derive(Clone, Debug, Default)]
pub struct Model {
    txns: BTreeMap<u64, Vec<ModelWrite>>,
}

#[derive(Clone, Debug)]
struct ModelWrite {
    key: Key,
    /// Text of a put, or of a delete's own last state.
    text: Option<String>,
    deleted: bool,
}

/// Expected event.
#[derive(Debug, PartialEq, Eq)]
struct ModelEvent {
    key: Key,
    value: ModelValue,
    previous: Option<ModelValue>,
    deleted: bool,
}

fn put_text(put: &crate::Put) -> String {
    let value = String::from_utf8(put.value.to_vec()).unwrap();
    value.trim_start_matches("{\"v\":\"").trim_end_matches("\",\"z\":1}").to_owned()
}

impl Model {
    /// Records a committed transaction. Further writes of one resource get the revisions directly
    /// before.
    pub fn record(&mut self, revision: Revision, txn: &Txn) {
        let write = |write: &Write| match write {
            Write::Put(put) => {
                ModelWrite { key: put.key.clone(), text: Some(put_text(put)), deleted: false }
            }
            Write::Delete { key, last } => {
                ModelWrite { key: key.clone(), text: last.as_ref().map(put_text), deleted: true }
            }
        };
        let is_other = |index: usize| {
            txn.writes[..index]
                .iter()
                .any(|other| other.key().prefix() == txn.writes[index].key().prefix())
        };
        let (others, main): (Vec<usize>, Vec<usize>) =
            (0..txn.writes.len()).partition(|index| is_other(*index));
        let first = revision.0 - others.len() as u64;
        for (at, group) in (first..).zip(others.into_iter().map(|index| vec![index]).chain([main]))
        {
            let writes = group.into_iter().map(|index| write(&txn.writes[index])).collect();
            assert!(self.txns.insert(at, writes).is_none(), "revision {at} was assigned twice");
        }
    }

    /// Forgets every transaction after a revision.
    pub fn forget_after(&mut self, revision: Revision) {
        self.txns.split_off(&(revision.0 + 1));
    }

    /// The last revision.
    pub fn revision(&self) -> Revision {
        Revision(self.txns.keys().next_back().copied().unwrap_or(0))
    }

    /// `None` at the end of the history.
    pub fn first_after(&self, revision: Revision) -> Option<Revision> {
        self.txns.range(revision.0 + 1..).next().map(|(first, _)| Revision(*first))
    }

    /// Every key ever written.
    pub fn keys(&self) -> BTreeSet<Key> {
        self.txns.values().flatten().map(|write| write.key.clone()).collect()
    }

    /// Whether a start skipped the revision.
    fn is_unknown(&self, revision: Revision) -> bool {
        let last = self.txns.range(..=revision.0).next_back().map_or(0, |(last, _)| *last);
        let next = self.txns.range(revision.0 + 1..).next().map(|(next, _)| *next);
        last < revision.0 && next.is_none_or(|next| next - last > 1000)
    }

    /// Whether a start certainly skipped the revision. Revisions directly before a committed one
    /// may also belong to a refused batch.
    fn is_lost(&self, revision: Revision) -> bool {
        let next = self.txns.range(revision.0 + 1..).next().map_or(u64::MAX, |(next, _)| *next);
        self.is_unknown(revision) && next - revision.0 > 400
    }

    fn state_at(&self, revision: Revision) -> BTreeMap<Key, ModelValue> {
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

fn step(state: &mut BTreeMap<Key, ModelValue>, revision: u64, write: &ModelWrite) -> ModelEvent {
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

fn value(entry: &Entry) -> ModelValue {
    let spliced = String::from_utf8(entry.bytes[entry.spliced()].to_vec()).unwrap();
    assert_eq!(spliced, format!(",\"resourceVersion\":\"{}\"", entry.revision), "{:?}", entry.key);
    let expected = super::put(&entry.key, &text(entry)).sidecar;
    assert_eq!(entry.sidecar, expected, "the sidecar of {:?}", entry.key);
    (entry.revision.0, entry.create_revision.0, text(entry))
}

fn event(event: Event) -> ModelEvent {
    let Event { entry, previous, deleted } = event;
    ModelEvent {
        key: entry.key.clone(),
        value: value(&entry),
        previous: previous.as_deref().map(value),
        deleted,
    }
}

/// Checks the current state against the model: gets, lists, and pending heads as guards see them.
pub fn check_present(store: &Store, model: &Model) {
    let revision = store.revision();
    match store.barrier() {
        None => assert_eq!(revision, model.revision(), "the published revision"),
        // Others have revisions, too.
        Some(_) => assert!(revision >= model.revision(), "the published revision"),
    }
    let state = model.state_at(revision);
    let mut listed = 0;
    for key in model.keys() {
        assert_eq!(
            store.get(&key).as_deref().map(value).as_ref(),
            state.get(&key),
            "get of {key:?}"
        );
        assert_eq!(
            store.pending(&key).as_deref().map(value).as_ref(),
            state.get(&key),
            "pending of {key:?}"
        );
        let snapshot = store.snapshot(&key.to_prefix());
        assert_eq!(
            snapshot.get(key.rest()).map(|entry| value(entry)).as_ref(),
            state.get(&key),
            "list of {key:?}"
        );
        listed = store.stats().entries.iter().map(|(_, count)| count).sum();
    }
    assert_eq!(listed, state.len(), "no other entries");
}

/// Checks a store against the model: gets, lists, lists at older revisions, and watches from every
/// revision (fault 10).
pub async fn check_store(store: &Store, model: &Model) {
    check_present(store, model);
    let prefixes: BTreeSet<Prefix> = model.keys().iter().map(Key::to_prefix).collect();
    // Every revision, and neighboring ones that may never have been assigned.
    let given = [0].into_iter().chain(
        model
            .txns
            .keys()
            .flat_map(|revision| [revision.saturating_sub(500), revision - 1, *revision]),
    );
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
            let listed: Vec<(Key, ModelValue)> =
                snapshot.range(None, None).map(|entry| (entry.key.clone(), value(entry))).collect();
            let expected: Vec<(Key, ModelValue)> = model
                .state_at(at)
                .into_iter()
                .filter(|(key, _)| key.prefix() == prefix.as_str())
                .collect();
            assert_eq!(listed, expected, "list of {prefix:?} at {at}");
            assert_eq!(snapshot.count(None, None), expected.len());
        }
        Err(WatchError::Compacted(_)) => {
            let listed = store.history(prefix).listed;
            assert!(
                at < listed || model.is_unknown(at),
                "a list of {prefix:?} at {at}, but history reaches back to {listed}"
            );
        }
        Err(error) => panic!("{error}"),
    }
    let is_gone = || at < store.history(prefix).watched || model.is_unknown(at);
    let Ok(mut cursor) = store.watch(prefix, at) else {
        assert!(
            is_gone(),
            "a watch of {prefix:?} after {at}, but history reaches back to {}",
            store.history(prefix).watched
        );
        return;
    };
    // Others may have had the revision.
    let is_lost = model.is_lost(at) && store.barrier().is_none();
    assert!(!is_lost, "a watch after {at}, which was never assigned");
    let expected = model.events(prefix.as_str(), at);
    let mut given = Vec::new();
    while given.len() < expected.len() {
        match tokio::time::timeout(PATIENCE, cursor.next(3))
            .await
            .expect("events that were expected")
        {
            Ok(events) => given.extend(events.into_iter().map(event)),
            // The history it started from may have been merged since.
            Err(WatchError::Compacted(_)) => {
                return assert!(is_gone(), "a watch of {prefix:?} after {at} broke off");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(given, expected, "watch of {prefix:?} after {at}");
    assert_eq!(drained(&mut cursor).await, store.revision(), "a bookmark at the end");
}

/// Waits for a bookmark of a drained cursor.
async fn drained(cursor: &mut Cursor) -> Revision {
    for _ in 0..1000 {
        if let Some(revision) = cursor.bookmark() {
            return revision;
        }
        if let Ok(more) = tokio::time::timeout(Duration::from_millis(10), cursor.next(1)).await {
            panic!("event missing from the model: {more:?}");
        }
    }
    panic!("no bookmark");
}
