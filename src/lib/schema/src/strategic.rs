//! Strategic merge patch: all directives (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList`, `$setElementOrder`).

use crate::schema::Schema;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::patch::PatchError;

/// Applies a strategic merge patch.
///
/// # Errors
/// [`PatchError`]; `target` must then be dropped.
pub fn strategic_merge(_schema: &Schema, _target: &mut Document, _patch: &Document) -> Result<(), PatchError> {
    unimplemented!("schema owner")
}
