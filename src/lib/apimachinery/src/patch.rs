//! JSON patch (RFC 6902 with upstream's leniency) and JSON merge patch (RFC 7386). Strategic merge and apply need a schema: crate `schema`.

use crate::document::Value;

/// At most so many operations in one JSON patch.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed (400).
    #[error("malformed patch: {0}")]
    Malformed(String),
    /// It does not fit the object: a failed `test`, a path that is absent (422).
    #[error("the patch cannot be applied: {0}")]
    DoesNotApply(String),
    /// Too many operations or too much copied (413).
    #[error("the patch is too large: {0}")]
    TooLarge(String),
}

/// Applies a JSON patch. Returns warnings for the client.
///
/// # Errors
/// [`PatchError`]; `target` is then in an unspecified state and must be dropped.
pub fn json_patch(_target: &mut Value, _patch: &Value) -> Result<Vec<String>, PatchError> {
    unimplemented!("apimachinery owner")
}

/// Applies a merge patch: null removes, objects merge, everything else replaces.
pub fn merge_patch(_target: &mut Value, _patch: &Value) {
    unimplemented!("apimachinery owner")
}
