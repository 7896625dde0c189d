//! Definition of a resource as data: from a table row for native kinds, from a
//! CustomResourceDefinition at run time.

use crate::columns::Columns;
use crate::dialect::Dialect;
use crate::encoding;
use crate::guard::FieldGuard;
use crate::hooks::{Change, Hooks};
use crate::policy::Policy;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::gvk::{GroupResource, GroupVersionKind};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::ResetFields;
use std::sync::Arc;

/// Whether objects are namespaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Objects live in namespaces.
    Namespaced,
    /// Objects are cluster-wide.
    Cluster,
}

/// Set of verbs of a resource or subresource, as in discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbs(pub u16);

impl Verbs {
    /// `create`
    pub const CREATE: Self = Self(1);
    /// `delete`
    pub const DELETE: Self = Self(2);
    /// `deletecollection`
    pub const DELETE_COLLECTION: Self = Self(4);
    /// `get`
    pub const GET: Self = Self(8);
    /// `list`
    pub const LIST: Self = Self(16);
    /// `patch`
    pub const PATCH: Self = Self(32);
    /// `update`
    pub const UPDATE: Self = Self(64);
    /// `watch`
    pub const WATCH: Self = Self(128);
    /// `create` and `get` of a subresource that another server answers, for any method.
    pub const CONNECT: Self = Self(256 | 1 | 8);
    /// Every verb.
    pub const ALL: Self = Self(255);
    /// Verbs of status-like subresources.
    pub const GET_PATCH_UPDATE: Self = Self(8 | 32 | 64);

    /// Whether all verbs of `other` are in the set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Union.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Difference.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Verb names in alphabetical order, as in discovery.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        const WORDS: [&str; 8] =
            ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        WORDS
            .into_iter()
            .enumerate()
            .filter(move |(bit, _)| self.0 & (1 << bit) != 0)
            .map(|(_, word)| word)
    }
}

/// A path below an object, with a kind and verbs of its own.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `finalize`, `approval`, `token`, ...
    pub name: &'static str,
    /// Kind of its request and response (the resource's own for `status`, `autoscaling/v1 Scale`
    /// for `scale`).
    pub kind: GroupVersionKind,
    /// Supported verbs.
    pub verbs: Verbs,
    /// Fields that a write to it neither changes nor owns.
    pub reset: ResetFields,
    /// Printer columns, if not the resource's.
    pub columns: Option<Columns>,
}

/// A version of a resource.
#[derive(Clone, Debug)]
pub struct DefinitionVersion {
    /// `v1`, ...
    pub name: String,
    /// Whether it is served.
    pub served: bool,
    /// Deprecation warning for its clients.
    pub deprecation: Option<String>,
    /// Place in discovery; `None`: at the end, and without an APIService.
    pub priority: Option<ApiPriority>,
    /// Schema, whose `name` is that of the OpenAPI definition.
    pub schema: Arc<Schema>,
    /// Subresources, in discovery order.
    pub subresources: Vec<Subresource>,
    /// Fields that a write to the main resource neither changes nor owns (`status`).
    pub reset: ResetFields,
    /// Printer columns.
    pub columns: Columns,
    /// Selectable fields beyond `metadata.name` and `metadata.namespace`: dotted paths in sidecar
    /// order. Definitions that share a storage prefix list them in parallel, with an empty path
    /// where a field is not selectable.
    pub selectable: Vec<String>,
    /// Protobuf message (`k8s.io.api.core.v1.ConfigMap`); `None`: no protobuf.
    pub message: Option<String>,
}

/// Place of a group version in discovery, and in its APIService. The highest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiPriority {
    /// Among the groups; a group has the highest of its versions.
    pub group: i64,
    /// Among the versions of the group.
    pub version: i64,
}

impl ApiPriority {
    /// Priority of custom resources.
    pub const CUSTOM: Self = Self { group: 1000, version: 100 };
}

/// Definition of a resource.
#[derive(Clone, Debug)]
pub struct Definition {
    /// API group; empty for the core group.
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
    /// Whether objects are namespaced.
    pub scope: Scope,
    /// Verbs of the main resource.
    pub verbs: Verbs,
    /// In discovery order.
    pub versions: Vec<DefinitionVersion>,
    /// Index into `versions`.
    pub storage_version: usize,
    /// `configmaps`, or `<group>/<plural>`; `None`: not stored (reviews).
    pub storage_prefix: Option<String>,
    /// Native or custom.
    pub dialect: Dialect,
    /// Treatment of its requests.
    pub policy: Policy,
    /// Changes with the definition.
    pub epoch: u32,
    /// Store revision since which the resource exists (the create revision of its
    /// CustomResourceDefinition); 0 for native kinds. Watches from before are answered with 410.
    pub since: u64,
    /// Fields of features.
    pub guards: Vec<FieldGuard>,
    /// Behavior beyond the data.
    pub hooks: Arc<dyn Hooks>,
}

impl Definition {
    /// Name of the resource in errors.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.as_str(), self.plural.as_str())
    }

    /// As `NotFound` errors name it.
    pub fn missing_resource(&self) -> GroupResource {
        let plural = self.policy.missing_resource.unwrap_or(&self.plural);
        GroupResource::new(self.group.as_str(), plural)
    }

    /// `version`: index in `versions`. `None` if that version lacks it.
    pub fn subresource(&self, version: usize, name: &str) -> Option<&Subresource> {
        self.versions[version].subresources.iter().find(|subresource| subresource.name == name)
    }

    /// `version`: index in `versions`.
    pub fn gvk(&self, version: usize) -> GroupVersionKind {
        GroupVersionKind::new(
            self.group.as_str(),
            self.versions[version].name.as_str(),
            self.kind.as_str(),
        )
    }

    /// Decoding steps after the type check, repeated after every mutating step: canonical form,
    /// schema defaults, hook defaults. Precedes the computation of managedFields.
    pub fn set_defaults(&self, version: usize, object: &mut Document) {
        let row = &self.versions[version];
        encoding::normalize(&row.schema, object);
        ferrokube_schema::validate::default(&row.schema, object);
        self.hooks.default(&row.name, object);
        for guard in &self.guards {
            guard.default(object);
        }
    }

    /// Errors of fields of features that are off.
    pub fn refused(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        self.guards.iter().filter_map(|guard| guard.check(change.old, object)).collect()
    }

    /// Decoding steps of an object that another server stored: as [`Self::set_defaults`], and
    /// with the fields that are always emitted.
    pub fn restore(&self, version: usize, object: &mut Document) {
        self.set_defaults(version, object);
        encoding::complete(&self.versions[version].schema, object);
    }

    /// Prepares a write for validation, after managedFields were computed: restores the fields it
    /// may not set ([`Self::keep_reset`]), and adds those that are always emitted.
    pub fn prepare(&self, version: usize, change: &Change<'_>, object: &mut Document) {
        self.keep_reset(version, change, object);
        let row = &self.versions[version];
        for guard in &self.guards {
            guard.prepare(change.old, object);
        }
        self.hooks.prepare(change, object);
        encoding::complete(&row.schema, object);
    }
}
