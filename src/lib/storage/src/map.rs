//! The state of a resource: entries by key, and how many each namespace has. Immutable where it is shared, cheap to clone.

use crate::entry::Entry;
use crate::key::Key;
use imbl::{HashMap, OrdMap};
use std::ops::Bound;
use std::sync::Arc;

/// Entries in key order. The numbers are kept since walking a namespace to count it would make each page of a list cost as much as the whole.
#[derive(Clone, Default)]
pub(crate) struct Map {
    entries: OrdMap<Key, Arc<Entry>>,
    namespaces: HashMap<Arc<str>, usize>,
}

impl Map {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Puts an entry there; gives back what it replaces.
    pub(crate) fn insert(&mut self, key: Key, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let before = self.entries.insert(key.clone(), entry);
        if let (None, Some(namespace)) = (&before, key.namespace()) {
            match self.namespaces.get_mut(namespace) {
                Some(count) => *count += 1,
                None => _ = self.namespaces.insert(namespace.into(), 1),
            }
        }
        before
    }

    /// Takes an entry away.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let before = self.entries.remove(key);
        if let (Some(_), Some(namespace)) = (&before, key.namespace()) {
            match self.namespaces.get_mut(namespace) {
                Some(count) if *count > 1 => *count -= 1,
                _ => _ = self.namespaces.remove(namespace),
            }
        }
        before
    }

    /// The entry of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    /// The entries in a range of keys.
    pub(crate) fn range<'a>(&'a self, range: (Bound<&str>, Bound<&str>)) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        self.entries.range::<_, str>(range).map(|(_, entry)| entry)
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many entries a namespace has.
    pub(crate) fn len_of(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Sidecar;
    use crate::key::{Prefix, Revision};

    #[test]
    fn what_a_namespace_has_is_known() {
        let prefix = Prefix::new("configmaps").unwrap();
        let entry = |key: &Key| {
            let (key, sidecar) = (key.clone(), Sidecar::default());
            Arc::new(Entry { key, revision: Revision(1), create_revision: Revision(1), bytes: "{}".into(), sidecar })
        };
        let keys = [("a", "x"), ("a", "y"), ("b", "x")].map(|(namespace, name)| prefix.key(Some(namespace), name).unwrap());
        let mut map = Map::new();
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
}
