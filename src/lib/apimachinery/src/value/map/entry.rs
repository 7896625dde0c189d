//! A field that may be absent.

use super::Map;
use crate::value::{Text, Value};

/// A field of a map, by its key.
pub struct Entry<'a> {
    map: &'a mut Map,
    key: Text,
}

impl<'a> Entry<'a> {
    pub(super) fn new(map: &'a mut Map, key: Text) -> Self {
        Self { map, key }
    }

    /// The field's value; an absent one is set to what the function gives.
    pub fn or_insert_with(self, default: impl FnOnce() -> Value) -> &'a mut Value {
        if self.map.contains_key(&self.key) {
            return self.map.get_mut(&self.key).expect("it was found just above");
        }
        self.map.add(self.key, default())
    }

    /// The field's value; an absent one is set to this.
    pub fn or_insert(self, default: Value) -> &'a mut Value {
        self.or_insert_with(|| default)
    }

    /// Changes the value of a field that is there.
    #[must_use]
    pub fn and_modify(self, change: impl FnOnce(&mut Value)) -> Self {
        if let Some(value) = self.map.get_mut(&self.key) {
            change(value);
        }
        self
    }
}
