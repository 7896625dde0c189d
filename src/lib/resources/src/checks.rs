//! Validation shared by several kinds.

pub(crate) mod client_config;

use ferrokube_apimachinery::document::{Array, Document, Text, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;

/// Data limit of a ConfigMap or Secret.
pub(crate) const MAX_DATA_BYTES: usize = 1024 * 1024;
/// Message about a field of an immutable object.
pub(crate) const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// An error per message.
pub(crate) fn all_invalid(
    field: &str,
    value: &str,
    sentences: Vec<String>,
) -> impl Iterator<Item = FieldError> {
    sentences.into_iter().map(move |sentence| FieldError::invalid(field, value, sentence))
}

/// A string field; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// An array field; empty if absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

/// Entries of a map; empty if absent.
pub(crate) fn entries<'a>(
    object: &'a Document,
    path: &[&str],
) -> impl Iterator<Item = (&'a Text, &'a Value)> {
    object.get(path).and_then(Value::as_object).into_iter().flatten()
}

/// Whether a field is true.
pub(crate) fn is_true(object: &Document, path: &[&str]) -> bool {
    object.get(path).and_then(Value::as_bool).unwrap_or(false)
}

/// Restores a field, also if it is absent.
pub(crate) fn keep_stored(old: &Document, object: &mut Document, field: &str) {
    match old.get(&[field]) {
        Some(value) => object.set(&[field], value.clone()),
        None => {
            object.remove(&[field]);
        }
    }
}

/// Errors in a namespace finalizer: a qualified name with a domain, or a standard one.
pub(crate) fn finalizer(name: &str) -> Vec<String> {
    let mut sentences = name::qualified_name(name);
    if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
        sentences
            .push("name is neither a standard finalizer name nor is it fully qualified".to_owned());
    }
    sentences
}

/// Errors in a label selector (`matchLabels`, `matchExpressions`).
pub(crate) fn label_selector(selector: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten()
    {
        let field = format!("{path}.matchLabels");
        let value = value.as_str().unwrap_or_default();
        errors.extend(all_invalid(&field, key, name::qualified_name(key)));
        errors.extend(all_invalid(&field, value, name::label_value(value)));
    }
    for (index, requirement) in items(selector, "matchExpressions").iter().enumerate() {
        errors.extend(label_requirement(requirement, &format!("{path}.matchExpressions[{index}]")));
    }
    errors
}

fn label_requirement(requirement: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let values = items(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
            format!("{path}.values"),
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(FieldError::forbidden(
                format!("{path}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(FieldError::invalid(
            format!("{path}.operator"),
            Word(other),
            "not a valid selector operator",
        )),
    }
    let key = text(requirement, "key");
    errors.extend(all_invalid(&format!("{path}.key"), key, name::qualified_name(key)));
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        errors.extend(all_invalid(
            &format!("{path}.values[{index}]"),
            value,
            name::label_value(value),
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn selectors() {
        let errors = label_selector(
            &json!({"matchLabels": {"a b": "c"}, "matchExpressions": [{"key": "k", "operator": "In"}, {"key": "k", "operator": "Exists", "values": ["x"]}, {"key": "k", "operator": "Like"}]}),
            "s",
        );
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "s.matchLabels",
                "s.matchExpressions[0].values",
                "s.matchExpressions[1].values",
                "s.matchExpressions[2].operator"
            ]
        );
    }
}
