//! Expiry, waiting and closing.

use super::context::CaseContext;
use crate::testing::{ManualClock, PATIENCE, commit, create, delete, key, put, write};
use crate::{Event, Key, Prefix, Put, Rejected, Revision, Store, Txn, WatchError, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

fn expiring(key: &Key, seconds: u64) -> Txn {
    let put = Put { ttl: Some(Duration::from_secs(seconds)), ..put(key, "v") };
    Txn { guards: Vec::new(), writes: vec![Write::Put(put)] }
}

/// The next event, which must arrive unprompted.
async fn next(cursor: &mut crate::Cursor) -> Event {
    tokio::time::timeout(PATIENCE, cursor.next(1)).await.expect("an event").unwrap().remove(0)
}

pub(super) async fn entries_expire_by_real_deletes(bench: CaseContext) {
    let CaseContext { store, clock } = bench;
    let [short, long, kept, freed] =
        ["short", "long", "kept", "freed"].map(|name| key("events", "ns", name));
    for txn in
        [expiring(&short, 10), expiring(&long, 3600), write(&kept, "v"), expiring(&freed, 10)]
    {
        commit(&store, txn).await.unwrap();
    }
    commit(&store, write(&freed, "kept from now on")).await.unwrap();
    assert_eq!(store.stats().deadlines, 2);
    let mut cursor = store.watch(&Prefix::new("events").unwrap(), store.revision()).unwrap();
    clock.advance(Duration::from_secs(9));
    commit(&store, expiring(&long, 3600)).await.unwrap();
    assert_eq!(next(&mut cursor).await.entry.key, long);
    clock.advance(Duration::from_secs(2));
    let event = next(&mut cursor).await;
    assert!(event.deleted, "an ordinary delete");
    assert_eq!((event.entry.key.clone(), event.revision()), (short.clone(), Revision(7)));
    assert_eq!(event.previous.unwrap().revision, Revision(1));
    assert!(store.get(&short).is_none());
    clock.advance(Duration::from_secs(3590));
    assert!(store.get(&long).is_some(), "its last write restarted the TTL");
    clock.advance(Duration::from_secs(20));
    assert_eq!(next(&mut cursor).await.entry.key, long);
    assert!(store.get(&kept).is_some() && store.get(&freed).is_some());
}

/// Fault 14.
pub(super) async fn a_leap_of_the_wall_clock_expires_nothing(bench: CaseContext) {
    let CaseContext { store, clock } = bench;
    let object = key("events", "ns", "a");
    commit(&store, expiring(&object, 3600)).await.unwrap();
    let years = Duration::from_secs(10 * 365 * 86400);
    for wall in [
        SystemTime::UNIX_EPOCH + years,
        SystemTime::UNIX_EPOCH + 7 * years,
        SystemTime::UNIX_EPOCH - years,
    ] {
        clock.set_wall(wall);
        let before = store.revision();
        let done = commit(&store, write(&key("configmaps", "ns", "a"), "v")).await.unwrap();
        assert_eq!(done.revision, Revision(before.0 + 1), "revisions do not depend on the time");
        assert!(store.get(&object).is_some());
    }
    let mut cursor = store.watch(&Prefix::new("events").unwrap(), store.revision()).unwrap();
    clock.advance(Duration::from_secs(3601));
    assert!(next(&mut cursor).await.deleted);
}

pub(super) async fn waiting_for_a_revision(bench: CaseContext) {
    let store = bench.store;
    store.wait_for(Revision(0)).await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            store.wait_for(Revision(3)).await;
            store.revision()
        }
    });
    for _ in 0..3 {
        assert!(!waiting.is_finished());
        commit(&store, write(&key("configmaps", "ns", "a"), "v")).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(waiting.await.unwrap() >= Revision(3));
}

pub(super) async fn closing_finishes_what_was_accepted(bench: CaseContext) {
    let store = bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let mut cursor = store.watch(&prefix, store.revision()).unwrap();
    let tickets: Vec<_> = (0..50)
        .map(|number| {
            store.submit(create(&key("configmaps", "ns", &format!("n{number}")), "v")).unwrap()
        })
        .collect();
    store.close().await;
    for ticket in tickets {
        ticket.committed().await.unwrap();
    }
    assert!(matches!(
        store.submit(write(&key("configmaps", "ns", "late"), "v")),
        Err(Rejected::Closed(_))
    ));
    assert!(matches!(
        store.submit(delete(&key("configmaps", "ns", "n1"))),
        Err(Rejected::Closed(_))
    ));
    let mut seen = 0;
    let end = loop {
        match cursor.next(20).await {
            Ok(events) => seen += events.len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, WatchError::Closed) && seen == 50);
    assert_eq!(store.snapshot(&prefix).count(None, None), 50, "reads continue");
    assert_eq!(store.failure(), None);
    store.close().await;
}

pub(super) async fn figures(bench: CaseContext) {
    let CaseContext { store, clock } = bench;
    let _: &Arc<ManualClock> = &clock;
    for number in 0..5 {
        commit(&store, create(&key("configmaps", "ns", &format!("n{number}")), "v")).await.unwrap();
    }
    commit(&store, delete(&key("configmaps", "ns", "n1"))).await.unwrap();
    let stats = store.stats();
    assert_eq!(
        (stats.revision, stats.commits, stats.failures, stats.queue, stats.queue_bytes),
        (Revision(6), 6, 0, 0, 0)
    );
    assert_eq!(stats.entries, [(Prefix::new("configmaps").unwrap(), 4)]);
    assert_eq!(stats.history_events, 6);
    assert!(stats.live_bytes > 0 && stats.history_bytes > 0 && !stats.disk_full);
    assert!(stats.batches >= 1 && stats.batches <= 6 && stats.largest_batch >= 1);
    clock.advance(Duration::from_secs(100));
    settled(&store).await;
}

/// Waits until the committer has noticed that nothing is queued.
async fn settled(store: &Store) {
    let begun = std::time::Instant::now();
    while store.stalled_for() != Duration::ZERO {
        assert!(begun.elapsed() < PATIENCE, "stalled for {:?}", store.stalled_for());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
