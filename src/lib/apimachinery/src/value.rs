//! JSON values in 24 bytes, without a header on the heap.
//!
//! A body may hold a value in every second byte, so the size of a value determines the size limit
//! of a request. Strings and keys of up to 24 bytes are stored inline; lists and maps read from a
//! body have no spare capacity. See [`crate::heap`].

mod array;
mod convert;
mod macros;
mod map;
mod number;
#[cfg(test)]
mod tests;

pub use array::Array;
pub use convert::{ToValue, ValueIndex};
pub use macros::no_fields;
pub(crate) use map::FEW;
pub use map::{IntoIter, Iter, Map, MapEntry};
pub use number::Number;

/// A string; up to 24 bytes inline.
pub type Text = compact_str::CompactString;

/// A JSON value.
#[derive(Clone, Default, PartialEq)]
pub enum Value {
    /// `null`
    #[default]
    Null,
    /// `true` or `false`
    Bool(bool),
    /// An integer of 64 bits, or a float.
    Number(Number),
    /// UTF-8, without escapes.
    String(Text),
    /// A list.
    Array(Array),
    /// A map with sorted keys.
    Object(Map),
}

impl Value {
    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether it is a boolean.
    pub fn is_boolean(&self) -> bool {
        matches!(self, Self::Bool(_))
    }

    /// Whether it is a number.
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }

    /// Whether it is an integer that fits into `i64`.
    pub fn is_i64(&self) -> bool {
        self.as_i64().is_some()
    }

    /// Whether it is an integer that fits into `u64`.
    pub fn is_u64(&self) -> bool {
        self.as_u64().is_some()
    }

    /// Whether it is a float.
    pub fn is_f64(&self) -> bool {
        matches!(self, Self::Number(number) if number.is_f64())
    }

    /// Whether it is a string.
    pub fn is_string(&self) -> bool {
        matches!(self, Self::String(_))
    }

    /// Whether it is a list.
    pub fn is_array(&self) -> bool {
        matches!(self, Self::Array(_))
    }

    /// Whether it is a map.
    pub fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// The boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    /// `None` for other types, also for a string of digits.
    pub fn as_number(&self) -> Option<&Number> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }

    /// The integer, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number()?.as_i64()
    }

    /// The integer, if it fits.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_number()?.as_u64()
    }

    /// The number as the nearest float.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number()?.as_f64()
    }

    /// The string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// The list.
    pub fn as_array(&self) -> Option<&Array> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// The list, mutably.
    pub fn as_array_mut(&mut self) -> Option<&mut Array> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// `None` for other types.
    pub fn as_object(&self) -> Option<&Map> {
        if let Self::Object(map) = self { Some(map) } else { None }
    }

    /// The map, mutably.
    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        if let Self::Object(map) = self { Some(map) } else { None }
    }

    /// A field by name, or an element by index.
    pub fn get(&self, index: impl ValueIndex) -> Option<&Self> {
        index.of(self)
    }

    /// A field by name, or an element by index, mutably.
    pub fn get_mut(&mut self, index: impl ValueIndex) -> Option<&mut Self> {
        index.of_mut(self)
    }

    /// The value at a JSON pointer (RFC 6901).
    pub fn pointer(&self, pointer: &str) -> Option<&Self> {
        self::pointer(pointer)?.try_fold(self, |value, token| match value {
            Self::Object(map) => map.get(&token),
            Self::Array(items) => items.get(position(&token)?),
            _ => None,
        })
    }

    /// The value at a JSON pointer (RFC 6901), mutably.
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Self> {
        self::pointer(pointer)?.try_fold(self, |value, token| match value {
            Self::Object(map) => map.get_mut(&token),
            Self::Array(items) => items.get_mut(position(&token)?),
            _ => None,
        })
    }

    /// Replaces the value with null.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// Tokens of a pointer; `None` without a leading slash.
fn pointer(pointer: &str) -> Option<impl Iterator<Item = String>> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return None;
    }
    Some(pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")))
}

fn position(token: &str) -> Option<usize> {
    if token.starts_with('+') || (token.len() > 1 && token.starts_with('0')) {
        None
    } else {
        token.parse().ok()
    }
}
