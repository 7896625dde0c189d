//! CustomResourceDefinitions that are expensive to check and to serve.

use super::bodies::{one_key_maps, send_as};
use super::readers::read_as;
use super::{AttackTally, at_once};
use crate::testbed::{AUTHOR, TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

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
    let properties: serde_json::Map<String, Value> =
        (0..20_000).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
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
    let properties: serde_json::Map<String, Value> = (0..500)
        .map(|number| {
            (
                format!("p{number}"),
                json!({"type": "string", "pattern": "^((a{1,200}){1,200}){1,200}$"}),
            )
        })
        .collect();
    json!({"type": "object", "properties": properties})
}

/// Creates and deletes each in turn.
pub(super) async fn bombs(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
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
                let mut wire = Wire::connect(stage, WireProtocol::Http1).await?;
                let answer =
                    wire.post(DEFINITIONS, AUTHOR, "application/json", body.as_bytes()).await?;
                wire.send(
                    "DELETE",
                    &format!("{DEFINITIONS}/{plural}.bombs.example.com"),
                    AUTHOR,
                    "application/json",
                    b"",
                )
                .await?;
                Ok(answer)
            };
            tally.answer(&answer.await);
        }
    })
    .await;
}

/// OpenAPI documents, invalidated faster than they are built.
pub(super) async fn openapi(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let reading = at_once(100, |index| {
        let (stage, tally) = (&stage, &tally);
        async move {
            read_as(stage, tally, ("/openapi/v2", TENANTS[index % 8], "accept-encoding: gzip\r\n"))
                .await
        }
    });
    let changing = at_once(1, |_| async {
        let body = definition("changes", json!({"type": "object"}));
        send_as(
            &stage,
            &tally,
            ("POST", DEFINITIONS, "application/json"),
            (AUTHOR, body.as_bytes()),
        )
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        send_as(
            &stage,
            &tally,
            ("DELETE", &format!("{DEFINITIONS}/changes.bombs.example.com"), "application/json"),
            (AUTHOR, b""),
        )
        .await;
    });
    tokio::join!(reading, changing);
}

/// Large objects behind a webhook that accepts connections and never responds.
pub(super) async fn hung_webhook(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    const THINGS: &str = "/apis/hung.example.com/v1/namespaces/tenant/things";
    let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else {
        return tally.count("no listener");
    };
    let Ok(address) = listener.local_addr() else { return tally.count("no listener") };
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == "v1", "schema": schema});
    let names =
        json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let client = json!({"url": format!("https://{address}/"), "caBundle": ""});
    let webhook = json!({"clientConfig": client, "conversionReviewVersions": ["v1"]});
    let conversion = json!({"strategy": "Webhook", "webhook": webhook});
    let spec = json!({"group": "hung.example.com", "scope": "Namespaced", "names": names, "versions": [version("v1"), version("v2")], "conversion": conversion});
    let body = json!({"metadata": {"name": "things.hung.example.com"}, "spec": spec}).to_string();
    send_as(&stage, &tally, ("POST", DEFINITIONS, "application/json"), (AUTHOR, body.as_bytes()))
        .await;
    let (maps, text) = (one_key_maps(400_000), "x".repeat(900_000));
    let thing = |version: &str, index: usize| {
        format!(
            r#"{{"apiVersion":"hung.example.com/{version}","kind":"Thing","metadata":{{"name":"t{index}"}},"spec":{maps},"text":"{text}"}}"#
        )
    };
    for (index, token) in TENANTS.iter().enumerate() {
        send_as(
            &stage,
            &tally,
            ("POST", THINGS, "application/json"),
            (token, thing("v1", index).as_bytes()),
        )
        .await;
    }
    let taking = async {
        let mut taken = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            taken.push(socket);
        }
    };
    let waiting = at_once(50, |index| {
        let (stage, tally, token) = (&stage, &tally, TENANTS[index % 8]);
        let body = if index % 2 == 0 { String::new() } else { thing("v2", index % 8) };
        async move {
            let path = format!("/apis/hung.example.com/v2/namespaces/tenant/things/t{}", index % 8);
            let method = if body.is_empty() { "GET" } else { "PUT" };
            send_as(stage, tally, (method, &path, "application/json"), (token, body.as_bytes()))
                .await;
        }
    });
    tokio::join!(taking, waiting);
}
