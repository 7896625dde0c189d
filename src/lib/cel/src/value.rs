//! Runtime values. Parts of the object are lazy views: only what an expression reads is converted.

pub(crate) mod authorizer;
pub(crate) mod cidr;
mod json;
pub(crate) mod library;
pub(crate) mod named_format;
mod native;
pub(crate) mod order;
pub(crate) mod sum;
pub(crate) mod text;
pub(crate) mod time;
pub(crate) mod url;

use crate::failure::Failure;
use ferrokube_apimachinery::document::{Map as JsonMap, Value as Json};
use ferrokube_schema::ListType;
pub(crate) use json::{Field, JsonShape, escape, is_reserved, view};
use library::Library;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// The result of an evaluation.
pub(crate) type CelResult<'a> = Result<Value<'a>, Failure>;

/// A runtime value.
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
    /// A value of a library type: IP address, quantity, ...
    Library(Arc<Library>),
    /// A message literal.
    Message(Arc<MessageValue<'a>>),
    /// A value of another type than its schema has (`1.0` is a double until it is stored); reading
    /// it fails with this error.
    Mistyped(Arc<str>),
}

/// A message literal: the result of a mutating policy.
#[derive(Clone, Debug)]
pub struct MessageValue<'a> {
    /// `JSONPatch`, `Object` or `Object.FIELD`.
    pub name: Arc<str>,
    /// Those that the literal sets.
    pub fields: BTreeMap<Arc<str>, Value<'a>>,
}

/// A string, borrowed from the object or expression, or computed.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// Borrowed.
    Of(&'a str),
    /// Computed.
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

/// Cheap to clone; items of an object become values when they are read.
#[derive(Clone, Debug)]
pub enum List<'a> {
    /// In the object.
    Json {
        /// As in the object.
        items: &'a [Json],
        /// The items' schema.
        shape: JsonShape<'a>,
        /// Whether order matters.
        list_type: &'a ListType,
    },
    /// Computed.
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

    /// In order, each as a view or a clone of a shared value.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// How items of unordered lists are identified.
    pub(crate) fn list_type(&self) -> &'a ListType {
        match self {
            Self::Json { list_type, .. } => list_type,
            Self::Own(_) => &ListType::Atomic,
        }
    }
}

/// Cheap to clone; entries of an object become values when they are read.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    /// In the object.
    Json {
        /// The entries.
        map: &'a JsonMap,
        /// The map's schema.
        shape: JsonShape<'a>,
    },
    /// Computed.
    Own(Arc<BTreeMap<MapKey<'a>, Value<'a>>>),
}

/// A map key. Numbers are equal across types.
#[derive(Clone, Debug)]
pub enum MapKey<'a> {
    /// `bool`
    Bool(bool),
    /// `int` and `uint`
    Number(i128),
    /// `string`
    Text(Text<'a>),
}

impl MapKey<'_> {
    fn rank(&self) -> (u8, i128, &str) {
        match self {
            Self::Bool(flag) => (0, i128::from(*flag), ""),
            Self::Number(number) => (1, *number, ""),
            Self::Text(text) => (2, 0, text),
        }
    }
}

impl PartialEq for MapKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for MapKey<'_> {}

impl PartialOrd for MapKey<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MapKey<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<'a> MapKey<'a> {
    /// The value as a key, if it can be one.
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
    pub(crate) fn of(entries: BTreeMap<MapKey<'a>, Value<'a>>) -> Self {
        Self::Own(Arc::new(entries))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json { map, .. } => map.len(),
            Self::Own(map) => map.len(),
        }
    }

    /// A declared field, or an entry by its key.
    pub(crate) fn field(&self, field: &Field) -> Option<Value<'a>> {
        match self {
            Self::Json { map, shape } => json::field(map, *shape, field),
            Self::Own(map) => map.get(&MapKey::Text(Text::Own(Arc::clone(&field.given)))).cloned(),
        }
    }

    pub(crate) fn get(&self, key: &MapKey<'a>) -> Option<Value<'a>> {
        match (self, key) {
            (Self::Json { map, shape }, MapKey::Text(name)) => json::entry(map, *shape, name),
            (Self::Json { .. }, _) => None,
            (Self::Own(map), key) => map.get(key).cloned(),
        }
    }

    pub(crate) fn entries(&self) -> Vec<(MapKey<'a>, Value<'a>)> {
        match self {
            Self::Json { map, shape } => map
                .iter()
                .filter_map(|(name, _)| {
                    Some((MapKey::Text(Text::Of(name)), json::entry(map, *shape, name)?))
                })
                .collect(),
            Self::Own(map) => map.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }
}

impl<'a> Value<'a> {
    /// A computed string.
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

    /// An object with these fields.
    pub(crate) fn of_fields(map: &'a JsonMap, shape: JsonShape<'a>) -> Self {
        Self::Map(Map::Json { map, shape })
    }

    /// A view of a JSON value.
    pub(crate) fn of_json(value: &'a Json, shape: JsonShape<'a>) -> Self {
        view(value, shape)
    }

    /// The cost of a pass over the value.
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

    /// Whether values of the type have an order.
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(
            self,
            Self::Bool(_)
                | Self::Int(_)
                | Self::Uint(_)
                | Self::Double(_)
                | Self::String(_)
                | Self::Bytes(_)
                | Self::Duration(_)
                | Self::Timestamp(_)
        )
    }

    /// The type's name.
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
            Self::Message(_) => "object",
            Self::Mistyped(_) => "error",
        }
    }

    /// Whether it is its type's zero value.
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
            Self::Message(message) => message.fields.is_empty(),
            Self::Timestamp(_) | Self::Type(_) | Self::Library(_) | Self::Mistyped(_) => false,
        }
    }
}
