//! [`Schema`]: a node of a structural schema.

use crate::index::NodeIndex;
use crate::properties::Properties;
use crate::tables::NodeRef;
use ferrokube_apimachinery::document::{Map, Value};
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Max depth of any walk into a value, whatever the parser accepted.
pub const MAX_WALK: usize = 2048;

/// The JSON type of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Any type (no `type` given).
    #[default]
    Any,
    /// With `properties`, or `additional` for a map.
    Object,
    /// With `items`.
    Array,
    /// JSON string.
    String,
    /// JSON number without a fraction.
    Integer,
    /// JSON number.
    Number,
    /// JSON true or false.
    Boolean,
    /// `x-kubernetes-int-or-string`, also native IntOrString and (with the format `quantity`)
    /// Quantity.
    IntOrString,
}

impl Kind {
    /// The OpenAPI `type`; empty if there is not exactly one.
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

/// `x-kubernetes-list-type`: how a list merges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    #[default]
    Atomic,
    /// Unique scalars.
    Set,
    /// Objects, unique by these keys.
    Map(Vec<String>),
}

/// `x-kubernetes-map-type`: how an object merges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapType {
    /// Per field.
    #[default]
    Granular,
    /// Replaced as a whole.
    Atomic,
}

/// How the typed API writes an absent or empty field of a native kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emit {
    /// As given (custom resources).
    #[default]
    AsIs,
    /// Always; an absent field is written as the zero value of its type.
    Always,
    /// Omits zero values.
    OmitEmpty,
    /// Omits null; keeps empty values.
    OmitNull,
    /// As null when absent; keeps empty values.
    AlwaysNull,
}

/// A schema node. Nodes are shared: a recurring native type is one `Arc`.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The definition's name, such as `io.k8s.api.core.v1.ConfigMap`; `None` for an inline node.
    pub name: Option<Arc<str>>,
    /// From the native tables, with the rules of the typed decoder, rather than from a custom
    /// resource definition.
    pub native: bool,
    /// JSON type.
    pub kind: Kind,
    /// `format`: `int32`, `int64`, `byte`, `date-time`, `quantity`, ...
    pub format: Option<Arc<str>>,
    /// Whether null is a valid value.
    pub nullable: bool,
    /// Declared fields of an object.
    pub properties: Properties,
    /// Schema of a map's values.
    pub additional: Option<Node>,
    /// Schema of an array's items.
    pub items: Option<Node>,
    /// Content of a native value without a type, an object or a list of objects; for decoding and
    /// encoding only.
    pub inside: Option<Node>,
    /// How apply merges a list.
    pub list_type: ListType,
    /// How apply merges an object.
    pub map_type: MapType,
    /// Strategic merge: `merge` / `retainKeys` / `replace`, comma-joined as in kube-apiserver.
    pub patch_strategy: Option<Arc<str>>,
    /// Strategic merge: the key of list items.
    pub patch_merge_key: Option<Arc<str>>,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded: bool,
    /// Default for absent fields.
    pub default: Option<Value>,
    /// Allowed values; empty allows any.
    pub enumeration: Vec<Value>,
    /// For OpenAPI; our own words.
    pub description: Option<Arc<str>>,
    /// Value validations (custom resources); boxed because most nodes have none.
    pub checks: Option<Box<crate::validate::Checks>>,
    /// Cache: whether any node below has a default. Leave it empty.
    pub defaults: OnceLock<bool>,
    /// Cache: whether any node below is an embedded resource. Leave it empty.
    pub embeds: OnceLock<bool>,
    /// Cache: lookup tables. Leave it empty.
    pub index: NodeIndex,
}

impl Schema {
    /// The schema of a field or map value.
    pub fn child(&self, field: &str) -> Option<&Schema> {
        match self.properties.get(field) {
            Some(property) => Some(&property.schema),
            None => self.additional.as_deref(),
        }
    }

    /// Whether apply knows how to own parts of a value; any part of another one can be owned.
    pub(crate) fn is_typed(&self) -> bool {
        self.kind != Kind::Any || !self.properties.is_empty() || self.map_type == MapType::Atomic
    }

    /// Whether unknown fields are refused or pruned: an object that is neither a map nor free-form.
    pub fn is_closed(&self) -> bool {
        self.kind == Kind::Object && self.additional.is_none() && !self.preserve_unknown
    }

    /// The last segment of the definition's name, such as `MicroTime`; empty for an inline node.
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

/// Visits named nodes once, since they may recur.
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

/// A field of an object.
#[derive(Clone, Debug)]
pub struct Property {
    /// Type of the field.
    pub schema: Node,
    /// Must be present.
    pub required: bool,
    /// Form in which the field is written.
    pub emit: Emit,
    /// For OpenAPI: the purpose of this field, where several fields share the node.
    pub description: Option<&'static str>,
}

static NULL: Value = Value::Null;
static FALSE: Value = Value::Bool(false);

/// Zero values that need memory, allocated once.
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
    /// The value that typed clients write for an unset field of this type.
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
    /// The value of an absent field; `None` if it stays absent.
    pub fn absent(&self) -> Option<&'static Value> {
        match self.emit {
            Emit::Always => Some(self.schema.zero()),
            Emit::AlwaysNull => Some(&NULL),
            Emit::AsIs | Emit::OmitEmpty | Emit::OmitNull => None,
        }
    }

    /// A field that is written as given.
    pub fn new(schema: impl Into<Node>, required: bool) -> Self {
        Self { schema: schema.into(), required, emit: Emit::AsIs, description: None }
    }
}

/// A child of a schema. A native definition is built on first use, which also allows recursion.
#[derive(Clone)]
pub struct Node(Repr);

#[derive(Clone)]
enum Repr {
    Own(Arc<Schema>),
    Lazy(Box<(NodeRef, OnceLock<Arc<Schema>>)>),
}

impl Node {
    pub(crate) fn lazy(reference: NodeRef) -> Self {
        Self(Repr::Lazy(Box::new((reference, OnceLock::new()))))
    }

    /// The node, to share.
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
