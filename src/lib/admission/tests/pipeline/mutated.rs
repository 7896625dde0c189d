//! Objects that a mutating policy leaves: what of them is refused, and how.

use super::policies::{GROUP, apply, bind, bind_mutation, create, patch};
use super::versions::{bind_to, start, thing, things};
use super::{TestPipeline, UserClient, document};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Patch, WriteOptions};

/// Serves Things, with a policy for them that mutates so.
async fn mutating(mutation: Value) -> TestPipeline {
    let (server, _) = start().await;
    let policy = json!({"reinvocationPolicy": "Never", "mutations": [mutation]});
    bind_to(&server, "v1", "mutating", "things", policy).await;
    server
}

async fn applied(server: &TestPipeline, object: Document) -> Result<Document, Failure> {
    let things = things(server);
    let target = things.target("n", object.name());
    let options = WriteOptions { field_manager: "m".to_owned(), ..WriteOptions::default() };
    let patch = Patch::Apply(object.into());
    let written = server.registry.patch(&UserClient::context(), &target, patch, &options).await?;
    Ok(written.object.into_document(&target.served))
}

#[tokio::test]
async fn nulls_of_an_apply_are_refused_though_a_policy_matches() {
    let server = mutating(patch("[JSONPatch{op: 'test', path: '/kind', value: 'Thing'}]")).await;
    let mut object = thing(1);
    object.set(&["spec", "size"], Value::Null);
    let refused = applied(&server, object).await.unwrap_err();
    assert_eq!(refused.code, 422, "{}", refused.message);
    assert_eq!(refused.details.unwrap().causes[0].field, "spec.size");
    applied(&server, thing(1)).await.unwrap();
}

#[tokio::test]
async fn a_null_copied_from_a_missing_field_is_refused() {
    let copy = "[JSONPatch{op: 'copy', from: '/spec/missing', path: '/spec/size'}]";
    let server = mutating(patch(copy)).await;
    let refused = things(&server).create("n", thing(1)).await.unwrap_err();
    assert_eq!(refused.code, 422, "{}", refused.message);
    assert_eq!(refused.details.unwrap().causes[0].field, "spec.size");
}

#[tokio::test]
async fn another_kind_of_a_custom_object_is_invalid() {
    let server = mutating(patch("[JSONPatch{op: 'replace', path: '/kind', value: 'Other'}]")).await;
    let refused = things(&server).create("n", thing(1)).await.unwrap_err();
    let want = "Other.example.com \"a\" is invalid: kind: Invalid value: \"Other\": must be Thing";
    assert_eq!((refused.code, refused.message.as_str()), (422, want));
}

#[tokio::test]
async fn another_group_or_version_of_a_custom_object_cannot_be_converted() {
    for (given, want) in [
        (
            "other.com/v1",
            "other.com/v1, Kind=Thing is unstructured and is not suitable for converting to \"example.com/v1\"",
        ),
        ("example.com/v3", "request to convert CR from an invalid group/version: example.com/v3"),
    ] {
        let replace =
            format!("[JSONPatch{{op: 'replace', path: '/apiVersion', value: '{given}'}}]");
        let server = mutating(patch(&replace)).await;
        let refused = things(&server).create("n", thing(1)).await.unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (500, want));
    }
}

#[tokio::test]
async fn another_name_is_invalid_unless_the_object_is_new() {
    let rename = "[JSONPatch{op: 'replace', path: '/metadata/name', value: 'other'}]";
    let server = mutating(patch(rename)).await;
    server.kind("example.com", "things").create("n", thing(1)).await.unwrap();
    let refused = things(&server).update(thing(2), "").await.unwrap_err();
    let want = "metadata.name: Invalid value: \"other\": field is immutable";
    assert!(refused.message.contains(want), "{}", refused.message);
    assert_eq!(refused.code, 422);
    assert_eq!(applied(&server, thing(1)).await.unwrap_err().code, 422);
    let made = things(&server).create("n", thing(3)).await.unwrap();
    assert_eq!(made.name(), "other");
}

#[tokio::test]
async fn a_policy_refuses_an_update_before_its_version_is_compared() {
    let server = mutating(patch("[JSONPatch{op: 'remove', path: '/nothing'}]")).await;
    server.kind("example.com", "things").create("n", thing(1)).await.unwrap();
    let mut outdated = thing(2);
    outdated.set(&["metadata", "resourceVersion"], "999999");
    assert_eq!(things(&server).update(outdated, "").await.unwrap_err().code, 403);
}

#[tokio::test]
async fn a_policy_refuses_an_update_that_creates_before_its_version_is_read() {
    let server = TestPipeline::with_namespace().await;
    let fails = json!([patch("[JSONPatch{op: 'remove', path: '/nothing'}]")]);
    bind_mutation(&server, "m", fails, false).await;
    let policies = server.kind(GROUP, "mutatingadmissionpolicies");
    let mut policy = policies.get("", "m").await.unwrap().unwrap();
    let leases = json!([{"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"],
        "operations": ["CREATE"], "resources": ["leases"]}]);
    policy.set(&["spec", "matchConstraints", "resourceRules"], leases);
    policies.update(policy, "").await.unwrap();
    let metadata = json!({"name": "l", "namespace": "n", "resourceVersion": "x"});
    let lease = document(json!({"metadata": metadata}));
    let leases = server.as_user("coordination.k8s.io", "leases");
    assert_eq!(leases.update(lease, "").await.unwrap_err().code, 403);
}

#[tokio::test]
async fn a_name_is_generated_once_the_object_is_mutated() {
    let server = TestPipeline::with_namespace().await;
    let label = "has(object.metadata.name) || has(request.name) ? 'yes' : 'no'";
    let add = format!("Object{{metadata: Object.metadata{{labels: {{'named': {label}}}}}}}");
    bind_mutation(&server, "m", json!([apply(&add)]), false).await;
    let check = json!({"validations": [{"expression": "request.name == object.metadata.name"}]});
    bind(&server, check, json!({})).await;
    let unnamed = || document(json!({"metadata": {"generateName": "g-"}}));
    let config_maps = server.as_user("", "configmaps");
    let made = config_maps.create("n", unnamed()).await.unwrap();
    assert_eq!(made.get(&["metadata", "labels"]), Some(&json!({"named": "no"})));
    assert!(made.name().len() == 7 && made.name().starts_with("g-"), "{}", made.name());
    bind_mutation(&server, "fails", json!([patch("[JSONPatch{op: 'x', path: '/x'}]")]), false)
        .await;
    let refused = config_maps.create("n", unnamed()).await.unwrap_err();
    assert_eq!(refused.details.unwrap().name, "g-");
}

#[tokio::test]
async fn unknown_fields_are_pruned_from_custom_objects_and_refused_in_native_ones() {
    let server = mutating(patch("[JSONPatch{op: 'add', path: '/spec/unknown', value: 1}]")).await;
    let made = things(&server).create("n", thing(1)).await.unwrap();
    assert_eq!(made.get(&["spec"]), Some(&json!({"size": 1})));
    let add = patch("[JSONPatch{op: 'add', path: '/unknown', value: 1}]");
    bind_mutation(&server, "native", json!([add]), false).await;
    let refused = create(&server, "a", json!({})).await.unwrap_err();
    let want = "Internal error occurred: strict decoding error: unknown field \"unknown\"";
    assert_eq!((refused.code, refused.message.as_str()), (500, want));
}

#[tokio::test]
async fn a_configuration_is_merged_only_into_what_fits_the_schema() {
    let server = mutating(apply("Object{spec: Object.spec{size: 2}}")).await;
    let original = "error applying patch: failed to convert original object to typed object: ";
    for (spec, want) in [
        (
            json!({"items": [{"value": 1}]}),
            ".spec.items: element 0: associative list with keys has an element that omits all key fields [\"key\"] (and doesn't have default values for any key fields)",
        ),
        (json!({"size": "x"}), ".spec.size: expected numeric (int or float), got string"),
    ] {
        let mut object = thing(1);
        object.set(&["spec"], spec);
        let refused = things(&server).create("n", object).await.unwrap_err();
        let want = format!("{original}{want}");
        assert!(refused.message.ends_with(&want), "{}", refused.message);
        assert_eq!(refused.code, 403);
    }
    let mut object = thing(1);
    object.set(&["spec", "items"], json!([{"key": "a"}]));
    let made = things(&server).create("n", object).await.unwrap();
    assert_eq!(made.get(&["spec", "size"]), Some(&json!(2)));
}

#[tokio::test]
async fn a_configuration_of_a_scale_is_one_of_a_scale() {
    let (server, _) = start().await;
    let double = apply("Object{spec: Object.spec{replicas: object.spec.replicas * 2}}");
    let policy = json!({"reinvocationPolicy": "Never", "mutations": [double]});
    bind_to(&server, "v1", "mutating", "things/scale", policy).await;
    things(&server).create("n", thing(1)).await.unwrap();
    let scale = document(json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": "a", "namespace": "n"}, "spec": {"replicas": 3}}));
    let written = things(&server).update(scale, "scale").await.unwrap();
    assert_eq!(written.get(&["spec", "replicas"]), Some(&json!(6)));
}
