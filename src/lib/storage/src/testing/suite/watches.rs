//! Cursors.

use super::context::CaseContext;
use crate::testing::{Model, check_store, commit, delete, key, write};
use crate::{Event, Prefix, Revision, WatchError};
use std::sync::Arc;
use std::time::Duration;

fn revisions(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.revision().0).collect()
}

async fn fill(store: &crate::Store, count: usize) -> Model {
    let mut model = Model::default();
    for number in 0..count {
        let name = format!("n{}", number % 5);
        let object = key(["configmaps", "secrets"][number % 2], "ns", &name);
        let txn = if number % 4 == 3 && store.get(&object).is_some() {
            delete(&object)
        } else {
            write(&object, &"v".repeat(number % 50))
        };
        let done = commit(store, txn.clone()).await.unwrap();
        model.record(done.revision, &txn);
    }
    model
}

pub(super) async fn a_watch_is_exactly_the_history(bench: CaseContext) {
    let model = fill(&bench.store, 60).await;
    check_store(&bench.store, &model).await;
}

/// Events missing in memory come from the journal, or the watch is compacted.
pub(super) async fn a_small_history_is_never_silently_short(bench: CaseContext) {
    let store = &bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let mut from_start = store.watch(&prefix, store.revision()).unwrap();
    let model = fill(store, 120).await;
    check_store(store, &model).await;
    let (mut seen, mut wanted) = (0, 60);
    while wanted > 0 {
        match from_start.next(7).await {
            Ok(events) => {
                for event in events {
                    assert!(event.revision().0 > seen, "in order");
                    seen = event.revision().0;
                    wanted -= 1;
                }
            }
            Err(WatchError::Compacted(at)) => {
                assert!(at <= model.revision());
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// History is evicted from its start, by its bound; the rest is complete, and older revisions are
/// refused.
pub(super) async fn history_ends_where_it_says(bench: CaseContext) {
    let store = &bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let origin = store.revision();
    let mut behind = store.watch(&prefix, origin).unwrap();
    let mut ahead = store.watch(&prefix, origin).unwrap();
    let mut given = vec![origin];
    while given.get(20).is_none_or(|enough| store.history(&prefix).listed < *enough) {
        let text = given.len().to_string();
        let done = commit(store, write(&key("configmaps", "ns", "a"), &text)).await.unwrap();
        let seen = ahead.next(100).await.unwrap();
        assert_eq!(revisions(&seen), [done.revision.0], "a watch that keeps up misses nothing");
        given.push(done.revision);
    }
    // A rewrite may end in between: history only gets shorter.
    let begins = || store.history(&prefix);
    for (index, after) in given.iter().copied().enumerate() {
        let earlier = begins();
        match store.watch(&prefix, after) {
            Ok(mut watch) => {
                assert!(after >= earlier.watched, "after {after}");
                for wanted in &given[index + 1..] {
                    match watch.next(1).await {
                        Ok(events) => assert_eq!(revisions(&events), [wanted.0]),
                        Err(error) => {
                            assert!(
                                matches!(error, WatchError::Compacted(_))
                                    && *wanted <= begins().watched,
                                "at {wanted}: {error}"
                            );
                            break;
                        }
                    }
                }
            }
            Err(error) => assert!(
                matches!(error, WatchError::Compacted(_)) && after < begins().watched,
                "after {after}: {error}"
            ),
        }
        match store.snapshot_at(&prefix, after) {
            Ok(snapshot) => {
                assert!(after >= earlier.listed);
                assert_eq!(snapshot.get("ns/a").map_or(origin, |entry| entry.revision), after);
            }
            Err(error) => assert!(
                matches!(error, WatchError::Compacted(_)) && after < begins().listed,
                "at {after}"
            ),
        }
    }
    match behind.next(1).await {
        Ok(events) => assert_eq!(revisions(&events), [given[1].0]),
        Err(error) => assert!(
            matches!(error, WatchError::Compacted(at) if at == origin) && begins().watched > origin,
            "{error}"
        ),
    }
}

pub(super) async fn a_cursor_can_be_cancelled(bench: CaseContext) {
    let store = bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let mut cursor = store.watch(&prefix, store.revision()).unwrap();
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            let mut given = Vec::new();
            for number in 0..300 {
                let object = key("configmaps", "ns", &format!("n{}", number % 3));
                given.push(commit(&store, write(&object, "v")).await.unwrap().revision.0);
            }
            given
        }
    });
    let mut seen = Vec::new();
    let mut cancelled = 0;
    while seen.len() < 300 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now(), if cancelled % 3 != 2 => cancelled += 1,
            events = cursor.next(2) => {
                cancelled += 1;
                seen.extend(revisions(&events.unwrap()));
            }
        }
    }
    assert_eq!(seen, writer.await.unwrap());
}

/// Fault 19.
pub(super) async fn a_watch_of_the_future_gives_nothing_older(bench: CaseContext) {
    let store = &bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let mut cursor = store.watch(&prefix, Revision(5)).unwrap();
    for number in 1..=5u64 {
        assert_eq!(
            cursor.bookmark(),
            None,
            "no bookmark below what was asked for, at {}",
            number - 1
        );
        commit(store, write(&key("configmaps", "ns", "a"), "v")).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), cursor.next(10)).await.is_err());
    }
    assert_eq!(cursor.bookmark(), Some(Revision(5)));
    commit(store, write(&key("configmaps", "ns", "a"), "v")).await.unwrap();
    assert_eq!(revisions(&cursor.next(10).await.unwrap()), [6]);
}

/// Fault 17: a bookmark covers only returned events.
pub(super) async fn a_bookmark_comes_after_its_events(bench: CaseContext) {
    let store = bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for number in 0..300 {
                let resource = ["configmaps", "secrets"][number % 2];
                let ticket = store.submit(write(&key(resource, "ns", "a"), "v")).unwrap();
                if number % 7 == 0 {
                    ticket.committed().await.unwrap();
                }
            }
        }
    });
    let mut cursor = store.watch(&prefix, Revision(0)).unwrap();
    let (mut given, mut marked) = (0, 0);
    while marked < 300 {
        if let Some(bookmark) = cursor.bookmark() {
            assert!(bookmark.0 >= marked, "bookmarks do not go back");
            marked = bookmark.0;
            // Odd revisions belong to the watched resource.
            assert!(
                given >= marked.saturating_sub(1) / 2 * 2 + u64::from(marked > 0),
                "bookmark {marked}, but events only up to {given}"
            );
        }
        if let Ok(events) = tokio::time::timeout(Duration::from_millis(1), cursor.next(3)).await {
            for event in events.unwrap() {
                assert!(
                    event.revision().0 > marked,
                    "event {} after bookmark {marked}",
                    event.revision()
                );
                given = event.revision().0;
            }
        }
    }
    writer.await.unwrap();
}

/// Fault 18: a watcher is a position; slow ones cost the others nothing and miss nothing.
pub(super) async fn a_thousand_watchers_see_the_same(bench: CaseContext) {
    let store = Arc::new(bench.store);
    let prefix = Prefix::new("configmaps").unwrap();
    let origin = store.revision();
    let mut slow = store.watch(&prefix, origin).unwrap();
    let mut watchers = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let mut cursor = store.watch(&prefix, origin).unwrap();
        watchers.spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < 50 {
                seen.extend(revisions(&cursor.next(8).await.unwrap()));
            }
            seen
        });
    }
    let mut given = Vec::new();
    for _ in 0..50 {
        let txn = write(&key("configmaps", "ns", "a"), "v");
        given.push(commit(&store, txn).await.unwrap().revision.0);
    }
    for seen in watchers.join_all().await {
        assert_eq!(seen, given);
    }
    assert_eq!(revisions(&slow.next(100).await.unwrap()), given);
}

/// Also of a resource that was never written: readers that keep derived state ask for every
/// request.
pub(super) async fn a_cursor_is_behind_only_if_there_are_events(bench: CaseContext) {
    let store = &bench.store;
    let cursor = |prefix: &str| {
        let prefix = Prefix::new(prefix).unwrap();
        store.watch(&prefix, store.snapshot(&prefix).revision).unwrap()
    };
    let untouched = cursor("secrets");
    assert!(!untouched.is_behind());
    commit(store, write(&key("configmaps", "ns", "a"), "v")).await.unwrap();
    assert!(!untouched.is_behind() && !cursor("secrets").is_behind());
    assert!(!cursor("configmaps").is_behind());
    commit(store, write(&key("secrets", "ns", "a"), "v")).await.unwrap();
    assert!(untouched.is_behind() && !cursor("secrets").is_behind());
}
