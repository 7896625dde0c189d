//! Conversions and comparisons of values, and indexing.

use super::{Array, Map, Number, Text, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Name of a field or index of an element.
pub trait ValueIndex {
    /// The value at the index.
    fn of(self, value: &Value) -> Option<&Value>;
    /// The value at the index, mutably.
    fn of_mut(self, value: &mut Value) -> Option<&mut Value>;
    /// The value at the index; a missing field is added, null becomes a map.
    ///
    /// # Panics
    /// If the value is of another type, or has no such element.
    fn made(self, value: &mut Value) -> &mut Value;
}

impl ValueIndex for &str {
    fn of(self, value: &Value) -> Option<&Value> {
        value.as_object()?.get(self)
    }

    fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
        value.as_object_mut()?.get_mut(self)
    }

    fn made(self, value: &mut Value) -> &mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(map) => map.entry(self).or_insert(Value::Null),
            other => panic!("no field {self:?} in {other:?}"),
        }
    }
}

impl ValueIndex for &&str {
    fn of(self, value: &Value) -> Option<&Value> {
        (*self).of(value)
    }

    fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
        (*self).of_mut(value)
    }

    fn made(self, value: &mut Value) -> &mut Value {
        (*self).made(value)
    }
}

macro_rules! names {
    ($($name:ty),*) => {$(
        impl ValueIndex for $name {
            fn of(self, value: &Value) -> Option<&Value> {
                self.as_str().of(value)
            }

            fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
                self.as_str().of_mut(value)
            }

            fn made(self, value: &mut Value) -> &mut Value {
                self.as_str().made(value)
            }
        }
    )*};
}

names!(&String, String, &Text);

impl ValueIndex for usize {
    fn of(self, value: &Value) -> Option<&Value> {
        value.as_array()?.get(self)
    }

    fn of_mut(self, value: &mut Value) -> Option<&mut Value> {
        value.as_array_mut()?.get_mut(self)
    }

    fn made(self, value: &mut Value) -> &mut Value {
        match value {
            Value::Array(items) => &mut items[self],
            other => panic!("no element {self} in {other:?}"),
        }
    }
}

impl<P: ValueIndex> Index<P> for Value {
    type Output = Self;

    /// A missing value is null.
    fn index(&self, place: P) -> &Self {
        const NULL: &Value = &Value::Null;
        place.of(self).unwrap_or(NULL)
    }
}

impl<P: ValueIndex> IndexMut<P> for Value {
    fn index_mut(&mut self, place: P) -> &mut Self {
        place.made(self)
    }
}

impl fmt::Display for Value {
    /// Compact JSON.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&crate::json::to_vec(self)))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => formatter.write_str("Null"),
            Self::Bool(value) => write!(formatter, "Bool({value})"),
            Self::Number(number) => number.fmt(formatter),
            Self::String(text) => write!(formatter, "String({text:?})"),
            Self::Array(items) => {
                formatter.write_str("Array ")?;
                items.fmt(formatter)
            }
            Self::Object(map) => {
                formatter.write_str("Object ")?;
                map.fmt(formatter)
            }
        }
    }
}

/// Accepted by `json!`, by reference.
pub trait ToValue {
    /// A copy as a value.
    fn to_value(&self) -> Value;
}

macro_rules! copied {
    ($($from:ty),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::Number(value.into())
            }
        }

        impl ToValue for $from {
            fn to_value(&self) -> Value {
                Value::Number((*self).into())
            }
        }
    )*};
}

copied!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, Number);

macro_rules! cloned {
    ($($variant:ident($from:ty)),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }

        impl ToValue for $from {
            fn to_value(&self) -> Value {
                Value::$variant(self.clone().into())
            }
        }
    )*};
}

cloned!(Bool(bool), String(Text), Array(Array), Object(Map));

impl From<f64> for Value {
    /// Infinities and NaN become null.
    fn from(value: f64) -> Self {
        Number::from_f64(value).map_or(Self::Null, Self::Number)
    }
}

impl From<()> for Value {
    fn from((): ()) -> Self {
        Self::Null
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::String(text.into())
    }
}

impl From<&Text> for Value {
    fn from(text: &Text) -> Self {
        Self::String(text.clone())
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(text: Cow<'_, str>) -> Self {
        Self::String(text.into())
    }
}

impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Into<Self>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Clone + Into<Self>> From<&[T]> for Value {
    fn from(items: &[T]) -> Self {
        items.iter().cloned().collect()
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Self>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::Array(items.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Text>, V: Into<Self>> FromIterator<(K, V)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(fields: I) -> Self {
        Self::Object(fields.into_iter().map(|(key, value)| (key, value.into())).collect())
    }
}

impl ToValue for Value {
    fn to_value(&self) -> Value {
        self.clone()
    }
}

impl ToValue for f64 {
    fn to_value(&self) -> Value {
        (*self).into()
    }
}

impl ToValue for str {
    fn to_value(&self) -> Value {
        self.into()
    }
}

impl ToValue for String {
    fn to_value(&self) -> Value {
        self.as_str().into()
    }
}

impl ToValue for crate::document::Document {
    fn to_value(&self) -> Value {
        Value::Object(self.fields().clone())
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<T: ToValue + ?Sized> ToValue for $pointer {
            fn to_value(&self) -> Value {
                (**self).to_value()
            }
        }
    )*};
}

pointers!(&T, &mut T, Box<T>, Arc<T>);

impl<T: ToValue + ToOwned + ?Sized> ToValue for Cow<'_, T> {
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

impl<T: ToValue> ToValue for [T] {
    fn to_value(&self) -> Value {
        Value::Array(self.iter().map(ToValue::to_value).collect())
    }
}

impl<T: ToValue, const N: usize> ToValue for [T; N] {
    fn to_value(&self) -> Value {
        self.as_slice().to_value()
    }
}

impl<T: ToValue> ToValue for Vec<T> {
    fn to_value(&self) -> Value {
        self.as_slice().to_value()
    }
}

impl<T: ToValue> ToValue for BTreeSet<T> {
    fn to_value(&self) -> Value {
        Value::Array(self.iter().map(ToValue::to_value).collect())
    }
}

impl<K: AsRef<str>, T: ToValue> ToValue for BTreeMap<K, T> {
    fn to_value(&self) -> Value {
        Value::Object(self.iter().map(|(key, value)| (key.as_ref(), value.to_value())).collect())
    }
}

macro_rules! equal {
    ($($as:ident: $($other:ty),*;)*) => {$($(
        impl PartialEq<$other> for Value {
            fn eq(&self, other: &$other) -> bool {
                $as(self, other)
            }
        }

        impl PartialEq<$other> for &Value {
            fn eq(&self, other: &$other) -> bool {
                $as(self, other)
            }
        }

        impl PartialEq<Value> for $other {
            fn eq(&self, other: &Value) -> bool {
                $as(other, self)
            }
        }
    )*)*};
}

equal! {
    text: str, String, Text;
    integer: i32, i64, u16, u32, u64, usize;
    float: f64;
    boolean: bool;
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        text(self, other)
    }
}

impl PartialEq<Value> for &str {
    fn eq(&self, other: &Value) -> bool {
        text(other, self)
    }
}

fn text(value: &Value, other: impl AsRef<str>) -> bool {
    value.as_str() == Some(other.as_ref())
}

fn integer<T: Copy + Into<Number>>(value: &Value, other: &T) -> bool {
    value.as_number() == Some(&(*other).into())
}

fn float(value: &Value, other: &f64) -> bool {
    value.as_f64() == Some(*other)
}

fn boolean(value: &Value, other: &bool) -> bool {
    value.as_bool() == Some(*other)
}
