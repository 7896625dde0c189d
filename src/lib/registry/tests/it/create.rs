//! Creates: names, metadata rules, field validation, server-set fields.

use crate::support::*;
use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_registry::{Body, FieldValidation, WriteOptions};

#[tokio::test]
async fn the_server_sets_system_metadata_whatever_clients_send() {
    let server = TestRegistry::new();
    let object = server
        .post(
            CONFIGMAPS,
            json!({"metadata": {"name": "a", "uid": "11111111-2222-3333-4444-555555555555", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7,
            "selfLink": "/x", "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5, "resourceVersion": "0"}}),
        )
        .await
        .unwrap();
    assert_ne!(object.uid(), "11111111-2222-3333-4444-555555555555");
    assert_ne!(object.meta("creationTimestamp"), "2001-01-01T00:00:00Z");
    assert_eq!(object.get(&["metadata", "generation"]), Some(&json!(7)));
    assert_eq!(
        (object.kind(), object.api_version(), object.namespace()),
        ("ConfigMap", "v1", "ns")
    );
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        assert_eq!(object.get(&["metadata", field]), None, "{field}");
    }
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap(), object);
}

#[tokio::test]
async fn a_name_is_required_validated_and_unique() {
    let server = TestRegistry::new();
    refused(&server.post(CONFIGMAPS, json!({})).await, "Invalid", &["Required metadata.name"]);
    for name in [
        "Upper",
        "under_score",
        "-lead",
        "trail-",
        "a..b",
        "sp ace",
        "a/b",
        "a%b",
        ".",
        "..",
        "\u{e9}",
        "a\0b",
    ] {
        refused(
            &server.post(CONFIGMAPS, configmap(name, "v")).await,
            "Invalid",
            &["Invalid metadata.name"],
        );
    }
    refused(
        &server.post(CONFIGMAPS, configmap(&"x".repeat(254), "v")).await,
        "Invalid",
        &["Invalid metadata.name"],
    );
    server.post(CONFIGMAPS, configmap(&"x".repeat(253), "v")).await.unwrap();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let again = server.post(CONFIGMAPS, configmap("a", "w")).await;
    refused(&again, "AlreadyExists", &[]);
    assert_eq!(again.unwrap_err().details.unwrap().kind, "configmaps");
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap().str(&["data", "k"]), Some("v"));
}

#[tokio::test]
async fn names_are_generated_and_collisions_retried() {
    let server = TestRegistry::new();
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let object =
            server.post(CONFIGMAPS, json!({"metadata": {"generateName": "pre-"}})).await.unwrap();
        assert!(
            object.name().starts_with("pre-")
                && object.name().len() == 9
                && object.meta("generateName") == "pre-"
        );
        names.insert(object.name().to_owned());
    }
    assert_eq!(names.len(), 50);
    let fixed = server
        .post(CONFIGMAPS, json!({"metadata": {"name": "fixed", "generateName": "pre-"}}))
        .await
        .unwrap();
    assert_eq!(fixed.name(), "fixed");
    refused(
        &server.post(CONFIGMAPS, json!({"metadata": {"generateName": "Bad_"}})).await,
        "Invalid",
        &["Invalid metadata.generateName", "Invalid metadata.name"],
    );
}

#[tokio::test]
async fn metadata_is_validated() {
    let server = TestRegistry::new();
    let uid = "11111111-2222-3333-4444-555555555555";
    let owner = |change: ferrokube_apimachinery::document::Value| {
        let mut owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid});
        owner.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"ownerReferences": [owner]})
    };
    let cases = [
        (json!({"labels": {"bad key": "v"}}), "Invalid metadata.labels"),
        (json!({"labels": {"k": "bad value!"}}), "Invalid metadata.labels"),
        (json!({"labels": {"": "v"}}), "Invalid metadata.labels"),
        (json!({"labels": {"a/b/c": "v"}}), "Invalid metadata.labels"),
        (json!({"labels": {"k": "v".repeat(64)}}), "Invalid metadata.labels"),
        (json!({"annotations": {"t~k": "3"}}), "Invalid metadata.annotations"),
        (json!({"annotations": {"k": "x".repeat(256 * 1024)}}), "TooLong metadata.annotations"),
        (json!({"finalizers": ["plain"]}), "Invalid metadata.finalizers[0]"),
        (json!({"finalizers": ["bad name/x"]}), "Invalid metadata.finalizers"),
        (json!({"finalizers": ["example.com/"]}), "Invalid metadata.finalizers"),
        (json!({"finalizers": ["orphan", "foregroundDeletion"]}), "Invalid metadata.finalizers"),
        (owner(json!({"uid": ""})), "Invalid metadata.ownerReferences.uid"),
        (owner(json!({"name": ""})), "Invalid metadata.ownerReferences.name"),
        (owner(json!({"kind": ""})), "Invalid metadata.ownerReferences.kind"),
        (owner(json!({"apiVersion": ""})), "Invalid metadata.ownerReferences.apiVersion"),
        (owner(json!({"apiVersion": "a/b/c"})), "Invalid metadata.ownerReferences.apiVersion"),
        (owner(json!({"kind": "Event"})), "Invalid metadata.ownerReferences"),
        (json!({"generation": -1}), "Invalid metadata.generation"),
    ];
    for (metadata, cause) in cases {
        let mut object = configmap("a", "v");
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        refused(&server.post(CONFIGMAPS, object).await, "Invalid", &[cause]);
    }
    let mut two = owner(json!({"controller": true}));
    let mut other = two["ownerReferences"][0].clone();
    other["uid"] = json!("66666666-2222-3333-4444-555555555555");
    two["ownerReferences"].as_array_mut().unwrap().push(other);
    two["name"] = json!("a");
    refused(
        &server.post(CONFIGMAPS, json!({"metadata": two})).await,
        "Invalid",
        &["Invalid metadata.ownerReferences"],
    );
}

#[tokio::test]
async fn duplicate_owners_are_dropped_with_a_warning() {
    let server = TestRegistry::new();
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "11111111-2222-3333-4444-555555555555"});
    let context = context();
    let object = json!({"metadata": {"name": "d", "ownerReferences": [owner, owner]}});
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let target = server.target(CONFIGMAPS, "");
    let written = server.registry.create(&context, &target, body(object), &options).await.unwrap();
    assert_eq!(document(written.object, &target).list(&["metadata", "ownerReferences"]).len(), 1);
    assert_eq!(context.take_warnings().len(), 1);
}

#[tokio::test]
async fn fault_40_the_namespace_is_that_of_the_path() {
    let server = TestRegistry::new();
    let mut object = configmap("a", "v");
    object["metadata"]["namespace"] = json!("other");
    refused(&server.post(CONFIGMAPS, object).await, "BadRequest", &[]);
    let namespace = server
        .post(NAMESPACES, json!({"metadata": {"name": "n", "namespace": "x"}}))
        .await
        .unwrap();
    assert_eq!(namespace.namespace(), "", "dropped silently in cluster scope");
    let mut target = server.target(CONFIGMAPS, "");
    for (hostile, reason) in [("..", "500"), (".", "500"), ("a/b", "500"), ("a\0b", "500")] {
        target.namespace = Some(hostile.to_owned());
        let answer = server
            .registry
            .create(&context(), &target, body(configmap("a", "v")), &WriteOptions::default())
            .await;
        // An invalid namespace is refused before a key is made.
        assert!(["Invalid", reason].contains(&outcome(&answer).0.as_str()), "{answer:?}");
    }
    target.namespace = Some("ns".to_owned());
    for (hostile, reason) in [
        ("..", "BadRequest"),
        (".", "BadRequest"),
        ("a/b", "NotFound"),
        ("a\0b", "NotFound"),
        ("", "NotFound"),
    ] {
        target.name = Some(hostile.to_owned());
        assert_eq!(outcome(&server.registry.get(&target, "").await).0, reason, "{hostile:?}");
    }
}

#[tokio::test]
async fn the_body_must_be_of_the_endpoints_kind() {
    let server = TestRegistry::new();
    for (version, kind) in [
        ("v1", "Secret"),
        ("v2", "ConfigMap"),
        ("apps/v1", "ConfigMap"),
        ("v1", "Nonsense"),
        ("a/b/c", "ConfigMap"),
    ] {
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}});
        refused(&server.post(CONFIGMAPS, object).await, "BadRequest", &[]);
    }
    for wrong in [
        json!({"metadata": {"name": "a", "labels": {"k": 1}}}),
        json!({"metadata": {"name": "a"}, "data": ["x"]}),
        json!({"metadata": "a"}),
    ] {
        refused(&server.post(CONFIGMAPS, wrong).await, "BadRequest", &[]);
    }
}

#[tokio::test]
async fn unknown_and_duplicate_fields_follow_field_validation() {
    let server = TestRegistry::new();
    let object = |name: &str| json!({"metadata": {"name": name, "bogus": 1}, "data": {"a": "b"}, "spec": {"x": 1}});
    let with =
        |validation| WriteOptions { field_validation: validation, ..WriteOptions::default() };
    for (name, validation, warnings) in [
        ("a", None, 3),
        ("b", Some(FieldValidation::Warn), 3),
        ("c", Some(FieldValidation::Ignore), 0),
    ] {
        let context = context();
        let body = Body { duplicates: vec!["data.a".to_owned()], ..body(object(name)) };
        let target = server.target(CONFIGMAPS, "");
        let written =
            server.registry.create(&context, &target, body, &with(validation)).await.unwrap();
        let stored = document(written.object, &target);
        assert!(stored.get(&["spec"]).is_none() && stored.get(&["metadata", "bogus"]).is_none());
        assert_eq!(context.take_warnings().len(), warnings, "{name}");
    }
    refused(
        &server.post_with(CONFIGMAPS, object("d"), &with(Some(FieldValidation::Strict))).await,
        "BadRequest",
        &[],
    );
    let repeated = Body { duplicates: vec!["data.a".to_owned()], ..body(configmap("e", "v")) };
    let strict = server
        .registry
        .create(
            &context(),
            &server.target(CONFIGMAPS, ""),
            repeated,
            &with(Some(FieldValidation::Strict)),
        )
        .await;
    refused(&strict, "BadRequest", &[]);
    let lenient = Body { lenient: true, ..body(object("f")) };
    let context = context();
    server
        .registry
        .create(
            &context,
            &server.target(CONFIGMAPS, ""),
            lenient,
            &with(Some(FieldValidation::Strict)),
        )
        .await
        .unwrap();
    assert!(context.take_warnings().is_empty());
}

#[tokio::test]
async fn a_new_object_has_no_version() {
    let server = TestRegistry::new();
    for (version, reason) in
        [("5", "500"), ("abc", "ok"), ("0", "AlreadyExists"), ("", "AlreadyExists")]
    {
        let mut object = configmap("a", "v");
        object["metadata"]["resourceVersion"] = json!(version);
        assert_eq!(outcome(&server.post(CONFIGMAPS, object).await).0, reason, "{version:?}");
    }
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let server = TestRegistry::new();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let object = server.post_with(CONFIGMAPS, configmap("a", "v"), &dry).await.unwrap();
    assert!(!object.uid().is_empty() && object.meta("resourceVersion").is_empty());
    refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    refused(&server.post_with(CONFIGMAPS, configmap("a", "v"), &dry).await, "AlreadyExists", &[]);
}

#[tokio::test]
async fn field_managers_are_checked() {
    let server = TestRegistry::new();
    let manager =
        |name: &str| WriteOptions { field_manager: name.to_owned(), ..WriteOptions::default() };
    refused(
        &server.post_with(CONFIGMAPS, configmap("a", "v"), &manager(&"x".repeat(129))).await,
        "Invalid",
        &["TooLong fieldManager"],
    );
    refused(
        &server.post_with(CONFIGMAPS, configmap("a", "v"), &manager("bad\u{1}")).await,
        "Invalid",
        &["Invalid fieldManager"],
    );
    let failure =
        server.post_with(CONFIGMAPS, configmap("a", "v"), &manager("bad\u{1}")).await.unwrap_err();
    assert_eq!(failure.details.unwrap().kind, "CreateOptions");
}

#[tokio::test]
async fn objects_are_bounded() {
    let server = TestRegistry::new();
    let big = json!({"metadata": {"name": "a", "annotations": {"k": "x".repeat(200_000)}}, "data": {"k": "x".repeat(1_048_576)}});
    server.post(CONFIGMAPS, big).await.unwrap();
    let prefix = vec!["x".repeat(60); 3].join(".");
    let labels: Map = (0..10_000).map(|n| (format!("{prefix}/k{n}"), Value::from("v"))).collect();
    let bigger = json!({"metadata": {"name": "b", "labels": labels}});
    refused(&server.post(CONFIGMAPS, bigger).await, "RequestEntityTooLarge", &[]);
}

#[tokio::test]
async fn admission_sees_the_generated_name_and_can_refuse() {
    let server = TestRegistry::new();
    let object =
        server.post(CONFIGMAPS, json!({"metadata": {"generateName": "g-"}})).await.unwrap();
    assert_eq!(server.admission.seen.lock().unwrap().last().unwrap().1, object.name());
    refused(
        &server
            .post(CONFIGMAPS, json!({"metadata": {"name": "a", "labels": {"refuse": "no"}}}))
            .await,
        "Forbidden",
        &[],
    );
    refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
}

#[tokio::test]
async fn managers_have_names_of_a_bounded_length() {
    let server = TestRegistry::new();
    let entry = |manager: &str, subresource: &str| json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "subresource": subresource, "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:other": {}}}});
    let managed =
        |entry| json!({"metadata": {"name": "a", "managedFields": [entry]}, "data": {"k": "v"}});
    refused(
        &server.post(CONFIGMAPS, managed(entry(&"m".repeat(129), ""))).await,
        "Invalid",
        &["TooLong metadata.managedFields[0].manager"],
    );
    refused(
        &server.post(CONFIGMAPS, managed(entry("m\n", ""))).await,
        "Invalid",
        &["Invalid metadata.managedFields[0].manager"],
    );
    refused(
        &server.post(CONFIGMAPS, managed(entry("m", &"s".repeat(257)))).await,
        "Invalid",
        &["TooLong metadata.managedFields[0].subresource"],
    );
    server.post(CONFIGMAPS, managed(entry(&"m".repeat(128), &"s".repeat(256)))).await.unwrap();
}

#[tokio::test]
async fn finalizers_need_a_domain_where_core_validation_requires_it() {
    let server = TestRegistry::new();
    let finalized = |finalizer: &str| json!({"metadata": {"name": "a", "finalizers": [finalizer]}});
    refused(
        &server.post(SECRETS, finalized("plain")).await,
        "Invalid",
        &["Invalid metadata.finalizers[0]"],
    );
    server.post(LEASES, finalized("plain")).await.unwrap();
    refused(
        &server.post(LEASES, finalized("not a name")).await,
        "Invalid",
        &["Invalid metadata.finalizers"],
    );
}
