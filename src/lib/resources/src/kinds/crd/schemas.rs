//! The schemas: each version has one, structural and complete in itself.

use super::versions;
use crate::checks::required;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_cel::Rules;
use ferrokube_schema::Schema;
use ferrokube_schema::custom::{Loading, from_json_schema};
use std::sync::Arc;

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
            let path = format!("{path}.openAPIV3Schema");
            errors.extend(load(schema, &path).and_then(|schema| check_rules(&Arc::new(schema), &path)).err().unwrap_or_default());
        }
    }
    errors
}

/// Loads a schema; its rules are not compiled.
pub(super) fn load(schema: &Value, path: &str) -> Result<Schema, Vec<FieldError>> {
    from_json_schema(schema, &Loading { path, ..Loading::default() })
}

/// Rules must make sense, and hold for the defaults.
fn check_rules(schema: &Arc<Schema>, path: &str) -> Result<(), Vec<FieldError>> {
    let errors = Rules::compile(schema, path)?.map(|rules| rules.validate_defaults(path)).unwrap_or_default();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
