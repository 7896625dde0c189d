//! Rules of kube-apiserver found by the differential test: a test for each class.

use crate::support::*;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{
    Body, DeleteOptions, Deleted, FieldValidation, Patch, RequestContext, WriteOptions,
};
use ferrokube_resource::Scope;
use std::sync::atomic::Ordering;

const EVENTS: (&str, &str) = ("", "events");
const SERVICE_ACCOUNTS: (&str, &str) = ("", "serviceaccounts");
const QUOTAS: (&str, &str) = ("", "resourcequotas");
const SIGNING_REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");

async fn apply(
    server: &TestRegistry,
    kind: (&str, &str),
    name: &str,
    object: Value,
) -> Result<Document, Failure> {
    let options = WriteOptions { field_manager: "m".to_owned(), ..WriteOptions::default() };
    let written = server.patch_with(kind, name, Patch::Apply(body(object)), &options).await?;
    Ok(written.object.into_document(&server.target(kind, name).served))
}

fn strategic(object: Value) -> Patch {
    Patch::Strategic(body(object))
}

#[track_caller]
fn says<T>(result: Result<T, Failure>, message: &str) {
    let failure = result.err().expect("a refusal");
    assert!(failure.message.contains(message), "{}", failure.message);
}

#[tokio::test]
async fn only_a_post_drops_deletion_fields() {
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "deletionTimestamp": "2024-01-02T03:04:05Z", "deletionGracePeriodSeconds": 5}});
    for under_webhooks in [false, true] {
        let server = TestRegistry::new();
        server.admission.remote.store(under_webhooks, Ordering::SeqCst);
        let deletion = |made: Result<Document, Failure>| {
            let made = made.unwrap();
            let seconds = made.get(&["metadata", "deletionGracePeriodSeconds"]).cloned();
            (made.meta("deletionTimestamp").to_owned(), seconds)
        };
        assert_eq!(deletion(server.post(LEASES, lease("a")).await), (String::new(), None));
        let kept = ("2024-01-02T03:04:05Z".to_owned(), Some(json!(5)));
        assert_eq!(deletion(server.put(LEASES, "b", lease("b")).await), kept);
        assert_eq!(deletion(apply(&server, LEASES, "c", lease("c")).await), kept);
    }
}

#[tokio::test]
async fn what_cannot_be_read_may_be_forced() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let options = WriteOptions { force: true, ..WriteOptions::default() };
    let unreadable = || Patch::Unreadable(Failure::bad_request("no object"));
    says(server.patch_with(CONFIGMAPS, "a", unreadable(), &options).await, "no object");
    let missing = server.patch_with(CONFIGMAPS, "b", unreadable(), &options).await;
    says(missing, "configmaps \"b\" not found");
}

#[tokio::test]
async fn duplicate_owners_of_a_patch_are_dropped_after_admission() {
    let server = TestRegistry::new();
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"});
    let object = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner, owner]}});
    let warned = |context: &RequestContext| {
        context
            .take_warnings()
            .iter()
            .map(|warning| warning.contains("after mutating admission happens;"))
            .collect::<Vec<_>>()
    };
    let context = context();
    let written = server
        .registry
        .create(
            &context,
            &server.target(CONFIGMAPS, ""),
            body(object("a")),
            &WriteOptions::default(),
        )
        .await;
    assert!(written.is_ok() && warned(&context) == [false]);
    let context = crate::support::context();
    let written = server
        .registry
        .patch(
            &context,
            &server.target(CONFIGMAPS, "a"),
            merge(object("a")),
            &WriteOptions::default(),
        )
        .await;
    assert!(written.is_ok() && warned(&context) == [true]);
    let context = crate::support::context();
    let refused = server
        .registry
        .update(
            &context,
            &server.target(CONFIGMAPS, "a"),
            body(json!({"metadata": {"ownerReferences": [owner, owner]}})),
            &WriteOptions::default(),
        )
        .await;
    says(refused, "name must be provided");
    assert!(warned(&context).is_empty());
}

#[tokio::test]
async fn a_native_object_without_its_version_has_no_name() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let emptied = || merge(json!({"apiVersion": null, "data": {"k": 1}}));
    let nameless =
        "the name of the object (a based on URL) was undeterminable: name must be provided";
    says(server.patch(CONFIGMAPS, "a", emptied()).await, nameless);
    says(
        server
            .patch(
                CONFIGMAPS,
                "a",
                Patch::Json(json!([{"op": "remove", "path": "/apiVersion"}]), Vec::new()),
            )
            .await,
        nameless,
    );
    let strict =
        WriteOptions { field_validation: Some(FieldValidation::Strict), ..WriteOptions::default() };
    says(
        server.patch_with(CONFIGMAPS, "a", emptied(), &strict).await,
        "strict decoding error: unknown field \"data\", unknown field \"metadata\"",
    );
    says(
        server.patch(CONFIGMAPS, "a", merge(json!({"apiVersion": null, "kind": "Foo"}))).await,
        "no kind \"Foo\" is registered for the internal version of group \"\" in scheme",
    );
    says(
        server.patch(CONFIGMAPS, "a", merge(json!({"apiVersion": "", "kind": "Secret"}))).await,
        "converting (core.Secret) to (core.ConfigMap): unknown conversion",
    );
    server.patch(CONFIGMAPS, "a", merge(json!({"kind": null}))).await.unwrap();
    server.patch(CONFIGMAPS, "a", merge(json!({"Kind": "Foo"}))).await.unwrap();
    server
        .patch(CONFIGMAPS, "a", strategic(json!({"apiVersion": "x", "kind": "Foo"})))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_strategic_patch_is_decoded_leniently() {
    let server = TestRegistry::new();
    server.post(LEASES, json!({"metadata": {"name": "a"}})).await.unwrap();
    for (patch, why) in [
        (json!({"kind": -1}), "Invalid value: \"map[kind:-1]\": cannot convert int64 to string"),
        (
            json!({"spec": "x"}),
            "Invalid value: \"map[spec:x]\": cannot restore struct from: string",
        ),
        (json!({"spec": {"holderIdentity": {}}}), "unrecognized type: string"),
        (
            json!({"spec": {"renewTime": 1}}),
            "json: cannot unmarshal number into Go value of type string",
        ),
        // Nulls are dropped from what is added.
        (
            json!({"metadata": {"labels": null, "annotations": {"a": null, "b": 1}}}),
            "\"map[metadata:map[annotations:map[b:1] labels:<nil>]]\"",
        ),
        // So do orders with their lists, keys to retain, and maps with directives.
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["a"], "finalizers": ["a"], "labels": {"$retainKeys": ["a"]}}, "spec": {"$retainKeys": ["holderIdentity"], "holderIdentity": 1}}),
            "\"map[metadata:map[labels:map[$retainKeys:[a]]] spec:map[holderIdentity:1]]\": unrecognized type: string",
        ),
        (
            json!({"spec": {"strategy": {"a": {"$patch": "x"}, "b": [{"c": null}, {"$patch": "x"}]}, "holderIdentity": 1}}),
            "\"map[spec:map[holderIdentity:1 strategy:map[b:[map[]]]]]\": cannot convert int64 to string",
        ),
        (
            json!({"spec": {"leaseTransitions": 2147483648_i64}}),
            "spec.leaseTransitions: Invalid value: -2147483648: must be greater than or equal to 0",
        ),
    ] {
        says(server.patch(LEASES, "a", strategic(patch)).await, why);
    }
    let applied = |transitions: Value| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"leaseTransitions": transitions}});
    says(
        apply(&server, LEASES, "a", applied(json!(2147483648_i64))).await,
        "Invalid value: -2147483648",
    );
    let stored = apply(&server, LEASES, "a", applied(json!(4294967297_i64))).await.unwrap();
    assert_eq!(stored.get(&["spec", "leaseTransitions"]), Some(&json!(1)));
}

/// The whole map is dropped, whatever the directive is: nothing is written.
#[tokio::test]
async fn a_map_with_a_directive_adds_nothing_where_there_is_none() {
    let server = TestRegistry::new();
    let made = server.post(CONFIGMAPS, json!({"metadata": {"name": "a"}})).await.unwrap();
    for directive in ["replace", "merge", "delete", "x"] {
        let map = json!({"$patch": directive, "k": "v"});
        let metadata = json!({"labels": map, "ownerReferences": [map]});
        let patch = json!({"data": map, "binaryData": map, "metadata": metadata});
        let patched = server.patch(CONFIGMAPS, "a", strategic(patch)).await.unwrap();
        assert_eq!(patched, made, "{directive}");
    }
    let only = json!({"data": {"$patch": "replace"}});
    assert_eq!(server.patch(CONFIGMAPS, "a", strategic(only)).await.unwrap(), made);
    server.post(CONFIGMAPS, configmap("b", "v")).await.unwrap();
    let replaced = json!({"data": {"$patch": "replace", "n": "w"}});
    let patched = server.patch(CONFIGMAPS, "b", strategic(replaced)).await.unwrap();
    assert_eq!(patched.get(&["data"]), Some(&json!({"n": "w"})));
    let deleted = json!({"data": {"$patch": "delete", "n": "w"}});
    let patched = server.patch(CONFIGMAPS, "b", strategic(deleted)).await.unwrap();
    assert_eq!(patched.get(&["data"]), None);
}

#[tokio::test]
async fn conflicts_of_an_apply_come_before_values_that_cannot_be_read() {
    let server = TestRegistry::new();
    let lease = |spec: Value| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": spec});
    apply(&server, LEASES, "a", lease(json!({"holderIdentity": "a"}))).await.unwrap();
    for (spec, code, why) in [
        (
            json!({"holderIdentity": "b", "renewTime": "x"}),
            409,
            "Apply failed with 1 conflict: conflict with \"m\": .spec.holderIdentity",
        ),
        (
            json!({"renewTime": "x"}),
            500,
            "unable to convert unstructured object to coordination.k8s.io/v1, Kind=Lease: parsing time \"x\"",
        ),
        (json!({"leaseTransitions": 2147483648_i64}), 422, "Invalid value: -2147483648"),
    ] {
        let options = WriteOptions { field_manager: "n".to_owned(), ..WriteOptions::default() };
        let applied = Patch::Apply(body(lease(spec)));
        let refused = server.patch_with(LEASES, "a", applied, &options).await;
        let code_of = refused.as_ref().err().map(|failure| failure.code);
        assert_eq!(code_of, Some(code));
        says(refused, why);
    }
}

#[tokio::test]
async fn lists_whose_items_have_no_key_end_tracking() {
    let server = TestRegistry::new();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "secrets": [{"fieldPath": "x"}]});
    let posted = server.post(SERVICE_ACCOUNTS, account).await.unwrap();
    assert_eq!(posted.get(&["metadata", "managedFields"]), None);
    let applied = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "automountServiceAccountToken": true});
    let why = "failed to create manager for existing fields: failed to convert new object (ns/a; /v1, Kind=ServiceAccount) to smd typed: .secrets: element 0: \
               associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)";
    says(apply(&server, SERVICE_ACCOUNTS, "a", applied).await, why);
    let fine = server
        .put(SERVICE_ACCOUNTS, "a", json!({"metadata": {"name": "a"}, "secrets": [{"name": "x"}]}))
        .await
        .unwrap();
    assert_eq!(fine.get(&["metadata", "managedFields"]), None, "untracked until an apply");
}

#[tokio::test]
async fn labels_derived_from_a_generated_name_have_no_manager() {
    let server = TestRegistry::new();
    let owned = |object: &Document| {
        object
            .get(&["metadata", "managedFields"])
            .is_some_and(|fields| fields.to_string().contains("metadata.name"))
    };
    let named = server.post(NAMESPACES, json!({"metadata": {"name": "named"}})).await.unwrap();
    let generated = server
        .post(NAMESPACES, json!({"metadata": {"generateName": "made-", "labels": {"a": "b"}}}))
        .await
        .unwrap();
    assert_eq!(generated.label("kubernetes.io/metadata.name"), Some(generated.name()));
    assert!(owned(&named) && !owned(&generated));
}

#[tokio::test]
async fn metadata_of_core_events_is_checked_last() {
    let server = TestRegistry::new();
    refused(
        &server.post(EVENTS, json!({"metadata": {}})).await,
        "Invalid",
        &["Invalid involvedObject.namespace"],
    );
    refused(
        &server.post(EVENTS, json!({"metadata": {}, "involvedObject": {"namespace": "ns"}})).await,
        "Invalid",
        &["Required metadata.name"],
    );
    let both = [
        "Invalid involvedObject.namespace",
        "Invalid type",
        "Required eventTime",
        "Required metadata.name",
    ];
    refused(
        &server.post(("events.k8s.io", "events"), json!({"metadata": {}})).await,
        "Invalid",
        &both,
    );
}

#[tokio::test]
async fn metadata_causes_are_repeated_as_in_kube_apiserver() {
    let server = TestRegistry::new();
    let count = |result: Result<_, Failure>| {
        result.map(|_: Document| ()).unwrap_err().details.unwrap().causes.len()
    };
    let bad = || merge(json!({"metadata": {"labels": {"-": "x"}}}));
    for (kind, object, causes) in [
        (CONFIGMAPS, json!({"metadata": {"name": "a"}}), 4),
        (NAMESPACES, json!({"metadata": {"name": "a"}}), 4),
        (LEASES, json!({"metadata": {"name": "a"}}), 3),
        (QUOTAS, json!({"metadata": {"name": "a"}}), 3),
        (EVENTS, json!({"metadata": {"name": "a"}, "involvedObject": {"namespace": "ns"}}), 2),
    ] {
        server.post(kind, object).await.unwrap();
        assert_eq!(count(server.patch(kind, "a", bad()).await), causes, "{kind:?}");
    }
    let deleted = || merge(json!({"metadata": {"deletionTimestamp": "2024-01-02T03:04:05Z"}}));
    let policies = ("admissionregistration.k8s.io", "validatingadmissionpolicybindings");
    let spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    server.post(policies, json!({"metadata": {"name": "a"}, "spec": spec})).await.unwrap();
    for (kind, causes) in [(CONFIGMAPS, 2), (LEASES, 2), (policies, 1)] {
        assert_eq!(count(server.patch(kind, "a", deleted()).await), causes, "{kind:?}");
    }
    let prefix = |text: &str| merge(json!({"metadata": {"generateName": text}}));
    for (kind, text, causes) in [(CONFIGMAPS, "-x", 1), (CONFIGMAPS, "a/b", 2), (LEASES, "a/b", 1)]
    {
        assert_eq!(count(server.patch(kind, "a", prefix(text)).await), causes, "{kind:?} {text}");
    }
    server.patch(LEASES, "a", prefix("-x")).await.expect("the kind's rules ignore it");
}

#[tokio::test]
async fn conflicts_name_what_kube_apiserver_names() {
    let server = TestRegistry::new();
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"uid": "x"}});
    says(
        apply(&server, CONFIGMAPS, "a", applied).await,
        "configmaps \"a\": uid mismatch: the provided object specified uid x, and no existing object was found",
    );
    server.post(LEASES, json!({"metadata": {"name": "a"}})).await.unwrap();
    let other = || body(json!({"metadata": {"name": "a", "uid": "x"}}));
    for (dry_run, key) in [(false, "Key: /registry/leases/ns/a,"), (true, "Key: /leases/ns/a,")] {
        let options = WriteOptions { dry_run, ..WriteOptions::default() };
        says(
            server
                .registry
                .update(&context(), &server.target(LEASES, "a"), other(), &options)
                .await,
            key,
        );
    }
    server.post(("events.k8s.io", "events"), event()).await.unwrap();
    let options = DeleteOptions { uid: Some("x".to_owned()), ..DeleteOptions::default() };
    says(
        server.delete_with(("events.k8s.io", "events"), "e", &options).await,
        "fulfilled on Event \"e\": the UID in the precondition (x)",
    );
    server.post(NAMESPACES, json!({"metadata": {"name": "a"}})).await.unwrap();
    says(
        server.delete_with(NAMESPACES, "a", &options).await,
        "fulfilled on namespaces \"a\": Precondition failed: UID in precondition: x, UID in object meta: ",
    );
}

#[tokio::test]
async fn duplicate_yaml_keys_are_reported_with_lines() {
    let server = TestRegistry::new();
    let noted = vec![
        "line 7: key \"a\" already set in map".to_owned(),
        "line 9: key \"b\" already set in map".to_owned(),
    ];
    let yaml = |name: &str| Body {
        noted: noted.clone(),
        yaml: true,
        ..body(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "nope": 1}),
        )
    };
    let options = |validation| WriteOptions {
        field_validation: Some(validation),
        field_manager: "m".to_owned(),
        ..WriteOptions::default()
    };
    let context = context();
    let target = server.target(CONFIGMAPS, "");
    server
        .registry
        .create(&context, &target, yaml("a"), &options(FieldValidation::Warn))
        .await
        .unwrap();
    assert_eq!(context.take_warnings(), [&noted[0], &noted[1], "unknown field \"nope\""]);
    let strict = options(FieldValidation::Strict);
    let lines = "yaml: unmarshal errors:\n  line 7: key \"a\" already set in map\n  line 9: key \"b\" already set in map";
    says(
        server.registry.create(&context, &target, yaml("b"), &strict).await,
        &format!("strict decoding error: {lines}, unknown field \"nope\""),
    );
    let applied = Body {
        document: Document::from_value(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}),
        )
        .unwrap(),
        ..yaml("b")
    };
    says(
        server.patch_with(CONFIGMAPS, "b", Patch::Apply(applied), &strict).await,
        &format!("error strict decoding YAML: error converting YAML to JSON: {lines}"),
    );
}

#[tokio::test]
async fn managed_fields_of_unknown_versions_are_dropped() {
    let server = TestRegistry::new();
    let entry = |version: &str| json!({"manager": version, "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}}});
    let managers = |object: &Document| {
        object
            .list(&["metadata", "managedFields"])
            .iter()
            .map(|entry| entry["manager"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let given = ["0", "v1", "x/v2beta1", "vx", "v1beta"].map(entry);
    let made = server
        .post(
            CONFIGMAPS,
            json!({"metadata": {"name": "a", "managedFields": given}, "immutable": false}),
        )
        .await
        .unwrap();
    assert_eq!(managers(&made), ["v1", "x/v2beta1", "test"]);
    let applied = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"holderIdentity": "h"}});
    apply(&server, LEASES, "a", applied).await.unwrap();
    let without = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": null, "spec": {"holderIdentity": "h"}});
    let kept = apply(&server, LEASES, "a", without).await.unwrap();
    assert_eq!(
        (kept.name(), &kept.list(&["metadata", "managedFields"])[0]["fieldsV1"]),
        ("a", &json!({"f:spec": {"f:holderIdentity": {}}}))
    );
    let mismatch = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "managedFields": [1]}});
    says(
        apply(&server, LEASES, "a", mismatch).await,
        ".metadata.managedFields[0]: expected map, got &{1}",
    );
    says(
        apply(&server, LEASES, "a", json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "managedFields": [{}]}})).await,
        "metadata.managedFields must be nil",
    );
}

#[tokio::test]
async fn versions_of_missing_objects() {
    let server = TestRegistry::new();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let lease = || json!({"metadata": {"name": "a", "resourceVersion": "7"}});
    assert_eq!(server.post_with(LEASES, lease(), &dry).await.unwrap().meta("resourceVersion"), "7");
    let put = server
        .registry
        .update(&context(), &server.target(LEASES, "a"), body(lease()), &dry)
        .await
        .unwrap();
    assert_eq!(document(put.object, &server.target(LEASES, "a")).meta("resourceVersion"), "7");
    server.post(LEASES, json!({"metadata": {"name": "a"}})).await.unwrap();
    let other = json!({"metadata": {"name": "a", "resourceVersion": "7", "uid": "x"}});
    says(server.put(LEASES, "a", other).await, "UID in precondition: x");
}

fn event() -> Value {
    let about = json!({"kind": "ConfigMap", "namespace": "ns", "name": "a"});
    json!({"metadata": {"name": "e"}, "regarding": about, "reason": "r", "action": "a", "type": "Normal", "eventTime": "2024-01-02T03:04:05.000006Z", "reportingController": "c", "reportingInstance": "i"})
}

#[tokio::test]
async fn the_first_delete_of_a_namespace_only_marks() {
    let server = TestRegistry::new();
    assert_eq!(server.target(NAMESPACES, "").served.definition.scope, Scope::Cluster);
    server.post(NAMESPACES, json!({"metadata": {"name": "a"}})).await.unwrap();
    server
        .put(
            NAMESPACES,
            "a/finalize",
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": []}}),
        )
        .await
        .unwrap();
    let options = DeleteOptions { orphan_dependents: Some(false), ..DeleteOptions::default() };
    let Ok(Deleted::Pending(marked)) = server.delete_with(NAMESPACES, "a", &options).await else {
        panic!("it is marked")
    };
    let marked = document(marked, &server.target(NAMESPACES, "a"));
    assert_eq!(marked.list(&["metadata", "finalizers"]), [json!("foregroundDeletion")]);
    assert!(marked.is_terminating());
    server.patch(NAMESPACES, "a", merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    refused(&server.get(NAMESPACES, "a").await, "NotFound", &[]);
}

#[tokio::test]
async fn a_namespace_in_deletion_has_each_finalizer_once() {
    let server = TestRegistry::new();
    let repeated = json!(["b.example.com/f", "a.example.com/f", "b.example.com/f"]);
    for (name, orphans, finalizers) in [
        ("a", Some(false), json!(["b.example.com/f", "a.example.com/f", "foregroundDeletion"])),
        ("b", None, repeated.clone()),
    ] {
        let body = json!({"metadata": {"name": name, "finalizers": repeated.clone()}});
        server.post(NAMESPACES, body).await.unwrap();
        let options = DeleteOptions { orphan_dependents: orphans, ..DeleteOptions::default() };
        let Ok(Deleted::Pending(marked)) = server.delete_with(NAMESPACES, name, &options).await
        else {
            panic!("{name} is marked")
        };
        let marked = document(marked, &server.target(NAMESPACES, name));
        assert_eq!(
            Some(marked.list(&["metadata", "finalizers"])),
            finalizers.as_array().map(|list| &list[..])
        );
    }
}

#[tokio::test]
async fn an_applied_null_is_no_name() {
    let server = TestRegistry::new();
    server.post(LEASES, json!({"metadata": {"name": "a"}})).await.unwrap();
    for (name, metadata) in [
        ("a", json!({"name": null})),
        ("a", json!({"name": null, "generateName": "b"})),
        ("none", json!({"name": null})),
    ] {
        let object =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata});
        says(
            apply(&server, LEASES, name, object).await,
            &format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            ),
        );
    }
    let unnamed = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}});
    apply(&server, LEASES, "a", unnamed).await.expect("the path has the name");
}

/// The fields of each manager.
fn owned(object: &Document) -> Vec<&Value> {
    object.list(&["metadata", "managedFields"]).iter().map(|entry| &entry["fieldsV1"]).collect()
}

#[tokio::test]
async fn conditions_of_a_signing_request_have_no_manager() {
    let server = TestRegistry::new();
    let request = include_str!("../../../resources/tests/kinds/request.base64").trim();
    let spec =
        json!({"request": request, "signerName": "example.com/signer", "usages": ["client auth"]});
    let made = json!({"metadata": {"name": "c"}, "spec": spec});
    server.post(SIGNING_REQUESTS, made).await.unwrap();
    let status = |kind: &str| json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "c"}, "status": {"conditions": [{"type": kind, "status": "True", "reason": "r"}]}});
    let put = server.put(SIGNING_REQUESTS, "c/status", status("Failed")).await.unwrap();
    assert_eq!(owned(&put), [&Value::Null; 0]);
    let applied = apply(&server, SIGNING_REQUESTS, "c/status", status("Failed")).await.unwrap();
    assert_eq!(applied.list(&["status", "conditions"])[0]["type"], json!("Failed"));
    assert_eq!(owned(&applied), [&Value::Null; 0]);
    says(
        server.put(SIGNING_REQUESTS, "c/status", status("Approved")).await,
        "[status.conditions: Forbidden: updates may not remove a condition of type \"Failed\", status.conditions: Forbidden: updates may not add a condition of type \"Approved\"]",
    );
}
