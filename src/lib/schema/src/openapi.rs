//! OpenAPI v2 and v3 schema objects rendered from [`Schema`](crate::Schema) nodes.

use crate::schema::Schema;
use ferrokube_apimachinery::document::{Map, Value};

/// Adds the definition and everything it refers to as OpenAPI v3 `components.schemas` (with `x-kubernetes-*` extensions, `$ref`s between named definitions).
pub fn components_v3(_schema: &Schema, _into: &mut Map<String, Value>) {
    unimplemented!("schema owner")
}

/// The same as OpenAPI v2 `definitions`.
pub fn definitions_v2(_schema: &Schema, _into: &mut Map<String, Value>) {
    unimplemented!("schema owner")
}
