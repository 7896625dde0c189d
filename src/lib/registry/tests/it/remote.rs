//! Writes with webhooks: outside the turn, by compare-and-swap.

use crate::support::*;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_registry::{DeleteOptions, Deleted};
use std::sync::atomic::Ordering;

async fn server() -> TestRegistry {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    server.admission.remote.store(true, Ordering::SeqCst);
    server
}

/// The next webhook call changes the object before it returns.
fn interfere(server: &TestRegistry) {
    interfere_by(server, json!({"data": {"other": "1"}}));
}

fn interfere_by(server: &TestRegistry, change: Value) {
    let other = server.clone();
    let change = move || -> ferrokube_registry::admission::RemoteFuture<'static, ()> {
        Box::pin(async move {
            other.admission.remote.store(false, Ordering::SeqCst);
            other.patch(CONFIGMAPS, "a", merge(change)).await.unwrap();
            other.admission.remote.store(true, Ordering::SeqCst);
            Ok(())
        })
    };
    *server.admission.during_remote.lock().unwrap() = Some(Box::new(change));
}

#[tokio::test]
async fn webhooks_change_what_is_stored() {
    let server = server().await;
    let created = server.post(CONFIGMAPS, configmap("b", "v")).await.unwrap();
    assert_eq!(created.annotation("example.com/seen"), Some("yes"));
    let patched = server.patch(CONFIGMAPS, "a", merge(json!({"data": {"k": "w"}}))).await.unwrap();
    assert_eq!(
        (patched.annotation("example.com/seen"), patched.str(&["data", "k"])),
        (Some("yes"), Some("w"))
    );
    server.delete(CONFIGMAPS, "a").await.unwrap();
    refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
    refused(&server.post(CONFIGMAPS, configmap("b", "v")).await, "AlreadyExists", &[]);
}

#[tokio::test]
async fn a_patch_restarts_if_the_object_changed() {
    let server = server().await;
    interfere(&server);
    let patched = server.patch(CONFIGMAPS, "a", merge(json!({"data": {"k": "w"}}))).await.unwrap();
    assert_eq!(
        (patched.str(&["data", "k"]), patched.str(&["data", "other"])),
        (Some("w"), Some("1"))
    );
    assert_eq!(server.admission.remote_calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_update_with_a_stale_version_conflicts() {
    let server = server().await;
    let mut object = configmap("a", "w");
    object["metadata"]["resourceVersion"] =
        json!(server.get(CONFIGMAPS, "a").await.unwrap().meta("resourceVersion"));
    interfere(&server);
    refused(&server.put(CONFIGMAPS, "a", object).await, "Conflict", &[]);
    interfere(&server);
    let unconditional = server.put(CONFIGMAPS, "a", configmap("a", "x")).await.unwrap();
    assert_eq!(
        (unconditional.str(&["data", "k"]), unconditional.str(&["data", "other"])),
        (Some("x"), None)
    );
}

#[tokio::test]
async fn a_delete_restarts_if_the_object_changed() {
    let server = server().await;
    let version = server.get(CONFIGMAPS, "a").await.unwrap().meta("resourceVersion").to_owned();
    interfere(&server);
    let options = DeleteOptions { resource_version: Some(version), ..DeleteOptions::default() };
    refused(&server.delete_with(CONFIGMAPS, "a", &options).await, "Conflict", &[]);
    interfere_by(&server, json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    let deleted = server.delete(CONFIGMAPS, "a").await.unwrap();
    assert!(
        matches!(deleted, Deleted::Pending(_)),
        "the finalizer that was added meanwhile holds it: {deleted:?}"
    );
}

#[tokio::test]
async fn a_webhook_cannot_rename_an_updated_object() {
    let server = server().await;
    *server.admission.renames.lock().unwrap() = Some("b");
    for answer in [
        server.put(CONFIGMAPS, "a", configmap("a", "w")).await,
        server.patch(CONFIGMAPS, "a", merge(json!({"data": {"k": "w"}}))).await,
    ] {
        refused(&answer, "Invalid", &["Invalid metadata.name"]);
    }
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap().str(&["data", "k"]), Some("v"));
    refused(&server.get(CONFIGMAPS, "b").await, "NotFound", &[]);
}
