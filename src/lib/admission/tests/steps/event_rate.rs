//! EventRateLimit over writes of Events.

use crate::{StepRequest, chain, definition, document, store, target, write_namespace};
use ferrokube_admission::config::AdmissionSection;
use ferrokube_admission::{Chain, EventRateLimit};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::Scope;
use ferrokube_storage::Store;
use std::sync::Arc;

/// A chain with these limits, in stopped time.
async fn limited(store: &Store, limits: Value) -> Chain {
    for namespace in ["one", "two"] {
        write_namespace(store, namespace, "Active").await;
    }
    tokio::time::pause();
    let section = AdmissionSection {
        name: "EventRateLimit".to_owned(),
        path: "configuration".to_owned(),
        object: document(json!({
            "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": limits,
        })),
    };
    chain(store).with(Arc::new(EventRateLimit::read(&section).unwrap()))
}

fn limit(kind: &str, burst: i64) -> Value {
    json!({"type": kind, "qps": 1, "burst": burst})
}

fn event(object: &str) -> Document {
    document(
        json!({"involvedObject": {"kind": "Pod", "name": object}, "source": {"component": "c"}}),
    )
}

/// Creates an event; the message of its rejection.
fn create(chain: &Chain, group: &str, namespace: &str, object: &str) -> Result<(), String> {
    let mut definition = definition(group, "events", Scope::Namespaced);
    Arc::get_mut(&mut definition).unwrap().kind = "Event".to_owned();
    let request = StepRequest::create(target(&definition, Some(namespace), "e"));
    let passed = request.pass(chain, &mut event(object));
    passed.map(drop).map_err(|failure| {
        assert_eq!((failure.code, failure.reason.unwrap().as_str()), (429, "TooManyRequests"));
        failure.message
    })
}

#[tokio::test]
async fn events_of_both_groups_share_a_bucket() {
    let store = store();
    let chain = limited(&store, json!([limit("Server", 2)])).await;
    assert_eq!(create(&chain, "", "one", "a"), Ok(()));
    assert_eq!(create(&chain, "events.k8s.io", "two", "a"), Ok(()));
    let reached = "Too many requests: limit reached on type Server for key ";
    assert_eq!(create(&chain, "", "one", "a"), Err(reached.to_owned()));
    assert_eq!(create(&chain, "events.k8s.io", "one", "b"), Err(reached.to_owned()));
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(create(&chain, "", "one", "a"), Ok(()));
}

#[tokio::test]
async fn each_limit_has_buckets_of_its_own() {
    let store = store();
    let limits = json!([limit("Namespace", 3), limit("SourceAndObject", 1)]);
    let chain = limited(&store, limits).await;
    assert_eq!(create(&chain, "", "one", "a"), Ok(()));
    let object = "limit reached on type SourceAndObject for key cPoda";
    let reached = format!("Too many requests: {object}");
    assert_eq!(create(&chain, "", "one", "a"), Err(reached));
    assert_eq!(create(&chain, "", "one", "b"), Ok(()), "of another object");
    assert_eq!(create(&chain, "", "two", "c"), Ok(()), "in another namespace");
    let namespace = "limit reached on type Namespace for key one";
    let reached = format!("Too many requests: [{namespace}, {object}]");
    assert_eq!(create(&chain, "", "one", "a"), Err(reached));
}

#[tokio::test]
async fn other_resources_than_events_are_not_limited() {
    let store = store();
    let chain = limited(&store, json!([limit("Server", 1)])).await;
    let maps = definition("", "configmaps", Scope::Namespaced);
    let request = StepRequest::create(target(&maps, Some("one"), "m"));
    for _ in 0..3 {
        request.pass(&chain, &mut document(json!({}))).unwrap();
    }
    assert_eq!(create(&chain, "", "one", "a"), Ok(()));
    assert!(create(&chain, "", "one", "a").is_err());
}
