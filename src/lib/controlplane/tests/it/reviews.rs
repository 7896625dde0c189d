//! Reviews and requests for tokens in other forms than their own: as kube-apiserver 1.36 answers
//! them, there is no Table of what cannot be listed.

use crate::support::TestServer;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_auth::authenticate::Bearer;
use ferrokube_auth::{Authorizer, Rbac, review};
use std::sync::Arc;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const WITHOUT_TABLE: &str = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// A server that computes reviews.
async fn server() -> TestServer {
    let server = TestServer::new().await;
    let (store, catalog) = (server.registry.store(), server.registry.catalog());
    let rbac = Arc::new(Rbac::of(store, catalog));
    let authorizer: Arc<dyn Authorizer> = server.rules.clone();
    review::install(catalog, &authorizer, &rbac, &Bearer::new(Vec::new(), Vec::new()));
    server
}

/// Path, spec, and the fields of the spec that its writer owns; some reviews are answered with a
/// new object, which has no owner.
fn reviews() -> [(&'static str, Value, Option<Value>); 6] {
    let attributes = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let owned = json!({".": {}, "f:namespace": {}, "f:resource": {}, "f:verb": {}});
    let of_user = json!({"user": "u", "resourceAttributes": attributes});
    let owned_of_user = json!({"f:resourceAttributes": owned, "f:user": {}});
    let owned = json!({"f:resourceAttributes": owned});
    [
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            json!({"resourceAttributes": attributes}),
            Some(owned),
        ),
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            of_user.clone(),
            Some(owned_of_user.clone()),
        ),
        (
            "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
            of_user,
            Some(owned_of_user),
        ),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            json!({"namespace": "default"}),
            None,
        ),
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({"token": "x"}),
            Some(json!({"f:token": {}})),
        ),
        ("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({}), None),
    ]
}

#[tokio::test]
async fn reviews_have_no_table() {
    let server = server().await;
    for (path, spec, _) in reviews() {
        let body = json!({"spec": spec}).to_string();
        let table = server.send("POST", path, &[("accept", TABLE)], body.clone()).await;
        let message = table.json()["message"].clone();
        assert_eq!((table.code, message), (406, json!(WITHOUT_TABLE)), "{path}");
        let either = format!("{TABLE}, application/json");
        let whole = server.send("POST", path, &[("accept", &either)], body).await;
        assert_eq!(whole.code, 201, "{path}: {}", whole.text());
        assert!(whole.json()["status"].is_object(), "{path}: {}", whole.text());
    }
}

#[tokio::test]
async fn reviews_are_owned_by_their_writers() {
    let server = server().await;
    for (path, spec, owned) in reviews() {
        // Replaced.
        let body = json!({"metadata": {"managedFields": [{}]}, "spec": spec}).to_string();
        for (query, manager) in [("", "test"), ("?fieldManager=m&dryRun=All", "m")] {
            let path = format!("{path}{query}");
            let answer = server.send("POST", &path, &[("accept", METADATA)], body.clone()).await;
            assert_eq!(answer.code, 201, "{path}: {}", answer.text());
            let view = answer.json();
            assert_eq!(view["kind"], json!("PartialObjectMetadata"), "{path}");
            let entry = &view["metadata"]["managedFields"][0];
            let found = [&entry["manager"], &entry["operation"], &entry["fieldsV1"]["f:spec"]];
            let expected = match &owned {
                Some(fields) => [json!(manager), json!("Update"), fields.clone()],
                None => [Value::Null, Value::Null, Value::Null],
            };
            assert_eq!(found, expected.each_ref(), "{path}");
        }
    }
}

#[tokio::test]
async fn requests_for_tokens_have_no_table() {
    let server = server().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(server.post(accounts, &json!({"metadata": {"name": "a"}})).await.code, 201);
    let path = format!("{accounts}/a/token");
    let table = server.send("POST", &path, &[("accept", TABLE)], r#"{"spec":{}}"#).await;
    let message = table.json()["message"].clone();
    assert_eq!((table.code, message), (406, json!(WITHOUT_TABLE)));
}
