//! The data of a resource. A table row makes it for a native kind, a CustomResourceDefinition at run time.

use crate::encoding;
use crate::hooks::{Change, Hooks};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::gvk::{GroupResource, GroupVersionKind};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::ResetFields;
use std::sync::Arc;

/// Whether objects live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In none.
    Cluster,
}

/// What can be done with a resource or subresource, as discovery lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbs(pub u16);

impl Verbs {
    /// create
    pub const CREATE: Self = Self(1);
    /// delete
    pub const DELETE: Self = Self(2);
    /// deletecollection
    pub const DELETE_COLLECTION: Self = Self(4);
    /// get
    pub const GET: Self = Self(8);
    /// list
    pub const LIST: Self = Self(16);
    /// patch
    pub const PATCH: Self = Self(32);
    /// update
    pub const UPDATE: Self = Self(64);
    /// watch
    pub const WATCH: Self = Self(128);
    /// All of them.
    pub const ALL: Self = Self(255);
    /// What a status-like subresource takes.
    pub const GET_PATCH_UPDATE: Self = Self(8 | 32 | 64);

    /// Whether all of `other` are in it.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The words, in discovery's (alphabetical) order.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        const WORDS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        WORDS.into_iter().enumerate().filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, word)| word)
    }
}

/// A part of an object with an endpoint of its own.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `finalize`, `approval`, `token`, ...
    pub name: &'static str,
    /// The kind that it takes and gives (the resource's own for `status`, `autoscaling/v1 Scale` for `scale`).
    pub kind: GroupVersionKind,
    /// What can be done.
    pub verbs: Verbs,
    /// Fields that a write through it does not change or own.
    pub reset: ResetFields,
    /// Printer columns of its own; `None`: the resource's.
    pub columns: Option<Arc<[Column]>>,
}

/// A printer column.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading.
    pub name: Arc<str>,
    /// `string`, `integer`, `date`, ...
    pub kind: Arc<str>,
    /// `name` for the name column, else often empty.
    pub format: Arc<str>,
    /// For people.
    pub description: Arc<str>,
    /// 0: always shown; more: wide only.
    pub priority: i32,
    /// JSONPath of a custom resource's column; empty: the hooks compute the cell.
    pub json_path: Arc<str>,
}

/// One version of a resource.
#[derive(Clone, Debug)]
pub struct DefinitionVersion {
    /// `v1`, ...
    pub name: String,
    /// Whether it is served.
    pub served: bool,
    /// The warning that clients of it get, when it is deprecated.
    pub deprecation: Option<String>,
    /// The schema (its `name` is the OpenAPI definition).
    pub schema: Arc<Schema>,
    /// Subresources, in discovery's order.
    pub subresources: Vec<Subresource>,
    /// Fields that a write to the object itself does not change or own (`status`).
    pub reset: ResetFields,
    /// Printer columns.
    pub columns: Arc<[Column]>,
    /// Declared selectable fields beyond `metadata.name` and `metadata.namespace`: dotted paths, in sidecar order. Definitions that share a
    /// storage prefix list them in parallel, with an empty path where a field is not selectable.
    pub selectable: Vec<String>,
    /// The protobuf message (`k8s.io.api.core.v1.ConfigMap`); `None`: no protobuf.
    pub message: Option<String>,
}

/// A resource.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The API group; empty for the core group.
    pub group: String,
    /// `configmaps`
    pub plural: String,
    /// `configmap`
    pub singular: String,
    /// `ConfigMap`
    pub kind: String,
    /// `ConfigMapList`
    pub list_kind: String,
    /// `cm`
    pub short_names: Vec<String>,
    /// `all`, ...
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub scope: Scope,
    /// What can be done with the resource itself.
    pub verbs: Verbs,
    /// In discovery's order of preference.
    pub versions: Vec<DefinitionVersion>,
    /// Index into `versions`.
    pub storage_version: usize,
    /// `configmaps`, or `<group>/<plural>`; `None`: nothing is stored (reviews).
    pub storage_prefix: Option<String>,
    /// Custom objects are pruned at read and carry kind and apiVersion as list items.
    pub custom: bool,
    /// Changes when the definition does.
    pub epoch: u32,
    /// The store's revision since which the resource exists (its CustomResourceDefinition's create revision); 0 for native ones. Watches from
    /// before it are answered 410.
    pub since: u64,
    /// Behaviour that data cannot say.
    pub hooks: Arc<dyn Hooks>,
}

impl Definition {
    /// How errors name it.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.as_str(), self.plural.as_str())
    }

    /// A subresource of one of its versions.
    pub fn subresource(&self, version: usize, name: &str) -> Option<&Subresource> {
        self.versions[version].subresources.iter().find(|subresource| subresource.name == name)
    }

    /// The kind in one of its versions.
    pub fn gvk(&self, version: usize) -> GroupVersionKind {
        GroupVersionKind::new(self.group.as_str(), self.versions[version].name.as_str(), self.kind.as_str())
    }

    /// What decoding means for this kind, after types were checked and again after every mutating step: canonical form, the schema's defaults, then the hooks'. Comes before managedFields are computed.
    pub fn set_defaults(&self, version: usize, object: &mut Document) {
        let row = &self.versions[version];
        encoding::normalize(&row.schema, object);
        ferrokube_schema::validate::default(&row.schema, object);
        self.hooks.default(&row.name, object);
    }

    /// Before validation of a write, after managedFields were computed: what this write may not set is put back, and the fields that are always written are there.
    pub fn prepare(&self, version: usize, change: &Change<'_>, object: &mut Document) {
        let row = &self.versions[version];
        self.hooks.prepare(change, object);
        encoding::complete(&row.schema, object);
    }
}
