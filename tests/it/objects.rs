//! Objects used by several test modules.

use ferrokube_testkit::Client;
use serde_json::{Value, json};

/// Creates an object; returns the response.
pub(crate) async fn made(admin: &Client, path: &str, object: Value) -> Value {
    let answer = admin.post(path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body
}

/// A config map, with an optional owner.
pub(crate) fn config_map(name: &str, owner: Option<&Value>) -> Value {
    let owners: Vec<Value> = owner
        .into_iter()
        .map(|owner| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}))
        .collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}
