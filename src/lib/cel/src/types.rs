//! Expression types, derived from schemas.

use crate::value::{escape, is_reserved};
use ferrokube_schema::{Kind, Schema};
use std::sync::Arc;

/// Max schema depth of a type.
const MAX_DEPTH: usize = 250;
/// The type name of `self` in errors; kube-apiserver appends a varying number.
const SELF: &str = "selfType1";

/// The static type of an expression.
#[derive(Clone, Debug)]
pub enum Type {
    /// Unknown before evaluation.
    Dyn,
    /// Not determined by anything: the item type of `[]`.
    Var,
    /// Type of an expression with an error: compatible with everything.
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
    /// `string`
    String,
    /// `bytes`
    Bytes,
    /// `google.protobuf.Duration`
    Duration,
    /// `google.protobuf.Timestamp`
    Timestamp,
    /// `list`, with its item type
    List(Arc<Type>),
    /// `map`, with its key and value types
    Map(Arc<Type>, Arc<Type>),
    /// An object with declared fields, and its type name in errors.
    Object(Arc<Schema>, ObjectRole, Arc<str>),
    /// `optional_type`
    Optional(Arc<Type>),
    /// `type`, with the name of the type in errors.
    Type(Arc<str>),
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

/// A field that rules can see.
pub(crate) enum DeclaredField<'s> {
    /// A resource's own: `kind`, `metadata.name`.
    Text,
    /// A resource's metadata.
    Metadata,
    Property(&'s Arc<Schema>),
}

impl<'s> DeclaredField<'s> {
    /// Looks up a field of an object by its escaped name.
    pub(crate) fn of(schema: &'s Schema, role: ObjectRole, name: &str) -> Option<Self> {
        match (role, name) {
            (ObjectRole::Metadata, "name" | "generateName")
            | (ObjectRole::Resource, "apiVersion" | "kind") => return Some(Self::Text),
            (ObjectRole::Metadata, _) => return None,
            (ObjectRole::Resource, "metadata") => return Some(Self::Metadata),
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
        Some(Self::Property(property.schema.shared()))
    }
}

impl Type {
    /// The type of a resource's root schema.
    pub fn resource(schema: &Arc<Schema>) -> Self {
        Self::Object(Arc::clone(schema), ObjectRole::Resource, SELF.into())
    }

    /// The type of the objects of a kind, with all its fields.
    pub fn of_kind(schema: &Arc<Schema>, kind: &str) -> Self {
        Self::Object(Arc::clone(schema), ObjectRole::Inner, kind.into())
    }

    /// The type of an object with declared fields that is no resource.
    pub(crate) fn declared_object(schema: &Arc<Schema>, name: &str) -> Self {
        Self::Object(Arc::clone(schema), ObjectRole::BuiltIn, name.into())
    }

    /// The result of a mutation with a JSON patch.
    pub fn json_patches() -> Self {
        Self::List(Arc::new(Self::Message("JSONPatch".into())))
    }

    /// The result of a mutation with an apply configuration.
    pub fn apply_configuration() -> Self {
        Self::Message("Object".into())
    }

    /// The type of a policy's variable; undeclarable types become `dyn`.
    pub(crate) fn composed(self) -> Self {
        match self {
            Self::List(item) => Self::List(Arc::new((*item).clone().composed())),
            Self::Map(key, value) => {
                let [key, value] = [key, value].map(|part| Arc::new((*part).clone().composed()));
                Self::Map(key, value)
            }
            Self::Object(..)
            | Self::Optional(_)
            | Self::Type(..)
            | Self::Library(_)
            | Self::Message(_)
            | Self::Var => Self::Dyn,
            other => other,
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
                Self::List(Arc::new(Self::at(items, &format!("{name}.@idx"), depth + 1)?))
            }
            Kind::Object => match &schema.additional {
                // `additionalProperties: true` is an object without declared fields.
                Some(values) if values.kind != Kind::Any || values.preserve_unknown => Self::Map(
                    Arc::new(Self::String),
                    Arc::new(Self::at(values.shared(), &format!("{name}.@elem"), depth + 1)?),
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
        match schema.format.as_deref() {
            Some("date-time" | "date") => Self::Timestamp,
            Some("duration") => Self::Duration,
            Some("byte") => Self::Bytes,
            _ => Self::String,
        }
    }

    /// A declared field's type, by its escaped name.
    ///
    /// # Errors
    /// cel-go's message for an undeclared field.
    pub(crate) fn field(&self, name: &str) -> Result<Self, String> {
        match self {
            Self::Dyn | Self::Var | Self::Error => Ok(Self::Dyn),
            Self::Map(_, values) => Ok((**values).clone()),
            Self::Object(schema, role, own) => Self::declared(schema, *role, own, name)
                .ok_or_else(|| format!("undefined field '{name}'")),
            Self::Message(_) => Ok(Self::Dyn),
            Self::Optional(inner) => Ok(Self::optional(inner.field(name)?)),
            Self::Library(name) if name.starts_with("kubernetes.") => {
                Err(format!("unexpected failed resolution of '{name}'"))
            }
            other => Err(format!("type '{}' does not support field selection", other.shown())),
        }
    }

    fn declared(schema: &Arc<Schema>, role: ObjectRole, own: &str, name: &str) -> Option<Self> {
        match DeclaredField::of(schema, role, name)? {
            DeclaredField::Text => Some(Self::String),
            DeclaredField::Metadata => Some(Self::Object(
                Arc::clone(schema),
                ObjectRole::Metadata,
                format!("{own}.metadata").into(),
            )),
            DeclaredField::Property(node) => {
                let found = Self::at(node, &format!("{own}.{name}"), 0);
                if role == ObjectRole::BuiltIn { Some(found.unwrap_or(Self::Dyn)) } else { found }
            }
        }
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
            Self::String => "string",
            Self::Bytes => "bytes",
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
            Self::List(item) => format!("list({})", item.shown()),
            Self::Map(key, value) => format!("map({}, {})", key.shown(), value.shown()),
            Self::Optional(inner) => format!("optional_type({})", inner.shown()),
            Self::Object(_, _, name) | Self::Message(name) => (**name).to_owned(),
            Self::Type(of) => format!("type({of})"),
            plain => plain.name().to_owned(),
        }
    }

    /// As cel-go prints it, with type parameters.
    pub(crate) fn declaration(&self) -> String {
        match self {
            Self::List(item) => format!("list({})", item.declaration()),
            Self::Map(key, value) => {
                format!("map({}, {})", key.declaration(), value.declaration())
            }
            Self::Optional(inner) => format!("optional_type({})", inner.declaration()),
            Self::Type(..) => self.shown(),
            plain => plain.runtime_name(),
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
        self.is_number() || matches!(self, Bool | Bytes | Duration | String | Timestamp)
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
            (Self::List(one), Self::List(other)) | (Self::Optional(one), Self::Optional(other)) => {
                one.fits(other)
            }
            (Self::Map(key, one), Self::Map(other_key, other)) => {
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

    /// The common type of two compatible types: the first one, unless the other is more general.
    pub(crate) fn join(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Var, other) | (other, Self::Var) => other.clone(),
            (Self::Error, _) => Self::Error,
            (known, Self::Error) => known.clone(),
            (Self::Dyn, _) | (_, Self::Dyn) => Self::Dyn,
            (Self::List(one), Self::List(other)) => Self::List(Arc::new(one.join(other))),
            (Self::Map(key, one), Self::Map(other_key, other)) => {
                Self::Map(Arc::new(key.join(other_key)), Arc::new(one.join(other)))
            }
            (Self::Optional(one), Self::Optional(other)) => {
                Self::Optional(Arc::new(one.join(other)))
            }
            _ => self.clone(),
        }
    }
}
