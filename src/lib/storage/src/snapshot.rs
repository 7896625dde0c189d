//! The state of one resource at one revision.

use crate::entry::Entry;
use crate::key::{Prefix, Revision};
use crate::map::EntryMap;
use std::ops::Bound;
use std::sync::Arc;

/// State of one resource at one revision. Immutable, cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    /// Includes every event up to this revision, across resources, and none after it.
    pub revision: Revision,
    prefix: Prefix,
    map: EntryMap,
}

/// A point in a resource's history, for [`Snapshot::replaced_since`]. Keeps nothing alive.
#[derive(Clone, Debug)]
pub struct Mark {
    replaced_bytes: u64,
    prefix: Prefix,
}

impl Mark {
    /// Resource the mark was taken of.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }
}

impl Snapshot {
    pub(crate) fn new(revision: Revision, prefix: Prefix, map: EntryMap) -> Self {
        Self { revision, prefix, map }
    }

    /// Whether nothing changed between two snapshots of the same resource. May be false when
    /// nothing did.
    pub fn is_same(&self, other: &Self) -> bool {
        self.map.is_same(&other.map)
    }

    /// Entries in key order, after `after` (exclusive, without the prefix), optionally within one
    /// namespace.
    pub fn range<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let (start, end) = self.bounds(namespace, after);
        // The map panics on a range whose start lies behind its end.
        let empty = end.as_ref().is_some_and(|end| bound(&start) >= end.as_str());
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range = (!empty).then(|| self.map.range(start.as_ref().map(String::as_str), end));
        range.into_iter().flatten()
    }

    /// Number of entries in [`Self::range`]. O(1) without `after`.
    pub fn count(&self, namespace: Option<&str>, after: Option<&str>) -> usize {
        match (namespace, after) {
            (None, None) => self.map.len(),
            (Some(namespace), None) => self.map.len_of(namespace),
            (_, Some(_)) => self.range(namespace, after).count(),
        }
    }

    /// Approximate memory used by the entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Bytes of entries replaced or deleted between this state and a later one, including those
    /// that came and went in between: an upper bound, like [`Self::bytes`], of what this snapshot
    /// alone keeps alive.
    pub fn replaced_until(&self, later: &Self) -> u64 {
        self.map.replaced_until(&later.map)
    }

    /// A mark from which to measure how much memory a response built from this snapshot keeps
    /// alive.
    pub fn mark(&self) -> Mark {
        Mark { replaced_bytes: self.map.replaced_bytes(), prefix: self.prefix.clone() }
    }

    /// Bytes of entries replaced or deleted since the mark.
    pub fn replaced_since(&self, mark: &Mark) -> u64 {
        self.map.replaced_bytes().saturating_sub(mark.replaced_bytes)
    }

    /// An entry, by its key without the prefix.
    pub fn get(&self, rest: &str) -> Option<&Arc<Entry>> {
        self.map.get(format!("{}{rest}", self.prefix.as_str()).as_str())
    }

    fn bounds(
        &self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> (Bound<String>, Option<String>) {
        let prefix = self.prefix.as_str();
        let after = after.map(|after| format!("{prefix}{after}"));
        let Some(namespace) = namespace else {
            return (after.map_or(Bound::Unbounded, Bound::Excluded), None);
        };
        let first = format!("{prefix}{namespace}/");
        // '0' follows '/': the first key after the namespace.
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
