//! StorageVersionMigration: rewrites the objects of a resource in its storage version. Served on
//! request only, like beta versions of kube-apiserver.

use crate::cells;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, Hooks, MetadataRules, Policy};
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[NativeSubresource::STATUS_ALONE],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("Resource", "What is rewritten."),
                NativeColumn::AGE,
            ]
        },
        storage: Some("storageversionmigrations"),
        policy: Policy {
            subresource_metadata_rules: MetadataRules::Changes,
            counts_generation: true,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(StorageVersionMigration),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct StorageVersionMigration;

const RESOURCE: [&str; 3] = ["spec", "resource", "resource"];

impl Hooks for StorageVersionMigration {
    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if object.str(&RESOURCE).unwrap_or_default().is_empty() {
            errors.push(FieldError::required(RESOURCE.join("."), ""));
        }
        if change
            .old
            .is_some_and(|old| old.get(&["spec", "resource"]) != object.get(&["spec", "resource"]))
        {
            errors.push(FieldError::invalid(
                "spec.resource",
                object.get(&["spec", "resource"]),
                "field is immutable",
            ));
        }
        if let (Some(old), "status") = (change.old, change.subresource) {
            errors.extend(status(old, object));
        }
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let group = object.str(&["spec", "resource", "group"]).unwrap_or_default();
        let resource = object.str(&RESOURCE).unwrap_or_default();
        let whole =
            if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        vec![Value::from(object.name()), Value::from(whole), Value::from(cells::age(object, now))]
    }
}

/// A migration starts at one revision and ends once: the resourceVersion and final conditions are
/// immutable.
fn status(old: &Document, object: &Document) -> Vec<FieldError> {
    const REVISION: [&str; 2] = ["status", "resourceVersion"];
    const CONDITIONS: &str = "status.conditions";
    let mut errors = Vec::new();
    let [before, revision] = [old, object].map(|object| object.str(&REVISION).unwrap_or_default());
    if !revision.is_empty() && !revision.parse::<i64>().is_ok_and(|revision| revision >= 0) {
        errors.push(FieldError::invalid(
            REVISION.join("."),
            revision,
            "should be a number that is not negative",
        ));
    }
    if !before.is_empty() && before != revision {
        errors.push(FieldError::invalid(REVISION.join("."), revision, "field is immutable"));
    }
    let [succeeded, failed, running] =
        ["Succeeded", "Failed", "Running"].map(|kind| is_true(object, kind));
    if succeeded && failed {
        errors.push(FieldError::invalid_unshown(
            CONDITIONS,
            "it cannot both have succeeded and have failed",
        ));
    }
    if running && (succeeded || failed) {
        errors.push(FieldError::invalid_unshown(CONDITIONS, "it cannot run when it has ended"));
    }
    for kind in ["Succeeded", "Failed"] {
        if is_true(old, kind) && !is_true(object, kind) {
            errors.push(FieldError::invalid_unshown(
                CONDITIONS,
                format!("{kind} cannot be taken back"),
            ));
        }
    }
    errors
}

fn is_true(object: &Document, kind: &str) -> bool {
    let text = |condition: &Value, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    object
        .list(&["status", "conditions"])
        .iter()
        .any(|condition| text(condition, "type") == kind && text(condition, "status") == "True")
}
