//! JSON patch (RFC 6902 with kube-apiserver's leniency) and JSON merge patch (RFC 7386). Strategic
//! merge and apply need a schema: crate `schema`.

mod json_patch;
mod pointer;

use crate::document::{Map, Value};
use crate::work;
pub use json_patch::json_patch;

/// As in kube-apiserver.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// Bytes of JSON copied by all `copy` operations of a patch.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Why a patch fails.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The patch is malformed (400).
    #[error("malformed patch: {0}")]
    Malformed(String),
    /// It does not apply to the object: a missing path (422).
    #[error("the patch cannot be applied: {0}")]
    DoesNotApply(String),
    /// The `test` of a path failed (422).
    #[error("the patch cannot be applied: the test of \"{0}\" failed")]
    TestFailed(String),
    /// An invalid directive of a strategic merge patch (500 without a reason, as in
    /// kube-apiserver).
    #[error("the patch cannot be understood: {0}")]
    Directive(String),
    /// Exceeds the limit of operations or work (413).
    #[error("the patch is too large: {0}")]
    TooLarge(String),
}

/// Applies a merge patch: null removes, objects merge, everything else replaces.
///
/// Drops nulls in new objects, and in objects of a list that replaces something other than an
/// object, as kube-apiserver does. Both values are at most [`crate::json::MAX_DEPTH`] deep, and so
/// is the result.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    work::count(1);
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
        work::count(1);
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

/// A copy without null fields, at any depth.
fn without_nulls(value: &Value) -> Value {
    work::count(1);
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
