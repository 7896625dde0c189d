//! Names of definitions and documents, and references to them.

use ferrokube_apimachinery::document::{Value, json};
use ferrokube_resource::Definition;
use ferrokube_schema::Schema;

/// Prefix of the definitions of the API machinery's types.
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecVersion {
    /// Swagger 2.0.
    V2,
    /// OpenAPI 3.0.
    V3,
}

/// `api/v1` or `apis/<group>/<version>`.
pub(super) fn key(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// Name of a kind's definition.
pub(super) fn name_of(definition: &Definition, index: usize) -> String {
    let schema: &Schema = &definition.versions[index].schema;
    schema.name.as_deref().map_or_else(
        || format!("{}.{}.{}", definition.group, definition.versions[index].name, definition.kind),
        str::to_owned,
    )
}

pub(super) fn list_name_of(definition: &Definition, index: usize) -> String {
    let name = name_of(definition, index);
    let prefix = name.strip_suffix(&definition.kind).unwrap_or(&name);
    format!("{prefix}{}", definition.list_kind)
}

/// A `$ref` to a definition.
pub(super) fn reference(version: SpecVersion, name: &str) -> Value {
    match version {
        SpecVersion::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        SpecVersion::V2 => json!({"$ref": format!("#/definitions/{name}")}),
    }
}
