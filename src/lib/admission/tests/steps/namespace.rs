//! NamespaceLifecycle.

use crate::{StepRequest, chain, definition, document, put, store, target, write_namespace};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::Operation;
use ferrokube_resource::Scope;
use ferrokube_storage::{Guard, Prefix, Rejected, Store, Txn};

fn create(store: &Store, namespace: &str) -> Result<ferrokube_registry::Effects, Failure> {
    let configmaps = definition("", "configmaps", Scope::Namespaced);
    StepRequest::create(target(&configmaps, Some(namespace), "a"))
        .pass(&chain(store), &mut Document::new())
}

#[tokio::test]
async fn a_missing_namespace_is_not_found() {
    let failure = create(&store(), "nowhere").unwrap_err();
    assert_eq!(failure.code, 404);
    let details = failure.details.unwrap();
    assert_eq!((details.kind.as_str(), details.name.as_str()), ("namespaces", "nowhere"));
}

/// Creates in a terminating namespace are rejected.
#[tokio::test]
async fn fault_27_a_terminating_namespace_rejects_creates() {
    let store = store();
    write_namespace(&store, "n", "Terminating").await;
    let failure = create(&store, "n").unwrap_err();
    assert_eq!(failure.code, 403);
    let details = failure.details.unwrap();
    assert_eq!((details.kind.as_str(), details.name.as_str()), ("configmaps", "a"));
    assert_eq!(
        (details.causes[0].reason.as_str(), details.causes[0].field.as_str()),
        ("NamespaceTerminating", "metadata.namespace")
    );
}

/// Also if it terminates between check and commit.
#[tokio::test]
async fn fault_27_a_create_races_the_deletion_of_its_namespace() {
    let store = store();
    write_namespace(&store, "n", "Active").await;
    let effects = create(&store, "n").unwrap();
    assert!(
        matches!(effects.guards.as_slice(), [Guard::At(key, _)] if key.as_str() == "/registry/namespaces/n")
    );
    write_namespace(&store, "n", "Terminating").await;
    let key = Prefix::new("configmaps").unwrap().key(Some("n"), "a").unwrap();
    let txn =
        Txn { guards: effects.guards, writes: vec![put(&key, &json!({"metadata": {}}), &[])] };
    assert!(matches!(store.submit(txn), Err(Rejected::Guard(_))));
    assert_eq!(create(&store, "n").unwrap_err().code, 403);
}

#[tokio::test]
async fn updates_and_deletes_continue_while_a_namespace_terminates() {
    let store = store();
    write_namespace(&store, "n", "Terminating").await;
    let configmaps = definition("", "configmaps", Scope::Namespaced);
    for operation in [Operation::Update, Operation::Delete] {
        let request = StepRequest {
            operation,
            old: Some(document(json!({}))),
            ..StepRequest::create(target(&configmaps, Some("n"), "a"))
        };
        request.pass(&chain(&store), &mut Document::new()).unwrap();
    }
}

#[tokio::test]
async fn protected_namespaces_cannot_be_deleted() {
    let store = store();
    let namespaces = definition("", "namespaces", Scope::Cluster);
    let delete = |name| StepRequest {
        operation: Operation::Delete,
        ..StepRequest::create(target(&namespaces, None, name))
    };
    for name in ["default", "kube-system", "kube-public"] {
        let failure = delete(name).pass(&chain(&store), &mut Document::new()).unwrap_err();
        assert_eq!((failure.code, failure.details.unwrap().name.as_str()), (403, name));
    }
    delete("mine").pass(&chain(&store), &mut Document::new()).unwrap();
    let others = definition("example.com", "namespaces", Scope::Cluster);
    StepRequest {
        operation: Operation::Delete,
        ..StepRequest::create(target(&others, None, "default"))
    }
    .pass(&chain(&store), &mut Document::new())
    .unwrap();
}
