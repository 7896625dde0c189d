//! Metadata of custom objects, which kube-apiserver reads in part as untyped values; expectations
//! are a real API server's.

use crate::custom::things;
use crate::support::{TestResponse, TestServer};
use ferrokube_apimachinery::document::{Value, json};

const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const APPLY: &str = "application/apply-patch+yaml";

async fn open_things() -> TestServer {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": open, "status": open}});
    things(json!({"schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}})).await
}

fn thing(name: &str, metadata: &Value) -> Value {
    let mut object = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata});
    object["metadata"]["name"] = json!(name);
    object
}

async fn patched(server: &TestServer, path: &str, kind: &str, body: &Value) -> TestResponse {
    let path = format!("{THINGS}/{path}");
    server.send("PATCH", &path, &[("content-type", kind)], body.to_string()).await
}

#[tokio::test]
async fn applied_system_fields_of_a_wrong_type_count_as_missing() {
    let server = open_things().await;
    assert_eq!(server.post(THINGS, &thing("old", &json!({}))).await.code, 201);
    for (number, (field, value)) in [
        ("generation", json!(1.5)),
        ("generation", json!(9223372036854775808_u64)),
        ("deletionGracePeriodSeconds", json!(1.5)),
        ("deletionGracePeriodSeconds", json!(2.5)),
        ("deletionTimestamp", json!(7)),
        ("deletionTimestamp", json!(true)),
        ("deletionTimestamp", json!("x")),
        ("deletionTimestamp", json!("")),
        ("deletionTimestamp", json!("0001-01-01T00:00:00Z")),
    ]
    .into_iter()
    .enumerate()
    {
        for (name, code) in [("old".to_owned(), 200), (format!("new-{number}"), 201)] {
            let mut object = thing(&name, &json!({}));
            object["metadata"][field] = value.clone();
            let applied = patched(&server, &format!("{name}?fieldManager=m"), APPLY, &object).await;
            assert_eq!(applied.code, code, "{field} {value}: {}", applied.text());
            let metadata = applied.json()["metadata"].clone();
            assert_eq!(metadata["generation"], json!(1), "{field} {value}");
            assert_eq!(metadata.get("deletionTimestamp"), None, "{field} {value}");
            assert_eq!(metadata.get("deletionGracePeriodSeconds"), None, "{field} {value}");
        }
    }
    // Those of their type are read, and refused.
    for (field, value, shown) in [
        ("deletionGracePeriodSeconds", json!(7.0), "Invalid value: 7: field is immutable"),
        (
            "deletionTimestamp",
            json!("2026-01-01T00:00:00+02:00"),
            "Invalid value: \"2025-12-31T22:00:00Z\": field is immutable",
        ),
    ] {
        let mut object = thing("old", &json!({}));
        object["metadata"][field] = value;
        let applied = patched(&server, "old?fieldManager=m", APPLY, &object).await;
        let message = applied.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(applied.code == 422 && message.contains(shown), "{} {message}", applied.code);
    }
}

#[tokio::test]
async fn a_null_among_finalizers_is_an_empty_name() {
    let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let spec = json!({"type": "object", "properties": {"e": embedded}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let server = things(json!({"schema": {"openAPIV3Schema": schema}})).await;
    assert_eq!(server.post(THINGS, &thing("a", &json!({}))).await.code, 201);
    let (nulls, some) = (json!([null]), json!(["a.example.com/b", null]));
    for finalizers in [&nulls, &some] {
        let inner =
            json!({"kind": "K", "apiVersion": "v1", "metadata": {"finalizers": finalizers}});
        let mut outer = thing("new", &json!({}));
        outer["spec"] = json!({"e": inner});
        let add = json!([{"op": "add", "path": "/metadata/finalizers", "value": finalizers}]);
        let merge = json!({"metadata": {"finalizers": finalizers}});
        for (answer, field) in [
            (server.post(THINGS, &thing("new", &merge["metadata"])).await, "metadata.finalizers"),
            (
                patched(&server, "a", "application/json-patch+json", &add).await,
                "metadata.finalizers",
            ),
            (
                patched(&server, "a", "application/merge-patch+json", &merge).await,
                "metadata.finalizers",
            ),
            (server.post(THINGS, &outer).await, "spec.e.metadata.finalizers"),
        ] {
            let wanted = format!("{field}: Invalid value: \"\": name part must be non-empty");
            assert!(
                answer.code == 422 && answer.json()["message"].as_str().unwrap().contains(&wanted),
                "{finalizers} {field}: {}",
                answer.text()
            );
        }
    }
}

#[tokio::test]
async fn an_applied_null_is_no_change_to_an_object_without_a_status() {
    let server = open_things().await;
    assert_eq!(server.post(THINGS, &thing("a", &json!({}))).await.code, 201);
    let mut object = thing("a", &json!({}));
    object["status"] = Value::Null;
    let path = "a/status?fieldManager=m";
    let applied = patched(&server, path, APPLY, &object).await;
    assert_eq!((applied.code, applied.json().get("status")), (200, None), "{}", applied.text());
    let entry = applied.json()["metadata"]["managedFields"][0].clone();
    assert_eq!((&entry["manager"], &entry["fieldsV1"]), (&json!("m"), &json!({"f:status": {}})));
    // A status cannot be replaced by it.
    object["status"] = json!({});
    assert_eq!(patched(&server, path, APPLY, &object).await.code, 200);
    object["status"] = Value::Null;
    let refused = patched(&server, path, APPLY, &object).await;
    assert_eq!(refused.code, 422, "{}", refused.text());
}

#[tokio::test]
async fn a_null_is_a_nullable_status() {
    let status = json!({"type": "object", "nullable": true});
    let schema = json!({"type": "object", "properties": {"status": status}});
    let version = json!({"schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}});
    let server = things(version).await;
    let add = json!([{"op": "add", "path": "/status", "value": null}]);
    let mut object = thing("a", &json!({}));
    object["status"] = Value::Null;
    for (name, kind, body) in [("a", APPLY, &object), ("b", "application/json-patch+json", &add)] {
        assert_eq!(server.post(THINGS, &thing(name, &json!({}))).await.code, 201);
        let answer = patched(&server, &format!("{name}/status?fieldManager=m"), kind, body).await;
        assert_eq!(answer.code, 200, "{kind}: {}", answer.text());
        assert_eq!(answer.json().get("status"), Some(&Value::Null), "{kind}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_status_has_its_default_from_the_start() {
    let condition = json!({"type": "object", "properties": {"type": {"type": "string"}}});
    let status = json!({
        "type": "object",
        "properties": {"conditions": {"type": "array", "items": condition}},
        "default": {"conditions": [{"type": "Accepted"}]},
    });
    let schema = json!({"type": "object", "properties": {"status": status}});
    let version = json!({"schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}});
    let server = things(version).await;
    let want = json!({"conditions": [{"type": "Accepted"}]});
    // What the writer gives counts for nothing.
    let mut object = thing("a", &json!({}));
    object["status"] = json!({"conditions": [{"type": "Mine"}]});
    let made = server.post(THINGS, &object).await;
    assert_eq!((made.code, &made.json()["status"]), (201, &want), "{}", made.text());
    let applied = patched(&server, "b?fieldManager=m", APPLY, &thing("b", &json!({}))).await;
    assert_eq!((applied.code, &applied.json()["status"]), (201, &want), "{}", applied.text());
    for name in ["a", "b"] {
        let stored = server.get(&format!("{THINGS}/{name}")).await.json();
        assert_eq!(stored["status"], want, "{name}");
        let managers = stored["metadata"]["managedFields"].to_string();
        assert!(!managers.contains("f:status"), "{name}: {managers}");
    }
    // It is as good as any other for its writers, and stays when the rest changes.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let merge = "application/merge-patch+json";
    let labeled = patched(&server, "a", merge, &label).await.json();
    assert_eq!(labeled["status"], want, "{labeled}");
    let change = json!({"status": {"conditions": []}});
    let changed = patched(&server, "a/status", merge, &change).await.json();
    assert_eq!(changed["status"], json!({"conditions": []}), "{changed}");
}
