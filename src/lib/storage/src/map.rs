//! State of a resource: entries by key, with counts per namespace and byte totals. Persistent, so
//! clones are cheap.

use crate::entry::Entry;
use crate::key::Key;
use imbl::{HashMap, OrdMap};
use std::ops::Bound;
use std::sync::Arc;

/// Approximate cost of an entry beyond its bytes: the struct, its key, its tree slot.
const ENTRY_OVERHEAD: u64 = 256;

/// Entries in key order. Counts are maintained because walking a namespace to count it would make
/// each page of a list cost as much as the whole.
#[derive(Clone, Default)]
pub(crate) struct EntryMap {
    entries: OrdMap<Key, Arc<Entry>>,
    namespaces: HashMap<Arc<str>, usize>,
    /// Bytes of all entries.
    bytes: u64,
    /// Bytes of all entries ever replaced or removed.
    replaced_bytes: u64,
}

impl EntryMap {
    /// Whether the maps share all their memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.entries.ptr_eq(&other.entries) || self.entries.is_empty() && other.entries.is_empty()
    }

    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns the replaced entry.
    pub(crate) fn insert(&mut self, key: Key, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.bytes += cost(&entry);
        let before = self.entries.insert(key.clone(), entry);
        self.replaced(before.as_deref());
        if let (None, Some(namespace)) = (&before, key.namespace()) {
            match self.namespaces.get_mut(namespace) {
                Some(count) => *count += 1,
                None => _ = self.namespaces.insert(namespace.into(), 1),
            }
        }
        before
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let before = self.entries.remove(key);
        self.replaced(before.as_deref());
        if let (Some(_), Some(namespace)) = (&before, key.namespace()) {
            match self.namespaces.get_mut(namespace) {
                Some(count) if *count > 1 => *count -= 1,
                _ => _ = self.namespaces.remove(namespace),
            }
        }
        before
    }

    /// Replaces all entries. Those that are the same stay.
    pub(crate) fn replace(&mut self, entries: Vec<Arc<Entry>>) {
        let was_empty = self.len() == 0;
        if !was_empty {
            let kept: std::collections::HashSet<&Key> =
                entries.iter().map(|entry| &entry.key).collect();
            let gone: Vec<Key> =
                self.entries.keys().filter(|key| !kept.contains(key)).cloned().collect();
            gone.iter().for_each(|key| _ = self.remove(key));
        }
        for entry in entries {
            let is_same = |present: &Arc<Entry>| present.revision == entry.revision;
            if was_empty || !self.get(entry.key.as_str()).is_some_and(is_same) {
                self.insert(entry.key.clone(), entry);
            }
        }
    }

    /// Reverts a change to a key that previously held `previous`.
    pub(crate) fn undo(&mut self, key: &Key, previous: Option<Arc<Entry>>) {
        let replaced_bytes =
            self.replaced_bytes.saturating_sub(previous.as_deref().map_or(0, cost));
        match previous {
            Some(previous) => self.insert(previous.key.clone(), previous),
            None => self.remove(key),
        };
        self.replaced_bytes = replaced_bytes;
    }

    fn replaced(&mut self, before: Option<&Entry>) {
        let bytes = before.map_or(0, cost);
        self.bytes -= bytes;
        self.replaced_bytes += bytes;
    }

    /// Approximate memory used by the entries, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of entries replaced or removed between this state and a later one, including those
    /// that came and went in between.
    pub(crate) fn replaced_until(&self, later: &Self) -> u64 {
        later.replaced_bytes.saturating_sub(self.replaced_bytes)
    }

    /// Bytes of all entries ever replaced or removed.
    pub(crate) fn replaced_bytes(&self) -> u64 {
        self.replaced_bytes
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    pub(crate) fn range<'a>(
        &'a self,
        start: Bound<&str>,
        end: Bound<&str>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        self.entries.range::<_, str>((start, end)).map(|(_, entry)| entry)
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of entries in a namespace.
    pub(crate) fn len_of(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or(0)
    }
}

fn cost(entry: &Entry) -> u64 {
    entry.bytes.len() as u64 + ENTRY_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{CheckedEpoch, Sidecar};
    use crate::key::{Prefix, Revision};

    #[test]
    fn namespaces_are_counted() {
        let prefix = Prefix::new("configmaps").unwrap();
        let entry = |key: &Key| {
            let (key, sidecar) = (key.clone(), Sidecar::default());
            Arc::new(Entry {
                key,
                revision: Revision(1),
                create_revision: Revision(1),
                bytes: "{}".into(),
                sidecar,
                checked: CheckedEpoch::default(),
            })
        };
        let keys = [("a", "x"), ("a", "y"), ("b", "x")]
            .map(|(namespace, name)| prefix.key(Some(namespace), name).unwrap());
        let mut map = EntryMap::new();
        for key in keys.iter().chain(&keys[..1]) {
            map.insert(key.clone(), entry(key));
        }
        let earlier = map.clone();
        assert_eq!((map.len(), map.len_of("a"), map.len_of("b"), map.len_of("c")), (3, 2, 1, 0));
        for key in [&keys[2], &keys[2], &keys[0]] {
            map.remove(key);
        }
        assert_eq!((map.len(), map.len_of("a"), map.len_of("b")), (1, 1, 0));
        assert_eq!((earlier.len_of("a"), earlier.len_of("b")), (2, 1), "what was shared stays");
        let cluster = Prefix::new("namespaces").unwrap().key(None, "a").unwrap();
        map.insert(cluster.clone(), entry(&cluster));
        assert_eq!(map.len_of("a"), 1);
    }

    #[test]
    fn replaced_bytes_are_counted() {
        let prefix = Prefix::new("configmaps").unwrap();
        let key = |name| prefix.key(Some("n"), name).unwrap();
        let entry = |key: &Key, length: usize| {
            let (key, sidecar) = (key.clone(), Sidecar::default());
            Arc::new(Entry {
                key,
                revision: Revision(1),
                create_revision: Revision(1),
                bytes: vec![b' '; length].into(),
                sidecar,
                checked: CheckedEpoch::default(),
            })
        };
        let (one, other) = (key("one"), key("other"));
        let mut map = EntryMap::new();
        map.insert(one.clone(), entry(&one, 1000));
        let earlier = map.clone();
        map.insert(other.clone(), entry(&other, 5000));
        assert_eq!((earlier.replaced_until(&map), map.bytes()), (0, 6000 + 2 * ENTRY_OVERHEAD));
        let before = map.insert(one.clone(), entry(&one, 70));
        assert_eq!(earlier.replaced_until(&map), 1000 + ENTRY_OVERHEAD);
        map.remove(&one);
        assert_eq!(earlier.replaced_until(&map), 1070 + 2 * ENTRY_OVERHEAD);
        let last = map.clone();
        map.undo(&one, Some(entry(&one, 70)));
        map.undo(&one, before);
        map.undo(&other, None);
        assert_eq!((map.len(), map.get(one.as_str()).unwrap().bytes.len()), (1, 1000));
        assert_eq!(
            (earlier.replaced_until(&map), map.replaced_until(&last)),
            (0, 1070 + 2 * ENTRY_OVERHEAD),
            "as if it had been kept"
        );
        assert_eq!(map.bytes(), 1000 + ENTRY_OVERHEAD);
    }
}
