//! Whole documents: OpenAPI v3 of one group version, OpenAPI v2 of everything.

use super::paths::{self, SpecVersion};
use crate::version::MINOR;
use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_resource::Definition;
use ferrokube_schema::{Schema, openapi};
use std::sync::Arc;

/// Name of the definition of list metadata.
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// `api/v1` or `apis/<group>/<version>`.
pub(super) fn key(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": format!("v1.{MINOR}.0")})
}

/// OpenAPI v3 of one group version; `path` is its [`key`].
pub(super) fn v3(path: &str, definitions: &[Arc<Definition>]) -> Value {
    let mut schemas = Map::new();
    let mut all = Map::new();
    for definition in definitions {
        let Some(index) = definition
            .versions
            .iter()
            .position(|version| version.served && key(&definition.group, &version.name) == path)
        else {
            continue;
        };
        add_schemas(definition, index, SpecVersion::V3, &mut schemas);
        paths::add(definition, index, SpecVersion::V3, &mut all);
    }
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": all,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"BearerToken": {"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
        },
    })
}

/// OpenAPI v2 of everything.
pub(super) fn v2(definitions: &[Arc<Definition>]) -> Value {
    let mut schemas = Map::new();
    let mut all = Map::new();
    for definition in definitions {
        for (index, _) in
            definition.versions.iter().enumerate().filter(|(_, version)| version.served)
        {
            add_schemas(definition, index, SpecVersion::V2, &mut schemas);
            paths::add(definition, index, SpecVersion::V2, &mut all);
        }
    }
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": all,
        "definitions": schemas,
        "securityDefinitions": {"BearerToken": {"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
        "security": [{"BearerToken": []}],
    })
}

/// Name of a kind's definition.
pub(super) fn name_of(definition: &Definition, index: usize) -> String {
    let schema: &Schema = &definition.versions[index].schema;
    schema.name.as_deref().map_or_else(
        || format!("{}.{}.{}", definition.group, definition.versions[index].name, definition.kind),
        str::to_owned,
    )
}

fn add_schemas(definition: &Definition, index: usize, spec_version: SpecVersion, into: &mut Map) {
    let version = &definition.versions[index];
    match spec_version {
        SpecVersion::V3 => openapi::components_v3(&version.schema, into),
        SpecVersion::V2 => openapi::definitions_v2(&version.schema, into),
    }
    let name = name_of(definition, index);
    let gvk =
        |kind: &str| json!([{"group": definition.group, "kind": kind, "version": version.name}]);
    if let Some(Value::Object(schema)) = into.get_mut(&name) {
        schema.insert("x-kubernetes-group-version-kind".to_owned(), gvk(&definition.kind));
    }
    if definition.list_kind.is_empty() || into.contains_key(&format!("{name}List")) {
        return;
    }
    into.entry(LIST_META).or_insert_with(list_meta);
    let list = json!({
        "type": "object",
        "description": format!("{} is a list of {}", definition.list_kind, definition.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of this representation of the object."},
            "kind": {"type": "string", "description": "What this object is."},
            "metadata": reference(spec_version, LIST_META),
            "items": {"type": "array", "items": reference(spec_version, &name)},
        },
        "x-kubernetes-group-version-kind": gvk(&definition.list_kind),
    });
    into.insert(format!("{name}List"), list);
}

fn list_meta() -> Value {
    json!({
        "type": "object",
        "description": "Metadata that lists have.",
        "properties": {
            "continue": {"type": "string", "description": "Where the next page begins; empty at the end."},
            "remainingItemCount": {"type": "integer", "format": "int64", "description": "How many items are left, where that is known."},
            "resourceVersion": {"type": "string", "description": "The version of the list; opaque."},
            "selfLink": {"type": "string", "description": "Not filled in any more."},
        },
    })
}

/// A `$ref` to a definition.
pub(super) fn reference(spec_version: SpecVersion, name: &str) -> Value {
    match spec_version {
        SpecVersion::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        SpecVersion::V2 => json!({"$ref": format!("#/definitions/{name}")}),
    }
}
