//! What a value must be: types, unknown fields, defaults, pruning, and the value checks of custom resources.

use crate::schema::Schema;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;

/// Value validations of one node (`minimum`, `pattern`, `allOf`, ...); filled by the custom resource loader.
#[derive(Clone, Debug, Default)]
pub struct Checks {}

/// Removes fields that the schema does not know and returns their paths (`spec.foo`, `items[0].bar`), in order, at most 100. `kind`, `apiVersion` and `metadata` of the top are always known; metadata's own fields follow the ObjectMeta schema.
pub fn prune(_schema: &Schema, _object: &mut Document) -> Vec<String> {
    unimplemented!("schema owner")
}

/// Sets absent fields to their defaults, deeply, also inside lists and maps; null of a non-nullable field with a default is replaced.
pub fn default(_schema: &Schema, _object: &mut Document) {
    unimplemented!("schema owner")
}

/// Decodes as upstream's typed decoder would: wrong JSON types are errors (400), nulls of native kinds are dropped, numbers must fit.
///
/// # Errors
/// A sentence with the path, as the body of a 400.
pub fn check_types(_schema: &Schema, _value: &Value) -> Result<(), String> {
    unimplemented!("schema owner")
}

/// Value validations, for custom resources: types, required, enums, bounds, formats.
pub fn validate(_schema: &Schema, _object: &Document) -> Vec<FieldError> {
    unimplemented!("schema owner")
}
