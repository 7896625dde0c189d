//! Path items of resources, reduced to what clients look up: action, kind and the parameters of
//! writes.

use super::documents::{key, name_of, reference};
use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_resource::{Definition, Scope, Verbs};

/// Version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecVersion {
    /// Swagger 2.0.
    V2,
    /// OpenAPI 3.0.
    V3,
}

struct OperationSpec {
    method: &'static str,
    action: &'static str,
    /// `read`, `list`, `create`, ...: the first word of the operation id.
    word: &'static str,
    verb: Verbs,
    parameters: &'static [&'static str],
}

const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];

const COLLECTION: [OperationSpec; 3] = [
    OperationSpec {
        method: "get",
        action: "list",
        word: "list",
        verb: Verbs::LIST,
        parameters: LIST,
    },
    OperationSpec {
        method: "post",
        action: "post",
        word: "create",
        verb: Verbs::CREATE,
        parameters: WRITE,
    },
    OperationSpec {
        method: "delete",
        action: "deletecollection",
        word: "deleteCollection",
        verb: Verbs::DELETE_COLLECTION,
        parameters: LIST,
    },
];
const ITEM: [OperationSpec; 5] = [
    OperationSpec { method: "get", action: "get", word: "read", verb: Verbs::GET, parameters: &[] },
    OperationSpec {
        method: "put",
        action: "put",
        word: "replace",
        verb: Verbs::UPDATE,
        parameters: WRITE,
    },
    OperationSpec {
        method: "patch",
        action: "patch",
        word: "patch",
        verb: Verbs::PATCH,
        parameters: PATCH,
    },
    OperationSpec {
        method: "delete",
        action: "delete",
        word: "delete",
        verb: Verbs::DELETE,
        parameters: DELETE,
    },
    OperationSpec {
        method: "post",
        action: "post",
        word: "create",
        verb: Verbs::CREATE,
        parameters: WRITE,
    },
];

struct ResourcePath<'a> {
    text: String,
    spec_version: SpecVersion,
    kind: GroupVersionKind,
    /// Name of the definition in bodies.
    schema: &'a str,
    /// Name of the definition of a list.
    list_schema: &'a str,
    /// Suffix of operation ids.
    id: String,
}

/// Adds the paths of a resource.
pub(super) fn add(
    definition: &Definition,
    index: usize,
    spec_version: SpecVersion,
    into: &mut Map,
) {
    let version = &definition.versions[index];
    let base = format!("/{}", key(&definition.group, &version.name));
    let namespaced = definition.scope == Scope::Namespaced;
    let scoped = if namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", definition.plural)
    } else {
        format!("{base}/{}", definition.plural)
    };
    let schema = name_of(definition, index);
    let list_schema = format!("{schema}List");
    let id = format!(
        "{}{}{}{}",
        camel(&definition.group),
        camel(&version.name),
        if namespaced { "Namespaced" } else { "" },
        definition.kind
    );
    let path = |text: String, kind: GroupVersionKind, suffix: &str| ResourcePath {
        text,
        spec_version,
        kind,
        schema: &schema,
        list_schema: &list_schema,
        id: format!("{id}{}", camel(suffix)),
    };
    let gvk = definition.gvk(index);
    path(scoped.clone(), gvk.clone(), "").add(&COLLECTION, definition.verbs, into);
    if namespaced && definition.verbs.has(Verbs::LIST) {
        path(format!("{base}/{}", definition.plural), gvk.clone(), "ForAllNamespaces").add(
            &COLLECTION[..1],
            definition.verbs,
            into,
        );
    }
    path(format!("{scoped}/{{name}}"), gvk, "").add(&ITEM[..4], definition.verbs, into);
    for subresource in &version.subresources {
        path(
            format!("{scoped}/{{name}}/{}", subresource.name),
            subresource.kind.clone(),
            subresource.name,
        )
        .add(&ITEM, subresource.verbs, into);
    }
}

impl ResourcePath<'_> {
    fn add(&self, operations: &[OperationSpec], verbs: Verbs, into: &mut Map) {
        let mut item: Map = operations
            .iter()
            .filter(|operation| verbs.has(operation.verb))
            .map(|operation| (operation.method.to_owned(), self.operation(operation)))
            .collect();
        if item.is_empty() {
            return;
        }
        let in_path = ["namespace", "name"]
            .into_iter()
            .filter(|name| self.text.contains(&format!("{{{name}}}")));
        let mut parameters: Vec<Value> = in_path.map(|name| self.parameter(name, "path")).collect();
        parameters.push(self.parameter("pretty", "query"));
        item.insert("parameters".to_owned(), Value::from(parameters));
        into.insert(self.text.clone(), Value::Object(item));
    }

    fn operation(&self, operation: &OperationSpec) -> Value {
        let kind = &self.kind;
        let result = if operation.action == "list" { self.list_schema } else { self.schema };
        let mut parameters: Vec<Value> =
            operation.parameters.iter().map(|name| self.parameter(name, "query")).collect();
        let takes_body = matches!(operation.method, "post" | "put" | "patch");
        let mut out = json!({
            "description": format!("{} {}", operation.word, kind.kind),
            "operationId": format!("{}{}", operation.word, self.id),
            "tags": [format!("{}_{}", if kind.group.is_empty() { "core" } else { &kind.group }, kind.version)],
            "responses": {"200": self.response(result), "401": {"description": "Unauthorized"}},
            "x-kubernetes-action": operation.action,
            "x-kubernetes-group-version-kind": {"group": kind.group, "kind": kind.kind, "version": kind.version},
        });
        if takes_body {
            match self.spec_version {
                SpecVersion::V2 => parameters.insert(0, json!({"name": "body", "in": "body", "required": true, "schema": reference(self.spec_version, self.schema)})),
                SpecVersion::V3 => out["requestBody"] = json!({"required": true, "content": {"*/*": {"schema": reference(self.spec_version, self.schema)}}}),
            }
        }
        if self.spec_version == SpecVersion::V2 {
            out["produces"] = json!([
                "application/json",
                "application/yaml",
                "application/vnd.kubernetes.protobuf"
            ]);
            out["consumes"] = json!(["*/*"]);
            out["schemes"] = json!(["https"]);
        }
        if !parameters.is_empty() {
            out["parameters"] = Value::from(parameters);
        }
        out
    }

    fn response(&self, schema: &str) -> Value {
        let schema = reference(self.spec_version, schema);
        match self.spec_version {
            SpecVersion::V2 => json!({"description": "OK", "schema": schema}),
            SpecVersion::V3 => {
                json!({"description": "OK", "content": {"application/json": {"schema": schema}}})
            }
        }
    }

    fn parameter(&self, name: &str, place: &str) -> Value {
        let kind = match name {
            "allowWatchBookmarks"
            | "force"
            | "orphanDependents"
            | "sendInitialEvents"
            | "watch" => "boolean",
            "gracePeriodSeconds" | "limit" | "timeoutSeconds" => "integer",
            _ => "string",
        };
        let mut parameter = match self.spec_version {
            SpecVersion::V2 => {
                json!({"name": name, "in": place, "type": kind, "uniqueItems": true})
            }
            SpecVersion::V3 => {
                json!({"name": name, "in": place, "schema": {"type": kind, "uniqueItems": true}})
            }
        };
        if place == "path" {
            parameter["required"] = true.into();
        }
        parameter
    }
}

/// `apiextensions.k8s.io` becomes `ApiextensionsK8sIo`, for operation ids.
fn camel(text: &str) -> String {
    text.split(['.', '-', '/'])
        .filter(|word| !word.is_empty())
        .map(|word| {
            let mut symbols = word.chars();
            symbols
                .next()
                .map(|first| first.to_ascii_uppercase().to_string() + symbols.as_str())
                .unwrap_or_default()
        })
        .collect()
}
