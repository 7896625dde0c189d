//! CustomResourceDefinitions that cost much to check and to serve.

use super::{Tally, at_once};
use crate::stage::{AUTHOR, Stage};
use crate::wire::{Protocol, Wire};
use serde_json::{Value, json};
use std::sync::Arc;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(plural: &str, properties: Value) -> String {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": properties}}});
    let names = json!({"plural": plural, "singular": plural, "kind": format!("K{plural}"), "listKind": format!("K{plural}List")});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let spec = json!({"group": "bombs.example.com", "scope": "Namespaced", "names": names, "versions": [version]});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.bombs.example.com")}, "spec": spec})
        .to_string()
}

fn wide() -> Value {
    let properties: serde_json::Map<String, Value> = (0..20_000).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
    json!({"type": "object", "properties": properties})
}

fn deep() -> Value {
    let mut schema = json!({"type": "string"});
    for _ in 0..60 {
        schema = json!({"type": "object", "properties": {"a": schema}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    }
    schema
}

fn rules() -> Value {
    let rule = "self.all(a, self.all(b, self.all(c, a == b && b == c)))";
    let rules: Vec<_> = (0..100).map(|_| json!({"rule": rule})).collect();
    json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": rules})
}

fn patterns() -> Value {
    let properties: serde_json::Map<String, Value> =
        (0..500).map(|number| (format!("p{number}"), json!({"type": "string", "pattern": "^((a{1,200}){1,200}){1,200}$"}))).collect();
    json!({"type": "object", "properties": properties})
}

/// Makes each, and takes it away again.
pub(super) async fn bombs(stage: Arc<Stage>, tally: Arc<Tally>) {
    at_once(4, |index| {
        let (plural, properties) = match index {
            0 => ("wides", wide()),
            1 => ("deeps", deep()),
            2 => ("ruleds", rules()),
            _ => ("patterns", patterns()),
        };
        let (stage, tally) = (&stage, &tally);
        async move {
            let body = definition(plural, properties);
            let answer = async {
                let mut wire = Wire::connect(stage, Protocol::Http1).await?;
                let answer = wire.post(DEFINITIONS, AUTHOR, "application/json", body.as_bytes()).await?;
                wire.send("DELETE", &format!("{DEFINITIONS}/{plural}.bombs.example.com"), AUTHOR, "application/json", b"").await?;
                Ok(answer)
            };
            tally.answer(&answer.await);
        }
    })
    .await;
}
