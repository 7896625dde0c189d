//! PUT: versions, immutable metadata, subresources, creation by update, no-ops.

use crate::support::*;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::WriteOptions;
use ferrokube_resource::{Definition, Dialect, Hooks, Subresource, Verbs};
use ferrokube_schema::apply::ResetFields;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use std::sync::Arc;

const EVENTS: (&str, &str) = ("", "events");

fn with_meta(name: &str, field: &str, value: impl Into<Value>) -> Value {
    let mut object = configmap(name, "v");
    object["metadata"][field] = value.into();
    object
}

#[tokio::test]
async fn a_resource_version_is_a_precondition() {
    let server = TestRegistry::new();
    let first = server.post(CONFIGMAPS, configmap("a", "1")).await.unwrap();
    let mut second = configmap("a", "2");
    second["metadata"]["resourceVersion"] = json!(first.meta("resourceVersion"));
    let stored = server.put(CONFIGMAPS, "a", second.clone()).await.unwrap();
    assert!(version(&stored) > version(&first));
    assert_eq!(
        (stored.uid(), stored.meta("creationTimestamp")),
        (first.uid(), first.meta("creationTimestamp"))
    );
    let conflict = server.put(CONFIGMAPS, "a", second).await;
    refused(&conflict, "Conflict", &[]);
    assert_eq!(conflict.unwrap_err().details.unwrap().kind, "configmaps");
    refused(
        &server.put(CONFIGMAPS, "a", with_meta("a", "resourceVersion", "999999999999")).await,
        "Conflict",
        &[],
    );
    let future = json!({"metadata": {"resourceVersion": u64::MAX.to_string()}, "data": {"k": "3"}});
    refused(&server.patch(CONFIGMAPS, "a", merge(future)).await, "Conflict", &[]);
    refused(
        &server.put(CONFIGMAPS, "a", with_meta("a", "resourceVersion", "abc")).await,
        "500",
        &[],
    );
    refused(
        &server.put(CONFIGMAPS, "a", with_meta("a", "resourceVersion", "-1")).await,
        "500",
        &[],
    );
    server.put(CONFIGMAPS, "a", with_meta("a", "resourceVersion", "0")).await.unwrap();
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap().str(&["data", "k"]), Some("v"));
}

#[tokio::test]
async fn some_kinds_need_a_version_and_some_are_created() {
    let server = TestRegistry::new();
    let lease =
        json!({"metadata": {"name": "l", "resourceVersion": "5"}, "spec": {"holderIdentity": "a"}});
    let target = server.target(LEASES, "l");
    let written = server
        .registry
        .update(&context(), &target, body(lease.clone()), &WriteOptions::default())
        .await
        .unwrap();
    assert!(written.created);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}});
    let answer = server.put(LEASES, "l", lease.clone()).await;
    refused(&answer, "Invalid", &["Invalid metadata.resourceVersion"]);
    assert_eq!(answer.unwrap_err().details.unwrap().kind, "leases");
    let forbid = WriteOptions {
        forbid_create: Some(Failure::new(ferrokube_apimachinery::status::Reason::Forbidden, "no")),
        ..WriteOptions::default()
    };
    for (labels, reason, causes) in [
        (json!({"-": ""}), "Invalid", vec!["Invalid metadata.labels"]),
        (json!({}), "Forbidden", vec![]),
    ] {
        let other = body(json!({"metadata": {"name": "m", "labels": labels}, "spec": {}}));
        let target = server.target(LEASES, "m");
        refused(
            &server.registry.update(&context(), &target, other, &forbid).await,
            reason,
            &causes,
        );
    }
    for metadata in [
        json!({"name": "a"}),
        json!({"name": "a", "resourceVersion": "1"}),
        json!({"name": "a", "uid": "u"}),
    ] {
        refused(&server.put(CONFIGMAPS, "a", json!({"metadata": metadata})).await, "NotFound", &[]);
    }
}

#[tokio::test]
async fn metadata_that_never_changes() {
    let server = TestRegistry::new();
    let first = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let same = server
        .put(CONFIGMAPS, "a", with_meta("a", "creationTimestamp", "2001-01-01T00:00:00Z"))
        .await
        .unwrap();
    assert_eq!(same, first, "ignored, and so nothing is written");
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        let value =
            if field == "deletionTimestamp" { json!("2001-01-01T00:00:00Z") } else { json!(3) };
        refused(
            &server.put(CONFIGMAPS, "a", with_meta("a", field, value)).await,
            "Invalid",
            &[&format!("Invalid metadata.{field}")],
        );
    }
    let renamed =
        server.put(CONFIGMAPS, "a", with_meta("a", "generateName", "zzz-")).await.unwrap();
    assert_eq!(renamed.meta("generateName"), "zzz-");
    let counted = server.put(CONFIGMAPS, "a", with_meta("a", "generation", 9)).await.unwrap();
    assert_eq!(counted.get(&["metadata", "generation"]), None);
    refused(&server.put(CONFIGMAPS, "a", configmap("b", "v")).await, "BadRequest", &[]);
    refused(&server.put(CONFIGMAPS, "a", json!({"metadata": {}})).await, "BadRequest", &[]);
    refused(
        &server
            .put(CONFIGMAPS, "a", with_meta("a", "uid", "11111111-2222-3333-4444-555555555555"))
            .await,
        "Conflict",
        &[],
    );
    server.put(CONFIGMAPS, "a", with_meta("a", "uid", first.uid())).await.unwrap();
}

#[tokio::test]
async fn a_write_without_changes_is_a_noop() {
    let server = TestRegistry::new();
    let first = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let revision = server.registry.store().revision();
    for _ in 0..3 {
        assert_eq!(server.put(CONFIGMAPS, "a", configmap("a", "v")).await.unwrap(), first);
        assert_eq!(
            server
                .patch(CONFIGMAPS, "a", merge(json!({"data": {"none": null}, "binaryData": null})))
                .await
                .unwrap(),
            first
        );
        assert_eq!(server.patch(CONFIGMAPS, "a", merge(json!({"junk": 1}))).await.unwrap(), first);
        let traced = json!({"metadata": {"annotations": {"trace.kubernetes.io/trace-id": "mine"}}});
        assert_eq!(
            server.patch(CONFIGMAPS, "a", merge(traced)).await.unwrap(),
            first,
            "the server owns these annotations"
        );
    }
    assert_eq!(server.registry.store().revision(), revision);
}

/// Each group has its own fields, and the core group's are stored.
#[tokio::test]
async fn a_write_without_changes_is_a_noop_in_both_groups_of_events() {
    let server = TestRegistry::new();
    let newer = ("events.k8s.io", "events");
    let about = json!({"kind": "ConfigMap", "namespace": "ns", "name": "a"});
    let event = json!({"metadata": {"name": "e"}, "regarding": about, "reason": "r", "action": "a", "type": "Normal",
        "eventTime": "2024-01-02T03:04:05.000006Z", "reportingController": "c", "reportingInstance": "i"});
    let first = server.post(newer, event.clone()).await.unwrap();
    let revision = server.registry.store().revision();
    assert_eq!(server.put(newer, "e", event).await.unwrap(), first);
    for kind in [newer, EVENTS] {
        server.patch(kind, "e", merge(json!({"reason": "r"}))).await.unwrap();
        let shown = server.get(kind, "e").await.unwrap();
        server.put(kind, "e", shown.into_value()).await.unwrap();
    }
    assert_eq!(server.registry.store().revision(), revision);
    server.patch(newer, "e", merge(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();
    assert!(server.registry.store().revision() > revision);
}

#[tokio::test]
async fn status_and_spec_have_separate_endpoints() {
    let server = TestRegistry::new();
    let namespace = server
        .post(NAMESPACES, json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}}))
        .await
        .unwrap();
    assert_eq!(namespace.str(&["status", "phase"]), Some("Active"));
    let main = server
        .patch(
            NAMESPACES,
            "n",
            merge(json!({"status": {"phase": "Terminating"}, "spec": {"finalizers": []}})),
        )
        .await
        .unwrap();
    assert_eq!(main, namespace);
    let condition = json!({"type": "A", "status": "True"});
    let status = merge(
        json!({"status": {"conditions": [condition]}, "spec": {"finalizers": []}, "metadata": {"labels": {"l": "1"}}}),
    );
    let written = server.patch(NAMESPACES, "n/status", status).await.unwrap();
    assert_eq!(written.list(&["status", "conditions"]).len(), 1);
    assert_eq!((written.list(&["spec", "finalizers"]).len(), written.label("l")), (1, Some("1")));
    let finalized = server
        .put(
            NAMESPACES,
            "n/finalize",
            json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["example.com/x"]}}),
        )
        .await
        .unwrap();
    assert_eq!(finalized.list(&["spec", "finalizers"]), [json!("example.com/x")]);
    assert_eq!(finalized.list(&["status", "conditions"]).len(), 1);
    refused(
        &server.put(NAMESPACES, "n/nonsense", json!({"metadata": {"name": "n"}})).await,
        "NotFound",
        &[],
    );
}

#[tokio::test]
async fn a_dry_run_returns_the_current_version() {
    let server = TestRegistry::new();
    let first = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let target = server.target(CONFIGMAPS, "a");
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let written =
        server.registry.update(&context(), &target, body(configmap("a", "w")), &dry).await.unwrap();
    let shown = document(written.object, &target);
    assert_eq!((shown.str(&["data", "k"]), version(&shown)), (Some("w"), version(&first)));
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap(), first);
}

#[tokio::test]
async fn a_changed_definition_alone_makes_no_write() {
    let server = TestRegistry::new();
    let first = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let mut definition =
        ferrokube_resource::Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    definition.epoch += 1;
    server.registry.catalog().put(definition.clone().into());
    assert_eq!(server.put(CONFIGMAPS, "a", configmap("a", "v")).await.unwrap(), first);
    definition.epoch += 1;
    definition.versions[0].selectable = vec!["data.k".to_owned()];
    server.registry.catalog().put(definition.into());
    // Written before the field was selectable.
    assert_eq!(names(&server.list(CONFIGMAPS, &selecting("", "data.k=v")).await.unwrap()), ["a"]);
    let rewritten = server.put(CONFIGMAPS, "a", configmap("a", "v")).await.unwrap();
    assert!(version(&rewritten) > version(&first), "its selectable fields are stored now");
    assert_eq!(names(&server.list(CONFIGMAPS, &selecting("", "data.k=v")).await.unwrap()), ["a"]);
}

/// A status write of a custom object changes only the status, also if it brings fields that are not
/// in the list of reset fields.
#[tokio::test]
async fn a_write_to_a_custom_status_changes_nothing_else() {
    let server = TestRegistry::new();
    let mut definition = Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    let group = "status.example.com";
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let kind = GroupVersionKind::new(group, "v1", "Thing");
    (definition.group, definition.kind, definition.plural) =
        (group.to_owned(), kind.kind.clone(), "things".to_owned());
    (definition.dialect, definition.hooks, definition.storage_prefix) =
        (Dialect::Custom, Arc::new(Plain), Some(format!("{group}/things")));
    definition.versions[0].schema =
        Arc::new(from_json_schema(&schema, &SchemaContext::default()).unwrap());
    definition.versions[0].reset = ResetFields::of_paths(&["status"]);
    let reset = ResetFields::of_paths(&["spec"]);
    definition.versions[0].subresources =
        vec![Subresource { name: "status", kind, verbs: Verbs::ALL, reset, columns: None }];
    server.registry.catalog().put(Arc::new(definition));
    let things = (group, "things");
    let object = |value: &str| {
        let metadata = json!({"name": "a", "labels": {"l": value}});
        json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": metadata, "spec": value, "other": value, "status": value})
    };
    server.post(things, object("1")).await.unwrap();
    let written = server.put(things, "a/status", object("2")).await.unwrap();
    let fields = |object: &Document| {
        ["spec", "other", "status"].map(|field| object.str(&[field]).map(str::to_owned))
    };
    assert_eq!(
        (fields(&written), written.label("l")),
        ([Some("1"), Some("1"), Some("2")].map(|text| text.map(str::to_owned)), Some("1"))
    );
    let written = server.put(things, "a", object("3")).await.unwrap();
    assert_eq!(
        fields(&written),
        [Some("3"), Some("3"), Some("2")].map(|text| text.map(str::to_owned))
    );
}

/// Default hooks.
#[derive(Debug)]
struct Plain;

impl Hooks for Plain {}
