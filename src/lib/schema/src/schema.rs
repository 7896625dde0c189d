//! `Schema`: one node of a structural schema.

use crate::index::Index;
use crate::tables::Reference;
use ferrokube_apimachinery::document::{Map, Value};
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// No walk goes deeper than this into a value, whatever the reader let through.
pub const MAX_WALK: usize = 2048;

/// The JSON type of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Any type (no `type` given).
    #[default]
    Any,
    /// An object: `properties`, or `additional` for a map.
    Object,
    /// An array of `items`.
    Array,
    /// A string.
    String,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// A boolean.
    Boolean,
    /// `x-kubernetes-int-or-string`, also native IntOrString and (with the format `quantity`)
    /// Quantity.
    IntOrString,
}

impl Kind {
    /// The value of `type` in OpenAPI; empty where there is not exactly one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any | Self::IntOrString => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// How a list merges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// As one value.
    #[default]
    Atomic,
    /// Scalars, each once.
    Set,
    /// Objects, unique by these keys.
    Map(Vec<String>),
}

/// How an object merges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapType {
    /// Field by field.
    #[default]
    Granular,
    /// As one value.
    Atomic,
}

/// How the typed API writes a field of a native kind back when it is absent or empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emit {
    /// As it was given (fields of custom resources).
    #[default]
    AsIs,
    /// Always there: an absent one is written as the zero value of its type.
    Always,
    /// Left out when it is the zero value.
    OmitEmpty,
    /// Left out when it is null; an empty value stays.
    OmitNull,
    /// Null when absent; an empty value stays.
    AlwaysNull,
}

/// One node. Nodes are shared: native types that recur are one `Arc`.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The definition's name, such as `io.k8s.api.core.v1.ConfigMap`; `None` for an inline node.
    pub name: Option<Arc<str>>,
    /// Whether it comes from the native tables (the typed decoder's rules hold) and not from a
    /// custom resource definition.
    pub native: bool,
    /// The type.
    pub kind: Kind,
    /// `format`: `int32`, `int64`, `byte`, `date-time`, `quantity`, ...
    pub format: Option<Arc<str>>,
    /// Whether null is a value here.
    pub nullable: bool,
    /// Fields of an object.
    pub properties: BTreeMap<Arc<str>, Property>,
    /// Values of a map.
    pub additional: Option<Node>,
    /// Items of an array.
    pub items: Option<Node>,
    /// What is inside of a native value without a type, be it an object or a list of such: for
    /// decoding and encoding only.
    pub inside: Option<Node>,
    /// How a list merges under apply.
    pub list_type: ListType,
    /// How an object merges under apply.
    pub map_type: MapType,
    /// Strategic merge: `merge` / `retainKeys` / `replace`, comma-joined as upstream writes it.
    pub patch_strategy: Option<Arc<str>>,
    /// Strategic merge: the key of list items.
    pub patch_merge_key: Option<Arc<str>>,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded: bool,
    /// The default.
    pub default: Option<Value>,
    /// Allowed values; empty for any.
    pub enumeration: Vec<Value>,
    /// For people; our own words.
    pub description: Option<Arc<str>>,
    /// Value validations (custom resources); boxed since most nodes have none.
    pub checks: Option<Box<crate::validate::Checks>>,
    /// Remembered at the first use as a root: whether anything below has a default. Leave it empty.
    pub defaults: OnceLock<bool>,
    /// The same for embedded resources.
    pub embeds: OnceLock<bool>,
    /// What walks look up. Leave it empty.
    pub index: Index,
}

impl Schema {
    /// The node of a field, or of a value of a map.
    pub fn child(&self, field: &str) -> Option<&Schema> {
        match self.properties.get(field) {
            Some(property) => Some(&property.schema),
            None => self.additional.as_deref(),
        }
    }

    /// Whether it is an object whose unknown fields are refused or pruned (not a map, not
    /// free-form).
    pub fn is_closed(&self) -> bool {
        self.kind == Kind::Object && self.additional.is_none() && !self.preserve_unknown
    }

    /// The last part of the definition's name, such as `MicroTime`; empty for an inline node.
    pub fn short_name(&self) -> &str {
        self.name.as_deref().map_or("", |name| name.rsplit('.').next().unwrap_or(name))
    }

    /// Whether this node or any below it has a default.
    pub(crate) fn has_defaults(&self) -> bool {
        *self.defaults.get_or_init(|| finds_default(self, &mut HashSet::new(), 0))
    }

    /// Whether any node below this one is an embedded resource.
    pub(crate) fn has_embedded(&self) -> bool {
        *self.embeds.get_or_init(|| finds_embedded(self, 0))
    }
}

/// Native nodes embed nothing.
fn finds_embedded(schema: &Schema, depth: usize) -> bool {
    !schema.native
        && depth <= MAX_WALK
        && (schema.embedded
            || schema
                .properties
                .values()
                .any(|property| finds_embedded(&property.schema, depth + 1))
            || schema.additional.as_deref().is_some_and(|node| finds_embedded(node, depth + 1))
            || schema.items.as_deref().is_some_and(|node| finds_embedded(node, depth + 1)))
}

/// Named nodes are looked into once, since they may recur.
fn finds_default<'a>(schema: &'a Schema, seen: &mut HashSet<&'a str>, depth: usize) -> bool {
    if schema.name.as_deref().is_some_and(|name| !seen.insert(name)) || depth > MAX_WALK {
        return false;
    }
    schema.default.is_some()
        || schema
            .properties
            .values()
            .any(|property| finds_default(&property.schema, seen, depth + 1))
        || schema.additional.as_deref().is_some_and(|node| finds_default(node, seen, depth + 1))
        || schema.items.as_deref().is_some_and(|node| finds_default(node, seen, depth + 1))
}

/// One field of an object.
#[derive(Clone, Debug)]
pub struct Property {
    /// Its node.
    pub schema: Node,
    /// Whether it must be there.
    pub required: bool,
    /// How it is written back.
    pub emit: Emit,
    /// For people: what the field is for, where the node itself is shared with other fields.
    pub description: Option<&'static str>,
}

static NULL: Value = Value::Null;
static FALSE: Value = Value::Bool(false);

/// The zero values that need memory, made once.
struct Zeros {
    object: Value,
    text: Value,
    number: Value,
    quantity: Value,
}

fn zeros() -> &'static Zeros {
    static ZEROS: OnceLock<Zeros> = OnceLock::new();
    ZEROS.get_or_init(|| Zeros {
        object: Value::Object(Map::new()),
        text: Value::from(""),
        number: Value::from(0),
        quantity: Value::from("0"),
    })
}

impl Schema {
    /// What the typed API writes for a value of this type that was never set.
    pub fn zero(&self) -> &'static Value {
        let format = self.format.as_deref().unwrap_or_default();
        match self.kind {
            Kind::Object if self.additional.is_none() && !self.preserve_unknown => &zeros().object,
            Kind::String if !matches!(format, "byte" | "date-time") => &zeros().text,
            Kind::Integer | Kind::Number => &zeros().number,
            Kind::Boolean => &FALSE,
            Kind::IntOrString if format == "quantity" => &zeros().quantity,
            Kind::IntOrString => &zeros().number,
            _ => &NULL,
        }
    }
}

impl Property {
    /// What stands for the field where it is absent; `None`: nothing.
    pub fn absent(&self) -> Option<&'static Value> {
        match self.emit {
            Emit::Always => Some(self.schema.zero()),
            Emit::AlwaysNull => Some(&NULL),
            Emit::AsIs | Emit::OmitEmpty | Emit::OmitNull => None,
        }
    }

    /// A field that is kept as it was given.
    pub fn new(schema: impl Into<Node>, required: bool) -> Self {
        Self { schema: schema.into(), required, emit: Emit::AsIs, description: None }
    }
}

/// A child of a schema. Children that are native definitions are built on first use, which also
/// cuts recursion.
#[derive(Clone)]
pub struct Node(Repr);

#[derive(Clone)]
enum Repr {
    Own(Arc<Schema>),
    Lazy(Box<(Reference, OnceLock<Arc<Schema>>)>),
}

impl Node {
    pub(crate) fn lazy(reference: Reference) -> Self {
        Self(Repr::Lazy(Box::new((reference, OnceLock::new()))))
    }

    /// The node itself, to share.
    pub fn shared(&self) -> &Arc<Schema> {
        match &self.0 {
            Repr::Own(schema) => schema,
            Repr::Lazy(lazy) => lazy.1.get_or_init(|| lazy.0.resolve()),
        }
    }
}

impl Deref for Node {
    type Target = Schema;

    fn deref(&self) -> &Schema {
        self.shared()
    }
}

impl From<Arc<Schema>> for Node {
    fn from(schema: Arc<Schema>) -> Self {
        Self(Repr::Own(schema))
    }
}

impl From<Schema> for Node {
    fn from(schema: Schema) -> Self {
        Self(Repr::Own(Arc::new(schema)))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Own(schema) => schema.fmt(f),
            Repr::Lazy(lazy) => f.write_str(lazy.0.name()),
        }
    }
}
