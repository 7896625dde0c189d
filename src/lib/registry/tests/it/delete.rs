//! DELETE: policies, finalizers, preconditions, namespaces, collections.

use crate::support::*;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{
    DeleteOptions, Deleted, ListOptions, VersionMatch, WatchItem, WatchOptions, WriteOptions,
};
use std::sync::Arc;
use std::time::Duration;

fn policy(policy: &str) -> DeleteOptions {
    DeleteOptions { propagation: Some(policy.to_owned()), ..DeleteOptions::default() }
}

fn held(name: &str) -> ferrokube_apimachinery::document::Value {
    json!({"metadata": {"name": name, "finalizers": ["example.com/hold"]}, "data": {"k": "v"}})
}

fn shown(server: &TestRegistry, kind: (&str, &str), deleted: Deleted) -> (&'static str, Document) {
    let target = server.target(kind, "x");
    match deleted {
        Deleted::Gone(object) => ("gone", document(object, &target)),
        Deleted::Pending(object) => ("pending", document(object, &target)),
        Deleted::AlreadyPending(object) => ("already", document(object, &target)),
    }
}

fn finalizers(object: &Document) -> Vec<&str> {
    object
        .list(&["metadata", "finalizers"])
        .iter()
        .filter_map(|finalizer| finalizer.as_str())
        .collect()
}

#[tokio::test]
async fn an_object_without_finalizers_is_removed_at_once() {
    let server = TestRegistry::new();
    for grace in [None, Some(30), Some(-5), Some(0)] {
        let object = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
        let options = DeleteOptions { grace_seconds: grace, ..DeleteOptions::default() };
        let (how, last) = shown(
            &server,
            CONFIGMAPS,
            server.delete_with(CONFIGMAPS, "a", &options).await.unwrap(),
        );
        assert_eq!((how, last.uid()), ("gone", object.uid()));
        assert!(version(&last) > version(&object), "the deletion's revision");
        refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
        refused(&server.delete(CONFIGMAPS, "a").await, "NotFound", &[]);
    }
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_removed() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, held("a")).await.unwrap();
    let (how, marked) = shown(&server, CONFIGMAPS, server.delete(CONFIGMAPS, "a").await.unwrap());
    assert_eq!(how, "pending");
    assert!(marked.is_terminating());
    assert_eq!(marked.get(&["metadata", "deletionGracePeriodSeconds"]), Some(&json!(0)));
    let again = shown(&server, CONFIGMAPS, server.delete(CONFIGMAPS, "a").await.unwrap());
    assert_eq!(again, ("pending", marked.clone()), "nothing is written again");
    let changed = server.patch(CONFIGMAPS, "a", merge(json!({"data": {"k": "w"}}))).await.unwrap();
    assert!(changed.is_terminating() && version(&changed) > version(&marked));
    let added = merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}}));
    refused(
        &server.patch(CONFIGMAPS, "a", added).await,
        "Invalid",
        &["Forbidden metadata.finalizers"],
    );
    let last = server
        .patch(CONFIGMAPS, "a", merge(json!({"metadata": {"finalizers": null}})))
        .await
        .unwrap();
    assert_eq!((version(&last), last.str(&["data", "k"])), (version(&changed), Some("w")));
    refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
}

#[tokio::test]
async fn policies_set_finalizers() {
    let server = TestRegistry::new();
    for (options, expected) in [
        (policy("Foreground"), vec!["foregroundDeletion"]),
        (policy("Orphan"), vec!["orphan"]),
        (
            DeleteOptions { orphan_dependents: Some(true), ..DeleteOptions::default() },
            vec!["orphan"],
        ),
    ] {
        server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
        let (how, marked) = shown(
            &server,
            CONFIGMAPS,
            server.delete_with(CONFIGMAPS, "a", &options).await.unwrap(),
        );
        assert_eq!((how, finalizers(&marked)), ("pending", expected));
        // A later background delete removes the finalizer.
        let (how, _) = shown(
            &server,
            CONFIGMAPS,
            server.delete_with(CONFIGMAPS, "a", &policy("Background")).await.unwrap(),
        );
        assert_eq!(how, "gone");
    }
    server
        .post(CONFIGMAPS, json!({"metadata": {"name": "b", "finalizers": ["orphan"]}}))
        .await
        .unwrap();
    let (how, marked) = shown(&server, CONFIGMAPS, server.delete(CONFIGMAPS, "b").await.unwrap());
    assert_eq!((how, finalizers(&marked)), ("pending", vec!["orphan"]), "the object's own choice");
    refused(
        &server.delete_with(CONFIGMAPS, "b", &policy("Sideways")).await,
        "Invalid",
        &["NotSupported propagationPolicy"],
    );
    let both = DeleteOptions { orphan_dependents: Some(false), ..policy("Background") };
    refused(
        &server.delete_with(CONFIGMAPS, "b", &both).await,
        "Invalid",
        &["Invalid propagationPolicy"],
    );
}

#[tokio::test]
async fn finalizers_of_a_policy_come_last_and_others_stay_as_they_are() {
    let server = TestRegistry::new();
    for (given, name, expected) in [
        (["z/z", "a/a", "z/z"], "Orphan", vec!["z/z", "a/a", "z/z", "orphan"]),
        (["z/z", "orphan", "a/a"], "Foreground", vec!["z/z", "a/a", "foregroundDeletion"]),
        (["z/z", "orphan", "a/a"], "Orphan", vec!["z/z", "orphan", "a/a"]),
        (["z/z", "orphan", "a/a"], "Background", vec!["z/z", "a/a"]),
    ] {
        let object = json!({"metadata": {"generateName": "a", "finalizers": given}});
        let name_of = server.post(CONFIGMAPS, object).await.unwrap();
        let deleted = server.delete_with(CONFIGMAPS, name_of.name(), &policy(name)).await.unwrap();
        let (how, marked) = shown(&server, CONFIGMAPS, deleted);
        assert_eq!((how, finalizers(&marked)), ("pending", expected));
    }
}

#[tokio::test]
async fn deletes_honor_preconditions_and_dry_runs() {
    let server = TestRegistry::new();
    let object = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    for wrong in [
        DeleteOptions { uid: Some("u".to_owned()), ..DeleteOptions::default() },
        DeleteOptions { resource_version: Some("1000".to_owned()), ..DeleteOptions::default() },
    ] {
        let answer = server.delete_with(CONFIGMAPS, "a", &wrong).await;
        refused(&answer, "Conflict", &[]);
        assert_eq!(answer.unwrap_err().details.unwrap().kind, "ConfigMap");
    }
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    let (how, _) =
        shown(&server, CONFIGMAPS, server.delete_with(CONFIGMAPS, "a", &dry).await.unwrap());
    assert_eq!(how, "gone");
    let (how, marked) = shown(
        &server,
        CONFIGMAPS,
        server
            .delete_with(CONFIGMAPS, "a", &DeleteOptions { dry_run: true, ..policy("Foreground") })
            .await
            .unwrap(),
    );
    assert_eq!((how, marked.is_terminating()), ("pending", true));
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap(), object);
    let right = DeleteOptions {
        uid: Some(object.uid().to_owned()),
        resource_version: Some(object.meta("resourceVersion").to_owned()),
        ..DeleteOptions::default()
    };
    server.delete_with(CONFIGMAPS, "a", &right).await.unwrap();
}

#[tokio::test]
async fn a_namespace_waits_for_its_own_finalizers() {
    let server = TestRegistry::new();
    server.post(NAMESPACES, json!({"metadata": {"name": "n"}})).await.unwrap();
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    let (_, marked) =
        shown(&server, NAMESPACES, server.delete_with(NAMESPACES, "n", &dry).await.unwrap());
    assert_eq!(marked.str(&["status", "phase"]), Some("Terminating"));
    assert_eq!(
        server.get(NAMESPACES, "n").await.unwrap().str(&["status", "phase"]),
        Some("Active")
    );
    let (how, marked) = shown(&server, NAMESPACES, server.delete(NAMESPACES, "n").await.unwrap());
    assert_eq!((how, marked.str(&["status", "phase"])), ("pending", Some("Terminating")));
    assert!(
        marked.is_terminating()
            && marked.get(&["metadata", "deletionGracePeriodSeconds"]).is_none()
    );
    let again = shown(&server, NAMESPACES, server.delete(NAMESPACES, "n").await.unwrap());
    assert_eq!(again, ("pending", marked));
    let last = server
        .put(
            NAMESPACES,
            "n/finalize",
            json!({"metadata": {"name": "n"}, "spec": {"finalizers": []}}),
        )
        .await
        .unwrap();
    assert!(last.list(&["spec", "finalizers"]).is_empty());
    refused(&server.get(NAMESPACES, "n").await, "NotFound", &[]);
}

/// Even if its metadata has no finalizers left.
#[tokio::test]
async fn an_update_does_not_end_a_namespace_that_waits() {
    let server = TestRegistry::new();
    server
        .post(NAMESPACES, json!({"metadata": {"name": "n", "finalizers": ["example.com/hold"]}}))
        .await
        .unwrap();
    server.delete(NAMESPACES, "n").await.unwrap();
    let changed = server
        .patch(
            NAMESPACES,
            "n",
            merge(json!({"metadata": {"finalizers": null, "labels": {"a": "b"}}})),
        )
        .await
        .unwrap();
    assert!(!changed.list(&["spec", "finalizers"]).is_empty());
    assert_eq!(server.get(NAMESPACES, "n").await.unwrap(), changed, "its content is still there");
}

#[tokio::test]
async fn a_dry_run_that_removes_the_last_finalizer_deletes_nothing() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, held("a")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    let marked = server.get(CONFIGMAPS, "a").await.unwrap();
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    server
        .patch_with(CONFIGMAPS, "a", merge(json!({"metadata": {"finalizers": null}})), &dry)
        .await
        .unwrap();
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap(), marked);
}

/// Has a grace period of 30 s.
#[derive(Debug)]
struct Graceful;

impl ferrokube_resource::Hooks for Graceful {
    fn grace_seconds(&self, _object: &Document, asked: Option<i64>) -> Option<i64> {
        Some(asked.unwrap_or(30))
    }
}

/// A server whose config maps are [`Graceful`].
fn graceful() -> TestRegistry {
    let server = TestRegistry::new();
    let definition =
        ferrokube_resource::Definition::clone(&server.target(CONFIGMAPS, "").served.definition);
    server
        .registry
        .catalog()
        .put(Arc::new(ferrokube_resource::Definition { hooks: Arc::new(Graceful), ..definition }));
    server
}

#[tokio::test]
async fn a_grace_period_that_is_shortened_into_the_past_ends_now() {
    let server = graceful();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    server.delete(CONFIGMAPS, "a").await.unwrap();
    let mut later = context();
    later.now += Duration::from_secs(20);
    let now = ferrokube_apimachinery::time::rfc3339_seconds(later.now);
    for (asked, seconds, is_now) in [(25, 25, false), (5, 1, true)] {
        let options = DeleteOptions { grace_seconds: Some(asked), ..DeleteOptions::default() };
        let target = server.target(CONFIGMAPS, "a");
        server.registry.delete(&later, &target, &options).await.unwrap();
        let marked = server.get(CONFIGMAPS, "a").await.unwrap();
        let period = marked.get(&["metadata", "deletionGracePeriodSeconds"]);
        assert_eq!(period, Some(&json!(seconds)));
        assert_eq!(marked.meta("deletionTimestamp") == now, is_now, "{asked}");
    }
}

/// Once the period is over, the kubelet deletes with 0.
#[tokio::test]
async fn the_last_finalizer_does_not_end_a_grace_period() {
    let server = graceful();
    server.post(CONFIGMAPS, held("a")).await.unwrap();
    let (how, marked) = shown(&server, CONFIGMAPS, server.delete(CONFIGMAPS, "a").await.unwrap());
    assert_eq!(
        (how, marked.get(&["metadata", "deletionGracePeriodSeconds"])),
        ("pending", Some(&json!(30)))
    );
    server.patch(CONFIGMAPS, "a", merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    assert!(server.get(CONFIGMAPS, "a").await.unwrap().is_terminating());
    let now = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
    assert_eq!(
        shown(&server, CONFIGMAPS, server.delete_with(CONFIGMAPS, "a", &now).await.unwrap()).0,
        "gone"
    );
}

#[tokio::test]
async fn a_collection_delete_reports_an_object_that_cannot_be_deleted() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let target = server.target(CONFIGMAPS, "");
    let options = DeleteOptions { uid: Some("u".to_owned()), ..DeleteOptions::default() };
    refused(
        &server
            .registry
            .delete_collection(&context(), &target, &options, &ListOptions::default())
            .await,
        "Conflict",
        &[],
    );
}

#[tokio::test]
async fn a_collection_is_deleted_object_by_object() {
    let server = TestRegistry::new();
    for (name, label) in [("a", "1"), ("b", "1"), ("c", "2")] {
        server.post(CONFIGMAPS, labeled(name, label)).await.unwrap();
    }
    server.post(CONFIGMAPS, held("d")).await.unwrap();
    let target = server.target(CONFIGMAPS, "");
    let delete = async |options: &DeleteOptions, select: &ListOptions| {
        server.registry.delete_collection(&context(), &target, options, select).await.unwrap()
    };
    let default = DeleteOptions::default();
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    assert_eq!(names(&delete(&dry, &ListOptions::default()).await), ["a", "b", "c", "d"]);
    assert_eq!(names(&delete(&default, &selecting("s=1", "")).await), ["a", "b"]);
    assert_eq!(
        names(&delete(&default, &selecting("", "metadata.name=zzz")).await),
        Vec::<&str>::new()
    );
    assert_eq!(names(&delete(&default, &ListOptions::default()).await), ["c", "d"]);
    assert_eq!(names(&server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap()), ["d"]);
    assert!(server.get(CONFIGMAPS, "d").await.unwrap().is_terminating());
}

/// A late delete of a deposed controller removes the object that it saw, not its successor of the
/// same name.
#[tokio::test]
async fn fault_31_a_collection_of_an_older_revision_is_deleted_as_it_was() {
    for version_match in [VersionMatch::Exact, VersionMatch::Unset] {
        an_older_collection_is_deleted(version_match).await;
    }
}

async fn an_older_collection_is_deleted(version_match: VersionMatch) {
    let server = TestRegistry::new();
    for name in ["kept", "again"] {
        server.post(CONFIGMAPS, configmap(name, "old")).await.unwrap();
    }
    let seen = server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap().revision.to_string();
    server.delete(CONFIGMAPS, "again").await.unwrap();
    server.post(CONFIGMAPS, configmap("again", "new")).await.unwrap();
    server.post(CONFIGMAPS, configmap("later", "new")).await.unwrap();
    let select = ListOptions { resource_version: seen, version_match, ..ListOptions::default() };
    let target = server.target(CONFIGMAPS, "");
    let deleted = server
        .registry
        .delete_collection(&context(), &target, &DeleteOptions::default(), &select)
        .await
        .unwrap();
    assert_eq!(names(&deleted), ["again", "kept"]);
    assert_eq!(
        names(&server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap()),
        ["again", "later"]
    );
}

#[tokio::test]
async fn watchers_see_the_last_state_at_the_deletions_revision() {
    let server = TestRegistry::new();
    let object = server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let list = ListOptions {
        resource_version: object.meta("resourceVersion").to_owned(),
        ..ListOptions::default()
    };
    let options =
        WatchOptions { list, timeout: Duration::from_secs(60), ..WatchOptions::default() };
    let target = server.target(CONFIGMAPS, "");
    let mut watch = server.registry.watch(&target, options).await.unwrap();
    let (_, last) = shown(&server, CONFIGMAPS, server.delete(CONFIGMAPS, "a").await.unwrap());
    let items = soon(watch.next()).await.unwrap();
    let [WatchItem::Deleted(entry)] = &items[..] else { panic!("{items:?}") };
    assert_eq!(ferrokube_registry::view(entry, &target.served), last);
}

/// A request that is restricted to essential writes, as on a disk without room for its audit event.
#[tokio::test]
async fn fault_07_a_restricted_request_makes_progress_of_deletions_and_nothing_else() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    server.post(CONFIGMAPS, held("b")).await.unwrap();
    let context = context();
    let refusal = Failure::new(Reason::InternalError, "no room");
    context.restrict(refusal.clone());
    let (a, b) = (server.target(CONFIGMAPS, "a"), server.target(CONFIGMAPS, "b"));
    let options = WriteOptions::default();
    let refused = |written: Result<ferrokube_registry::Written, Failure>| {
        assert_eq!(written.unwrap_err().message, refusal.message);
    };
    let collection = server.target(CONFIGMAPS, "");
    let new = body(configmap("c", "v"));
    refused(server.registry.create(&context, &collection, new, &options).await);
    for (target, change) in
        [(&a, json!({"data": {"k": "w"}})), (&b, json!({"metadata": {"finalizers": null}}))]
    {
        let written = server.registry.patch(&context, target, merge(change), &options).await;
        refused(written);
    }
    // A patch that changes nothing is a read.
    let same = merge(json!({"data": {"k": "v"}}));
    server.registry.patch(&context, &a, same, &options).await.unwrap();
    let delete = DeleteOptions::default();
    let marked = server.registry.delete(&context, &b, &delete).await.unwrap();
    assert!(matches!(marked, Deleted::Pending(_)));
    let change = merge(json!({"metadata": {"labels": {"k": "v"}}}));
    refused(server.registry.patch(&context, &b, change, &options).await);
    let release = merge(json!({"metadata": {"finalizers": null}}));
    server.registry.patch(&context, &b, release, &options).await.unwrap();
    let gone = server.registry.delete(&context, &a, &delete).await.unwrap();
    assert!(matches!(gone, Deleted::Gone(_)));
    assert!(context.is_essential());
    for name in ["a", "b", "c"] {
        assert!(server.get(CONFIGMAPS, name).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn an_ordinary_write_makes_its_request_ordinary() {
    let server = TestRegistry::new();
    let context = context();
    let (collection, options) = (server.target(CONFIGMAPS, ""), WriteOptions::default());
    let new = body(configmap("a", "v"));
    server.registry.create(&context, &collection, new, &options).await.unwrap();
    assert!(!context.is_essential());
}
