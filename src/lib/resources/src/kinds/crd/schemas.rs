//! The schemas: each version has one, structural and complete in itself.

use super::versions;
use crate::checks::{forbidden, required};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_schema::Schema;
use ferrokube_schema::custom::{Loading, from_json_schema};

/// A field of the versions, and where errors say it is: at the top when all versions have the same, as upstream's internal form has it.
pub(super) fn places<'a>(object: &'a Document, field: &str) -> Vec<(String, &'a Value)> {
    let listed = versions(object);
    let given = |version: &'a Value| version.get(field).filter(|value| !value.is_null());
    let Some(first) = listed.first() else { return Vec::new() };
    if listed.iter().all(|version| version.get(field) == first.get(field)) {
        let top = if field == "schema" { "validation" } else { field };
        return given(first).map(|value| (format!("spec.{top}"), value)).into_iter().collect();
    }
    let each = listed.iter().enumerate().filter_map(|(index, version)| Some((format!("spec.versions[{index}].{field}"), given(version)?)));
    each.collect()
}

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, version) in versions(object).iter().enumerate() {
        if version.get("schema").and_then(|schema| schema.get("openAPIV3Schema")).is_none_or(Value::is_null) {
            errors.push(required(format!("spec.versions[{index}].schema.openAPIV3Schema"), "Required value: schemas are required"));
        }
    }
    for (path, schema) in places(object, "schema") {
        if let Some(schema) = schema.get("openAPIV3Schema") {
            errors.extend(load(schema, &format!("{path}.openAPIV3Schema")).err().unwrap_or_default());
        }
    }
    errors
}

/// Loads a schema, with its rules.
pub(super) fn load(schema: &Value, path: &str) -> Result<Schema, Vec<FieldError>> {
    let loaded = from_json_schema(schema, &Loading { path, ..Loading::default() })?;
    let mut errors = Vec::new();
    refuse_rules(schema, path, &mut errors);
    if errors.is_empty() { Ok(loaded) } else { Err(errors) }
}

/// A rule that nobody evaluates must not seem to hold. The schema was loaded: its depth is bounded.
fn refuse_rules(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for index in 0..crate::checks::items(schema, "x-kubernetes-validations").len().min(20) {
        errors.push(forbidden(format!("{path}.x-kubernetes-validations[{index}].rule"), "Forbidden: this server does not evaluate validation rules yet"));
    }
    for (name, child) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        refuse_rules(child, &format!("{path}.properties[{name}]"), errors);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(child) = schema.get(field) {
            refuse_rules(child, &format!("{path}.{field}"), errors);
        }
    }
}
