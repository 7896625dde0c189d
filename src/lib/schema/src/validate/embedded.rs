//! What any embedded resource needs: kind, version and valid metadata.

use super::path::Path;
use super::values::Sink;
use ferrokube_apimachinery::document::{Map, Text, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;

pub(super) fn check(sink: &mut Sink<'_>, map: &Map, path: &Path<'_>) {
    for field in ["apiVersion", "kind"] {
        let place = path.field(field).bracketed();
        let mut invalid = |why: &str| sink.push(FieldError::invalid(place.clone(), map.get(field), why));
        match map.get(field) {
            None => sink.push(FieldError::required(place, "")),
            Some(Value::String(text)) if text.is_empty() => invalid("must not be empty"),
            Some(Value::String(text)) if field == "apiVersion" && text.matches('/').count() > 1 => invalid("must be a version, or a group and a version"),
            Some(Value::String(text)) if field == "kind" && !name::dns1035_label(&text.to_lowercase()).is_empty() => {
                invalid("may have mixed case, but should otherwise be a DNS label");
            }
            Some(Value::String(_)) => {}
            Some(_) => invalid("must be a string"),
        }
    }
    if let Some(Value::Object(metadata)) = map.get("metadata") {
        metadata_of(sink, metadata, &path.field("metadata"));
    }
}

/// Names are only looked at as parts of URLs, as upstream does.
fn metadata_of(sink: &mut Sink<'_>, metadata: &Map, path: &Path<'_>) {
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
    let in_url = |given: &str| !matches!(given, "." | "..") && !given.contains(['/', '%']);
    let entries = |field: &str| metadata.get(field).and_then(Value::as_object).into_iter().flatten();
    let label_fits =
        |(key, value): (&Text, &Value)| name::qualified_name(key).is_empty() && value.as_str().is_none_or(|value| name::label_value(value).is_empty());
    let finalizers = metadata.get("finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let faults = [
        ("name", in_url(text("name"))),
        ("generateName", in_url(text("generateName"))),
        ("namespace", text("namespace").is_empty() || name::dns1123_label(text("namespace")).is_empty()),
        ("labels", entries("labels").all(label_fits)),
        ("annotations", entries("annotations").all(|(key, _)| name::qualified_name(&key.to_lowercase()).is_empty())),
        ("finalizers", finalizers.map(name::qualified_name).all(|sentences| sentences.is_empty())),
    ];
    let entries = metadata.get("managedFields").and_then(Value::as_array).into_iter().flatten();
    let operation = |entry: &Value| entry.get("operation").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (index, entry) in entries.enumerate().filter(|(_, entry)| !matches!(operation(entry).as_str(), "Apply" | "Update")) {
        let place = path.field("managedFields").index(index).field("operation").bracketed();
        sink.push(FieldError::invalid(place, operation(entry), "must be `Apply` or `Update`"));
    }
    for (field, _) in faults.into_iter().filter(|(_, fits)| !fits) {
        sink.push(FieldError::invalid(path.field(field).bracketed(), metadata.get(field), "malformed"));
    }
}
