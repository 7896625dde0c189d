//! Validates paths into objects: scale, printer columns, selectable fields.

use super::schemas::{load, places};
use crate::checks::{is_full, text};
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS};
use ferrokube_schema::Kind;
use ferrokube_schema::custom::field_path;
use std::collections::HashSet;

/// Selectable fields per version.
const MAX_SELECTABLE: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const SIMPLE: &str = "must be a simple json path starting with .";

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (path, subresources) in places(object, "subresources") {
        if let Some(scale) = subresources.get("scale") {
            errors.extend(validate_scale(scale, &format!("{path}.scale")));
        }
    }
    for (path, columns) in places(object, "additionalPrinterColumns") {
        let columns = columns.as_array().map_or(&[][..], Array::as_slice);
        errors.extend(
            columns
                .iter()
                .enumerate()
                .flat_map(|(index, column)| validate_column(column, &format!("{path}[{index}]")))
                .take(MAX_ERRORS),
        );
    }
    for (path, fields) in places(object, "selectableFields") {
        errors.extend(validate_selectable(object, fields, &path));
    }
    errors
}

fn validate_scale(scale: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let fields: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        (
            "labelSelectorPath",
            &[".spec.", ".status."],
            "should be a json path under either .spec or .status",
        ),
    ];
    for (field, roots, why) in fields {
        let (place, given) = (format!("{path}.{field}"), text(scale, field));
        if given.is_empty() {
            errors.extend((field != "labelSelectorPath").then(|| FieldError::required(place, "")));
        } else if !given.starts_with('.') {
            errors.push(FieldError::invalid(place, given, SIMPLE));
        } else if !roots.iter().any(|root| given.starts_with(root)) {
            errors.push(FieldError::invalid(place, given, why));
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
        "" => errors.push(FieldError::required(
            format!("{path}.type"),
            format!("must be one of {}", COLUMN_TYPES.join(",")),
        )),
        given if COLUMN_TYPES.contains(&given) => {}
        given => errors.push(FieldError::invalid(
            format!("{path}.type"),
            given,
            format!("must be one of {}", COLUMN_TYPES.join(",")),
        )),
    }
    let format = text(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        errors.push(FieldError::invalid(
            format!("{path}.format"),
            format,
            format!("must be one of {}", COLUMN_FORMATS.join(",")),
        ));
    }
    match text(column, "jsonPath") {
        "" => errors.push(FieldError::required(format!("{path}.JSONPath"), "")),
        given if given.starts_with('.') => {}
        given => errors.push(FieldError::invalid(format!("{path}.JSONPath"), given, SIMPLE)),
    }
    errors
}

fn validate_selectable(object: &Document, fields: &Value, path: &str) -> Vec<FieldError> {
    let fields = fields.as_array().map_or(&[][..], Array::as_slice);
    let mut errors = Vec::new();
    // The schema at the fields' location: in the version, or at the top if all versions have the
    // same schema and fields.
    let place = path.strip_suffix(".selectableFields").unwrap_or(path);
    let schemas = places(object, "schema");
    let at = |wanted: String| {
        schemas
            .iter()
            .find(|(path, _)| *path == wanted)
            .and_then(|(_, schema)| schema.get("openAPIV3Schema"))
    };
    let (given, why) = match place {
        "spec" => (
            at("spec.validation".to_owned()),
            "may only be set when validations.schema is included",
        ),
        version => (
            at(format!("{version}.schema")),
            "may only be set when `version.schema.openAPIV3Schema` is not included",
        ),
    };
    let Some(given) = given.filter(|schema| !schema.is_null()).filter(|_| !fields.is_empty())
    else {
        return if fields.is_empty() {
            Vec::new()
        } else {
            vec![FieldError::invalid(path, "", why)]
        };
    };
    let (schema, declared) = (load(given, "").schema, given.get("properties"));
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let (place, given) = (format!("{path}[{index}].jsonPath"), text(field, "jsonPath"));
        if given.is_empty() {
            errors.push(FieldError::required(place, ""));
            continue;
        }
        // Every object has metadata, but only declared fields are selectable.
        let root = given.trim_start_matches('.').split('.').next().unwrap_or_default();
        let is_named = !["kind", "apiVersion", "metadata"].contains(&root)
            || declared.is_some_and(|properties| properties.get(root).is_some());
        let found = field_path(&schema, given, false).and_then(|found| {
            if is_named { Ok(found) } else { Err("does not refer to a valid field".to_owned()) }
        });
        let (found, node) = match found {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(
                    place,
                    given,
                    format!("is an invalid path: {why}"),
                ));
                continue;
            }
        };
        if found == "metadata" || found.starts_with("metadata.") {
            errors.push(FieldError::invalid(
                place.clone(),
                given,
                "must not point to fields in metadata",
            ));
        }
        if !matches!(node.kind, Kind::String | Kind::Boolean | Kind::Integer) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(place.clone(), given, why));
        }
        if !seen.insert(found) {
            errors.push(FieldError::duplicate(place, given));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(FieldError::too_many(path, seen.len(), MAX_SELECTABLE));
    }
    errors
}
