//! Values while an expression runs. What comes from the object is a view of it: it is looked at
//! only where the expression looks.

mod json;

use crate::library::Library;
use ferrokube_apimachinery::document::{Map as JsonMap, Value as Json};
use ferrokube_schema::{Kind, ListType};
pub(crate) use json::{Field, Shape, escape, is_reserved, view};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// A value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `bool`
    Bool(bool),
    /// `int`
    Int(i64),
    /// `uint`
    Uint(u64),
    /// `double`
    Double(f64),
    /// `string`
    String(Text<'a>),
    /// `bytes`
    Bytes(Arc<[u8]>),
    /// `google.protobuf.Duration`, in nanoseconds
    Duration(i64),
    /// `google.protobuf.Timestamp`, in nanoseconds since 1970
    Timestamp(i128),
    /// `list`
    List(List<'a>),
    /// `map`, and objects with declared fields
    Map(Map<'a>),
    /// `optional_type`
    Optional(Option<Arc<Value<'a>>>),
    /// `type`
    Type(&'static str),
    /// A value of one of the libraries: an address, a quantity, ...
    Library(Arc<Library>),
    /// A number of the object that is no integer where its schema has one (`1.0` is a double until
    /// it is stored): to look at it is an error.
    Misfit(Kind),
}

/// A text of the object or the expression, or one that was made.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// Borrowed.
    Of(&'a str),
    /// Made.
    Own(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Of(text) => text,
            Self::Own(text) => text,
        }
    }
}

/// A list.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// Of the object.
    Json {
        /// The items.
        items: &'a [Json],
        /// What they are.
        shape: Shape<'a>,
        /// Whether its order counts.
        list_type: &'a ListType,
    },
    /// Made.
    Own(Arc<Vec<Value<'a>>>),
}

impl<'a> List<'a> {
    pub(crate) fn of(items: Vec<Value<'a>>) -> Self {
        Self::Own(Arc::new(items))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json { items, .. } => items.len(),
            Self::Own(items) => items.len(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Json { items, shape, .. } => items.get(index).map(|item| view(item, *shape)),
            Self::Own(items) => items.get(index).cloned(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// What tells items apart, where order does not count.
    pub(crate) fn list_type(&self) -> &'a ListType {
        match self {
            Self::Json { list_type, .. } => list_type,
            Self::Own(_) => &ListType::Atomic,
        }
    }
}

/// A map.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// Of the object.
    Json {
        /// The entries.
        map: &'a JsonMap,
        /// What they are.
        shape: Shape<'a>,
    },
    /// Made.
    Own(Arc<BTreeMap<Key<'a>, Value<'a>>>),
}

/// The key of a map. Numbers are equal whatever their type.
#[derive(Clone, Debug)]
pub enum Key<'a> {
    /// `bool`
    Bool(bool),
    /// `int` and `uint`
    Number(i128),
    /// `string`
    Text(Text<'a>),
}

impl Key<'_> {
    fn rank(&self) -> (u8, i128, &str) {
        match self {
            Self::Bool(flag) => (0, i128::from(*flag), ""),
            Self::Number(number) => (1, *number, ""),
            Self::Text(text) => (2, 0, text),
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Key<'_> {}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<'a> Key<'a> {
    /// The key that a value can be.
    pub(crate) fn of(value: &Value<'a>) -> Option<Self> {
        Some(match value {
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Int(number) => Self::Number(i128::from(*number)),
            Value::Uint(number) => Self::Number(i128::from(*number)),
            #[allow(
                clippy::cast_possible_truncation,
                reason = "without a fraction, and bounded just before"
            )]
            Value::Double(number) if number.fract() == 0.0 && number.abs() < 1e18 => {
                Self::Number(*number as i128)
            }
            Value::String(text) => Self::Text(text.clone()),
            _ => return None,
        })
    }

    pub(crate) fn value(&self) -> Value<'a> {
        match self {
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Number(number) => i64::try_from(*number).map_or_else(
                |_| Value::Uint(u64::try_from(*number).unwrap_or(u64::MAX)),
                Value::Int,
            ),
            Self::Text(text) => Value::String(text.clone()),
        }
    }
}

impl<'a> Map<'a> {
    pub(crate) fn of(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        Self::Own(Arc::new(entries))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json { map, .. } => map.len(),
            Self::Own(map) => map.len(),
        }
    }

    /// A declared field, or a key that is a name.
    pub(crate) fn field(&self, field: &Field) -> Option<Value<'a>> {
        match self {
            Self::Json { map, shape } => json::field(map, *shape, field),
            Self::Own(map) => map.get(&Key::Text(Text::Own(Arc::clone(&field.given)))).cloned(),
        }
    }

    pub(crate) fn get(&self, key: &Key<'a>) -> Option<Value<'a>> {
        match (self, key) {
            (Self::Json { map, shape }, Key::Text(name)) => json::entry(map, *shape, name),
            (Self::Json { .. }, _) => None,
            (Self::Own(map), key) => map.get(key).cloned(),
        }
    }

    /// Keys and values.
    pub(crate) fn entries(&self) -> Vec<(Key<'a>, Value<'a>)> {
        match self {
            Self::Json { map, shape } => map
                .iter()
                .filter_map(|(name, _)| {
                    Some((Key::Text(Text::Of(name)), json::entry(map, *shape, name)?))
                })
                .collect(),
            Self::Own(map) => map.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }
}

impl<'a> Value<'a> {
    /// A text that was made.
    pub(crate) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Own(text.into()))
    }

    pub(crate) fn list(items: Vec<Value<'a>>) -> Self {
        Self::List(List::of(items))
    }

    pub(crate) fn optional(value: Option<Value<'a>>) -> Self {
        Self::Optional(value.map(Arc::new))
    }

    pub(crate) fn library(value: Library) -> Self {
        Self::Library(Arc::new(value))
    }

    /// An object of these fields.
    pub(crate) fn of_fields(map: &'a JsonMap, shape: Shape<'a>) -> Self {
        Self::Map(Map::Json { map, shape })
    }

    /// A value of the object.
    pub(crate) fn of_json(value: &'a Json, shape: Shape<'a>) -> Self {
        view(value, shape)
    }

    /// How much a walk over it costs.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            _ => 1,
        };
        size as u64
    }

    /// The name of its type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Library(value) => value.type_name(),
            Self::Misfit(_) => "error",
        }
    }

    /// Whether it is what its type has when nothing was set.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(flag) => !flag,
            Self::Int(number) => *number == 0,
            Self::Uint(number) => *number == 0,
            Self::Double(number) => *number == 0.0,
            Self::Duration(nanos) => *nanos == 0,
            Self::String(_) | Self::Bytes(_) | Self::List(_) | Self::Map(_) => self.size() == 0,
            Self::Optional(value) => value.is_none(),
            Self::Timestamp(_) | Self::Type(_) | Self::Library(_) | Self::Misfit(_) => false,
        }
    }
}
