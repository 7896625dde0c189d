//! JSON patch (RFC 6902 with upstream's leniency) and JSON merge patch (RFC 7386). Strategic merge
//! and apply need a schema: crate `schema`.

mod json_patch;
mod pointer;

use crate::document::{Map, Value};
pub use json_patch::json_patch;

/// At most so many operations in one JSON patch.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// At most so many bytes of JSON copied by all `copy` operations of one patch together.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed (400).
    #[error("malformed patch: {0}")]
    Malformed(String),
    /// It does not fit the object: a failed `test`, a path that is absent (422).
    #[error("the patch cannot be applied: {0}")]
    DoesNotApply(String),
    /// A strategic merge directive that makes no sense (upstream answers 500 without a reason, and
    /// clients see it).
    #[error("the patch cannot be understood: {0}")]
    Directive(String),
    /// Too many operations or too much work (413).
    #[error("the patch is too large: {0}")]
    TooLarge(String),
}

/// Applies a merge patch: null removes, objects merge, everything else replaces.
///
/// Nulls inside new objects are dropped, and also inside objects of a list that replaces something
/// other than an object, as upstream does. Both values are at most [`crate::json::MAX_DEPTH`] deep,
/// and so is the result.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = if target.is_object() { patch.clone() } else { without_nulls(patch) };
        return;
    };
    if !target.is_object() {
        *target = without_nulls(patch);
        return;
    }
    if let Value::Object(fields) = target {
        merge_objects(fields, changes);
    }
}

fn merge_objects(fields: &mut Map, changes: &Map) {
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
            continue;
        }
        match fields.get_mut(name) {
            Some(field) => merge_patch(field, change),
            None => {
                fields.insert(name.clone(), without_nulls(change));
            }
        }
    }
}

/// A copy without object fields that are null, at any depth.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests;
