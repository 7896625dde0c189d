//! Native kinds: a discovery row, a body from the kind's own file, and the schema tables make up a
//! [`Definition`].

use crate::columns::{Column, Columns};
use crate::definition::{Definition, DefinitionVersion, Scope, Subresource, Verbs};
use crate::dialect::Dialect;
use crate::guard::{FieldGuard, GuardedField};
use crate::hooks::{DefaultHooks, Hooks};
use crate::policy::Policy;
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_schema::apply::ResetFields;
use ferrokube_schema::tables::Tables;
use std::sync::Arc;

/// A native kind as listed by discovery.
#[derive(Clone, Copy, Debug)]
pub struct NativeKind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// `configmaps`
    pub plural: &'static str,
    /// `configmap`
    pub singular: &'static str,
    /// `ConfigMap`
    pub kind: &'static str,
    /// Whether objects are namespaced.
    pub scope: Scope,
    /// `cm`
    pub short_names: &'static [&'static str],
    /// Supported verbs.
    pub verbs: Verbs,
    /// The rest, from the kind's file.
    pub body: fn() -> KindBody,
}

/// A native kind apart from its discovery row.
#[derive(Debug)]
pub struct KindBody {
    /// `all`, ...
    pub categories: &'static [&'static str],
    /// Subresources, in discovery order.
    pub subresources: &'static [NativeSubresource],
    /// Fields that a write to the main resource neither changes nor owns.
    pub reset: &'static [&'static str],
    /// Printer columns.
    pub columns: &'static [NativeColumn],
    /// Selectable fields beyond name and namespace.
    pub selectable: &'static [&'static str],
    /// Fields of features.
    pub guarded: &'static [GuardedField],
    /// Storage prefix; `None`: not stored.
    pub storage: Option<&'static str>,
    /// Treatment of requests.
    pub policy: Policy,
    /// Behavior.
    pub hooks: Arc<dyn Hooks>,
    /// Name and OpenAPI definition of a stored but unserved version, if the kind is stored as
    /// another group's (events).
    pub stored_as: Option<(&'static str, &'static str)>,
    /// Further served versions, such as `v1` of a kind that is stored in `v2`. The hooks convert
    /// them.
    pub versions: &'static [&'static str],
    /// Deprecation warning for clients of all versions.
    pub deprecation: Option<&'static str>,
}

/// A subresource of a native kind.
#[derive(Clone, Copy, Debug)]
pub struct NativeSubresource {
    /// `status`, ...
    pub name: &'static str,
    /// Group, version and kind, if not the resource's own.
    pub kind: Option<(&'static str, &'static str, &'static str)>,
    /// Supported verbs.
    pub verbs: Verbs,
    /// Fields that a write to it neither changes nor owns.
    pub reset: &'static [&'static str],
}

impl NativeSubresource {
    /// The status, whose writes do not change the spec.
    pub const STATUS: Self =
        Self { name: "status", kind: None, verbs: Verbs::GET_PATCH_UPDATE, reset: &["spec"] };
    /// [`Self::STATUS`] of kinds where its writes do not change metadata, either.
    pub const STATUS_ALONE: Self = Self { reset: &["spec", "metadata"], ..Self::STATUS };
}

/// A printer column of a native kind.
#[derive(Clone, Copy, Debug)]
pub struct NativeColumn {
    /// Column heading.
    pub name: &'static str,
    /// OpenAPI type: `string`, `date`, ...
    pub kind: &'static str,
    /// OpenAPI format: `name` for the name column.
    pub format: &'static str,
    /// Description for users.
    pub description: &'static str,
    /// 0: always shown.
    pub priority: i32,
}

/// kube-apiserver's description of name columns.
pub const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
/// kube-apiserver's description of creation time columns.
pub const CREATION_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

impl NativeColumn {
    /// A text column that is always shown.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "string", format: "", description, priority: 0 }
    }

    /// A text column for wide output.
    pub const fn wide(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "string", format: "", description, priority: 1 }
    }

    /// The name column.
    pub const NAME: Self = Self {
        name: "Name",
        kind: "string",
        format: "name",
        description: NAME_DESCRIPTION,
        priority: 0,
    };
    /// The age column.
    pub const AGE: Self = Self::text("Age", CREATION_DESCRIPTION);
    /// The creation time column.
    pub const CREATED_AT: Self = Self {
        name: "Created At",
        kind: "date",
        format: "",
        description: CREATION_DESCRIPTION,
        priority: 0,
    };
}

impl Default for KindBody {
    fn default() -> Self {
        Self {
            categories: &[],
            subresources: &[],
            reset: &[],
            columns: &[NativeColumn::NAME, NativeColumn::AGE],
            selectable: &[],
            guarded: &[],
            storage: None,
            policy: Policy::DEFAULT,
            hooks: Arc::new(DefaultHooks),
            stored_as: None,
            versions: &[],
            deprecation: None,
        }
    }
}

/// Name of a native kind's OpenAPI definition: `io.k8s.api.core.v1.ConfigMap`, for other groups
/// with their first label (`io.k8s.api.coordination.v1.Lease`).
pub fn schema_name(group: &str, version: &str, kind: &str) -> String {
    let group = match group {
        "" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        group => group.split('.').next().unwrap_or_default(),
    };
    // The types of these groups are in other modules.
    let module = match group {
        "apiextensions" => "apiextensions-apiserver.pkg.apis",
        "apiregistration" => "kube-aggregator.pkg.apis",
        _ => "api",
    };
    format!("io.k8s.{module}.{group}.{version}.{kind}")
}

impl NativeKind {
    /// A kind in version v1 with all verbs and no short names; `names` are plural, singular and
    /// kind.
    pub const fn new(
        group: &'static str,
        names: [&'static str; 3],
        scope: Scope,
        body: fn() -> KindBody,
    ) -> Self {
        Self {
            group,
            version: "v1",
            plural: names[0],
            singular: names[1],
            kind: names[2],
            scope,
            short_names: &[],
            verbs: Verbs::ALL,
            body,
        }
    }

    /// Name of the OpenAPI definition, see [`schema_name`].
    pub fn schema_name(&self) -> String {
        schema_name(self.group, self.version, self.kind)
    }

    /// Builds the definition with its schema.
    ///
    /// # Errors
    /// Name of an OpenAPI definition missing from the tables.
    pub fn definition(&self, tables: &Tables) -> Result<Definition, String> {
        let body = (self.body)();
        let mut versions = vec![self.served(&body, tables)?];
        if let Some(stored) = body.stored_as {
            let mut version = Self::version(tables, stored.0, stored.1)?;
            version.served = false;
            version.selectable = body.selectable.iter().map(|path| (*path).to_owned()).collect();
            versions.push(version);
        }
        let storage_version = versions.len() - 1;
        for version in body.versions {
            versions.push(Self { version, ..*self }.served(&body, tables)?);
        }
        let words = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Ok(Definition {
            group: self.group.to_owned(),
            plural: self.plural.to_owned(),
            singular: self.singular.to_owned(),
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            short_names: words(self.short_names),
            categories: words(body.categories),
            scope: self.scope,
            verbs: self.verbs,
            storage_version,
            versions,
            storage_prefix: body.storage.map(str::to_owned),
            dialect: Dialect::Native,
            policy: body.policy,
            epoch: 1,
            since: 0,
            guards: body.guarded.iter().copied().map(FieldGuard::new).collect(),
            hooks: body.hooks,
        })
    }

    fn version(tables: &Tables, name: &str, definition: &str) -> Result<DefinitionVersion, String> {
        Ok(DefinitionVersion {
            name: name.to_owned(),
            served: true,
            deprecation: None,
            priority: None,
            schema: tables.get(definition).ok_or_else(|| definition.to_owned())?,
            subresources: Vec::new(),
            reset: ResetFields::default(),
            columns: Columns::default(),
            selectable: Vec::new(),
            message: definition
                .strip_prefix("io.k8s.")
                .map(|rest| format!("k8s.io.{}", rest.replace('-', "_"))),
        })
    }

    fn served(&self, body: &KindBody, tables: &Tables) -> Result<DefinitionVersion, String> {
        let mut version = Self::version(tables, self.version, &self.schema_name())?;
        version.reset = ResetFields::of_paths(body.reset);
        version.deprecation = body.deprecation.map(str::to_owned);
        version.selectable = body.selectable.iter().map(|path| (*path).to_owned()).collect();
        version.columns = body.columns.iter().map(Column::from).collect();
        version.subresources =
            body.subresources.iter().map(|part| self.subresource(part)).collect();
        Ok(version)
    }

    fn subresource(&self, part: &NativeSubresource) -> Subresource {
        let (group, version, kind) = part.kind.unwrap_or((self.group, self.version, self.kind));
        Subresource {
            name: part.name,
            kind: GroupVersionKind::new(group, version, kind),
            verbs: part.verbs,
            reset: ResetFields::of_paths(part.reset),
            columns: None,
        }
    }
}

impl From<&NativeColumn> for Column {
    fn from(printed: &NativeColumn) -> Self {
        Self {
            name: printed.name.into(),
            kind: printed.kind.into(),
            format: printed.format.into(),
            description: printed.description.into(),
            priority: printed.priority,
            json_path: "".into(),
        }
    }
}
