//! The operations in OpenAPI documents, on resources and discovery, as kube-apiserver publishes
//! them.

mod connections;

use super::names::{META, key, list_name_of, name_of};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_connect::Connections;
use ferrokube_resource::native::schema_name;
use ferrokube_resource::{Definition, Scope, Subresource, Verbs};

pub(super) const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ANY: &[&str] = &["*/*"];
const TEXTS: &[&str] = &[JSON, YAML];
pub(super) const ALL: &[&str] = &[JSON, YAML, PROTOBUF];
/// Media types of requests that may be a watch.
const STREAMS: &[&str] = &[
    JSON,
    YAML,
    PROTOBUF,
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Media types of patches of custom resources.
const UNTYPED_PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

const LIST_OPTIONS: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];
const WRITE_OPTIONS: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH_OPTIONS: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE_OPTIONS: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
const DELETE_LIST_OPTIONS: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
];

/// An operation of a path.
pub(super) struct PublishedRoute {
    pub(super) path: String,
    /// In lower case, the key in a path item.
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) tag: String,
    pub(super) description: String,
    /// For operations on resources: `x-kubernetes-action`, and the kind of the extension
    /// `x-kubernetes-group-version-kind`.
    pub(super) action: Option<(&'static str, GroupVersionKind)>,
    /// Names of parameters of the query.
    pub(super) parameters: Vec<&'static str>,
    pub(super) body: Option<RequestBody>,
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: &'static [&'static str],
    /// Status codes of success.
    pub(super) codes: &'static [u16],
    /// Name of the definition in responses; `None`: text.
    pub(super) result: Option<String>,
}

pub(super) struct RequestBody {
    /// Name of its definition.
    pub(super) schema: String,
    pub(super) required: bool,
}

/// Schema of the body of an operation.
#[derive(Clone, Copy)]
enum BodyKind {
    /// The object, or the kind of the subresource.
    Object,
    List,
    /// The response of a delete: a `Status`, or the object.
    Deleted,
    Status,
    Patch,
    /// Optional.
    DeleteOptions,
    WatchEvent,
}

/// An operation on any resource.
#[derive(Clone, Copy)]
struct OperationRule {
    method: &'static str,
    action: &'static str,
    /// The first word of the operation's id.
    word: &'static str,
    /// Stands before the kind in the operation's id.
    prefix: &'static str,
    verb: Verbs,
    parameters: &'static [&'static str],
    body: Option<BodyKind>,
    result: BodyKind,
    codes: &'static [u16],
}

const LIST: OperationRule = OperationRule {
    method: "get",
    action: "list",
    word: "list",
    prefix: "",
    verb: Verbs::LIST,
    parameters: LIST_OPTIONS,
    body: None,
    result: BodyKind::List,
    codes: &[200],
};
const CREATE: OperationRule = OperationRule {
    method: "post",
    action: "post",
    word: "create",
    prefix: "",
    verb: Verbs::CREATE,
    parameters: WRITE_OPTIONS,
    body: Some(BodyKind::Object),
    result: BodyKind::Object,
    codes: &[200, 201, 202],
};
const DELETE_COLLECTION: OperationRule = OperationRule {
    method: "delete",
    action: "deletecollection",
    word: "delete",
    prefix: "Collection",
    verb: Verbs::DELETE_COLLECTION,
    parameters: DELETE_LIST_OPTIONS,
    body: Some(BodyKind::DeleteOptions),
    result: BodyKind::Status,
    codes: &[200],
};
const READ: OperationRule = OperationRule {
    method: "get",
    action: "get",
    word: "read",
    prefix: "",
    verb: Verbs::GET,
    parameters: &[],
    body: None,
    result: BodyKind::Object,
    codes: &[200],
};
const REPLACE: OperationRule = OperationRule {
    method: "put",
    action: "put",
    word: "replace",
    prefix: "",
    verb: Verbs::UPDATE,
    parameters: WRITE_OPTIONS,
    body: Some(BodyKind::Object),
    result: BodyKind::Object,
    codes: &[200, 201],
};
const PATCH: OperationRule = OperationRule {
    method: "patch",
    action: "patch",
    word: "patch",
    prefix: "",
    verb: Verbs::PATCH,
    parameters: PATCH_OPTIONS,
    body: Some(BodyKind::Patch),
    result: BodyKind::Object,
    codes: &[200, 201],
};
const DELETE: OperationRule = OperationRule {
    method: "delete",
    action: "delete",
    word: "delete",
    prefix: "",
    verb: Verbs::DELETE,
    parameters: DELETE_OPTIONS,
    body: Some(BodyKind::DeleteOptions),
    result: BodyKind::Deleted,
    codes: &[200, 202],
};
/// By the legacy path of an object.
const WATCH: OperationRule = OperationRule {
    method: "get",
    action: "watch",
    word: "watch",
    prefix: "",
    verb: Verbs::WATCH,
    parameters: LIST_OPTIONS,
    body: None,
    result: BodyKind::WatchEvent,
    codes: &[200],
};
/// By the legacy path of a collection.
const WATCH_LIST: OperationRule = OperationRule { action: "watchlist", ..WATCH };

/// The operations that differ for custom resources.
const CUSTOM_READ: OperationRule = OperationRule { parameters: &["resourceVersion"], ..READ };
const CUSTOM_PATCH: OperationRule = OperationRule { codes: &[200], ..PATCH };
const CUSTOM_DELETE_COLLECTION: OperationRule =
    OperationRule { parameters: LIST_OPTIONS, body: None, ..DELETE_COLLECTION };

/// A path, and the base of its operations' names.
struct ResourcePath<'a> {
    routes: &'a ResourceRoutes<'a>,
    text: String,
    subresource: Option<&'a Subresource>,
    namespaced: bool,
    /// Suffix of the operations' ids.
    suffix: &'static str,
}

/// Makes the routes of one version of a resource.
struct ResourceRoutes<'a> {
    definition: &'a Definition,
    index: usize,
}

/// All operations on one version of a resource.
pub(super) fn of_resource(definition: &Definition, index: usize) -> Vec<PublishedRoute> {
    let routes = ResourceRoutes { definition, index };
    if definition.dialect.is_discovered_by_controller() { routes.custom() } else { routes.native() }
}

impl ResourceRoutes<'_> {
    fn native(&self) -> Vec<PublishedRoute> {
        let mut all = self.collection("").routes(&[LIST, CREATE, DELETE_COLLECTION]);
        all.extend(self.item("", None).routes(&[READ, REPLACE, PATCH, DELETE]));
        for subresource in &self.definition.versions[self.index].subresources {
            let path = self.item("", Some(subresource));
            all.extend(if Connections::serves(self.definition, subresource.name) {
                path.connections(subresource)
            } else {
                path.routes(&[READ, CREATE, REPLACE, PATCH])
            });
        }
        all.extend(self.everywhere("").map(|path| path.routes(&[LIST])).unwrap_or_default());
        let list = ResourcePath { suffix: "List", ..self.collection("watch/") };
        all.extend(list.routes(&[WATCH_LIST]));
        all.extend(self.item("watch/", None).routes(&[WATCH]));
        if let Some(path) = self.everywhere("watch/") {
            let list = ResourcePath { suffix: "ListForAllNamespaces", ..path };
            all.extend(list.routes(&[WATCH_LIST]));
        }
        all
    }

    fn custom(&self) -> Vec<PublishedRoute> {
        let mut all = self.collection("").routes(&[LIST, CREATE, CUSTOM_DELETE_COLLECTION]);
        all.extend(self.item("", None).routes(&[CUSTOM_READ, REPLACE, CUSTOM_PATCH, DELETE]));
        for subresource in &self.definition.versions[self.index].subresources {
            let path = self.item("", Some(subresource));
            all.extend(path.routes(&[CUSTOM_READ, REPLACE, CUSTOM_PATCH]));
        }
        all.extend(self.everywhere("").map(|path| path.routes(&[LIST])).unwrap_or_default());
        all
    }

    fn is_namespaced(&self) -> bool {
        self.definition.scope == Scope::Namespaced
    }

    fn base(&self, prefix: &str) -> String {
        let version = &self.definition.versions[self.index].name;
        format!("/{}/{prefix}", key(&self.definition.group, version))
    }

    fn collection(&self, prefix: &str) -> ResourcePath<'_> {
        let namespace = if self.is_namespaced() { "namespaces/{namespace}/" } else { "" };
        ResourcePath {
            routes: self,
            text: format!("{}{namespace}{}", self.base(prefix), self.definition.plural),
            subresource: None,
            namespaced: self.is_namespaced(),
            suffix: "",
        }
    }

    fn item<'a>(&'a self, prefix: &str, subresource: Option<&'a Subresource>) -> ResourcePath<'a> {
        let ResourcePath { mut text, .. } = self.collection(prefix);
        text.push_str("/{name}");
        if let Some(subresource) = subresource {
            text.push('/');
            text.push_str(subresource.name);
        }
        ResourcePath { text, subresource, ..self.collection(prefix) }
    }

    /// The collection across namespaces.
    fn everywhere(&self, prefix: &str) -> Option<ResourcePath<'_>> {
        self.is_namespaced().then(|| ResourcePath {
            routes: self,
            text: format!("{}{}", self.base(prefix), self.definition.plural),
            subresource: None,
            namespaced: false,
            suffix: "ForAllNamespaces",
        })
    }
}

impl ResourcePath<'_> {
    fn routes(&self, operations: &[OperationRule]) -> Vec<PublishedRoute> {
        let verbs = match self.subresource {
            Some(subresource) => subresource.verbs,
            None => self.routes.definition.verbs,
        };
        let served = operations.iter().filter(|operation| verbs.has(operation.verb));
        served.map(|operation| self.route(operation)).collect()
    }

    fn is_custom(&self) -> bool {
        self.routes.definition.dialect.is_discovered_by_controller()
    }

    fn route(&self, operation: &OperationRule) -> PublishedRoute {
        let definition = self.routes.definition;
        let version = &definition.versions[self.routes.index].name;
        let streams = matches!(operation.verb, Verbs::LIST | Verbs::WATCH);
        let (consumes, produces) = match (self.is_custom(), operation.method) {
            (true, "patch") => (UNTYPED_PATCHES, TEXTS),
            (true, _) => (TEXTS, TEXTS),
            (false, "patch") => (PATCHES, ALL),
            (false, _) => (ANY, if streams { STREAMS } else { ALL }),
        };
        let mut parameters = operation.parameters.to_vec();
        parameters.push("pretty");
        PublishedRoute {
            path: self.text.clone(),
            method: operation.method,
            id: self.id(operation),
            tag: tag(&definition.group, version),
            description: self.describe(operation),
            action: Some((operation.action, self.kind())),
            parameters,
            body: operation.body.map(|payload| RequestBody {
                schema: self.schema(payload),
                required: !matches!(payload, BodyKind::DeleteOptions),
            }),
            consumes,
            produces,
            codes: operation.codes,
            result: Some(self.schema(operation.result)),
        }
    }

    /// `listCoreV1NamespacedConfigMap`, `replaceCoreV1NamespaceStatus`.
    fn id(&self, operation: &OperationRule) -> String {
        let definition = self.routes.definition;
        let group = group_word(&definition.group);
        let version = camel(&definition.versions[self.routes.index].name, true);
        let namespaced = if self.namespaced { "Namespaced" } else { "" };
        let subresource = camel(self.subresource.map_or("", |part| part.name), true);
        let OperationRule { word, prefix, .. } = operation;
        let (kind, suffix) = (&definition.kind, self.suffix);
        format!("{word}{group}{version}{prefix}{namespaced}{kind}{subresource}{suffix}")
    }

    fn describe(&self, operation: &OperationRule) -> String {
        let kind = &self.routes.definition.kind;
        match (operation.action, self.subresource) {
            ("list" | "watchlist", _) => format!("{} objects of kind {kind}", operation.word),
            ("deletecollection", _) => format!("delete a collection of {kind}"),
            (_, Some(part)) => format!("{} {} of {kind}", operation.word, part.name),
            _ => format!("{} {kind}", operation.word),
        }
    }

    /// Kind of the subresource; custom resources name their own, also for their scale.
    fn kind(&self) -> GroupVersionKind {
        match self.subresource {
            Some(subresource) if !self.is_custom() => subresource.kind.clone(),
            _ => self.routes.definition.gvk(self.routes.index),
        }
    }

    /// Whether a delete is published as returning the object. kube-apiserver publishes a `Status`
    /// for namespaces, too.
    fn publishes_deleted(&self) -> bool {
        let policy = &self.routes.definition.policy;
        policy.returns_deleted && !policy.begins_own_deletion
    }

    fn schema(&self, payload: BodyKind) -> String {
        let ResourceRoutes { definition, index } = self.routes;
        match payload {
            BodyKind::Status => format!("{META}.Status"),
            BodyKind::Deleted if !self.publishes_deleted() => format!("{META}.Status"),
            BodyKind::Patch => format!("{META}.Patch"),
            BodyKind::DeleteOptions => format!("{META}.DeleteOptions"),
            BodyKind::WatchEvent => format!("{META}.WatchEvent"),
            BodyKind::List => list_name_of(definition, *index),
            BodyKind::Object | BodyKind::Deleted => match self.subresource {
                Some(part) if part.kind != definition.gvk(*index) => {
                    schema_name(&part.kind.group, &part.kind.version, &part.kind.kind)
                }
                _ => name_of(definition, *index),
            },
        }
    }
}

/// `core`, `rbacAuthorization` for `rbac.authorization.k8s.io`.
pub(super) fn group_tag(group: &str) -> String {
    match group {
        "" => "core".to_owned(),
        _ => camel(group.strip_suffix(".k8s.io").unwrap_or(group), false),
    }
}

/// `core_v1`
pub(super) fn tag(group: &str, version: &str) -> String {
    format!("{}_{}", group_tag(group), camel(version, false))
}

/// As [`group_tag`], within an operation's id.
pub(super) fn group_word(group: &str) -> String {
    camel(&group_tag(group), true)
}

/// Joins words in upper case; the first one only if `first`.
pub(super) fn camel(text: &str, first: bool) -> String {
    let mut raise = first;
    let mut out = String::with_capacity(text.len());
    for (at, symbol) in text.chars().enumerate() {
        if !(symbol.is_alphabetic() || symbol == '_' || at > 0 && symbol.is_numeric()) {
            raise = true;
        } else if std::mem::take(&mut raise) {
            out.extend(symbol.to_uppercase());
        } else {
            out.push(symbol);
        }
    }
    out
}
