//! A store on an in-memory engine: what it tells of the engine without a caller.

use super::reach::Reach;
use crate::testing::{SharedEngine, SharedFault, TextValues, commit, create, delete, key};
use crate::{CommitError, Environment, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

async fn attached(engine: &SharedEngine) -> (Store, crate::testing::SharedClient) {
    let client = engine.client();
    let (remote, values) = (Arc::new(client.clone()), Arc::new(TextValues));
    let store = Store::attach(remote, values, 1 << 20, Environment::default()).await;
    (store.expect("the engine answers"), client)
}

/// Waits, for a minute at most.
async fn until(mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it happens in time");
}

/// Otherwise a watch that hangs is not found before someone reads.
#[tokio::test(start_paused = true)]
async fn the_feed_is_asked_for_its_progress_without_a_reader() {
    let engine = SharedEngine::default();
    let (store, _client) = attached(&engine).await;
    let revision = engine.foreign_revision();
    assert!(store.revision() < revision);
    until(|| store.revision() >= revision).await;
}

/// Probes are answered, and no read is.
#[tokio::test(start_paused = true)]
async fn a_late_feed_is_an_outage_until_it_has_caught_up() {
    let engine = SharedEngine::default();
    let (store, client) = attached(&engine).await;
    client.hold(true);
    for _ in 0..3 {
        engine.foreign_revision();
        assert!(store.barrier().expect("a remote engine").await.is_err());
    }
    until(|| store.trouble().is_some_and(|why| why.contains("late"))).await;
    client.hold(false);
    until(|| store.trouble().is_none()).await;
    // A feed that is never at the end, and never late.
    for _ in 0..60 {
        engine.foreign_revision();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(store.trouble(), None);
    }
}

/// Such as for a user who may only read.
#[tokio::test(start_paused = true)]
async fn an_engine_that_takes_no_writes_is_known_for_it_until_it_takes_one() {
    let engine = SharedEngine::default();
    let (store, _client) = attached(&engine).await;
    let object = key("configmaps", "ns", "a");
    engine.fail_next(&[SharedFault::Unavailable; 1000]);
    let refused = commit(&store, create(&object, "1")).await;
    assert!(matches!(refused, Err(CommitError::Unavailable(_))), "{refused:?}");
    assert!(store.barrier().expect("a remote engine").await.is_ok(), "reads continue");
    assert_eq!((store.trouble(), store.refusal().as_deref()), (None, Some("down")));
    engine.heal();
    commit(&store, create(&object, "1")).await.expect("writes are taken");
    assert_eq!(store.refusal(), None);
}

/// Such as of a key that etcd's role of the server leaves out: the others are served.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_refused_while_another_is_taken_tells_of_no_other() {
    let (reach, began) = (Reach::default(), Instant::now());
    reach.wrote();
    reach.refused("denied", began);
    assert_eq!(reach.refusal(), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    reach.refused("denied", Instant::now());
    assert_eq!(reach.refusal().as_deref(), Some("denied"));
}

/// A full etcd takes them, and refuses the next write.
#[tokio::test(start_paused = true)]
async fn a_delete_does_not_show_that_there_is_space() {
    let engine = SharedEngine::default();
    let (store, _client) = attached(&engine).await;
    let [one, other] = ["one", "other"].map(|name| key("configmaps", "ns", name));
    commit(&store, create(&one, "1")).await.expect("there is space");
    engine.fail_next(&[SharedFault::Full]);
    let refused = commit(&store, create(&other, "1")).await;
    assert!(matches!(refused, Err(CommitError::DiskFull)), "{refused:?}");
    commit(&store, delete(&one)).await.expect("a delete needs no space");
    assert!(!store.has_space());
    commit(&store, create(&other, "1")).await.expect("there is space again");
    assert!(store.has_space());
}
