//! Checks of every embedded resource: kind, version and metadata.

use super::path::Path;
use super::values::ErrorCollector;
use crate::schema::{MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;

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
                check(collector, map, path);
            }
            for (name, child) in map {
                let below = if schema.properties.contains_key(&**name) {
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

pub(super) fn check(collector: &mut ErrorCollector<'_>, map: &Map, path: &Path<'_>) {
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
    if let Some(Value::Object(metadata)) = map.get("metadata") {
        metadata_of(collector, metadata, &path.field("metadata"));
    }
}

/// Owner references must be complete.
fn owners(collector: &mut ErrorCollector<'_>, metadata: &Map, path: &Path<'_>) {
    let owners = path.field("ownerReferences");
    for owner in metadata.get("ownerReferences").and_then(Value::as_array).into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            let given = owner.get(field).and_then(Value::as_str).unwrap_or_default();
            let place = collector.bracketed(&owners.field(field));
            match field {
                "apiVersion"
                    if given.is_empty()
                        || given.ends_with('/')
                        || given.matches('/').count() > 1 =>
                {
                    collector.push(FieldError::invalid(place, given, "version must not be empty"))
                }
                "kind" | "name" | "uid" if given.is_empty() => {
                    collector.push(FieldError::invalid(place, given, "must not be empty"))
                }
                _ => {}
            }
        }
    }
}

/// Names are only checked to be valid path segments, as in kube-apiserver.
fn metadata_of(collector: &mut ErrorCollector<'_>, metadata: &Map, path: &Path<'_>) {
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
    let entries =
        |field: &str| metadata.get(field).and_then(Value::as_object).into_iter().flatten();
    let mut refuse = |field: &str, given: &str, sentences: Vec<String>| {
        for why in sentences {
            let place = collector.bracketed(&path.field(field));
            collector.push(FieldError::invalid(place, given, why));
        }
    };
    for field in ["generateName", "name"] {
        refuse(field, text(field), name::path_segment(text(field)));
    }
    if !text("namespace").is_empty() {
        refuse("namespace", text("namespace"), name::dns1123_label(text("namespace")));
    }
    for (key, value) in entries("labels") {
        refuse("labels", key, name::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        refuse("labels", value, name::label_value(value));
    }
    for (key, _) in entries("annotations") {
        refuse("annotations", key, name::qualified_name(&key.to_lowercase()));
    }
    let finalizers = metadata
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    finalizers
        .for_each(|finalizer| refuse("finalizers", finalizer, name::qualified_name(finalizer)));
    let entries = metadata.get("managedFields").and_then(Value::as_array).into_iter().flatten();
    let operation = |entry: &Value| {
        entry.get("operation").and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    for (index, entry) in entries
        .enumerate()
        .filter(|(_, entry)| !matches!(operation(entry).as_str(), "Apply" | "Update"))
    {
        let place =
            collector.bracketed(&path.field("managedFields").index(index).field("operation"));
        collector.push(FieldError::invalid(place, operation(entry), "must be `Apply` or `Update`"));
    }
    owners(collector, metadata, path);
}
