//! Rules that several kinds share, and short names for field errors.

use ferrokube_apimachinery::document::{Array, Document, Text, Value};
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_apimachinery::name;

/// What one ConfigMap or Secret may hold.
pub(crate) const MAX_DATA_BYTES: usize = 1024 * 1024;
/// Why an immutable object's field cannot change.
pub(crate) const IMMUTABLE: &str = "field is immutable when `immutable` is set";

pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> FieldError {
    FieldError::new(FieldReason::Invalid, field, message)
}

pub(crate) fn required(field: impl Into<String>, message: impl Into<String>) -> FieldError {
    FieldError::new(FieldReason::Required, field, message)
}

pub(crate) fn forbidden(field: impl Into<String>, message: impl Into<String>) -> FieldError {
    FieldError::new(FieldReason::Forbidden, field, message)
}

pub(crate) fn duplicate(field: impl Into<String>, value: &str) -> FieldError {
    FieldError::new(FieldReason::Duplicate, field, format!("Duplicate value: {value:?}"))
}

pub(crate) fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> FieldError {
    let list: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
    FieldError::new(FieldReason::NotSupported, field, format!("Unsupported value: {value:?}: supported values: {}", list.join(", ")))
}

pub(crate) fn too_long(field: impl Into<String>, limit: usize) -> FieldError {
    FieldError::new(FieldReason::TooLong, field, format!("Too long: may not be more than {limit} bytes"))
}

/// An error for each sentence.
pub(crate) fn all_invalid(field: &str, value: &str, sentences: Vec<String>) -> impl Iterator<Item = FieldError> {
    sentences.into_iter().map(move |sentence| invalid(field, format!("Invalid value: {value:?}: {sentence}")))
}

/// A string field, empty when absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// An array field, empty when absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

/// A map's entries at a path, empty when absent.
pub(crate) fn entries<'a>(object: &'a Document, path: &[&str]) -> impl Iterator<Item = (&'a Text, &'a Value)> {
    object.get(path).and_then(Value::as_object).into_iter().flatten()
}

/// Whether a field is there and true.
pub(crate) fn is_true(object: &Document, path: &[&str]) -> bool {
    object.get(path).and_then(Value::as_bool).unwrap_or(false)
}

/// Puts a field back as it is stored (also its absence).
pub(crate) fn keep_stored(old: &Document, object: &mut Document, field: &str) {
    match old.get(&[field]) {
        Some(value) => object.set(&[field], value.clone()),
        None => {
            object.remove(&[field]);
        }
    }
}

/// What is wrong with a key of a ConfigMap's or Secret's data.
pub(crate) fn data_key(key: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    if key.len() > 253 {
        sentences.push("must be no more than 253 bytes".to_owned());
    }
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
        sentences.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.'".to_owned());
    } else if key == "." || key == ".." {
        sentences.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        sentences.push("must not start with '..'".to_owned());
    }
    sentences
}

/// What is wrong with a namespace finalizer: a qualified name, and one that says whose it is.
pub(crate) fn finalizer(name: &str) -> Vec<String> {
    let mut sentences = name::qualified_name(name);
    if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
        sentences.push("name is neither a standard finalizer name nor is it fully qualified".to_owned());
    }
    sentences
}

/// What is wrong with a label selector (`matchLabels`, `matchExpressions`).
pub(crate) fn label_selector(selector: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
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
        "In" | "NotIn" if values.is_empty() => errors.push(required(format!("{path}.values"), "must be specified when `operator` is 'In' or 'NotIn'")),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(forbidden(format!("{path}.values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(invalid(format!("{path}.operator"), format!("Invalid value: {other:?}: not a valid selector operator"))),
    }
    let key = text(requirement, "key");
    errors.extend(all_invalid(&format!("{path}.key"), key, name::qualified_name(key)));
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        errors.extend(all_invalid(&format!("{path}.values[{index}]"), value, name::label_value(value)));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn data_keys() {
        for good in ["a", "A.b-c_d", ".dockercfg", "a..b"] {
            assert_eq!(data_key(good).len(), 0, "{good}");
        }
        for bad in ["", "bad key", ".", "..", "..z", "a/b", "\u{e9}"] {
            assert_eq!(data_key(bad).len(), 1, "{bad}");
        }
        assert_eq!(data_key(&"k".repeat(254)).len(), 1);
        assert_eq!(data_key(&"k".repeat(253)).len(), 0);
    }

    #[test]
    fn selectors() {
        let errors = label_selector(
            &json!({"matchLabels": {"a b": "c"}, "matchExpressions": [{"key": "k", "operator": "In"}, {"key": "k", "operator": "Exists", "values": ["x"]}, {"key": "k", "operator": "Like"}]}),
            "s",
        );
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["s.matchLabels", "s.matchExpressions[0].values", "s.matchExpressions[1].values", "s.matchExpressions[2].operator"]);
    }
}
