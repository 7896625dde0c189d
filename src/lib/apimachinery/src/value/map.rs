//! Maps in the order of their keys: a sorted slice, exactly as large as what was read; a B-tree
//! from the first change of a large one on.
//!
//! A change moves at most [`FEW`] fields, or goes down a tree: n changes of a map of m fields take
//! n log m steps and one walk over the map.

mod entry;
mod iter;

use super::{Text, Value};
use std::collections::BTreeMap;
use std::fmt;

pub use entry::Entry;
pub use iter::{IntoIter, Iter};

/// So many fields stay a slice when one is added or removed.
pub(crate) const FEW: usize = 64;

/// So many fields are looked through rather than halved.
const LINEAR: usize = 8;

type Field = (Text, Value);

/// A JSON object. Iterates in the order of the keys' bytes.
#[derive(Default)]
pub struct Map(Form);

/// Two words, so that a value has three.
enum Form {
    /// Sorted, without repeats, of any length.
    Exact(Box<[Field]>),
    /// Fields were added or removed.
    Growing(Box<Growing>),
}

#[derive(Clone)]
enum Growing {
    /// Sorted, without repeats, at most [`FEW`].
    Few(Vec<Field>),
    Many(BTreeMap<Text, Value>),
}

impl Default for Form {
    fn default() -> Self {
        Self::Exact(Box::default())
    }
}

/// Where the fields lie.
pub(super) enum Fields<'a> {
    Slice(&'a [Field]),
    Tree(&'a BTreeMap<Text, Value>),
}

enum FieldsMut<'a> {
    Slice(&'a mut [Field]),
    Tree(&'a mut BTreeMap<Text, Value>),
}

fn find(fields: &[Field], key: &str) -> Result<usize, usize> {
    if fields.len() <= LINEAR {
        // Most keys that are looked for are there or greater than none: comparing for equality is
        // cheap.
        if let Some(at) = fields.iter().position(|(name, _)| name == key) {
            return Ok(at);
        }
        return Err(fields.iter().take_while(|(name, _)| name.as_str() < key).count());
    }
    fields.binary_search_by(|(name, _)| name.as_str().cmp(key))
}

impl Map {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// From fields in order, without repeats.
    pub(crate) fn from_sorted(fields: Vec<Field>) -> Self {
        debug_assert!(fields.is_sorted_by(|one, next| one.0 < next.0));
        Self(Form::Exact(fields.into()))
    }

    /// From a tree, which it stays.
    pub(crate) fn from_tree(tree: BTreeMap<Text, Value>) -> Self {
        Self(Form::Growing(Box::new(Growing::Many(tree))))
    }

    /// How many fields it has.
    pub fn len(&self) -> usize {
        match self.fields() {
            Fields::Slice(fields) => fields.len(),
            Fields::Tree(tree) => tree.len(),
        }
    }

    /// Whether it has no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A field's value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self.fields() {
            Fields::Slice(fields) if fields.len() <= LINEAR => {
                fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            Fields::Slice(fields) => Some(&fields[find(fields, key).ok()?].1),
            Fields::Tree(tree) => tree.get(key),
        }
    }

    /// A field's value, to change.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        match self.fields_mut() {
            FieldsMut::Slice(fields) => find(fields, key).ok().map(|at| &mut fields[at].1),
            FieldsMut::Tree(tree) => tree.get_mut(key),
        }
    }

    /// A field: its key as the map holds it, and its value.
    pub fn get_key_value(&self, key: &str) -> Option<(&Text, &Value)> {
        match self.fields() {
            Fields::Slice(fields) => {
                find(fields, key).ok().map(|at| (&fields[at].0, &fields[at].1))
            }
            Fields::Tree(tree) => tree.get_key_value(key),
        }
    }

    /// Whether it has a field.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a field; gives the value that it had.
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

    /// Adds a field that is not there.
    fn add(&mut self, key: Text, value: Value) -> &mut Value {
        let at = match self.fields() {
            Fields::Slice(fields) => find(fields, &key).unwrap_or_else(|at| at),
            Fields::Tree(_) => 0,
        };
        self.add_at(at, key, value)
    }

    /// Adds a field that is not there, at its place in a slice; a tree knows the place.
    fn add_at(&mut self, at: usize, key: Text, value: Value) -> &mut Value {
        match self.growing(1) {
            Growing::Few(fields) => {
                fields.insert(at, (key, value));
                &mut fields[at].1
            }
            Growing::Many(tree) => tree.entry(key).or_insert(value),
        }
    }

    /// Removes a field; gives its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        if !self.contains_key(key) {
            return None;
        }
        match self.growing(0) {
            Growing::Few(fields) => find(fields, key).ok().map(|at| fields.remove(at).1),
            Growing::Many(tree) => tree.remove(key),
        }
    }

    /// A field, which may be absent, to fill or change.
    pub fn entry(&mut self, key: impl Into<Text>) -> Entry<'_> {
        Entry::new(self, key.into())
    }

    /// Keeps the fields that the test says.
    pub fn retain(&mut self, mut keep: impl FnMut(&Text, &mut Value) -> bool) {
        if let Form::Growing(growing) = &mut self.0
            && let Growing::Many(tree) = &mut **growing
        {
            return tree.retain(keep);
        }
        let mut fields = std::mem::take(self).into_sorted();
        fields.retain_mut(|(key, value)| keep(key, value));
        *self = Self(Form::Exact(fields.into()));
    }

    /// Removes all fields.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Moves all fields of another map here, over what is here.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    /// The fields in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter::new(self.fields())
    }

    /// The fields in order, their values to change.
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

    /// The values in the order of their keys, to change.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// The values in the order of their keys.
    pub fn into_values(self) -> impl Iterator<Item = Value> {
        self.into_iter().map(|(_, value)| value)
    }

    /// Gives back the room that changes left.
    pub fn shrink_to_fit(&mut self) {
        if matches!(self.0, Form::Growing(_)) {
            *self = Self(Form::Exact(std::mem::take(self).into_sorted().into()));
        }
    }

    /// What it has allocated, without its fields' own: of a tree, at the worst fill.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Exact(fields) => size_of_val::<[Field]>(fields),
            Form::Growing(growing) => {
                size_of::<Growing>()
                    + match &**growing {
                        Growing::Few(fields) => fields.capacity() * size_of::<Field>(),
                        Growing::Many(tree) => 640 + tree.len() * 2 * size_of::<Field>(),
                    }
            }
        }
    }

    pub(super) fn fields(&self) -> Fields<'_> {
        match &self.0 {
            Form::Exact(fields) => Fields::Slice(fields),
            Form::Growing(growing) => match &**growing {
                Growing::Few(fields) => Fields::Slice(fields),
                Growing::Many(tree) => Fields::Tree(tree),
            },
        }
    }

    fn fields_mut(&mut self) -> FieldsMut<'_> {
        match &mut self.0 {
            Form::Exact(fields) => FieldsMut::Slice(fields),
            Form::Growing(growing) => match &mut **growing {
                Growing::Few(fields) => FieldsMut::Slice(fields),
                Growing::Many(tree) => FieldsMut::Tree(tree),
            },
        }
    }

    /// In the form that can be changed, with room for more fields.
    fn growing(&mut self, more: usize) -> &mut Growing {
        if let Form::Exact(fields) = &mut self.0 {
            self.0 = Form::Growing(Box::new(Growing::Few(std::mem::take(fields).into_vec())));
        }
        let Form::Growing(growing) = &mut self.0 else { unreachable!("made growing just above") };
        if let Growing::Few(fields) = &mut **growing
            && fields.len() + more > FEW
        {
            **growing = Growing::Many(std::mem::take(fields).into_iter().collect());
        }
        growing
    }

    fn into_sorted(self) -> Vec<Field> {
        match self.0 {
            Form::Exact(fields) => fields.into_vec(),
            Form::Growing(growing) => match *growing {
                Growing::Few(fields) => fields,
                Growing::Many(tree) => tree.into_iter().collect(),
            },
        }
    }
}

impl Clone for Map {
    fn clone(&self) -> Self {
        Self(match self.fields() {
            Fields::Slice(fields) => Form::Exact(fields.into()),
            // What was changed is likely to be changed again.
            Fields::Tree(tree) => Form::Growing(Box::new(Growing::Many(tree.clone()))),
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
    /// Of several equal keys the last one counts.
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(fields: I) -> Self {
        let mut fields: Vec<Field> =
            fields.into_iter().map(|(key, value)| (key.into(), value)).collect();
        if !fields.is_sorted_by(|one, next| one.0 < next.0) {
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            fields.reverse();
            fields.dedup_by(|one, next| one.0 == next.0);
            fields.reverse();
        }
        Self(Form::Exact(fields.into()))
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
    /// Without such a field.
    fn index(&self, key: &str) -> &Value {
        self.get(key).expect("the field is there")
    }
}
