//! Maps with sorted keys: a sorted slice without spare capacity; a B-tree after the first change of
//! a large one.
//!
//! A change moves at most [`FEW`] fields, or is a tree operation: n changes of a map of m fields
//! take n log m steps and one walk.

mod entry;
mod iter;

use super::{Text, Value};
use std::collections::BTreeMap;
use std::fmt;

pub use entry::MapEntry;
pub use iter::{IntoIter, Iter};

/// Up to this many fields remain a slice when changed.
pub(crate) const FEW: usize = 64;

/// Searched linearly up to this many fields, by bisection above.
const LINEAR: usize = 8;

type MapField = (Text, Value);

/// A JSON object. Iterates in byte order of the keys.
#[derive(Default)]
pub struct Map(MapForm);

/// Two words, so that a value takes three.
enum MapForm {
    /// Sorted, without duplicates, of any length.
    Exact(Box<[MapField]>),
    /// Fields were added or removed.
    Growing(Box<Growing>),
}

#[derive(Clone)]
enum Growing {
    /// Sorted, without duplicates, at most [`FEW`].
    Few(Vec<MapField>),
    Many(BTreeMap<Text, Value>),
}

impl Default for MapForm {
    fn default() -> Self {
        Self::Exact(Box::default())
    }
}

/// Representation of the fields.
pub(super) enum MapFields<'a> {
    Slice(&'a [MapField]),
    Tree(&'a BTreeMap<Text, Value>),
}

enum FieldsMut<'a> {
    Slice(&'a mut [MapField]),
    Tree(&'a mut BTreeMap<Text, Value>),
}

/// Index of a field.
fn position(fields: &[MapField], key: &str) -> Option<usize> {
    if fields.len() <= LINEAR {
        return fields.iter().position(|(name, _)| name == key);
    }
    find(fields, key).ok()
}

/// Index of a field, or that of a missing one once it is added.
fn find(fields: &[MapField], key: &str) -> Result<usize, usize> {
    if fields.len() <= LINEAR {
        // Testing for equality first is cheap, and most fields that are added follow all others.
        return position(fields, key).ok_or_else(|| {
            let before = fields.iter().rposition(|(name, _)| name.as_str() < key);
            before.map_or(0, |at| at + 1)
        });
    }
    fields.binary_search_by(|(name, _)| name.as_str().cmp(key))
}

impl Map {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// From sorted fields without duplicates.
    pub(crate) fn from_sorted(fields: Vec<MapField>) -> Self {
        debug_assert!(fields.is_sorted_by(|one, next| one.0 < next.0));
        Self(MapForm::Exact(fields.into()))
    }

    /// Keeps the tree.
    pub(crate) fn from_tree(tree: BTreeMap<Text, Value>) -> Self {
        Self(MapForm::Growing(Box::new(Growing::Many(tree))))
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        match self.fields() {
            MapFields::Slice(fields) => fields.len(),
            MapFields::Tree(tree) => tree.len(),
        }
    }

    /// Whether it has no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value of a field.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self.fields() {
            MapFields::Slice(fields) => position(fields, key).map(|at| &fields[at].1),
            MapFields::Tree(tree) => tree.get(key),
        }
    }

    /// Value of a field, mutably.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        match self.fields_mut() {
            FieldsMut::Slice(fields) => position(fields, key).map(|at| &mut fields[at].1),
            FieldsMut::Tree(tree) => tree.get_mut(key),
        }
    }

    /// A field with the map's key.
    pub fn get_key_value(&self, key: &str) -> Option<(&Text, &Value)> {
        match self.fields() {
            MapFields::Slice(fields) => {
                position(fields, key).map(|at| (&fields[at].0, &fields[at].1))
            }
            MapFields::Tree(tree) => tree.get_key_value(key),
        }
    }

    /// Whether the field exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a field; returns its previous value.
    pub fn insert(&mut self, key: impl Into<Text>, value: Value) -> Option<Value> {
        let key = key.into();
        match self.fields_mut() {
            FieldsMut::Slice(fields) => match find(fields, &key) {
                Ok(at) => Some(std::mem::replace(&mut fields[at].1, value)),
                Err(at) => {
                    self.add_at(at, key, value);
                    None
                }
            },
            FieldsMut::Tree(tree) => tree.insert(key, value),
        }
    }

    /// Adds a missing field.
    fn add(&mut self, key: Text, value: Value) -> &mut Value {
        let at = match self.fields() {
            MapFields::Slice(fields) => find(fields, &key).unwrap_or_else(|at| at),
            MapFields::Tree(_) => 0,
        };
        self.add_at(at, key, value)
    }

    /// Adds a missing field, at its index in a slice; a tree ignores the index.
    fn add_at(&mut self, at: usize, key: Text, value: Value) -> &mut Value {
        match self.growing(1) {
            Growing::Few(fields) => {
                fields.insert(at, (key, value));
                &mut fields[at].1
            }
            Growing::Many(tree) => tree.entry(key).or_insert(value),
        }
    }

    /// Removes a field; returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        if !self.contains_key(key) {
            return None;
        }
        match self.growing(0) {
            Growing::Few(fields) => position(fields, key).map(|at| fields.remove(at).1),
            Growing::Many(tree) => tree.remove(key),
        }
    }

    /// Entry of a field, which may be missing.
    pub fn entry(&mut self, key: impl Into<Text>) -> MapEntry<'_> {
        MapEntry::new(self, key.into())
    }

    /// Keeps the fields that match.
    pub fn retain(&mut self, mut keep: impl FnMut(&Text, &mut Value) -> bool) {
        if let MapForm::Growing(growing) = &mut self.0
            && let Growing::Many(tree) = &mut **growing
        {
            return tree.retain(keep);
        }
        let mut fields = std::mem::take(self).into_sorted();
        fields.retain_mut(|(key, value)| keep(key, value));
        *self = Self(MapForm::Exact(fields.into()));
    }

    /// Removes all fields.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Moves all fields of another map into this one, overwriting.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    /// The fields in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter::new(self.fields())
    }

    /// The fields in order, with mutable values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Text, &mut Value)> {
        iter::IterMut::new(self.fields_mut())
    }

    /// The keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Text> + ExactSizeIterator + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The values in the order of their keys, mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// The values in the order of their keys.
    pub fn into_values(self) -> impl Iterator<Item = Value> {
        self.into_iter().map(|(_, value)| value)
    }

    /// Frees spare capacity.
    pub fn shrink_to_fit(&mut self) {
        if matches!(self.0, MapForm::Growing(_)) {
            *self = Self(MapForm::Exact(std::mem::take(self).into_sorted().into()));
        }
    }

    /// Allocated bytes, without those of the fields; of a tree, at the lowest fill.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            MapForm::Exact(fields) => size_of_val::<[MapField]>(fields),
            MapForm::Growing(growing) => {
                size_of::<Growing>()
                    + match &**growing {
                        Growing::Few(fields) => fields.capacity() * size_of::<MapField>(),
                        Growing::Many(tree) => 640 + tree.len() * 2 * size_of::<MapField>(),
                    }
            }
        }
    }

    pub(super) fn fields(&self) -> MapFields<'_> {
        match &self.0 {
            MapForm::Exact(fields) => MapFields::Slice(fields),
            MapForm::Growing(growing) => match &**growing {
                Growing::Few(fields) => MapFields::Slice(fields),
                Growing::Many(tree) => MapFields::Tree(tree),
            },
        }
    }

    fn fields_mut(&mut self) -> FieldsMut<'_> {
        match &mut self.0 {
            MapForm::Exact(fields) => FieldsMut::Slice(fields),
            MapForm::Growing(growing) => match &mut **growing {
                Growing::Few(fields) => FieldsMut::Slice(fields),
                Growing::Many(tree) => FieldsMut::Tree(tree),
            },
        }
    }

    /// The changeable representation, with capacity for more fields.
    fn growing(&mut self, more: usize) -> &mut Growing {
        if let MapForm::Exact(fields) = &mut self.0 {
            self.0 = MapForm::Growing(Box::new(Growing::Few(std::mem::take(fields).into_vec())));
        }
        let MapForm::Growing(growing) = &mut self.0 else {
            unreachable!("made growing just above")
        };
        if let Growing::Few(fields) = &mut **growing
            && fields.len() + more > FEW
        {
            **growing = Growing::Many(std::mem::take(fields).into_iter().collect());
        }
        growing
    }

    fn into_sorted(self) -> Vec<MapField> {
        match self.0 {
            MapForm::Exact(fields) => fields.into_vec(),
            MapForm::Growing(growing) => match *growing {
                Growing::Few(fields) => fields,
                Growing::Many(tree) => tree.into_iter().collect(),
            },
        }
    }
}

impl Clone for Map {
    fn clone(&self) -> Self {
        Self(match self.fields() {
            MapFields::Slice(fields) => MapForm::Exact(fields.into()),
            // A changed map is likely to change again.
            MapFields::Tree(tree) => MapForm::Growing(Box::new(Growing::Many(tree.clone()))),
        })
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Into<Text>> FromIterator<(K, Value)> for Map {
    /// The last of equal keys wins.
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(fields: I) -> Self {
        let mut fields: Vec<MapField> =
            fields.into_iter().map(|(key, value)| (key.into(), value)).collect();
        if !fields.is_sorted_by(|one, next| one.0 < next.0) {
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            fields.reverse();
            fields.dedup_by(|one, next| one.0 == next.0);
            fields.reverse();
        }
        Self(MapForm::Exact(fields.into()))
    }
}

impl<K: Into<Text>> Extend<(K, Value)> for Map {
    fn extend<I: IntoIterator<Item = (K, Value)>>(&mut self, fields: I) {
        for (key, value) in fields {
            self.insert(key, value);
        }
    }
}

impl IntoIterator for Map {
    type Item = (Text, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter::new(self.0)
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a Text, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl std::ops::Index<&str> for Map {
    type Output = Value;

    /// # Panics
    /// If the field is missing.
    fn index(&self, key: &str) -> &Value {
        self.get(key).expect("the field is there")
    }
}
