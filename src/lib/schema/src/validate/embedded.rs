//! Checks of every embedded resource: kind, version and metadata.

use super::path::Path;
use super::types;
use super::values::ErrorCollector;
use crate::schema::{MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::metadata;
use ferrokube_apimachinery::name::{self, NameErrors};

/// Checks all embedded resources in a value.
pub(super) fn walk(
    collector: &mut ErrorCollector<'_>,
    schema: Option<&Schema>,
    value: &Value,
    path: &Path<'_>,
) {
    let Some(schema) = schema.filter(|schema| !schema.native && path.depth() <= MAX_WALK) else {
        return;
    };
    match value {
        Value::Object(map) => {
            if schema.embedded {
                check(collector, schema, map, path);
            }
            for (name, child) in map {
                let below = if schema.properties.contains_key(name) {
                    path.field(name)
                } else {
                    path.key(name)
                };
                walk(collector, schema.child(name), child, &below);
            }
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| {
            walk(collector, schema.items.as_deref(), item, &path.index(index))
        }),
        _ => {}
    }
}

pub(super) fn check(
    collector: &mut ErrorCollector<'_>,
    schema: &Schema,
    map: &Map,
    path: &Path<'_>,
) {
    for field in ["apiVersion", "kind"] {
        let place = collector.bracketed(&path.field(field));
        let mut invalid =
            |why: &str| collector.push(FieldError::invalid(place.clone(), map.get(field), why));
        match map.get(field) {
            None => collector.push(FieldError::required(place, "")),
            Some(Value::String(text)) if text.is_empty() => invalid("must not be empty"),
            Some(Value::String(text)) if field == "apiVersion" && text.matches('/').count() > 1 => {
                invalid(&format!("unexpected GroupVersion string: {text}"))
            }
            Some(Value::String(text))
                if field == "kind" && !name::dns1035_label(&text.to_lowercase()).is_empty() =>
            {
                let wrong = name::dns1035_label(&text.to_lowercase()).join(",");
                invalid(&format!("may have mixed case, but should otherwise match: {wrong}"));
            }
            Some(Value::String(_)) => {}
            Some(_) => invalid("must be a string"),
        }
    }
    let (given, path) = (map.get("metadata"), path.field("metadata"));
    // Only an apply gets here with metadata that cannot be read.
    let read =
        given.zip(schema.child("metadata")).map(|(value, node)| types::check_at(node, value));
    if let Some(Err(why)) = read {
        collector.push(FieldError::invalid(collector.bracketed(&path), given, why));
    } else if let Some(Value::Object(metadata)) = given {
        metadata_of(collector, metadata, &path);
    }
}

/// Names are only checked to be valid path segments, as in kube-apiserver.
fn metadata_of(collector: &mut ErrorCollector<'_>, metadata: &Map, path: &Path<'_>) {
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
    let mut refuse = |field: &str, wrong: fn(&str) -> NameErrors| {
        if text(field).is_empty() {
            return;
        }
        for why in wrong(text(field)) {
            let place = collector.bracketed(&path.field(field));
            collector.push(FieldError::invalid(place, text(field), why));
        }
    };
    refuse("generateName", name::path_segment_prefix);
    refuse("name", name::path_segment);
    refuse("namespace", name::dns1123_label);
    let mut errors = Vec::new();
    metadata::check(metadata, &collector.bracketed(path), |_| false, &mut errors);
    errors.into_iter().for_each(|error| collector.push(error));
}
