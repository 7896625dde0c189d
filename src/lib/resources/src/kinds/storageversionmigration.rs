//! StorageVersionMigration: rewrites all objects of a resource in its storage version. Served only on request, as upstream does with its beta versions.

use crate::cells;
use crate::checks::{invalid, keep_stored, required};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::native::{Body, Part, Printed};
use ferrokube_resource::{Change, Hooks, Verbs};
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) fn body() -> Body {
    Body {
        subresources: &[Part { name: "status", kind: None, verbs: Verbs::GET_PATCH_UPDATE, reset: &["spec"] }],
        reset: &["status"],
        columns: const { &[Printed::NAME, Printed::text("Resource", "What is rewritten."), Printed::AGE] },
        storage: Some("storageversionmigrations"),
        hooks: Arc::new(StorageVersionMigration),
        ..Body::default()
    }
}

#[derive(Debug)]
struct StorageVersionMigration;

const RESOURCE: [&str; 3] = ["spec", "resource", "resource"];

impl Hooks for StorageVersionMigration {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        match (change.old, change.subresource) {
            (None, _) => _ = object.remove(&["status"]),
            (Some(old), "status") => keep_stored(old, object, "spec"),
            (Some(old), _) => keep_stored(old, object, "status"),
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if object.str(&RESOURCE).unwrap_or_default().is_empty() {
            errors.push(required(RESOURCE.join("."), "Required value"));
        }
        if change.old.is_some_and(|old| old.get(&["spec", "resource"]) != object.get(&["spec", "resource"])) {
            errors.push(invalid("spec.resource", "Invalid value: field is immutable"));
        }
        errors
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn cells(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let group = object.str(&["spec", "resource", "group"]).unwrap_or_default();
        let resource = object.str(&RESOURCE).unwrap_or_default();
        let whole = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        vec![Value::from(object.name()), Value::from(whole), Value::from(cells::age(object, now))]
    }
}
