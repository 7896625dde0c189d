//! Fields of a definition.

use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Value};

/// Versions as given.
pub(super) fn versions(object: &Document) -> &[Value] {
    object.list(&["spec", "versions"])
}

/// Whether a field is true.
pub(super) fn is_true(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or(false)
}

/// Whether the condition `Established` holds.
pub(super) fn is_established(object: &Document) -> bool {
    let conditions = object.list(&["status", "conditions"]);
    conditions.iter().any(|condition| {
        text(condition, "type") == "Established" && text(condition, "status") == "True"
    })
}
