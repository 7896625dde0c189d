//! Responses without a write: they reveal only durable state, and never wait needlessly.

use crate::support::*;
use crate::watch::{from, watch, word};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::ListOptions;
use ferrokube_storage::testing::{Crash, DiskFault, SimDisk, hold, release};
use ferrokube_storage::{Config, Environment, JournalLimits, Rewrites, Store, StoreLimits};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn on_disk(disk: &SimDisk, limits: StoreLimits) -> TestRegistry {
    let journal = JournalLimits {
        watermark_bytes: 0,
        ballast_bytes: 16 << 10,
        rewrites: Rewrites::Inline,
        ..JournalLimits::default()
    };
    let parts =
        Environment { io: Arc::new(disk.clone()), journal, limits, ..Environment::default() };
    TestRegistry::over(Store::open_with(Config::embedded("/sim/storage"), parts).unwrap())
}

type AttemptFuture<'a> = LocalBoxFuture<'a, Result<Document, Failure>>;

fn label(server: &TestRegistry) -> AttemptFuture<'_> {
    server.patch(CONFIGMAPS, "a", merge(json!({"metadata": {"labels": {"x": "1"}}}))).boxed_local()
}

fn replace(server: &TestRegistry) -> AttemptFuture<'_> {
    let mut object = configmap("a", "0");
    object["metadata"]["labels"] = json!({"x": "1"});
    server.put(CONFIGMAPS, "a", object).boxed_local()
}

fn create(server: &TestRegistry) -> AttemptFuture<'_> {
    server.post(CONFIGMAPS, configmap("new", "1")).boxed_local()
}

/// A no-op waits for the write that it relies on; if that is refused, the no-op is written instead.
#[tokio::test]
async fn fault_07_a_noop_on_a_refused_head_is_computed_again() {
    let disk = SimDisk::default();
    let server = on_disk(&disk, StoreLimits::default());
    server.post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    type Case = (&'static str, bool, for<'a> fn(&'a TestRegistry) -> AttemptFuture<'a>);
    let cases: [Case; 4] =
        [("a", false, label), ("a", false, replace), ("new", false, create), ("a", true, label)];
    for (round, (name, remote, attempt)) in cases.into_iter().enumerate() {
        let store = server.registry.store();
        server
            .patch(
                CONFIGMAPS,
                "a",
                merge(json!({"metadata": {"labels": null, "annotations": null}})),
            )
            .await
            .unwrap();
        server.admission.remote.store(remote, Ordering::SeqCst);
        hold(store);
        let (mut first, mut second) = (attempt(&server), attempt(&server));
        assert!(first.as_mut().now_or_never().is_none(), "{round}: it waits for the disk");
        assert!(
            second.as_mut().now_or_never().is_none(),
            "{round}: so does what was computed on it"
        );
        disk.fail_next_write(".log", DiskFault::Enospc);
        release(store);
        assert_eq!(soon(first).await.unwrap_err().code, 507, "{round}");
        soon(server.post(CONFIGMAPS, configmap(&format!("other-{round}"), "0"))).await.unwrap();
        let answer = soon(second).await.unwrap_or_else(|failure| panic!("{round}: {failure:?}"));
        assert_eq!(
            answer,
            server.get(CONFIGMAPS, name).await.unwrap(),
            "{round}: what was answered is there"
        );
        server.admission.remote.store(false, Ordering::SeqCst);
    }
}

/// However long a sync takes, no response reveals what it may lose.
#[tokio::test]
async fn fault_01_a_noop_waits_for_the_write_that_it_relies_on() {
    let disk = SimDisk::default();
    let server = on_disk(&disk, StoreLimits::default());
    server.post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    disk.hold_syncs();
    let (mut first, mut second) = (label(&server), label(&server));
    assert!(first.as_mut().now_or_never().is_none());
    disk.wait_for_held_sync();
    assert!(second.as_mut().now_or_never().is_none());
    let mut outdated = server
        .put(CONFIGMAPS, "a", json!({"metadata": {"name": "a", "resourceVersion": "7"}}))
        .boxed_local();
    assert!(outdated.as_mut().now_or_never().is_none());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    assert!(second.as_mut().now_or_never().is_none(), "the write it relies on is not durable yet");
    assert!(outdated.as_mut().now_or_never().is_none());
    let dropped = on_disk(&disk.crash(Crash::Dropped, 0), StoreLimits::default());
    assert_eq!(dropped.get(CONFIGMAPS, "a").await.unwrap().label("x"), None, "it could be lost");
    disk.release_syncs();
    let (first, second) = (soon(first).await.unwrap(), soon(second).await.unwrap());
    assert_eq!(first, second);
    refused(&soon(outdated).await, "Conflict", &[]);
}

/// However a server ends: a watch from what it has shown goes on, and one from what it has not
/// shown ends, so that its client lists again.
#[tokio::test]
async fn fault_21_a_watch_from_any_revision_after_any_end_of_the_server() {
    for end in [None, Some(Crash::Killed), Some(Crash::Dropped), Some(Crash::Torn)] {
        let disk = SimDisk::default();
        let server = on_disk(&disk, StoreLimits::default());
        let mut shown = Vec::new();
        for name in ["a", "b", "c"] {
            server.post(CONFIGMAPS, configmap(name, "0")).await.unwrap();
            shown.push(server.registry.store().revision().0);
        }
        if end.is_none() {
            server.registry.store().close().await;
        }
        let disk = disk.crash(end.unwrap_or(Crash::Dropped), 1);
        let server = on_disk(&disk, StoreLimits::default());
        let before = server.registry.store().revision().0;
        assert_eq!(before, shown[2], "{end:?}");
        server.post(CONFIGMAPS, configmap("d", "0")).await.unwrap();
        let now = server.registry.store().revision().0;
        assert!(now > before + 1, "{end:?}: {now} may have been shown");
        for (version, expected) in [
            (shown[0].to_string(), &["+b", "+c", "+d"][..]),
            (shown[2].to_string(), &["+d"]),
            (now.to_string(), &["+e", "-e"]),
            ((before + 1).to_string(), &["error 410"]),
            ((now - 1).to_string(), &["error 410"]),
            ("0".to_owned(), &["+a", "+b", "+c", "+d"]),
            (String::new(), &["+a", "+b", "+c", "+d"]),
        ] {
            let mut watch = watch(&server, from(&version)).await;
            if expected[0] == "+e" {
                server.post(CONFIGMAPS, configmap("e", "0")).await.unwrap();
                server.delete(CONFIGMAPS, "e").await.unwrap();
            }
            let mut seen = Vec::new();
            while seen.len() < expected.len() {
                let items = soon(watch.next()).await.expect("it goes on");
                seen.extend(items.iter().map(word));
            }
            assert_eq!(seen, expected, "{end:?}, from {version:?}");
        }
    }
}

/// A failed journal also fails what was computed on its pending heads.
#[tokio::test]
async fn fault_05_a_noop_on_a_failed_write_fails() {
    let disk = SimDisk::default();
    let server = on_disk(&disk, StoreLimits::default());
    server.post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    let store = server.registry.store();
    hold(store);
    let (mut first, mut second) = (label(&server), label(&server));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    disk.fail_next_write(".log", DiskFault::Eio);
    release(store);
    assert_eq!(
        (soon(first).await.unwrap_err().code, soon(second).await.unwrap_err().code),
        (500, 500)
    );
}

/// A page continues from the snapshot of the previous page or fails: an older copy of the directory
/// does not have it.
#[tokio::test]
async fn fault_09_a_page_of_a_lost_snapshot_expires() {
    let disk = SimDisk::default();
    let server = on_disk(&disk, StoreLimits::default());
    for name in ["a", "b", "c"] {
        server.post(CONFIGMAPS, configmap(name, "0")).await.unwrap();
    }
    let copy = disk.crash(Crash::Killed, 0);
    for value in ["1", "2", "3"] {
        server.patch(CONFIGMAPS, "c", merge(json!({"data": {"k": value}}))).await.unwrap();
    }
    let page =
        server.list(CONFIGMAPS, &ListOptions { limit: 1, ..ListOptions::default() }).await.unwrap();
    let older = on_disk(&copy, StoreLimits::default());
    for _ in 0..2 {
        let next = ListOptions {
            limit: 1,
            continue_token: page.continue_token.clone(),
            ..ListOptions::default()
        };
        let failure = older.list(CONFIGMAPS, &next).await.unwrap_err();
        assert!(failure.code == 410 && failure.continue_token.is_some(), "{failure:?}");
        older.post(CONFIGMAPS, configmap("d", "0")).await.map(drop).unwrap_or_default();
    }
}

/// Refusals by the store are immediate.
#[tokio::test]
async fn refusals_by_the_store_are_immediate() {
    let disk = SimDisk::default();
    let server = on_disk(&disk, StoreLimits { queue_txns: 1, ..StoreLimits::default() });
    for name in ["a", "b"] {
        server.post(CONFIGMAPS, configmap(name, "0")).await.unwrap();
    }
    let store = server.registry.store();
    hold(store);
    let mut waiting =
        server.patch(CONFIGMAPS, "b", merge(json!({"data": {"k": "1"}}))).boxed_local();
    assert!(waiting.as_mut().now_or_never().is_none());
    refused(&label(&server).now_or_never().expect("told at once"), "TooManyRequests", &[]);
    release(store);
    soon(waiting).await.unwrap();
    store.close().await;
    refused(&label(&server).now_or_never().expect("told at once"), "ServiceUnavailable", &[]);
}

/// Without a write in progress, a no-op does not involve the committer.
#[tokio::test]
async fn a_noop_on_a_published_head_does_not_wait() {
    let server = TestRegistry::new();
    server.post(CONFIGMAPS, configmap("a", "0")).await.unwrap();
    soon(label(&server)).await.unwrap();
    hold(server.registry.store());
    label(&server).now_or_never().expect("at once").unwrap();
    refused(&server.delete(CONFIGMAPS, "none").now_or_never().expect("at once"), "NotFound", &[]);
    assert_eq!(server.registry.store().stats().queue, 0);
}
