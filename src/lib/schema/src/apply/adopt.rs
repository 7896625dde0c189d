//! kubectl's migration from client-side to server-side apply: by its last-applied annotation it may
//! take over the fields that it applied client-side.

use super::compare::compare;
use super::fields;
use super::set::{self, Fields};
use super::skip::Skip;
use crate::schema::Schema;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;

/// The only manager that may.
pub(super) const KUBECTL: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Max bytes of all annotations of an object.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The fields in the annotation that still have its values. Taking these over is no conflict.
pub(super) fn allowed(schema: &Schema, live: &Document, api_version: &str) -> Option<Fields> {
    let text = live.annotation(ANNOTATION).filter(|text| !text.is_empty())?;
    let applied = json::read(text.as_bytes()).ok()?.document;
    if applied.api_version() != api_version {
        return None;
    }
    let nothing = Skip::default();
    let mut allowed = fields::of(schema, applied.fields(), &nothing);
    let difference = compare(schema, applied.fields(), live.fields(), &nothing);
    set::subtract(&mut allowed, &difference.written);
    set::subtract(&mut allowed, &difference.removed);
    Some(allowed)
}

/// Updates an existing last-applied annotation.
pub(super) fn refresh(object: &mut Document, applied: &Document, skip: &Skip<'_>) {
    if object.annotation(ANNOTATION).is_none() {
        return;
    }
    let mut applied = applied.clone();
    let ids = skip.below("metadata").below("annotations");
    if let Some(Value::Object(annotations)) = applied.get_mut(&["metadata", "annotations"]) {
        annotations.retain(|name, _| name != ANNOTATION && !ids.has(name));
    }
    let Some(Value::Object(annotations)) = object.get_mut(&["metadata", "annotations"]) else {
        return;
    };
    annotations.insert(ANNOTATION.to_owned(), Value::from(format!("{}\n", applied.into_value())));
    let size: usize = annotations
        .iter()
        .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}
