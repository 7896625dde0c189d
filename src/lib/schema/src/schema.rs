//! `Schema`: one node of a structural schema.

use ferrokube_apimachinery::document::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// `x-kubernetes-int-or-string`, also native IntOrString and Quantity.
    IntOrString,
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

/// One node. Nodes are shared: native types that recur are one `Arc`.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The definition's name, such as `io.k8s.api.core.v1.ConfigMap`; `None` for an inline node.
    pub name: Option<Arc<str>>,
    /// The type.
    pub kind: Kind,
    /// `format`: `int32`, `int64`, `byte`, `date-time`, `quantity`, ...
    pub format: Option<Arc<str>>,
    /// Whether null is a value here.
    pub nullable: bool,
    /// Fields of an object. Native recursion is cut by the loader with lazy nodes (see `tables`).
    pub properties: BTreeMap<Arc<str>, Property>,
    /// Values of a map.
    pub additional: Option<Arc<Schema>>,
    /// Items of an array.
    pub items: Option<Arc<Schema>>,
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
}

/// One field of an object.
#[derive(Clone, Debug)]
pub struct Property {
    /// Its node.
    pub schema: Arc<Schema>,
    /// Whether it must be there.
    pub required: bool,
}
