//! A field that may be missing.

use super::Map;
use crate::value::{Text, Value};

/// A field of a map, by key.
pub struct MapEntry<'a> {
    map: &'a mut Map,
    key: Text,
}

impl<'a> MapEntry<'a> {
    pub(super) fn new(map: &'a mut Map, key: Text) -> Self {
        Self { map, key }
    }

    /// The field's value; if missing, set to the result of `default`.
    pub fn or_insert_with(self, default: impl FnOnce() -> Value) -> &'a mut Value {
        if self.map.contains_key(&self.key) {
            return self.map.get_mut(&self.key).expect("it was found just above");
        }
        self.map.add(self.key, default())
    }

    /// The field's value; if missing, set to `default`.
    pub fn or_insert(self, default: Value) -> &'a mut Value {
        self.or_insert_with(|| default)
    }

    /// Changes the value of an existing field.
    #[must_use]
    pub fn and_modify(self, change: impl FnOnce(&mut Value)) -> Self {
        if let Some(value) = self.map.get_mut(&self.key) {
            change(value);
        }
        self
    }
}
