//! Expression types, derived from schemas. Types with a length carry its bound, for cost
//! estimation.

use crate::value::{escape, is_reserved};
use ferrokube_schema::{Kind, Schema};
use std::sync::Arc;

/// Max bytes of a request, and so of any value in it.
pub(crate) const MAX_REQUEST: u64 = 3 * 1024 * 1024;
/// Max schema depth of a type.
const MAX_DEPTH: usize = 250;
/// The type name of `self` in errors; kube-apiserver appends a varying number.
const SELF: &str = "selfType1";
/// Max bytes of resource names and versions.
const MAX_NAME: u64 = 1024;

/// A type. Lengths are upper bounds, in bytes or items.
#[derive(Clone, Debug)]
pub enum Type {
    /// Unknown before evaluation.
    Dyn,
    /// Not determined by anything: the item type of `[]`.
    Var,
    /// Of an expression with an error: compatible with everything.
    Error,
    /// `null_type`
    Null,
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// `uint`
    Uint,
    /// `double`
    Double,
    /// `string`, with its max bytes
    String(u64),
    /// `bytes`, with its max length
    Bytes(u64),
    /// `google.protobuf.Duration`
    Duration,
    /// `google.protobuf.Timestamp`
    Timestamp,
    /// Item type and max items.
    List(Arc<Type>, u64),
    /// Key and value types and max entries.
    Map(Arc<Type>, Arc<Type>, u64),
    /// An object with declared fields, and its type name in errors.
    Object(Arc<Schema>, ObjectRole, Arc<str>),
    /// `optional_type`
    Optional(Arc<Type>),
    /// `type`, with the name of the type in errors and the cost of a comparison.
    Type(Arc<str>, u64),
    /// A library type: IP address, quantity, ...
    Library(&'static str),
    /// `JSONPatch`, `Object` or `Object.FIELD`: a message literal of a mutating policy.
    Message(Arc<str>),
}

/// An object's role: of a resource, only a few metadata fields are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectRole {
    /// A nested object.
    Inner,
    /// A resource: the root or an embedded one.
    Resource,
    /// A resource's metadata.
    Metadata,
    /// A type of kube-apiserver's own, where a field without a type is `dyn`.
    BuiltIn,
}

impl Type {
    /// The type of a resource's root schema.
    pub fn resource(schema: &Arc<Schema>) -> Self {
        Self::Object(Arc::clone(schema), ObjectRole::Resource, SELF.into())
    }

    /// The type of an object with declared fields that is no resource.
    pub(crate) fn declared_object(schema: &Arc<Schema>, name: &str) -> Self {
        Self::Object(Arc::clone(schema), ObjectRole::BuiltIn, name.into())
    }

    /// The result of a mutation with a JSON patch.
    pub fn json_patches() -> Self {
        Self::List(Arc::new(Self::Message("JSONPatch".into())), u64::MAX)
    }

    /// The result of a mutation with an apply configuration.
    pub fn apply_configuration() -> Self {
        Self::Message("Object".into())
    }

    /// The type of a policy's variable: what cannot be declared is `dyn`, lengths are unknown.
    pub(crate) fn composed(self) -> Self {
        match self {
            Self::List(item, _) => Self::List(Arc::new((*item).clone().composed()), u64::MAX),
            Self::Map(key, value, _) => {
                let [key, value] = [key, value].map(|part| Arc::new((*part).clone().composed()));
                Self::Map(key, value, u64::MAX)
            }
            Self::Object(..)
            | Self::Optional(_)
            | Self::Type(..)
            | Self::Library(_)
            | Self::Message(_)
            | Self::Var => Self::Dyn,
            other => other.unbounded(),
        }
    }

    /// The type of a schema node; `None` if rules cannot see its values.
    pub fn of(schema: &Arc<Schema>) -> Option<Self> {
        Self::at(schema, SELF, 0)
    }

    fn at(schema: &Arc<Schema>, name: &str, depth: usize) -> Option<Self> {
        if depth > MAX_DEPTH {
            return None;
        }
        Some(match schema.kind {
            Kind::Any => return None,
            Kind::Boolean => Self::Bool,
            Kind::Integer => Self::Int,
            Kind::Number => Self::Double,
            Kind::IntOrString => Self::Dyn,
            Kind::String => Self::string(schema),
            Kind::Array => {
                let items = schema.items.as_ref()?.shared();
                Self::List(
                    Arc::new(Self::at(items, &format!("{name}.@idx"), depth + 1)?),
                    capacity(schema),
                )
            }
            Kind::Object => match &schema.additional {
                // `additionalProperties: true` is an object without declared fields.
                Some(values) if values.kind != Kind::Any || values.preserve_unknown => Self::Map(
                    Arc::new(Self::String(MAX_REQUEST)),
                    Arc::new(Self::at(values.shared(), &format!("{name}.@prop"), depth + 1)?),
                    capacity(schema),
                ),
                _ => Self::Object(
                    Arc::clone(schema),
                    if schema.embedded { ObjectRole::Resource } else { ObjectRole::Inner },
                    name.into(),
                ),
            },
        })
    }

    fn string(schema: &Schema) -> Self {
        let longest = schema.checks.as_deref().and_then(|checks| checks.max_length);
        match schema.format.as_deref() {
            Some("date-time" | "date") => return Self::Timestamp,
            Some("duration") => return Self::Duration,
            Some("byte") => return Self::Bytes(longest.unwrap_or(MAX_REQUEST).min(MAX_REQUEST)),
            _ => {}
        }
        // A character has up to four bytes.
        if let Some(most) = longest {
            return Self::String(most.saturating_mul(4).min(MAX_REQUEST));
        }
        let listed =
            schema.enumeration.iter().filter_map(|value| value.as_str()).map(str::len).max();
        Self::String(listed.map_or(MAX_REQUEST, |most| most as u64))
    }

    /// A declared field's type, by its escaped name.
    ///
    /// # Errors
    /// cel-go's message for an undeclared field.
    pub(crate) fn field(&self, name: &str) -> Result<Self, String> {
        match self {
            Self::Dyn | Self::Var | Self::Error => Ok(Self::Dyn),
            // cel-go looks up the lengths of map values by index only.
            Self::Map(_, values, _) => Ok((**values).clone().unbounded()),
            Self::Object(schema, role, own) => Self::declared(schema, (*role, own), name)
                .ok_or_else(|| format!("undefined field '{name}'")),
            Self::Message(_) => Ok(Self::Dyn),
            Self::Optional(inner) => Ok(Self::optional(inner.field(name)?)),
            Self::Library(name) if name.starts_with("kubernetes.") => {
                Err(format!("unexpected failed resolution of '{name}'"))
            }
            other => Err(format!("type '{}' does not support field selection", other.shown())),
        }
    }

    fn declared(schema: &Arc<Schema>, (role, own): (ObjectRole, &str), name: &str) -> Option<Self> {
        match (role, name) {
            (ObjectRole::Metadata, "name" | "generateName")
            | (ObjectRole::Resource, "apiVersion" | "kind") => return Some(Self::String(MAX_NAME)),
            (ObjectRole::Metadata, _) => return None,
            (ObjectRole::Resource, "metadata") => {
                return Some(Self::Object(
                    Arc::clone(schema),
                    ObjectRole::Metadata,
                    format!("{own}.metadata").into(),
                ));
            }
            _ => {}
        }
        // Reserved words need no escape after a dot.
        let plain = schema
            .properties
            .get(name)
            .filter(|_| is_reserved(name) || escape(name).as_deref() == Some(name));
        let property = plain.or_else(|| {
            schema
                .properties
                .iter()
                .find(|(field, _)| escape(field).as_deref() == Some(name))
                .map(|(_, property)| property)
        })?;
        let found = Self::at(property.schema.shared(), &format!("{own}.{name}"), 0);
        if role == ObjectRole::BuiltIn { Some(found.unwrap_or(Self::Dyn)) } else { found }
    }

    /// Wraps in an optional, unless it is one already.
    pub(crate) fn optional(inner: Self) -> Self {
        match inner {
            Self::Optional(_) => inner,
            inner => Self::Optional(Arc::new(inner)),
        }
    }

    /// Short name; equal for types of the same kind.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Dyn | Self::Var => "dyn",
            Self::Error => "!error!",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(..) => "list",
            Self::Map(..) => "map",
            Self::Object(..) | Self::Message(_) => "object",
            Self::Optional(_) => "optional_type",
            Self::Type(..) => "type",
            Self::Library(name) => name,
        }
    }

    /// As errors print it, with type parameters.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Duration => "duration".to_owned(),
            Self::Timestamp => "timestamp".to_owned(),
            Self::List(item, _) => format!("list({})", item.shown()),
            Self::Map(key, value, _) => format!("map({}, {})", key.shown(), value.shown()),
            Self::Optional(inner) => format!("optional_type({})", inner.shown()),
            Self::Object(_, _, name) | Self::Message(name) => (**name).to_owned(),
            Self::Type(of, _) => format!("type({of})"),
            plain => plain.name().to_owned(),
        }
    }

    /// The name that values of the type report.
    pub(crate) fn runtime_name(&self) -> String {
        match self {
            Self::Error => "dyn".to_owned(),
            Self::Null => "null_type".to_owned(),
            Self::Object(_, _, name) | Self::Message(name) => (**name).to_owned(),
            plain => plain.name().to_owned(),
        }
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Var | Self::Error)
    }

    pub(crate) fn is_ordered(&self) -> bool {
        use Type::{Bool, Bytes, Duration, String, Timestamp};
        self.is_number() || matches!(self, Bool | Bytes(_) | Duration | String(_) | Timestamp)
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Whether values of the types may be compared or assigned.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Var | Self::Error, _)
            | (_, Self::Dyn | Self::Var | Self::Error)
            | (Self::Null, Self::Null) => true,
            (Self::Null, other) | (other, Self::Null) => {
                matches!(
                    other,
                    Self::Object(..)
                        | Self::Duration
                        | Self::Timestamp
                        | Self::Optional(_)
                        | Self::Library(_)
                )
            }
            (Self::List(one, _), Self::List(other, _))
            | (Self::Optional(one), Self::Optional(other)) => one.fits(other),
            (Self::Map(key, one, _), Self::Map(other_key, other, _)) => {
                key.fits(other_key) && one.fits(other)
            }
            (Self::Object(one, role, _), Self::Object(other, other_place, _)) => {
                Arc::ptr_eq(one, other) && role == other_place
            }
            (Self::Message(one), Self::Message(other)) => one == other,
            (Self::Message(_), _) | (_, Self::Message(_)) => false,
            _ => self.name() == other.name(),
        }
    }

    /// The common type of two compatible types.
    pub(crate) fn join(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Null, other) => other.clone(),
            (Self::Var, other) | (other, Self::Var) => other.clone(),
            (Self::Dyn | Self::Error, _) | (_, Self::Dyn | Self::Error) => Self::Dyn,
            (Self::String(one), Self::String(other)) => Self::String(*one.max(other)),
            (Self::Bytes(one), Self::Bytes(other)) => Self::Bytes(*one.max(other)),
            (Self::List(one, size), Self::List(other, most)) => {
                Self::List(Arc::new(Self::known(one, other)), *size.max(most))
            }
            (Self::Map(key, one, size), Self::Map(other_key, other, most)) => Self::Map(
                Arc::new(Self::known(key, other_key)),
                Arc::new(Self::known(one, other)),
                *size.max(most),
            ),
            (Self::Optional(one), Self::Optional(other)) => {
                Self::Optional(Arc::new(Self::known(one, other)))
            }
            _ => self.clone(),
        }
    }

    /// The more specific of two element types: those of an empty list are unknown.
    fn known(one: &Self, other: &Self) -> Self {
        match (one, other) {
            (Self::Dyn | Self::Var | Self::Error, known)
            | (known, Self::Dyn | Self::Var | Self::Error) => known.clone(),
            _ => one.join(other),
        }
    }

    /// The same type with unknown length: scanning it exceeds the budget.
    pub(crate) fn unbounded(self) -> Self {
        match self {
            Self::String(_) => Self::String(u64::MAX),
            Self::Bytes(_) => Self::Bytes(u64::MAX),
            Self::List(item, _) => Self::List(item, u64::MAX),
            Self::Map(key, value, _) => Self::Map(key, value, u64::MAX),
            Self::Optional(inner) => Self::Optional(Arc::new((*inner).clone().unbounded())),
            other => other,
        }
    }

    /// Max cost of a pass over a value.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::String(most)
            | Self::Bytes(most)
            | Self::List(_, most)
            | Self::Map(_, _, most) => *most,
            Self::Object(schema, ..) => schema.properties.len() as u64,
            Self::Dyn | Self::Var => MAX_REQUEST,
            Self::Optional(inner) => inner.size(),
            Self::Type(_, size) => *size,
            _ => 1,
        }
    }
}

/// Max items or entries of a node.
pub(crate) fn capacity(schema: &Schema) -> u64 {
    let checks = schema.checks.as_deref();
    let (bound, smallest_entry) = match schema.kind {
        Kind::Array => (
            checks.and_then(|checks| checks.max_items),
            schema.items.as_deref().map_or(1, |items| smallest(items, 0)) + 1,
        ),
        _ => (
            checks.and_then(|checks| checks.max_properties),
            schema.additional.as_deref().map_or(1, |values| smallest(values, 0)) + 6,
        ),
    };
    bound.unwrap_or((MAX_REQUEST - 2) / smallest_entry).min(MAX_REQUEST)
}

/// Max values of this schema in one request.
pub(crate) fn occurrences(schema: &Schema) -> u64 {
    MAX_REQUEST / (smallest(schema, 0) + 1)
}

/// Min bytes of a value in JSON.
fn smallest(schema: &Schema, depth: usize) -> u64 {
    match schema.kind {
        Kind::Integer | Kind::Number | Kind::IntOrString | Kind::Any => 1,
        Kind::Boolean => 4,
        Kind::String | Kind::Array => 2,
        Kind::Object if depth > 8 => 2,
        Kind::Object => {
            let required = schema
                .properties
                .iter()
                .filter(|(_, property)| property.required && property.schema.default.is_none());
            2 + required
                .map(|(name, property)| {
                    name.len() as u64 + 4 + smallest(&property.schema, depth + 1)
                })
                .sum::<u64>()
        }
    }
}
