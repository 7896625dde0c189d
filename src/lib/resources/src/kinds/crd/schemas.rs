//! Validates schemas: every version has a complete, structural one.

use super::fields::versions;
use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_cel::Rules;
use ferrokube_schema::custom::{self, Loaded, SchemaContext};
use ferrokube_schema::validate::is_known_text_format;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A field of the versions with its paths in errors: at the top if all versions have the same
/// value, as in kube-apiserver's internal type.
pub(super) fn places<'a>(object: &'a Document, field: &str) -> Vec<(String, &'a Value)> {
    let listed = versions(object);
    let given = |version: &'a Value| version.get(field).filter(|value| !value.is_null());
    let Some(first) = listed.first() else { return Vec::new() };
    if listed.iter().all(|version| version.get(field) == first.get(field)) {
        let top = if field == "schema" { "validation" } else { field };
        return given(first).map(|value| (format!("spec.{top}"), value)).into_iter().collect();
    }
    let each = listed.iter().enumerate().filter_map(|(index, version)| {
        Some((format!("spec.versions[{index}].{field}"), given(version)?))
    });
    each.collect()
}

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, version) in versions(object).iter().enumerate() {
        if version
            .get("schema")
            .and_then(|schema| schema.get("openAPIV3Schema"))
            .is_none_or(Value::is_null)
        {
            errors.push(FieldError::required(
                format!("spec.versions[{index}].schema.openAPIV3Schema"),
                "",
            ));
        }
    }
    for (path, schema) in places(object, "schema") {
        if let Some(schema) = schema.get("openAPIV3Schema").filter(|schema| !schema.is_null()) {
            let path = format!("{path}.openAPIV3Schema");
            if has_status(object, &path) {
                errors.extend(root_beside_status(schema, &path));
            }
            if schema.get("nullable") == Some(&Value::Bool(true)) {
                errors.push(FieldError::forbidden(
                    format!("{path}.nullable"),
                    "nullable cannot be true at the root",
                ));
            }
            let loaded = load(schema, &path);
            errors.extend(loaded.errors.iter().cloned());
            errors.extend(Rules::validate_schema(
                &Arc::new(loaded.schema),
                &path,
                &loaded.errors,
                loaded.is_structural,
            ));
        }
    }
    errors
}

/// Whether the versions of a schema have a status subresource; for a top-level schema, whether any
/// version has.
fn has_status(object: &Document, path: &str) -> bool {
    let mut own = versions(object).iter().enumerate().filter(|(index, _)| {
        !path.starts_with("spec.versions[") || path.starts_with(&format!("spec.versions[{index}]."))
    });
    own.any(|(_, version)| {
        version
            .get("subresources")
            .and_then(|parts| parts.get("status"))
            .is_some_and(|status| !status.is_null())
    })
}

/// Fields of a root schema that are allowed with a status subresource, since the status is then
/// validated separately.
const BESIDE_STATUS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// kube-apiserver's message, with the names of Go fields.
const BESIDE_STATUS_ONLY: &str = "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems \
     MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are allowed at the root of \
     the schema if the status subresource is enabled";

fn root_beside_status(schema: &Value, path: &str) -> Option<FieldError> {
    let given = text(schema, "type");
    if !matches!(given, "" | "object") {
        let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(FieldError::invalid(format!("{path}.type"), given, why));
    }
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    let lost = schema
        .as_object()?
        .iter()
        .find(|(keyword, value)| !BESIDE_STATUS.contains(&keyword.as_str()) && is_set(value));
    lost.map(|_| FieldError::invalid_unshown(path, BESIDE_STATUS_ONLY))
}

/// Formats in the schemas that this server does not know.
pub(super) fn unknown_formats(object: &Document) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let schemas = places(object, "schema")
        .into_iter()
        .filter_map(|(_, schema)| schema.get("openAPIV3Schema"));
    let mut below: Vec<&Value> = schemas.collect();
    while let Some(schema) = below.pop() {
        let format = text(schema, "format");
        if !format.is_empty() && !is_known_format(text(schema, "type"), format) {
            out.insert(format.to_owned());
        }
        let maps = ["properties"]
            .into_iter()
            .filter_map(|name| schema.get(name)?.as_object())
            .flat_map(|map| map.values());
        let lists = ["allOf", "anyOf", "oneOf"]
            .into_iter()
            .flat_map(|name| crate::checks::items(schema, name));
        let single = ["items", "additionalProperties", "not"]
            .into_iter()
            .filter_map(|name| schema.get(name))
            .filter(|schema| schema.is_object());
        below.extend(maps.chain(lists).chain(single));
    }
    out
}

fn is_known_format(kind: &str, format: &str) -> bool {
    match kind {
        "" | "string" => is_known_text_format(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Loads a schema without compiling its rules.
pub(super) fn load(schema: &Value, path: &str) -> Loaded {
    custom::load(schema, &SchemaContext { path, ..SchemaContext::default() })
}
