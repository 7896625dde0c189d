//! Lists, without spare capacity until they change.

use super::Value;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A list of values: a slice, with the methods of a vector that change its length.
#[derive(PartialEq)]
pub struct Array(ArrayForm);

/// Two words, so that a value takes three.
enum ArrayForm {
    Exact(Box<[Value]>),
    /// Changed in length.
    #[expect(clippy::box_collection, reason = "a vector is three words")]
    Growing(Box<Vec<Value>>),
}

impl PartialEq for ArrayForm {
    fn eq(&self, other: &Self) -> bool {
        self.slice() == other.slice()
    }
}

impl ArrayForm {
    fn slice(&self) -> &[Value] {
        match self {
            Self::Exact(items) => items,
            Self::Growing(items) => items,
        }
    }
}

impl Array {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// The elements.
    pub fn as_slice(&self) -> &[Value] {
        self.0.slice()
    }

    /// As a vector, to change the length.
    pub fn as_vec(&mut self) -> &mut Vec<Value> {
        if let ArrayForm::Exact(items) = &mut self.0 {
            self.0 = ArrayForm::Growing(Box::new(std::mem::take(items).into_vec()));
        }
        match &mut self.0 {
            ArrayForm::Growing(items) => items,
            ArrayForm::Exact(_) => unreachable!("made growing just above"),
        }
    }

    /// As a vector.
    pub fn into_vec(self) -> Vec<Value> {
        match self.0 {
            ArrayForm::Exact(items) => items.into_vec(),
            ArrayForm::Growing(items) => *items,
        }
    }

    /// Appends an element.
    pub fn push(&mut self, value: Value) {
        self.as_vec().push(value);
    }

    /// Removes the last element.
    pub fn pop(&mut self) -> Option<Value> {
        self.as_vec().pop()
    }

    /// Inserts an element at a position, which is at most the length.
    pub fn insert(&mut self, at: usize, value: Value) {
        self.as_vec().insert(at, value);
    }

    /// Removes the element at a position, which is below the length.
    pub fn remove(&mut self, at: usize) -> Value {
        self.as_vec().remove(at)
    }

    /// Keeps the elements that match.
    pub fn retain(&mut self, keep: impl FnMut(&Value) -> bool) {
        self.as_vec().retain(keep);
    }

    /// Keeps the first `length` elements.
    pub fn truncate(&mut self, length: usize) {
        self.as_vec().truncate(length);
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Allocated bytes, without those of the elements.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            ArrayForm::Exact(items) => size_of_val::<[Value]>(items),
            ArrayForm::Growing(items) => {
                size_of::<Vec<Value>>() + items.capacity() * size_of::<Value>()
            }
        }
    }
}

impl Default for Array {
    fn default() -> Self {
        Self(ArrayForm::Exact(Box::default()))
    }
}

impl Clone for Array {
    fn clone(&self) -> Self {
        Self(ArrayForm::Exact(self.as_slice().into()))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(formatter)
    }
}

impl Deref for Array {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        self.as_slice()
    }
}

impl DerefMut for Array {
    fn deref_mut(&mut self) -> &mut [Value] {
        match &mut self.0 {
            ArrayForm::Exact(items) => items,
            ArrayForm::Growing(items) => items,
        }
    }
}

impl From<Vec<Value>> for Array {
    fn from(items: Vec<Value>) -> Self {
        Self(ArrayForm::Exact(items.into()))
    }
}

impl From<Array> for Vec<Value> {
    fn from(items: Array) -> Self {
        items.into_vec()
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(items: I) -> Self {
        Self(ArrayForm::Exact(items.into_iter().collect()))
    }
}

impl Extend<Value> for Array {
    fn extend<I: IntoIterator<Item = Value>>(&mut self, items: I) {
        self.as_vec().extend(items);
    }
}

impl PartialEq<Vec<Value>> for Array {
    fn eq(&self, other: &Vec<Value>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl PartialEq<[Value]> for Array {
    fn eq(&self, other: &[Value]) -> bool {
        self.as_slice() == other
    }
}

impl IntoIterator for Array {
    type Item = Value;
    type IntoIter = std::vec::IntoIter<Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.into_vec().into_iter()
    }
}

impl<'a> IntoIterator for &'a Array {
    type Item = &'a Value;
    type IntoIter = std::slice::Iter<'a, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl<'a> IntoIterator for &'a mut Array {
    type Item = &'a mut Value;
    type IntoIter = std::slice::IterMut<'a, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}
