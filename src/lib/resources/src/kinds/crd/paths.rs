//! Paths into objects that a definition names: scale, printer columns, selectable fields.

use super::schemas::{load, places};
use crate::checks::text;
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_schema::custom::field_path;
use ferrokube_schema::{Kind, Schema};
use std::collections::HashSet;

/// At most so many selectable fields.
const MAX_SELECTABLE: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["integer", "number", "string", "boolean", "date"];
const COLUMN_FORMATS: [&str; 9] = ["", "int32", "int64", "float", "double", "byte", "date", "date-time", "password"];

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (path, subresources) in places(object, "subresources") {
        if let Some(scale) = subresources.get("scale") {
            errors.extend(validate_scale(scale, &format!("{path}.scale")));
        }
    }
    for (path, columns) in places(object, "additionalPrinterColumns") {
        let columns = columns.as_array().map_or(&[][..], Array::as_slice);
        errors.extend(columns.iter().enumerate().flat_map(|(index, column)| validate_column(column, &format!("{path}[{index}]"))));
    }
    for (path, fields) in places(object, "selectableFields") {
        errors.extend(validate_selectable(object, fields, &path));
    }
    errors
}

fn validate_scale(scale: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let fields: [(&str, &[&str], bool); 3] =
        [("specReplicasPath", &[".spec."], true), ("statusReplicasPath", &[".status."], true), ("labelSelectorPath", &[".spec.", ".status."], false)];
    for (field, roots, needed) in fields {
        let (place, given) = (format!("{path}.{field}"), text(scale, field));
        if given.is_empty() {
            errors.extend(needed.then(|| FieldError::required(place, "")));
        } else if !roots.iter().any(|root| given.starts_with(root)) {
            errors.push(FieldError::invalid(place, given, format!("should be a json path under {}", roots.join(" or "))));
        }
    }
    errors
}

fn validate_column(column: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(column, "name").is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    match text(column, "type") {
        "" => errors.push(FieldError::required(format!("{path}.type"), format!("must be one of {}", COLUMN_TYPES.join(", ")))),
        given if COLUMN_TYPES.contains(&given) => {}
        given => errors.push(FieldError::invalid(format!("{path}.type"), given, format!("must be one of {}", COLUMN_TYPES.join(", ")))),
    }
    let format = text(column, "format");
    if !COLUMN_FORMATS.contains(&format) {
        errors.push(FieldError::invalid(format!("{path}.format"), format, format!("must be one of {}", COLUMN_FORMATS[1..].join(", "))));
    }
    match text(column, "jsonPath") {
        "" => errors.push(FieldError::required(format!("{path}.JSONPath"), "")),
        given if given.starts_with('.') => {}
        given => errors.push(FieldError::invalid(format!("{path}.JSONPath"), given, "must be a simple json path starting with .")),
    }
    errors
}

fn validate_selectable(object: &Document, fields: &Value, path: &str) -> Vec<FieldError> {
    let fields = fields.as_array().map_or(&[][..], Array::as_slice);
    let mut errors = Vec::new();
    // The fields of one version are looked up in its schema, those of all versions in each.
    let index = path.strip_prefix("spec.versions[").and_then(|rest| rest.split(']').next()?.parse::<usize>().ok());
    let versions = super::versions(object).iter().enumerate().filter(|(at, _)| index.is_none_or(|index| index == *at));
    let schemas: Vec<Schema> = versions.filter_map(|(_, version)| load(version.get("schema")?.get("openAPIV3Schema")?, "").ok()).collect();
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let (place, given) = (format!("{path}[{index}].jsonPath"), text(field, "jsonPath"));
        if given.is_empty() {
            errors.push(FieldError::required(place, ""));
            continue;
        }
        // These every object has, but only what the schema names can be selected.
        let unnamed = [".kind", ".apiVersion"].contains(&given) && !declares(object, &given[1..]);
        let found: Option<Vec<(String, &Schema)>> = schemas.iter().filter(|_| !unnamed).map(|schema| field_path(schema, given, false)).collect();
        let found = found.filter(|_| !unnamed);
        let Some(found) = found.filter(|found| found.iter().all(|(path, _)| !path.is_empty())) else {
            errors.push(FieldError::invalid(place, given, "is an invalid path"));
            continue;
        };
        if found.iter().any(|(path, _)| path == "metadata" || path.starts_with("metadata.")) {
            errors.push(FieldError::invalid(place.clone(), given, "must not point to fields in metadata"));
        }
        if !found.iter().all(|(_, node)| matches!(node.kind, Kind::String | Kind::Boolean | Kind::Integer)) {
            errors.push(FieldError::invalid(place.clone(), given, "must point to a field of type string, boolean or integer"));
        }
        if !seen.insert(given) {
            errors.push(FieldError::duplicate(place, given));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(FieldError::too_many(path, seen.len(), MAX_SELECTABLE));
    }
    errors
}

/// Whether the first version's schema names a field of the root.
fn declares(object: &Document, field: &str) -> bool {
    let schema = super::versions(object).first().and_then(|version| version.get("schema")?.get("openAPIV3Schema"));
    schema.and_then(|schema| schema.get("properties")?.get(field)).is_some()
}
