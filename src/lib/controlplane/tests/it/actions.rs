//! What runs is exactly what was authorized.

use crate::support::{BOUND, CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::document::json;
use ferrokube_auth::audit::{AuditConfig, AuditLog, AuditPolicy};
use ferrokube_registry::ComputedResource;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const EVERYTHING: &[u8] = b"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";

/// A `serviceaccounts/token` that counts its creates.
#[derive(Default)]
struct Tokens(AtomicUsize);

impl ComputedResource for Tokens {
    fn create<'a>(&'a self, _call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(object)))
    }
}

/// A definition with every subresource.
fn widgets() -> ferrokube_apimachinery::document::Value {
    let open = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let scale =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": open, "subresources": {"status": {}, "scale": scale}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}, "versions": [version]},
    })
}

/// Waits for the API service of the widgets, which is written in the background.
async fn registered(server: &TestServer) {
    let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com";
    while server.get(service).await.code != 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn fault_50_a_reader_cannot_write_through_the_legacy_watch_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let policy = AuditPolicy::parse(EVERYTHING).unwrap();
    let audit = AuditLog::open(AuditConfig { policy, ..AuditConfig::new(&path) }).unwrap();
    let server = TestServer::with(|builder| builder.audit(audit.clone())).await;
    let tokens = Arc::new(Tokens::default());
    server.registry.catalog().put_computed("", "serviceaccounts", "token", tokens.clone());
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"replicas": 1}});
    for (path, object) in [
        (accounts, json!({"metadata": {"name": "root"}})),
        ("/api/v1/namespaces/default/resourcequotas", json!({"metadata": {"name": "q"}})),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets()),
        ("/apis/example.com/v1/namespaces/default/widgets", widget),
    ] {
        assert_eq!(server.post(path, &object).await.code, 201, "{path}");
    }
    server.configmap("c").await;
    registered(&server).await;
    let before = server.written().await;

    let merge = "application/merge-patch+json";
    let widget = "/apis/example.com/v1/watch/namespaces/default/widgets";
    let attacks = [
        ("POST", "/api/v1/watch/namespaces/kube-system/serviceaccounts/root/token", "{}", 404),
        (
            "PATCH",
            "/api/v1/watch/namespaces/default/resourcequotas/q/status",
            r#"{"status":{"used":{"pods":"1"}}}"#,
            404,
        ),
        (
            "PUT",
            "/api/v1/watch/namespaces/default/resourcequotas/q/status",
            r#"{"metadata":{"name":"q"}}"#,
            404,
        ),
        (
            "PUT",
            "/api/v1/watch/namespaces/default/finalize",
            r#"{"metadata":{"name":"default"}}"#,
            404,
        ),
        ("DELETE", "/api/v1/watch/namespaces/default", "", 405),
        (
            "POST",
            "/api/v1/watch/namespaces/default/configmaps",
            r#"{"metadata":{"name":"new"}}"#,
            405,
        ),
        (
            "PUT",
            "/api/v1/watch/namespaces/default/configmaps/c",
            r#"{"metadata":{"name":"c"}}"#,
            405,
        ),
        ("PATCH", "/api/v1/watch/namespaces/default/configmaps/c", r#"{"data":{"k":"w"}}"#, 405),
        ("DELETE", "/api/v1/watch/namespaces/default/configmaps/c", "", 405),
        ("DELETE", "/api/v1/watch/namespaces/default/configmaps", "", 405),
        ("PATCH", &format!("{widget}/w/status"), r#"{"status":{"x":1}}"#, 405),
        ("PATCH", &format!("{widget}/w/scale"), r#"{"spec":{"replicas":9}}"#, 405),
        ("PUT", &format!("{widget}/w"), r#"{"metadata":{"name":"w"}}"#, 405),
        ("DELETE", &format!("{widget}/w"), "", 405),
        ("DELETE", widget, "", 405),
        ("POST", "/api/v1/proxy/namespaces/kube-system/serviceaccounts/root/token", "{}", 403),
        ("POST", accounts, r#"{"metadata":{"name":"new"}}"#, 403),
    ];
    let mut ids = Vec::new();
    for (method, path, body, want) in attacks {
        for query in ["", "?watch=1", "?watch=0&fieldSelector=metadata.name%3Dx"] {
            let kind = if method == "PATCH" { merge } else { "application/json" };
            let id = format!("attack-{}", ids.len());
            let headers =
                [("authorization", "Bearer reader"), ("content-type", kind), ("audit-id", &id)];
            let answer = server.send(method, &format!("{path}{query}"), &headers, body).await;
            assert_eq!(answer.code, want, "{method} {path}{query}: {}", answer.text());
            ids.push(id);
        }
    }
    assert_eq!(server.written().await, before, "nothing was written");
    assert_eq!(tokens.0.load(Ordering::Relaxed), 0, "no token was made");
    assert_eq!(server.get(&format!("{CONFIGMAPS}/c")).await.code, 200);
    audit.close();
    // What changes nothing is recorded after its response.
    let begun = Instant::now();
    for id in ids {
        let event = format!("\"auditID\":\"{id}\"");
        while !std::fs::read_to_string(&path).unwrap().contains(&event) {
            assert!(begun.elapsed() < BOUND, "{id} is audited");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
