//! The declared fields of an object, by name.

use crate::schema::Property;
use std::ops::Index;
use std::sync::Arc;

/// Declared fields. Iterates in byte order of the names.
///
/// Every walk over a value looks up the schema of each field: a sorted slice is searched by the
/// first bytes of the names as numbers, mostly without comparing texts.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    /// Sorted by name.
    declared: Vec<(Arc<str>, Property)>,
    /// The [`head`] of each name.
    heads: Vec<u64>,
}

/// The first bytes of a name, as a number that orders as they do.
fn head(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(bytes.len());
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_be_bytes(bytes)
}

impl Properties {
    /// Index of a field, or that of a missing one once it is added.
    fn find(&self, name: &str) -> Result<usize, usize> {
        let head = head(name);
        let start = self.heads.partition_point(|other| *other < head);
        match self.declared.get(start) {
            Some((first, _)) if **first == *name => Ok(start),
            Some(_) if self.heads[start] == head => {
                let same = self.heads[start..].partition_point(|other| *other == head);
                let found = self.declared[start..start + same]
                    .binary_search_by(|(other, _)| (**other).cmp(name));
                found.map(|at| start + at).map_err(|at| start + at)
            }
            _ => Err(start),
        }
    }

    /// A field.
    pub fn get(&self, name: &str) -> Option<&Property> {
        self.find(name).ok().map(|at| &self.declared[at].1)
    }

    /// A field, mutably.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Property> {
        self.find(name).ok().map(|at| &mut self.declared[at].1)
    }

    /// Whether a field is declared.
    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Frees spare capacity.
    pub fn shrink_to_fit(&mut self) {
        self.declared.shrink_to_fit();
        self.heads.shrink_to_fit();
    }

    /// Declares a field; returns what it was declared as.
    pub fn insert(&mut self, name: Arc<str>, property: Property) -> Option<Property> {
        match self.find(&name) {
            Ok(at) => Some(std::mem::replace(&mut self.declared[at].1, property)),
            Err(at) => {
                self.heads.insert(at, head(&name));
                self.declared.insert(at, (name, property));
                None
            }
        }
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.declared.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.declared.is_empty()
    }

    /// The fields in order.
    pub fn iter(&self) -> <&Self as IntoIterator>::IntoIter {
        self.into_iter()
    }

    /// The names in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Arc<str>> + ExactSizeIterator {
        self.declared.iter().map(|(name, _)| name)
    }

    /// The fields in the order of their names.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Property> + ExactSizeIterator {
        self.declared.iter().map(|(_, property)| property)
    }
}

impl Index<&str> for Properties {
    type Output = Property;

    /// # Panics
    /// If it is not declared.
    fn index(&self, name: &str) -> &Property {
        self.get(name).expect("a declared field")
    }
}

impl FromIterator<(Arc<str>, Property)> for Properties {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Property)>>(fields: I) -> Self {
        let mut declared: Vec<_> = fields.into_iter().collect();
        // The last one of a name counts.
        declared.reverse();
        declared.sort_by(|(one, _), (other, _)| one.cmp(other));
        declared.dedup_by(|(one, _), (other, _)| one == other);
        declared.shrink_to_fit();
        let heads = declared.iter().map(|(name, _)| head(name)).collect();
        Self { declared, heads }
    }
}

impl<const N: usize> From<[(Arc<str>, Property); N]> for Properties {
    fn from(fields: [(Arc<str>, Property); N]) -> Self {
        fields.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Properties {
    type Item = (&'a Arc<str>, &'a Property);
    type IntoIter = std::iter::Map<
        std::slice::Iter<'a, (Arc<str>, Property)>,
        fn(&'a (Arc<str>, Property)) -> (&'a Arc<str>, &'a Property),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.declared.iter().map(|(name, property)| (name, property))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schema;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn marked(mark: bool) -> Property {
        Property::new(Schema::default(), mark)
    }

    /// Names of few letters, some long: many are equal, or have the same first bytes.
    const NAMES: &str = "[ab\\x00\u{20ac}]{0,3}(abcdefgh)?[ab\u{e9}]{0,2}";

    proptest! {
        #[test]
        fn they_are_a_map(
            fields in proptest::collection::vec((NAMES, any::<bool>()), 0..40),
            asked in NAMES,
        ) {
            let mut wanted = BTreeMap::new();
            let mut one_by_one = Properties::default();
            for (name, mark) in &fields {
                let before = one_by_one.insert(name.as_str().into(), marked(*mark));
                let before = before.map(|before| before.required);
                prop_assert_eq!(before, wanted.insert(name.clone(), *mark));
            }
            let at_once: Properties =
                fields.iter().map(|(name, mark)| (name.as_str().into(), marked(*mark))).collect();
            for made in [&one_by_one, &at_once] {
                let all: Vec<(String, bool)> =
                    made.iter().map(|(name, one)| (name.to_string(), one.required)).collect();
                prop_assert_eq!(all, wanted.clone().into_iter().collect::<Vec<_>>());
                for name in wanted.keys().chain([&asked]) {
                    let found = made.get(name).map(|one| one.required);
                    prop_assert_eq!(found, wanted.get(name).copied());
                    prop_assert_eq!(made.contains_key(name), found.is_some());
                }
            }
        }
    }
}
