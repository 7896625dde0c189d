//! Fields of CustomResourceDefinitions.

use ferrokube_apimachinery::document::{Document, Value};

/// API group of definitions.
pub const GROUP: &str = "apiextensions.k8s.io";

/// `spec.group`; empty if absent.
pub(crate) fn group(object: &Document) -> &str {
    object.str(&["spec", "group"]).unwrap_or_default()
}

/// `spec.names.plural`; empty if absent.
pub(crate) fn plural(object: &Document) -> &str {
    object.str(&["spec", "names", "plural"]).unwrap_or_default()
}

/// A text field; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
