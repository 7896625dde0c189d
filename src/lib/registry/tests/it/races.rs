//! Concurrent writers of one object.

use crate::support::*;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{
    Admission, Attributes, DeleteOptions, Deleted, Effects, ListOptions, Registry,
};
use ferrokube_storage::testing::SimDisk;
use ferrokube_storage::{
    Config, Environment, Guard, Key, Prefix, Put, Revision, Sidecar, Store, Txn, Write,
};
use futures::future::maybe_done;
use futures::poll;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_of_one_object_all_succeed() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, json!({"metadata": {"name": "a"}})).await.unwrap();
    let writers: Vec<_> = (0..64)
        .map(|n| {
            let server = server.clone();
            tokio::spawn(async move {
                server.patch(CONFIGMAPS, "a", merge(json!({"data": {format!("k{n}"): "v"}}))).await
            })
        })
        .collect();
    let mut versions = BTreeSet::new();
    for writer in writers {
        versions.insert(version(&soon(writer).await.unwrap().expect("a patch never conflicts")));
    }
    assert_eq!(versions.len(), 64, "each has a revision of its own");
    assert_eq!(
        server
            .get(CONFIGMAPS, "a")
            .await
            .unwrap()
            .get(&["data"])
            .and_then(Value::as_object)
            .unwrap()
            .len(),
        64
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_34_writers_waiting_for_a_key_hold_no_worker() {
    let server = TestRegistry::new();
    for name in ["hot", "cold"] {
        server.post(CONFIGMAPS, configmap(name, "0")).await.unwrap();
    }
    let (started, computes) = tokio::sync::oneshot::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let long = Box::new(move || {
        started.send(()).unwrap();
        finished.recv().unwrap();
    });
    *server.admission.during_validate.lock().unwrap() = Some(long);
    let patch = |name: &'static str, n: u32| {
        let server = server.clone();
        tokio::spawn(async move {
            server.patch(CONFIGMAPS, name, merge(json!({"data": {format!("k{n}"): "v"}}))).await
        })
    };
    let first = patch("hot", 0);
    soon(computes).await.unwrap();
    // One of the two workers computes; none of these may block the other.
    let waiting: Vec<_> = (1..9).map(|n| patch("hot", n)).collect();
    soon(patch("cold", 0)).await.unwrap().expect("another key is free");
    // Answered without a turn.
    let mut outdated = configmap("hot", "1");
    outdated["metadata"]["resourceVersion"] = json!("999");
    assert_eq!(outcome(&soon(server.put(CONFIGMAPS, "hot", outdated)).await).0, "Conflict");
    finish.send(()).unwrap();
    for writer in waiting.into_iter().chain([first]) {
        soon(writer).await.unwrap().expect("a patch never conflicts");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_large_object_is_computed_off_the_workers() {
    let server = TestRegistry::new();
    for (name, length) in [("large", 100_000), ("small", 1)] {
        server.post(CONFIGMAPS, configmap(name, &"x".repeat(length))).await.unwrap();
    }
    let (started, computes) = tokio::sync::oneshot::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    *server.admission.during_validate.lock().unwrap() = Some(Box::new(move || {
        started.send(()).unwrap();
        finished.recv().unwrap();
    }));
    let offloaded = server.clone();
    let long = tokio::spawn(async move {
        let patch = Box::pin(offloaded.patch(
            CONFIGMAPS,
            "large",
            merge(json!({"metadata": {"labels": {"a": "b"}}})),
        ));
        offloaded.registry.offload().run(1, patch).await
    });
    soon(computes).await.unwrap();
    let small = server.clone();
    let other = tokio::spawn(async move {
        small.patch(CONFIGMAPS, "small", merge(json!({"data": {"k": "w"}}))).await
    });
    soon(other).await.unwrap().expect("the only worker is free");
    finish.send(()).unwrap();
    soon(long).await.unwrap().expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_collection_is_deleted_off_the_workers() {
    let server = TestRegistry::new();
    for n in 0..20 {
        server.post(CONFIGMAPS, configmap(&format!("c{n}"), "v")).await.unwrap();
    }
    let (started, computes) = tokio::sync::oneshot::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    *server.admission.during_validate.lock().unwrap() = Some(Box::new(move || {
        started.send(()).unwrap();
        finished.recv_timeout(BOUND).expect("another request is answered meanwhile");
    }));
    let offloaded = server.clone();
    let long = tokio::spawn(async move {
        let options = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
        let (target, all) = (offloaded.target(CONFIGMAPS, ""), ListOptions::default());
        let context = context();
        offloaded
            .registry
            .offload()
            .run(
                1,
                Box::pin(offloaded.registry.delete_collection(&context, &target, &options, &all)),
            )
            .await
            .unwrap()
            .items
            .len()
    });
    soon(computes).await.unwrap();
    let other = server.clone();
    soon(tokio::spawn(async move { other.get(CONFIGMAPS, "c1").await }))
        .await
        .unwrap()
        .expect("the only worker is free");
    finish.send(()).unwrap();
    assert_eq!(soon(long).await.unwrap(), 20);
    server.get(CONFIGMAPS, "c1").await.expect("it was a dry run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_writers_with_the_same_version_wins() {
    let server = TestRegistry::new();
    let first = server.post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    let writers: Vec<_> = (1..33)
        .map(|n| {
            let (server, mut object) = (server.clone(), configmap("a", &n.to_string()));
            object["metadata"]["resourceVersion"] = json!(first.meta("resourceVersion"));
            tokio::spawn(async move { outcome(&server.put(CONFIGMAPS, "a", object).await).0 })
        })
        .collect();
    let mut outcomes = Vec::new();
    for writer in writers {
        outcomes.push(soon(writer).await.unwrap());
    }
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "ok").count(), 1, "{outcomes:?}");
    assert!(
        outcomes.iter().all(|outcome| outcome == "ok" || outcome == "Conflict"),
        "{outcomes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_creates_and_deletes_wins() {
    let server = TestRegistry::new();
    for _ in 0..8 {
        let creators: Vec<_> = (0..16)
            .map(|n| {
                let server = server.clone();
                tokio::spawn(async move {
                    server.post(CONFIGMAPS, configmap("a", &n.to_string())).await
                })
            })
            .collect();
        let mut created = 0;
        for creator in creators {
            match soon(creator).await.unwrap() {
                Ok(_) => created += 1,
                // A response reveals only what readers can see.
                Err(failure) => {
                    refused::<()>(&Err(failure), "AlreadyExists", &[]);
                    server.get(CONFIGMAPS, "a").await.unwrap();
                }
            }
        }
        assert_eq!(created, 1);
        let deleters: Vec<_> = (0..16)
            .map(|_| {
                let server = server.clone();
                tokio::spawn(async move { server.delete(CONFIGMAPS, "a").await })
            })
            .collect();
        let mut deleted = 0;
        for deleter in deleters {
            match soon(deleter).await.unwrap() {
                Ok(Deleted::Gone(_)) => deleted += 1,
                other => refused(&other.map(drop), "NotFound", &[]),
            }
            refused(&server.get(CONFIGMAPS, "a").await, "NotFound", &[]);
        }
        assert_eq!(deleted, 1);
    }
}

/// Changes one object with each create, as a quota does.
struct CountingAdmission {
    store: Store,
    calls: AtomicUsize,
}

impl CountingAdmission {
    fn counter() -> Key {
        Prefix::new("counters").and_then(|prefix| prefix.key(Some("ns"), "one")).unwrap()
    }

    fn change() -> Write {
        let sidecar = Sidecar { revision_at: 1, ..Sidecar::default() };
        Write::Put(Put { key: Self::counter(), value: "{}".into(), sidecar, ttl: None })
    }
}

impl Admission for CountingAdmission {
    fn mutate(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Result<(), Failure> {
        Ok(())
    }

    fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let counted = self.store.pending(&Self::counter()).expect("written before");
        effects.guards.push(Guard::At(Self::counter(), counted.revision));
        effects.writes.push(Self::change());
        Ok(())
    }
}

async fn counting_server() -> (TestRegistry, Arc<CountingAdmission>) {
    let server = TestRegistry::new();
    let store = server.registry.store().clone();
    let txn = Txn { guards: Vec::new(), writes: vec![CountingAdmission::change()] };
    store.submit(txn).unwrap().committed().await.unwrap();
    let admission =
        Arc::new(CountingAdmission { store: store.clone(), calls: AtomicUsize::new(0) });
    let catalog = server.registry.catalog().clone();
    let registry = Registry::new(store, catalog, admission.clone());
    (TestRegistry { registry, ..server }, admission)
}

/// The one that has the turn may wait for a slot behind long computations of its caller.
#[tokio::test]
async fn fault_34_a_create_waits_for_its_turn_on_a_quota_for_a_bounded_time() {
    let (server, _) = counting_server().await;
    let turn = server.registry.store().turn(&CountingAdmission::counter()).await.unwrap();
    let creates = (0..10).map(|n| server.post(CONFIGMAPS, configmap(&format!("c{n}"), "v")));
    for created in soon(futures::future::join_all(creates)).await {
        created.expect("it continues without a turn");
    }
    drop(turn);
}

/// First come, first served: one whose turn it is not submits nothing, even if it could.
#[tokio::test]
async fn fault_34_creates_that_one_quota_counts_take_turns() {
    let (server, admission) = counting_server().await;
    let store = server.registry.store();
    let calls = || admission.calls.load(Ordering::SeqCst);
    let counted = || store.pending(&CountingAdmission::counter()).expect("written before").revision;
    let turn = store.turn(&CountingAdmission::counter()).await.unwrap();
    let before = counted();
    let create = |name| maybe_done(server.post(CONFIGMAPS, configmap(name, "v")));
    let (mut first, mut second) = (pin!(create("first")), pin!(create("second")));
    // The runtime does not run in between: no wait for a turn times out.
    let _ = (poll!(first.as_mut()), poll!(second.as_mut()));
    assert_eq!((calls(), counted()), (2, before), "they compute, and wait for their turns");
    let txn = Txn { guards: Vec::new(), writes: vec![CountingAdmission::change()] };
    let changed = turn.submit(txn).unwrap();
    let after = counted();
    assert!(after > before);
    let _ = poll!(second.as_mut());
    assert_eq!((calls(), counted()), (2, after), "the turn is the first one's");
    let _ = poll!(first.as_mut());
    let of_first = counted();
    assert!(calls() == 3 && of_first > after, "it computes again, and submits");
    let _ = poll!(second.as_mut());
    assert!(calls() == 4 && counted() > of_first);
    changed.committed().await.unwrap();
    soon(futures::future::join(first.as_mut(), second.as_mut())).await;
    let [first, second] = [first.take_output(), second.take_output()]
        .map(|created| version(&created.expect("it has ended").unwrap()));
    assert!(first < second && calls() == 4);
}

/// Each waits for the bytes of others, which change the quota meanwhile.
#[tokio::test]
async fn creates_that_one_quota_counts_compute_at_most_twice() {
    const CREATES: usize = 100;
    let (server, admission) = counting_server().await;
    let text = "x".repeat(40_000);
    let creates = (0..CREATES).map(|n| server.post(CONFIGMAPS, configmap(&format!("c{n}"), &text)));
    for created in futures::future::join_all(creates).await {
        created.expect("its turn comes");
    }
    let calls = admission.calls.load(Ordering::SeqCst);
    assert!(calls <= 2 * CREATES, "{calls}");
}

/// What admission read (a namespace's phase, a quota's usage) still holds at commit.
#[tokio::test]
async fn writes_are_guarded_by_what_admission_has_read() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "v")).await.unwrap();
    let read = server.post(SECRETS, json!({"metadata": {"name": "read"}})).await.unwrap();
    let key = Prefix::new("secrets").and_then(|prefix| prefix.key(Some("ns"), "read")).unwrap();
    let guard = |version| {
        *server.admission.guard.lock().unwrap() = Some(Guard::At(key.clone(), Revision(version)))
    };
    guard(version(&read) - 1);
    for answer in [
        server.post(CONFIGMAPS, configmap("b", "v")).await.map(drop),
        server.put(CONFIGMAPS, "a", configmap("a", "w")).await.map(drop),
        server.patch(CONFIGMAPS, "a", merge(json!({"data": {"k": "w"}}))).await.map(drop),
        server.delete(CONFIGMAPS, "a").await.map(drop),
    ] {
        assert!(answer.is_err(), "what was read has changed");
    }
    assert_eq!(names(&server.list(CONFIGMAPS, &ListOptions::default()).await.unwrap()), ["a"]);
    assert_eq!(server.get(CONFIGMAPS, "a").await.unwrap().str(&["data", "k"]), Some("v"));
    guard(version(&read));
    server.patch(CONFIGMAPS, "a", merge(json!({"data": {"k": "w"}}))).await.unwrap();
}

/// An error that names an object follows the sync of its write: a power cut must not make it
/// untrue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_reveals_only_durable_state() {
    let disk = SimDisk::default();
    let parts = Environment { io: Arc::new(disk.clone()), ..Environment::default() };
    let server =
        TestRegistry::over(Store::open_with(Config::embedded("/sim/storage"), parts).unwrap());
    disk.hold_syncs();
    let first = tokio::spawn({
        let server = server.clone();
        async move { server.post(CONFIGMAPS, configmap("a", "1")).await }
    });
    disk.wait_for_held_sync();
    let mut second = Box::pin(server.post(CONFIGMAPS, configmap("a", "2")));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut second).await.is_err(),
        "answered before the sync"
    );
    disk.release_syncs();
    soon(first).await.unwrap().unwrap();
    refused(&soon(second).await, "AlreadyExists", &[]);
    server.registry.store().close().await;
}
