//! The state of one resource at one revision.

use crate::entry::Entry;
use crate::key::{Prefix, Revision};
use crate::map::EntryMap;
use std::ops::Bound;
use std::sync::Arc;

/// The current state of one resource at one revision; immutable, cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    /// Every event up to here is in it, none after. Counts over all resources.
    pub revision: Revision,
    prefix: Prefix,
    map: EntryMap,
}

/// A place in what happens to one resource. It holds nothing.
#[derive(Clone, Debug)]
pub struct Mark {
    replaced_bytes: u64,
    prefix: Prefix,
}

impl Mark {
    /// Of which resource.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }
}

impl Snapshot {
    pub(crate) fn new(revision: Revision, prefix: Prefix, map: EntryMap) -> Self {
        Self { revision, prefix, map }
    }

    /// Entries in key order, starting after `after` (exclusive, what follows the prefix), within one namespace when given.
    pub fn range<'a>(&'a self, namespace: Option<&str>, after: Option<&str>) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let (start, end) = self.bounds(namespace, after);
        // A start behind the end would be an invalid range for the map.
        let empty = end.as_ref().is_some_and(|end| bound(&start) >= end.as_str());
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range = (!empty).then(|| self.map.range((start.as_ref().map(String::as_str), end)));
        range.into_iter().flatten()
    }

    /// How many entries [`Self::range`] would give. Walks them when `after` is given; else it is known.
    pub fn count(&self, namespace: Option<&str>, after: Option<&str>) -> usize {
        match (namespace, after) {
            (None, None) => self.map.len(),
            (Some(namespace), None) => self.map.len_of(namespace),
            (_, Some(_)) => self.range(namespace, after).count(),
        }
    }

    /// What its entries take in memory, about, in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// The bytes of all entries of the resource that were replaced or deleted until a later state: of those that this one has, and of those that came and
    /// went between. It keeps no more than that from being freed, and no more than [`Self::bytes`].
    pub fn replaced_until(&self, later: &Self) -> u64 {
        self.map.replaced_until(&later.map)
    }

    /// What tells how much an answer that is made of this state keeps from being freed later on.
    pub fn mark(&self) -> Mark {
        Mark { replaced_bytes: self.map.replaced_bytes(), prefix: self.prefix.clone() }
    }

    /// The bytes of all entries of the resource that were replaced or deleted since a mark.
    pub fn replaced_since(&self, mark: &Mark) -> u64 {
        self.map.replaced_bytes().saturating_sub(mark.replaced_bytes)
    }

    /// One entry, by what follows the prefix.
    pub fn get(&self, rest: &str) -> Option<&Arc<Entry>> {
        self.map.get(format!("{}{rest}", self.prefix.as_str()).as_str())
    }

    fn bounds(&self, namespace: Option<&str>, after: Option<&str>) -> (Bound<String>, Option<String>) {
        let prefix = self.prefix.as_str();
        let after = after.map(|after| format!("{prefix}{after}"));
        let Some(namespace) = namespace else {
            return (after.map_or(Bound::Unbounded, Bound::Excluded), None);
        };
        let first = format!("{prefix}{namespace}/");
        // '0' follows '/': the first key that is not in the namespace.
        let end = format!("{prefix}{namespace}0");
        match after {
            Some(after) if after >= first => (Bound::Excluded(after), Some(end)),
            _ => (Bound::Included(first), Some(end)),
        }
    }
}

fn bound(bound: &Bound<String>) -> &str {
    match bound {
        Bound::Included(text) | Bound::Excluded(text) => text,
        Bound::Unbounded => "",
    }
}
