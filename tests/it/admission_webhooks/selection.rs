//! Which writes a webhook reviews: rules, selectors, match conditions, versions.

use super::server::ReviewServer;
use super::{CONFIG_MAPS, hook, labelled, register};
use crate::FERROKUBE;
use crate::objects::config_map;
use ferrokube_testkit::{BOUND, Launch, wait_until};
use serde_json::{Value, json};

/// A webhook for all config maps, with changed fields.
fn changed(server: &ReviewServer, path: &str, fields: Value) -> Value {
    let mut hook = hook(server, path, "");
    hook["objectSelector"] = json!({});
    for (field, value) in fields.as_object().unwrap() {
        hook[field] = value.clone();
    }
    hook
}

/// Operation and name of the reviewed writes.
fn reviewed(server: &ReviewServer, path: &str) -> Vec<String> {
    let of = |request: &Value, field: &str| request[field].as_str().unwrap().to_owned();
    let one = |request: &Value| format!("{} {}", of(request, "operation"), of(request, "name"));
    server.reviews(path).iter().map(|review| one(&review.review["request"])).collect()
}

#[tokio::test]
async fn a_webhook_reviews_what_its_rules_selectors_and_conditions_match() {
    let server = ReviewServer::start().await;
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    let rule = |resource: &str, operation: &str, scope: &str| {
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource],
            "operations": [operation], "scope": scope}])
    };
    let hooks = [
        (
            "in-other",
            json!({"namespaceSelector":
            {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}),
        ),
        ("of-label", json!({"objectSelector": {"matchLabels": {"w": "yes"}}})),
        (
            "on-condition",
            json!({"matchConditions":
            [{"name": "key", "expression": "has(object.data) && 'k' in object.data"},
                {"name": "user", "expression": "request.userInfo.username != 'nobody'"}]}),
        ),
        ("of-cluster", json!({"rules": rule("*", "CREATE", "Cluster")})),
        ("of-deletes", json!({"rules": rule("configmaps", "DELETE", "*")})),
    ];
    let hooks = hooks.map(|(path, fields)| changed(&server, path, fields));
    register(&admin, false, "v", hooks.into()).await;

    let post = async |path: &str, object: Value| {
        let made = admin.post(path, &object).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
    };
    post(CONFIG_MAPS, labelled("a", "yes")).await;
    post(&format!("{CONFIG_MAPS}?dryRun=All"), labelled("dry", "yes")).await;
    post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await;
    let mut keyed = config_map("b", None);
    keyed["data"] = json!({"k": "v"});
    post("/api/v1/namespaces/other/configmaps", keyed).await;
    let a = format!("{CONFIG_MAPS}/a");
    for label in ["no", "never"] {
        let label = json!({"metadata": {"labels": {"w": label}}});
        assert_eq!(admin.merge(&a, &label).await.unwrap().status, 200);
    }
    assert_eq!(admin.delete(&a).await.unwrap().status, 200);

    assert_eq!(reviewed(&server, "in-other"), ["CREATE b"]);
    // The change that takes the label away is one of an object that has it.
    assert_eq!(reviewed(&server, "of-label"), ["CREATE a", "CREATE dry", "UPDATE a"]);
    assert_eq!(reviewed(&server, "on-condition"), ["CREATE b"]);
    assert_eq!(reviewed(&server, "of-cluster"), ["CREATE other"]);
    assert_eq!(reviewed(&server, "of-deletes"), ["DELETE a"]);
    let dry =
        server.reviews("of-label").into_iter().map(|one| one.review["request"]["dryRun"].clone());
    assert_eq!(dry.collect::<Vec<_>>(), [false, true, false]);
    let deleted = server.reviews("of-deletes").remove(0).review["request"].clone();
    assert_eq!(
        (&deleted["object"], &deleted["oldObject"]["metadata"]["name"]),
        (&Value::Null, &json!("a"))
    );
}

#[tokio::test]
async fn a_rule_matches_other_versions_unless_it_is_exact() {
    let server = ReviewServer::start().await;
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == "v1",
            "schema": {"openAPIV3Schema": open}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": {"name": "things.ex.com"},
        "spec": {"group": "ex.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [version("v1"), version("v2")]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(admin.post(definitions, &definition).await.unwrap().status, 201);
    let rules = json!([{"apiGroups": ["ex.com"], "apiVersions": ["v2"], "resources": ["things"],
        "operations": ["CREATE"]}]);
    let hooks = [("equivalent", "Equivalent"), ("exact", "Exact")].map(|(path, policy)| {
        changed(&server, path, json!({"rules": rules, "matchPolicy": policy}))
    });
    register(&admin, false, "v", hooks.into()).await;
    for version in ["v1", "v2"] {
        let thing = json!({"apiVersion": format!("ex.com/{version}"), "kind": "Thing",
            "metadata": {"name": version}});
        let path = format!("/apis/ex.com/{version}/namespaces/default/things");
        wait_until("things are served", BOUND, || async {
            let made = admin.post(&path, &thing).await.unwrap();
            if made.status == 201 { Ok(()) } else { Err(made.text) }
        })
        .await;
    }
    assert_eq!(reviewed(&server, "exact"), ["CREATE v2"]);
    assert_eq!(reviewed(&server, "equivalent"), ["CREATE v1", "CREATE v2"]);
    let converted = server.reviews("equivalent").remove(0).review["request"].clone();
    let versions = ["kind", "requestKind"].map(|field| converted[field]["version"].clone());
    assert_eq!(versions, ["v2", "v1"]);
    assert_eq!(converted["object"]["apiVersion"], "ex.com/v2");
}
