//! Iterators over fields of either representation.

use super::{FieldsMut, Growing, MapField, MapFields, MapForm};
use crate::value::{Text, Value};
use std::collections::btree_map;

/// Iterator over the fields, in order.
#[derive(Clone)]
pub struct Iter<'a>(Either<std::slice::Iter<'a, MapField>, btree_map::Iter<'a, Text, Value>>);

/// Owning iterator over the fields, in order.
pub struct IntoIter(Either<std::vec::IntoIter<MapField>, btree_map::IntoIter<Text, Value>>);

pub(super) struct IterMut<'a>(
    Either<std::slice::IterMut<'a, MapField>, btree_map::IterMut<'a, Text, Value>>,
);

#[derive(Clone)]
enum Either<S, T> {
    Slice(S),
    Tree(T),
}

impl<'a> Iter<'a> {
    pub(super) fn new(fields: MapFields<'a>) -> Self {
        Self(match fields {
            MapFields::Slice(fields) => Either::Slice(fields.iter()),
            MapFields::Tree(tree) => Either::Tree(tree.iter()),
        })
    }
}

impl<'a> IterMut<'a> {
    pub(super) fn new(fields: FieldsMut<'a>) -> Self {
        Self(match fields {
            FieldsMut::Slice(fields) => Either::Slice(fields.iter_mut()),
            FieldsMut::Tree(tree) => Either::Tree(tree.iter_mut()),
        })
    }
}

impl IntoIter {
    pub(super) fn new(form: MapForm) -> Self {
        Self(match form {
            MapForm::Exact(fields) => Either::Slice(fields.into_vec().into_iter()),
            MapForm::Growing(growing) => match *growing {
                Growing::Few(fields) => Either::Slice(fields.into_iter()),
                Growing::Many(tree) => Either::Tree(tree.into_iter()),
            },
        })
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a Text, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Either::Slice(fields) => fields.next().map(|(key, value)| (key, value)),
            Either::Tree(fields) => fields.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Either::Slice(fields) => fields.size_hint(),
            Either::Tree(fields) => fields.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Either::Slice(fields) => fields.next_back().map(|(key, value)| (key, value)),
            Either::Tree(fields) => fields.next_back(),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> Iterator for IterMut<'a> {
    type Item = (&'a Text, &'a mut Value);

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Either::Slice(fields) => fields.next().map(|(key, value)| (&*key, value)),
            Either::Tree(fields) => fields.next(),
        }
    }
}

impl Iterator for IntoIter {
    type Item = MapField;

    fn next(&mut self) -> Option<MapField> {
        match &mut self.0 {
            Either::Slice(fields) => fields.next(),
            Either::Tree(fields) => fields.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Either::Slice(fields) => fields.size_hint(),
            Either::Tree(fields) => fields.size_hint(),
        }
    }
}

impl DoubleEndedIterator for IntoIter {
    fn next_back(&mut self) -> Option<MapField> {
        match &mut self.0 {
            Either::Slice(fields) => fields.next_back(),
            Either::Tree(fields) => fields.next_back(),
        }
    }
}

impl ExactSizeIterator for IntoIter {}
