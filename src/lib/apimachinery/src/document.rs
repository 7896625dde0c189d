//! `Document`: an API object in memory.

pub use crate::json_value as json;
#[doc(hidden)]
pub use crate::value::no_fields;
pub use crate::value::{
    Array, IntoIter, Iter, Map, MapEntry, Number, Text, ToValue, Value, ValueIndex,
};

/// An API object: always a JSON object at the top.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Document(Map);

impl Document {
    /// An empty object.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wraps a JSON object.
    ///
    /// # Errors
    /// The value, if it is not an object.
    pub fn from_value(value: Value) -> Result<Self, Value> {
        match value {
            Value::Object(map) => Ok(Self(map)),
            other => Err(other),
        }
    }

    /// The top-level fields.
    pub fn fields(&self) -> &Map {
        &self.0
    }

    /// The top-level fields, mutably.
    pub fn fields_mut(&mut self) -> &mut Map {
        &mut self.0
    }

    /// Converts the object to a JSON value.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// Heap bytes owned by the object, see [`crate::heap::bytes`].
    pub fn heap_bytes(&self) -> usize {
        crate::heap::fields(&self.0)
    }

    /// The value at a path of field names.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.0.get(first)?, |value, field| value.get(*field))
    }

    /// The value at a path of field names, mutably.
    pub fn get_mut(&mut self, path: &[&str]) -> Option<&mut Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.0.get_mut(first)?, |value, field| value.get_mut(*field))
    }

    /// The string at a path of field names; `None` when absent or of another type.
    pub fn str(&self, path: &[&str]) -> Option<&str> {
        self.get(path)?.as_str()
    }

    /// The array at a path of field names; empty when absent or of another type.
    pub fn list(&self, path: &[&str]) -> &[Value] {
        self.get(path).and_then(Value::as_array).map_or(&[], Array::as_slice)
    }

    /// Sets the value at a path. Missing objects on the way are created, other values replaced.
    pub fn set(&mut self, path: &[&str], value: impl Into<Value>) {
        let Some((last, parents)) = path.split_last() else {
            return;
        };
        let mut map = &mut self.0;
        for field in parents {
            let slot = map.entry(*field).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            let Value::Object(inner) = slot else { unreachable!("made an object just above") };
            map = inner;
        }
        map.insert(*last, value.into());
    }

    /// Removes and returns the value at a path.
    pub fn remove(&mut self, path: &[&str]) -> Option<Value> {
        let (last, parents) = path.split_last()?;
        let map = if parents.is_empty() {
            &mut self.0
        } else {
            self.get_mut(parents)?.as_object_mut()?
        };
        map.remove(last)
    }

    /// `apiVersion`, empty when absent.
    pub fn api_version(&self) -> &str {
        self.str(&["apiVersion"]).unwrap_or_default()
    }

    /// `kind`, empty when absent.
    pub fn kind(&self) -> &str {
        self.str(&["kind"]).unwrap_or_default()
    }

    /// A string field of `metadata`, empty when absent.
    pub fn meta(&self, field: &str) -> &str {
        self.str(&["metadata", field]).unwrap_or_default()
    }

    /// `metadata.name`, empty when absent.
    pub fn name(&self) -> &str {
        self.meta("name")
    }

    /// `metadata.namespace`, empty when absent.
    pub fn namespace(&self) -> &str {
        self.meta("namespace")
    }

    /// `metadata.uid`, empty when absent.
    pub fn uid(&self) -> &str {
        self.meta("uid")
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.str(&["metadata", "labels", key])
    }

    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.str(&["metadata", "annotations", key])
    }

    /// Whether `metadata.deletionTimestamp` is set.
    pub fn is_terminating(&self) -> bool {
        self.get(&["metadata", "deletionTimestamp"]).is_some_and(|value| !value.is_null())
    }
}

impl From<Map> for Document {
    fn from(fields: Map) -> Self {
        Self(fields)
    }
}
