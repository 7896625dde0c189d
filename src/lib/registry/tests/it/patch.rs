//! PATCH of all four types.

use crate::support::*;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_registry::{Body, FieldValidation, Patch, WriteOptions};

async fn server() -> TestRegistry {
    let server = TestRegistry::new();
    server
        .post(
            CONFIGMAPS,
            json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"k": "v", "x": "y"}}),
        )
        .await
        .unwrap();
    server
}

fn operations(list: ferrokube_apimachinery::document::Value) -> Patch {
    Patch::Json(list, Vec::new())
}

#[tokio::test]
async fn json_patches_apply_in_order() {
    let server = server().await;
    let stored = server
        .patch(CONFIGMAPS, "a", operations(json!([{"op": "test", "path": "/data/k", "value": "v"}, {"op": "replace", "path": "/data/k", "value": "w"}])))
        .await
        .unwrap();
    assert_eq!(stored.str(&["data", "k"]), Some("w"));
    for (patch, reason, causes) in [
        (json!([{"op": "remove", "path": "/data/none"}]), "Invalid", vec![]),
        (json!([{"op": "test", "path": "/data/k", "value": "v"}]), "Invalid", vec![]),
        (
            json!([{"op": "add", "path": "/data/~2", "value": "x"}]),
            "Invalid",
            vec!["Invalid data[~2]"],
        ),
        (json!([{"op": "replace", "path": "/data", "value": 5}]), "Invalid", vec!["Invalid patch"]),
        (
            json!([{"op": "replace", "path": "/kind", "value": "Secret"}]),
            "Invalid",
            vec!["Invalid patch"],
        ),
        (json!([{"op": "replace", "path": "/metadata/name", "value": "b"}]), "BadRequest", vec![]),
        (json!([1]), "BadRequest", vec![]),
    ] {
        refused(&server.patch(CONFIGMAPS, "a", operations(patch)).await, reason, &causes);
    }
    let many: Vec<_> = (0..10_001)
        .map(|n| json!({"op": "add", "path": "/data/k", "value": n.to_string()}))
        .collect();
    let refused = server.patch(CONFIGMAPS, "a", operations(json!(many))).await.unwrap_err();
    let want = "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001";
    assert_eq!((refused.code, refused.message.as_str()), (413, want));
}

#[tokio::test]
async fn patches_have_preconditions_only_if_given() {
    let server = server().await;
    let old = server.get(CONFIGMAPS, "a").await.unwrap().meta("resourceVersion").to_owned();
    server
        .patch(
            CONFIGMAPS,
            "a",
            merge(json!({"metadata": {"resourceVersion": old}, "data": {"k": "2"}})),
        )
        .await
        .unwrap();
    refused(
        &server
            .patch(
                CONFIGMAPS,
                "a",
                merge(json!({"metadata": {"resourceVersion": old}, "data": {"k": "3"}})),
            )
            .await,
        "Conflict",
        &[],
    );
    refused(
        &server
            .patch(
                CONFIGMAPS,
                "a",
                merge(json!({"metadata": {"resourceVersion": "junk"}, "data": {"k": "3"}})),
            )
            .await,
        "500",
        &[],
    );
    for (version, value) in [(json!(""), "4"), (json!(null), "5")] {
        let stored = server
            .patch(
                CONFIGMAPS,
                "a",
                merge(json!({"metadata": {"resourceVersion": version}, "data": {"k": value}})),
            )
            .await
            .unwrap();
        assert_eq!(stored.str(&["data", "k"]), Some(value));
    }
    let test = operations(
        json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": old}, {"op": "replace", "path": "/data/k", "value": "6"}]),
    );
    refused(&server.patch(CONFIGMAPS, "a", test).await, "Conflict", &[]);
    refused(
        &server.patch(CONFIGMAPS, "a", merge(json!({"metadata": {"uid": "u"}}))).await,
        "Invalid",
        &["Invalid metadata.uid"],
    );
}

#[tokio::test]
async fn merge_and_strategic_patches_are_validated() {
    let server = server().await;
    refused(
        &server.patch(CONFIGMAPS, "none", merge(json!({"data": {"k": "1"}}))).await,
        "NotFound",
        &[],
    );
    let strict =
        WriteOptions { field_validation: Some(FieldValidation::Strict), ..WriteOptions::default() };
    let junk = || json!({"junk": {"a": 1}, "data": {"c": "d"}});
    for patch in [
        merge(junk()),
        Patch::Strategic(body(junk())),
        operations(json!([{"op": "add", "path": "/junk", "value": 1}])),
    ] {
        refused(
            &server.patch_with(CONFIGMAPS, "a", patch, &strict).await,
            "Invalid",
            &["Invalid patch"],
        );
    }
    let repeated = Patch::Merge(Body {
        duplicates: vec!["data.k".to_owned()],
        ..body(json!({"data": {"k": "2"}}))
    });
    refused(
        &server.patch_with(CONFIGMAPS, "a", repeated, &strict).await,
        "Invalid",
        &["Invalid patch"],
    );
    let context = context();
    let target = server.target(CONFIGMAPS, "a");
    server
        .registry
        .patch(&context, &target, merge(junk()), &WriteOptions::default())
        .await
        .unwrap();
    assert_eq!(context.take_warnings(), ["unknown field \"junk\""]);
    refused(
        &server.patch(CONFIGMAPS, "a", Patch::Strategic(body(json!({"$patch": "delete"})))).await,
        "BadRequest",
        &[],
    );
    refused(
        &server.patch(CONFIGMAPS, "a", Patch::Strategic(body(json!({"$patch": "explode"})))).await,
        "500",
        &[],
    );
    let typed = server
        .patch(
            CONFIGMAPS,
            "a",
            Patch::Strategic(body(json!({"kind": "Secret", "apiVersion": "v9"}))),
        )
        .await
        .unwrap();
    assert_eq!((typed.kind(), typed.api_version()), ("ConfigMap", "v1"));
    let force = WriteOptions { force: true, ..WriteOptions::default() };
    refused(
        &server.patch_with(CONFIGMAPS, "a", merge(json!({"data": {"s": "1"}})), &force).await,
        "Invalid",
        &["Forbidden force"],
    );
}

fn by(manager: &str) -> WriteOptions {
    WriteOptions { field_manager: manager.to_owned(), ..WriteOptions::default() }
}

#[tokio::test]
async fn apply_creates_owns_and_conflicts() {
    let server = TestRegistry::new();
    let apply = |value: ferrokube_apimachinery::document::Value| Patch::Apply(body(value));
    let object = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    refused(
        &server.patch(CONFIGMAPS, "a", apply(object("v"))).await,
        "Invalid",
        &["Required fieldManager"],
    );
    let target = server.target(CONFIGMAPS, "a");
    let written = server.patch_with(CONFIGMAPS, "a", apply(object("v")), &by("m1")).await.unwrap();
    assert!(written.created);
    let first = document(written.object, &target);
    let managers = |object: &ferrokube_apimachinery::document::Document| -> Vec<String> {
        object
            .list(&["metadata", "managedFields"])
            .iter()
            .map(|entry| entry["manager"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(managers(&first), ["m1"]);
    let again = server.patch_with(CONFIGMAPS, "a", apply(object("v")), &by("m1")).await.unwrap();
    assert!(!again.created);
    assert_eq!(document(again.object, &target), first, "a no-op");
    refused(
        &server.patch_with(CONFIGMAPS, "a", apply(object("w")), &by("m2")).await,
        "Conflict",
        &["FieldManagerConflict .data.k"],
    );
    let force = WriteOptions { force: true, ..by("m2") };
    let forced = server.patch_with(CONFIGMAPS, "a", apply(object("w")), &force).await.unwrap();
    assert_eq!(managers(&document(forced.object, &target)), ["m2"]);
    for (wrong, reason) in [
        (json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}}), "BadRequest"),
        (json!({"kind": "ConfigMap", "metadata": {"name": "a"}}), "BadRequest"),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a"}}),
            "BadRequest",
        ),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "managedFields": []}}),
            "BadRequest",
        ),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": 5}}),
            "500",
        ),
    ] {
        refused(
            &server.patch_with(CONFIGMAPS, "b", apply(wrong.clone()), &by("m1")).await,
            reason,
            &[],
        );
    }
    let with_uid =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "uid": "u"}});
    refused(&server.patch_with(CONFIGMAPS, "b", apply(with_uid), &by("m1")).await, "Conflict", &[]);
    let status = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "none"}});
    refused(
        &server.patch_with(NAMESPACES, "none/status", apply(status), &by("m1")).await,
        "NotFound",
        &[],
    );
}

#[tokio::test]
async fn managers_are_tracked_by_every_write() {
    let server = TestRegistry::new();
    let first = server.post_with(CONFIGMAPS, configmap("a", "v"), &by("one")).await.unwrap();
    assert_eq!(first.list(&["metadata", "managedFields"])[0]["manager"], "one");
    let target = server.target(CONFIGMAPS, "a");
    let second = server
        .patch_with(CONFIGMAPS, "a", merge(json!({"data": {"z": "1"}})), &by("two"))
        .await
        .unwrap();
    assert_eq!(document(second.object, &target).list(&["metadata", "managedFields"]).len(), 2);
    let third = server.post(CONFIGMAPS, configmap("b", "v")).await.unwrap();
    assert_eq!(
        third.list(&["metadata", "managedFields"])[0]["manager"],
        "test",
        "the first word of the user agent"
    );
}

#[tokio::test]
async fn an_empty_list_of_managers_resets_them() {
    let server = server().await;
    for reset in [json!([]), json!([{}])] {
        let stored = server
            .patch(CONFIGMAPS, "a", merge(json!({"metadata": {"managedFields": reset}})))
            .await
            .unwrap();
        assert_eq!(stored.get(&["metadata", "managedFields"]), None, "{reset}");
    }
    let kept = server.post(CONFIGMAPS, configmap("b", "v")).await.unwrap();
    let same = server
        .patch(CONFIGMAPS, "b", merge(json!({"metadata": {"managedFields": null}})))
        .await
        .unwrap();
    assert_eq!(same, kept);
}

const TRACE_ID: &str = "trace.kubernetes.io/trace-id";

/// Patches of each type that set an annotation and, where the type can, assert what a GET shows.
fn annotating(shown: &Document) -> [(&'static str, Patch); 6] {
    let annotated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": {"example.com/k": "v"}}});
    let shown = shown.get(&["metadata", "annotations"]).cloned().unwrap();
    let trace = "/metadata/annotations/trace.kubernetes.io~1trace-id";
    let added = json!({"op": "add", "path": "/metadata/annotations/example.com~1k", "value": "v"});
    [
        (
            "json",
            operations(
                json!([{"op": "test", "path": "/metadata/annotations", "value": shown}, added]),
            ),
        ),
        (
            "json, of the ids",
            operations(
                json!([{"op": "replace", "path": trace, "value": "mine"}, {"op": "copy", "from": trace, "path": "/data/copied"}, added]),
            ),
        ),
        (
            "merge",
            merge(json!({"metadata": {"annotations": {"example.com/k": "v", TRACE_ID: null}}})),
        ),
        (
            "strategic",
            Patch::Strategic(body(
                json!({"metadata": {"annotations": {"example.com/k": "v", TRACE_ID: null}}}),
            )),
        ),
        (
            "strategic, replacing",
            Patch::Strategic(body(
                json!({"metadata": {"annotations": {"$patch": "replace", "example.com/k": "v"}}}),
            )),
        ),
        ("apply", Patch::Apply(body(annotated))),
    ]
}

#[tokio::test]
async fn every_patch_sees_the_annotations_of_a_get() {
    for at in 0..6 {
        let server = TestRegistry::new();
        server.admission.stamps.store(true, std::sync::atomic::Ordering::SeqCst);
        let object = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
        assert_eq!(object.annotation(TRACE_ID), Some(format!("{:032x}", 1).as_str()));
        assert!(
            !object.list(&["metadata", "managedFields"])[0]
                .to_string()
                .contains("trace.kubernetes.io"),
            "nobody owns it"
        );
        let shown = server.get(CONFIGMAPS, "a").await.unwrap();
        let (kind, patch) = annotating(&shown).into_iter().nth(at).unwrap();
        let written = server
            .patch_with(CONFIGMAPS, "a", patch, &by("m"))
            .await
            .unwrap_or_else(|failure| panic!("{kind}: {failure}"));
        let stored = document(written.object, &server.target(CONFIGMAPS, "a"));
        let both = (stored.annotation("example.com/k"), stored.annotation(TRACE_ID));
        assert_eq!(
            both,
            (Some("v"), Some(format!("{:032x}", 2).as_str())),
            "{kind}: the ids stay the server's"
        );
        assert!(
            !Value::from(stored.list(&["metadata", "managedFields"]).to_vec())
                .to_string()
                .contains("trace.kubernetes.io"),
            "{kind}"
        );
        let again = server.put(CONFIGMAPS, "a", json!({"metadata": {"name": "a", "annotations": {"example.com/k": "v"}}, "data": stored.get(&["data"])})).await;
        assert_eq!(again.unwrap(), stored, "{kind}: leaving them out is no change");
    }
}

/// Trace ids that a GET does not show do not exist for any type of patch.
#[tokio::test]
async fn patches_of_trace_ids_change_nothing() {
    let server = TestRegistry::new();
    server.admission.stamps.store(true, std::sync::atomic::Ordering::SeqCst);
    let object = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let none = json!({"metadata": {"annotations": null}});
    let directive = |directive: &str| {
        Patch::Strategic(body(json!({"metadata": {"annotations": {"$patch": directive}}})))
    };
    for patch in [
        operations(json!([{"op": "remove", "path": "/metadata/annotations"}])),
        operations(json!([{"op": "replace", "path": "/metadata/annotations", "value": {}}])),
        merge(none.clone()),
        Patch::Strategic(body(none)),
        directive("delete"),
        directive("replace"),
    ] {
        assert_eq!(server.patch(CONFIGMAPS, "a", patch).await.unwrap(), object);
    }
    let absent =
        operations(json!([{"op": "test", "path": "/metadata/annotations", "value": null}]));
    assert_eq!(server.patch(CONFIGMAPS, "a", absent).await.unwrap_err().code, 422);
    let refused = server.patch(CONFIGMAPS, "a", directive("x")).await.unwrap_err();
    assert_eq!(refused.message, "unknown patch type: x in map: map[$patch:x]", "a map is there");
    // `$retainKeys` applies to the user's annotations: there are none.
    let retained = json!({"metadata": {"annotations": {"$retainKeys": ["k"], "k": "v"}}});
    let refused = server.patch(CONFIGMAPS, "a", Patch::Strategic(body(retained))).await;
    assert_eq!(refused.unwrap_err().code, 422);
    // Without ids, the patches meet no annotations.
    server.admission.stamps.store(false, std::sync::atomic::Ordering::SeqCst);
    server.post(CONFIGMAPS, configmap("b", "v")).await.unwrap();
    for (operation, code) in [
        (json!({"op": "add", "path": "/metadata/annotations/k", "value": "v"}), 422),
        (json!({"op": "remove", "path": "/metadata/annotations"}), 422),
    ] {
        assert_eq!(
            server.patch(CONFIGMAPS, "b", operations(json!([operation]))).await.unwrap_err().code,
            code
        );
    }
}
