//! StorageVersionMigration: the resource is immutable, and the status is monotonic.

use crate::WriteCase;
use ferrokube_apimachinery::document::{Value, json};

const KIND: (&str, &str) = ("storagemigration.k8s.io", "storageversionmigrations");

fn migration(revision: &str, conditions: &[(&str, &str)]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, status)| json!({"type": kind, "status": status, "reason": "R", "message": ""}))
        .collect();
    json!({
        "metadata": {"name": "m"},
        "spec": {"resource": {"group": "example.com", "resource": "things"}},
        "status": {"resourceVersion": revision, "conditions": conditions},
    })
}

#[test]
fn the_migrated_resource_is_required_and_immutable() {
    let create = WriteCase::create(KIND.0, KIND.1);
    create.refused(migration("", &[]), &[]);
    create.refused(
        json!({"metadata": {"name": "m"}, "spec": {"resource": {"group": "example.com"}}}),
        &[("Required", "spec.resource.resource")],
    );
    let mut other = migration("", &[]);
    other["spec"]["resource"]["resource"] = json!("others");
    WriteCase::update(KIND.0, KIND.1, migration("", &[]))
        .refused(other, &[("Invalid", "spec.resource")]);
}

#[test]
fn a_migration_starts_at_one_revision_and_ends_once() {
    const REVISION: (&str, &str) = ("Invalid", "status.resourceVersion");
    const CONDITIONS: (&str, &str) = ("Invalid", "status.conditions");
    let from = |old: Value| WriteCase::update(KIND.0, KIND.1, old).of("status");
    let fresh = from(migration("", &[]));
    fresh.refused(migration("7", &[("Running", "True")]), &[]);
    fresh.refused(migration("-7", &[]), &[REVISION]);
    fresh.refused(migration("x", &[]), &[REVISION]);
    fresh.refused(migration("7", &[("Succeeded", "True"), ("Failed", "True")]), &[CONDITIONS]);
    fresh.refused(migration("7", &[("Succeeded", "True"), ("Running", "True")]), &[CONDITIONS]);
    let running = from(migration("7", &[("Running", "True")]));
    running.refused(migration("8", &[("Running", "True")]), &[REVISION]);
    running.refused(migration("", &[("Running", "True")]), &[REVISION]);
    running.refused(migration("7", &[("Running", "False"), ("Succeeded", "True")]), &[]);
    let ended = from(migration("7", &[("Running", "False"), ("Failed", "True")]));
    ended.refused(migration("7", &[("Failed", "False")]), &[CONDITIONS]);
    ended.refused(migration("7", &[]), &[CONDITIONS]);
    // A main write cannot bypass these rules.
    WriteCase::update(KIND.0, KIND.1, migration("7", &[("Failed", "True")]))
        .refused(migration("8", &[]), &[]);
}
