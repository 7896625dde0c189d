//! The local client, computed resources, hostile input.

use crate::support::*;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::{
    ComputedResource, DeleteOptions, ListOptions, Local, Patch, Target, WatchItem, WatchOptions,
    WriteOptions,
};
use std::sync::Arc;

#[tokio::test]
async fn the_local_client_uses_the_pipeline() {
    let server = TestRegistry::new();
    let namespaces = Local::new(&server.registry, "", "v1", "namespaces").unwrap();
    assert!(Local::new(&server.registry, "", "v9", "namespaces").is_none());
    assert_eq!(namespaces.get("", "n").await.unwrap(), None);
    let object = Document::from_value(json!({"metadata": {"name": "n"}})).unwrap();
    let created = namespaces.create("", object.clone()).await.unwrap();
    assert_eq!(created.str(&["status", "phase"]), Some("Active"));
    assert_eq!(server.admission.seen.lock().unwrap().len(), 1, "admission saw it");
    refused(&namespaces.create("", object).await, "AlreadyExists", &[]);
    let mut changed = created.clone();
    changed.set(&["metadata", "labels", "l"], "1");
    let updated = namespaces.update(changed.clone(), "").await.unwrap();
    changed.set(&["metadata", "labels", "l"], "2");
    refused(&namespaces.update(changed, "").await, "Conflict", &[]);
    let patched = namespaces
        .patch("", "n", "", merge(json!({"metadata": {"labels": {"l": "3"}}})))
        .await
        .unwrap();
    assert_eq!((patched.label("l"), updated.label("l")), (Some("3"), Some("1")));
    assert_eq!(namespaces.list("").await.unwrap(), [patched]);
    namespaces.delete("", "n", &DeleteOptions::default()).await.unwrap();
    namespaces.delete("", "gone", &DeleteOptions::default()).await.unwrap();
    assert!(namespaces.get("", "n").await.unwrap().unwrap().is_terminating());
}

#[tokio::test]
async fn the_local_client_looks_at_no_more_objects_than_it_needs() {
    let server = TestRegistry::new();
    let namespaces = Local::new(&server.registry, "", "v1", "namespaces").unwrap();
    for name in ["a", "b", "c", "d"] {
        let object = Document::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create("", object).await.unwrap();
    }
    let mut seen = Vec::new();
    let is_wanted = |namespace: &Document| {
        seen.push(namespace.name().to_owned());
        namespace.name() != "a"
    };
    let found = namespaces.find("", 2, is_wanted).await.unwrap();
    let found: Vec<&str> = found.iter().map(|namespace| namespace.name()).collect();
    assert_eq!((found, seen), (vec!["b", "c"], ["a", "b", "c"].map(str::to_owned).to_vec()));
}

struct Echo;

impl ComputedResource for Echo {
    fn create<'a>(&'a self, call: ComputedCall<'a>, mut object: Document) -> ComputedFuture<'a> {
        let status = json!({"user": call.context.user.name, "name": call.target.name});
        object.set(&["status"], status);
        Box::pin(async { Ok(object) })
    }
}

/// Projects the number of values, and truncates to it.
struct CountSubresource;

impl ComputedResource for CountSubresource {
    fn create<'a>(&'a self, _call: ComputedCall<'a>, _object: Document) -> ComputedFuture<'a> {
        unreachable!("a projection is never created")
    }

    fn is_projection(&self) -> bool {
        true
    }

    fn project(&self, _target: &Target, object: &Document) -> Result<Document, Failure> {
        let count =
            object.get(&["data"]).and_then(|data| data.as_object()).map_or(0, |data| data.len());
        let shown = json!({"kind": "Count", "apiVersion": "test/v1", "metadata": {"name": object.name()}, "spec": {"count": count}});
        Ok(Document::from_value(shown).unwrap())
    }

    fn inject(
        &self,
        _target: &Target,
        projection: &Document,
        object: &mut Document,
    ) -> Result<(), Failure> {
        let count = projection
            .get(&["spec", "count"])
            .and_then(|count| count.as_u64())
            .ok_or_else(|| Failure::bad_request("no count"))?;
        object.set(
            &["data"],
            (0..count)
                .map(|n| (n.to_string(), json!("v")))
                .collect::<ferrokube_apimachinery::document::Map>(),
        );
        Ok(())
    }
}

#[tokio::test]
async fn computed_resources_are_not_stored() {
    let server = TestRegistry::new();
    let reviews = ("authentication.k8s.io", "selfsubjectreviews");
    server.registry.catalog().put_computed(reviews.0, reviews.1, "", Arc::new(Echo));
    let answer = server.post(reviews, json!({})).await.unwrap();
    assert_eq!(
        (answer.kind(), answer.str(&["status", "user"])),
        ("SelfSubjectReview", Some("admin"))
    );
    refused(
        &server.post(reviews, json!({"kind": "Pod", "apiVersion": "v1"})).await,
        "BadRequest",
        &[],
    );
    refused(&server.list(reviews, &Default::default()).await, "MethodNotAllowed", &[]);
}

#[tokio::test]
async fn a_subresource_may_project_another_kind() {
    let server = TestRegistry::new();
    let mut definition =
        ferrokube_resource::Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    definition.versions[0].subresources.push(ferrokube_resource::Subresource {
        name: "count",
        kind: ferrokube_apimachinery::gvk::GroupVersionKind::new("test", "v1", "Count"),
        verbs: ferrokube_resource::Verbs::GET_PATCH_UPDATE,
        reset: Default::default(),
        columns: None,
    });
    server.registry.catalog().put(Arc::new(definition));
    server.registry.catalog().put_computed("", "configmaps", "count", Arc::new(CountSubresource));
    let object = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let shown = server.get(CONFIGMAPS, "a/count").await.unwrap();
    assert_eq!(
        (shown.kind(), shown.get(&["spec", "count"]), version(&shown)),
        ("Count", Some(&json!(1)), version(&object))
    );
    let patched =
        server.patch(CONFIGMAPS, "a/count", merge(json!({"spec": {"count": 3}}))).await.unwrap();
    assert_eq!(patched.get(&["spec", "count"]), Some(&json!(3)));
    let put = json!({"metadata": {"name": "a", "resourceVersion": object.meta("resourceVersion")}, "spec": {"count": 2}});
    refused(&server.put(CONFIGMAPS, "a/count", put).await, "Conflict", &[]);
    let put = server
        .put(CONFIGMAPS, "a/count", json!({"metadata": {"name": "a"}, "spec": {"count": 2}}))
        .await
        .unwrap();
    assert_eq!((put.kind(), put.get(&["spec", "count"])), ("Count", Some(&json!(2))));
    assert!(version(&put) > version(&patched));
    refused(&server.get(CONFIGMAPS, "none/count").await, "NotFound", &[]);
}

#[tokio::test]
async fn fault_28_long_lists_of_finalizers_and_owners_take_linear_time() {
    let server = TestRegistry::new();
    let finalizers: Vec<String> = (0..20_000).map(|n| format!("example.com/f{n}")).collect();
    let owners: Vec<_> = (0..1_000).map(|n| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": format!("u-{n}")})).collect();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let started = std::time::Instant::now();
    server
        .post_with(
            CONFIGMAPS,
            json!({"metadata": {"name": "a", "finalizers": finalizers, "ownerReferences": owners}}),
            &dry,
        )
        .await
        .unwrap();
    server
        .post(CONFIGMAPS, json!({"metadata": {"name": "b", "finalizers": finalizers}}))
        .await
        .unwrap();
    server.delete(CONFIGMAPS, "b").await.unwrap();
    server
        .patch(CONFIGMAPS, "b", merge(json!({"metadata": {"finalizers": finalizers[..10_000]}})))
        .await
        .unwrap();
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
}

#[tokio::test]
async fn fault_21_clients_keep_their_position_across_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = || ferrokube_storage::Config::embedded(directory.path().join("store"));
    let server = TestRegistry::on(config());
    for name in ["a", "b", "c"] {
        server.post(CONFIGMAPS, configmap(name, "v")).await.unwrap();
    }
    let page =
        server.list(CONFIGMAPS, &ListOptions { limit: 1, ..ListOptions::default() }).await.unwrap();
    let watched = server.post(CONFIGMAPS, configmap("d", "v")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    let before = server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap();
    server.registry.store().close().await;
    drop(server);

    let server = TestRegistry::on(config());
    let after = server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap();
    assert_eq!((names(&after), after.revision), (names(&before), before.revision));
    assert_eq!(server.get(CONFIGMAPS, "d").await.unwrap(), watched);
    let next =
        ListOptions { limit: 9, continue_token: page.continue_token, ..ListOptions::default() };
    match server.list(CONFIGMAPS, &next).await {
        Ok(rest) => assert_eq!((names(&rest), rest.revision), (vec!["b", "c"], page.revision)),
        // The snapshot of the first page may be lost, but never replaced by another one.
        Err(failure) => {
            assert!(failure.code == 410 && failure.continue_token.is_some(), "{failure:?}")
        }
    }
    let list =
        ListOptions { resource_version: page.revision.to_string(), ..ListOptions::default() };
    let options = WatchOptions {
        list,
        timeout: std::time::Duration::from_secs(60),
        ..WatchOptions::default()
    };
    let mut watch = server.registry.watch(&server.target(CONFIGMAPS, ""), options).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(soon(watch.next()).await.unwrap());
    }
    assert!(
        matches!(&seen[..], [WatchItem::Added(d), WatchItem::Deleted(a)] if d.key.name() == "d" && a.key.name() == "a"),
        "{seen:?}"
    );
}

#[tokio::test]
async fn fault_34_many_values_that_cannot_be_stored_are_refused_before_admission() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("b", "v")).await.unwrap();
    server.admission.seen.lock().unwrap().clear();
    let data: Value =
        (0..180_000).map(|key| (format!("k{key}"), Value::from("x"))).collect::<Map>().into();
    let object = |name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data.clone()});
    let options = WriteOptions { field_manager: "m".to_owned(), ..WriteOptions::default() };
    let applied = Patch::Apply(body(object("b")));
    let refused = [
        server.post(CONFIGMAPS, object("a")).await.map(drop),
        server.put(CONFIGMAPS, "b", object("b")).await.map(drop),
        server.patch(CONFIGMAPS, "b", merge(json!({"data": data.clone()}))).await.map(drop),
        server.patch_with(CONFIGMAPS, "b", applied, &options).await.map(drop),
    ];
    for refused in refused {
        let failure = refused.unwrap_err();
        assert_eq!(failure.code, 413, "{failure:?}");
    }
    assert!(server.admission.seen.lock().unwrap().is_empty());
}
