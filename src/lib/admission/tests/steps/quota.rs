//! ResourceQuota.

use crate::{StepRequest, chain, definition, put, store, target, write_namespace};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Admission, Effects, Operation};
use ferrokube_resource::Scope;
use ferrokube_storage::{Key, Prefix, Rejected, Store, Txn};
use proptest::prelude::*;
use std::sync::Arc;

fn quota_key(name: &str) -> Key {
    Prefix::new("resourcequotas").unwrap().key(Some("n"), name).unwrap()
}

async fn write_quota(store: &Store, name: &str, spec: Value, hard: Value, used: Value) {
    let object = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec, "status": {"hard": hard, "used": used}});
    let txn = Txn { guards: Vec::new(), writes: vec![put(&quota_key(name), &object, &[])] };
    store.submit(txn).unwrap().committed().await.unwrap();
}

async fn with_quota(name: &str, hard: Value, used: Value) -> Store {
    let store = store();
    write_namespace(&store, "n", "Active").await;
    write_quota(&store, name, json!({}), hard, used).await;
    store
}

fn admit(store: &Store, group: &str, plural: &str) -> Result<Effects, Failure> {
    let kind = definition(group, plural, Scope::Namespaced);
    StepRequest::create(target(&kind, Some("n"), "c")).pass(&chain(store), &mut Document::new())
}

/// Creates as the pipeline does: admit, submit, retry if a guard fails.
async fn create(store: &Store, plural: &str, name: &str) -> Result<(), Failure> {
    let kind = definition("", plural, Scope::Namespaced);
    let request = StepRequest::create(target(&kind, Some("n"), name));
    let key = Prefix::new(plural).unwrap().key(Some("n"), name).unwrap();
    loop {
        let effects = request.pass(&chain(store), &mut Document::new())?;
        let mut writes = vec![put(&key, &json!({"metadata": {"name": name}}), &[])];
        writes.extend(effects.writes);
        match store.submit(Txn { guards: effects.guards, writes }) {
            Ok(ticket) => {
                return ticket
                    .committed()
                    .await
                    .map(drop)
                    .map_err(|error| Failure::internal(error.to_string()));
            }
            Err(Rejected::Guard(_)) => tokio::task::yield_now().await,
            Err(error) => return Err(Failure::internal(error.to_string())),
        }
    }
}

fn used(store: &Store, quota: &str, name: &str) -> String {
    let entry = store.get(&quota_key(quota)).unwrap();
    codec::read(&entry.bytes).unwrap().document.str(&["status", "used", name]).unwrap().to_owned()
}

#[tokio::test]
async fn creates_are_limited_by_count() {
    let store = with_quota("q", json!({"count/secrets": "2"}), json!({"count/secrets": "0"})).await;
    create(&store, "secrets", "a").await.unwrap();
    create(&store, "secrets", "b").await.unwrap();
    assert_eq!(used(&store, "q", "count/secrets"), "2");
    let failure = create(&store, "secrets", "c").await.unwrap_err();
    assert_eq!(failure.code, 403);
    assert!(failure.message.contains("exceeded quota: q, requested: count/secrets=1, used: count/secrets=2, limited: count/secrets=2"), "{failure}");
    assert_eq!(failure.details.unwrap().kind, "secrets");
    create(&store, "configmaps", "c").await.unwrap();
}

#[tokio::test]
async fn counts_are_named_in_order_and_as_they_are_written() {
    let full = json!({"count/configmaps": "1k", "configmaps": "1k"});
    let store = with_quota("q", full.clone(), full).await;
    let failure = create(&store, "configmaps", "c").await.unwrap_err();
    let want = "requested: configmaps=1,count/configmaps=1, used: configmaps=1k,count/configmaps=1k, limited: configmaps=1k,count/configmaps=1k";
    assert!(failure.message.ends_with(want), "{failure}");
    let store = with_quota("q", json!({"configmaps": "5e3"}), json!({"configmaps": "1999"})).await;
    create(&store, "configmaps", "c").await.unwrap();
    assert_eq!(used(&store, "q", "configmaps"), "2k");
}

#[tokio::test]
async fn plain_and_prefixed_names_count_the_same_objects() {
    let store = with_quota(
        "q",
        json!({"secrets": "1", "count/secrets": "5"}),
        json!({"secrets": "0", "count/secrets": "0"}),
    )
    .await;
    create(&store, "secrets", "a").await.unwrap();
    assert_eq!(
        (used(&store, "q", "secrets"), used(&store, "q", "count/secrets")),
        ("1".to_owned(), "1".to_owned())
    );
    let failure = create(&store, "secrets", "b").await.unwrap_err();
    assert!(failure.message.contains("requested: secrets=1,"), "{failure}");
}

#[test]
fn objects_are_counted_under_their_quota_names() {
    let names = |group, plural| ferrokube_admission::quota::names(group, plural).join(" ");
    assert_eq!(names("", "secrets"), "count/secrets secrets");
    assert_eq!(names("", "serviceaccounts"), "count/serviceaccounts");
    assert_eq!(names("ex.com", "secrets"), "count/secrets.ex.com");
    assert_eq!(
        names("", "pods"),
        "count/pods",
        "finished pods are no usage: the plain name waits for them"
    );
    assert_eq!(names("", "events") + &names("events.k8s.io", "events"), "");
}

#[tokio::test]
async fn all_names_with_unknown_usage_are_reported() {
    let store =
        with_quota("q", json!({"secrets": "1", "count/secrets": "5"}), json!({"secrets": "0"}))
            .await;
    let failure = create(&store, "secrets", "a").await.unwrap_err();
    assert!(
        failure.message.contains("status unknown for quota: q, resources: count/secrets,secrets"),
        "{failure}"
    );
}

#[tokio::test]
async fn quota_names_include_the_group() {
    let store = with_quota(
        "q",
        json!({"count/leases.coordination.k8s.io": "0"}),
        json!({"count/leases.coordination.k8s.io": "0"}),
    )
    .await;
    assert_eq!(admit(&store, "coordination.k8s.io", "leases").unwrap_err().code, 403);
    admit(&store, "", "leases").unwrap();
    admit(&store, "example.com", "secrets").unwrap();
}

#[tokio::test]
async fn round_limits_in_canonical_form_are_read() {
    for (hard, free) in [("1k", true), ("2Ki", true), ("1e3", true), ("0", false), ("x", false)] {
        let store =
            with_quota("q", json!({"count/secrets": hard}), json!({"count/secrets": "999"})).await;
        assert_eq!(admit(&store, "", "secrets").is_ok(), free, "{hard}");
    }
}

#[tokio::test]
async fn fault_34_a_create_reads_quotas_up_to_a_size() {
    let store = with_quota("q", json!({"count/secrets": "9"}), json!({"count/secrets": "0"})).await;
    let secrets = target(&definition("", "secrets", Scope::Namespaced), Some("n"), "c");
    let takes_long = || chain(&store).create_takes_long(&secrets);
    assert!(!takes_long());
    let counts = (0..3_000).map(|number| format!("count/k{number:05}.example.com"));
    let counts: Map = counts.map(|name| (name, json!("1"))).collect();
    let counts = Value::Object(counts);
    for name in ["r", "s"] {
        write_quota(&store, name, json!({}), counts.clone(), json!({})).await;
    }
    assert!(takes_long(), "it leaves the worker");
    assert_eq!(admit(&store, "", "secrets").unwrap().writes.len(), 1);
    write_quota(&store, "t", json!({}), counts, json!({})).await;
    let failure = admit(&store, "", "secrets").unwrap_err();
    assert_eq!(failure.code, 403);
    assert!(failure.message.contains("have more than 262144 bytes"), "{failure}");
    let kind = definition("", "secrets", Scope::Namespaced);
    write_namespace(&store, "m", "Active").await;
    let elsewhere = StepRequest::create(target(&kind, Some("m"), "c"));
    assert!(elsewhere.pass(&chain(&store), &mut Document::new()).is_ok());
}

#[tokio::test]
async fn unknown_usage_refuses_and_unset_status_does_not() {
    let store = with_quota("q", json!({"count/secrets": "5"}), json!({})).await;
    assert!(
        admit(&store, "", "secrets").unwrap_err().message.contains("status unknown for quota: q")
    );
    let store = with_quota("q", json!({}), json!({})).await;
    assert!(admit(&store, "", "secrets").unwrap().writes.is_empty());
}

#[tokio::test]
async fn scoped_quotas_count_pods_only() {
    let store = store();
    write_namespace(&store, "n", "Active").await;
    let limit = json!({"count/secrets": "0"});
    write_quota(&store, "q", json!({"scopes": ["BestEffort"]}), limit.clone(), limit).await;
    admit(&store, "", "secrets").unwrap();
}

#[tokio::test]
async fn all_matching_quotas_are_enforced() {
    let store = with_quota("a", json!({"count/secrets": "9"}), json!({"count/secrets": "0"})).await;
    write_quota(&store, "b", json!({}), json!({"secrets": "2"}), json!({"secrets": "0"})).await;
    create(&store, "secrets", "x").await.unwrap();
    create(&store, "secrets", "y").await.unwrap();
    assert_eq!(
        (used(&store, "a", "count/secrets"), used(&store, "b", "secrets")),
        ("2".to_owned(), "2".to_owned())
    );
    let failure = create(&store, "secrets", "z").await.unwrap_err();
    assert!(failure.message.contains("exceeded quota: b"), "{failure}");
}

#[tokio::test]
async fn each_quota_has_its_own_usage() {
    let store = with_quota("a", json!({"count/secrets": "9"}), json!({"count/secrets": "5"})).await;
    write_quota(&store, "b", json!({}), json!({"secrets": "5"}), json!({"secrets": "4"})).await;
    create(&store, "secrets", "x").await.unwrap();
    assert_eq!(
        (used(&store, "a", "count/secrets"), used(&store, "b", "secrets")),
        ("6".to_owned(), "5".to_owned())
    );
}

#[tokio::test]
async fn quotas_count_quotas() {
    let store =
        with_quota("q", json!({"resourcequotas": "1"}), json!({"resourcequotas": "1"})).await;
    assert_eq!(admit(&store, "", "resourcequotas").unwrap_err().code, 403);
    let store =
        with_quota("q", json!({"resourcequotas": "2"}), json!({"resourcequotas": "1"})).await;
    create(&store, "resourcequotas", "r").await.unwrap();
    assert_eq!(used(&store, "q", "resourcequotas"), "2");
}

#[tokio::test]
async fn only_creates_are_counted() {
    let store = with_quota("q", json!({"count/secrets": "0"}), json!({"count/secrets": "0"})).await;
    let kind = definition("", "secrets", Scope::Namespaced);
    for operation in [Operation::Update, Operation::Delete] {
        let request =
            StepRequest { operation, ..StepRequest::create(target(&kind, Some("n"), "a")) };
        request.pass(&chain(&store), &mut Document::new()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// With any number of concurrent creates under any number of quotas, as many succeed as the
    /// smallest limit allows.
    #[test]
    fn parallel_creates_never_exceed(limits in prop::collection::vec(0_usize..12, 1..5), creates in 1_usize..40) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        let limit = *limits.iter().min().unwrap();
        let stored = runtime.block_on(async {
            let store = store();
            write_namespace(&store, "n", "Active").await;
            for (index, limit) in limits.iter().enumerate() {
                let hard = json!({"count/secrets": limit.to_string()});
                write_quota(&store, &format!("q{index}"), json!({}), hard, json!({"count/secrets": "0"})).await;
            }
            let shared = Arc::new(store);
            let tasks: Vec<_> = (0..creates).map(|index| {
                let store = shared.clone();
                tokio::spawn(async move { create(&store, "secrets", &format!("s{index}")).await.is_ok() })
            }).collect();
            let mut succeeded = 0;
            for task in tasks {
                succeeded += usize::from(task.await.unwrap());
            }
            let stored = shared.snapshot(&Prefix::new("secrets").unwrap()).count(Some("n"), None);
            for index in 0..limits.len() {
                assert_eq!(used(&shared, &format!("q{index}"), "count/secrets"), stored.to_string(), "each quota counts each object once");
            }
            assert_eq!(succeeded, stored);
            stored
        });
        prop_assert_eq!(stored, limit.min(creates));
    }
}
