//! Gets and lists.

use super::context::CaseContext;
use crate::testing::{Dice, Model, check_store, commit, delete, key, put, text, write};
use crate::{Prefix, Txn, Write};
use std::collections::BTreeSet;

fn rests<'a>(entries: impl Iterator<Item = &'a std::sync::Arc<crate::Entry>>) -> Vec<String> {
    entries.map(|entry| entry.key.rest().to_owned()).collect()
}

/// Keys sort by their joined bytes, so `a-b/x` comes before `a/x`; a namespace is a contiguous
/// range.
pub(super) async fn ranges_are_in_key_order(bench: CaseContext) {
    let store = &bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let presence = store.presence(&prefix);
    assert!(!presence.has_any(None));
    let mut all = BTreeSet::new();
    for namespace in ["a", "a-b", "a.b", "a0", "ab", "b", "z"] {
        for name in ["x", "x-1", "x.y", "y", "0"] {
            commit(store, write(&key("configmaps", namespace, name), "v")).await.unwrap();
            all.insert(format!("{namespace}/{name}"));
        }
    }
    // Neighbors in the key space, which must not leak in.
    for neighbor in ["configmap", "configmaps.x", "configmapt", "configmaps0"] {
        commit(store, write(&key(neighbor, "a", "x"), "v")).await.unwrap();
    }
    let snapshot = store.snapshot(&prefix);
    assert_eq!(rests(snapshot.range(None, None)), Vec::from_iter(all.clone()));
    assert_eq!(snapshot.count(None, None), all.len());
    for namespace in ["a", "a-b", "a.b", "a0", "ab", "b", "z", "none", ""] {
        let expected: Vec<String> =
            all.iter().filter(|rest| rest.starts_with(&format!("{namespace}/"))).cloned().collect();
        assert_eq!(
            rests(snapshot.range(Some(namespace), None)),
            expected,
            "namespace {namespace:?}"
        );
        assert_eq!(snapshot.count(Some(namespace), None), expected.len());
        assert_eq!(presence.has_any(Some(namespace)), !expected.is_empty());
        for after in all.iter().map(String::as_str).chain(["", "a/", "a/x ", "zz", "a/zz"]) {
            let rest: Vec<String> =
                expected.iter().filter(|rest| rest.as_str() > after).cloned().collect();
            assert_eq!(
                rests(snapshot.range(Some(namespace), Some(after))),
                rest,
                "namespace {namespace:?} after {after:?}"
            );
            let rest: Vec<String> =
                all.iter().filter(|rest| rest.as_str() > after).cloned().collect();
            assert_eq!(rests(snapshot.range(None, Some(after))), rest, "after {after:?}");
        }
    }
    assert_eq!(snapshot.get("a/x").unwrap().key.rest(), "a/x");
    assert!(snapshot.get("a/none").is_none());
    for name in ["x", "x-1", "x.y", "y", "0"] {
        commit(store, delete(&key("configmaps", "z", name))).await.unwrap();
    }
    assert!(!presence.has_any(Some("z")) && presence.has_any(None));
}

pub(super) async fn pages_of_one_revision_fit_together(bench: CaseContext) {
    let store = &bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    for number in 0..40 {
        commit(store, write(&key("configmaps", "ns", &format!("n{number:02}")), "old"))
            .await
            .unwrap();
    }
    let at = store.revision();
    let mut pages = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let snapshot = store.snapshot_at(&prefix, at).unwrap();
        assert_eq!(snapshot.revision, at);
        let page: Vec<_> = snapshot.range(Some("ns"), after.as_deref()).take(7).cloned().collect();
        let Some(last) = page.last() else { break };
        after = Some(last.key.rest().to_owned());
        pages.extend(page);
        // Writes continue between pages: updates, deletes, creates.
        let number = pages.len();
        commit(
            store,
            write(&key("configmaps", "ns", &format!("n{:02}", (number + 3) % 40)), "new"),
        )
        .await
        .unwrap();
        commit(store, write(&key("configmaps", "ns", &format!("m{number:02}")), "new"))
            .await
            .unwrap();
        let gone = key("configmaps", "ns", &format!("n{:02}", (number * 3) % 40));
        if store.get(&gone).is_some() {
            commit(store, delete(&gone)).await.unwrap();
        }
    }
    assert_eq!(pages.len(), 40);
    assert!(pages.iter().all(|entry| text(entry) == "old" && entry.revision <= at));
    assert!(
        matches!(store.snapshot_at(&prefix, store.revision()), Ok(snapshot) if snapshot.revision == store.revision())
    );
}

/// Fault 10: get, list and watch agree.
pub(super) async fn get_list_and_watch_agree(bench: CaseContext) {
    let store = &bench.store;
    let mut model = Model::default();
    let mut dice = Dice::new(7);
    for _ in 0..150 {
        let mut writes = Vec::new();
        for resource in ["configmaps", "secrets", "example.com/widgets"] {
            let key = key(resource, ["a", "b"][dice.below(2)], &format!("n{}", dice.below(6)));
            let exists = store.pending(&key).is_some();
            match dice.below(4) {
                0 => {}
                1 if exists => writes.push(Write::Delete { key, last: None }),
                _ => writes.push(Write::Put(put(&key, &"v".repeat(dice.below(40))))),
            }
        }
        if !writes.is_empty() {
            let txn = Txn { guards: Vec::new(), writes };
            let done = commit(store, txn.clone()).await.unwrap();
            model.record(done.revision, &txn);
        }
    }
    check_store(store, &model).await;
}

pub(super) async fn a_snapshot_does_not_change(bench: CaseContext) {
    let store = &bench.store;
    let prefix = Prefix::new("configmaps").unwrap();
    let object = key("configmaps", "ns", "a");
    let first = commit(store, write(&object, "1")).await.unwrap().revision;
    let before = store.snapshot(&prefix);
    let at = before.revision;
    let second = commit(store, write(&object, "2")).await.unwrap().revision;
    commit(store, write(&key("configmaps", "ns", "b"), "2")).await.unwrap();
    // A remote engine may have revisions of others in between.
    assert!(first <= at && at < second && before.revision == at, "{first} {at} {second}");
    assert_eq!(before.range(None, None).map(|entry| text(entry)).collect::<Vec<_>>(), ["1"]);
    assert_eq!(store.snapshot(&prefix).count(None, None), 2);
}

pub(super) async fn a_resource_that_was_never_written_is_empty(bench: CaseContext) {
    let store = &bench.store;
    let never = Prefix::new("example.com/nothing").unwrap();
    let origin = store.revision();
    let done = commit(store, write(&key("configmaps", "ns", "a"), "1")).await.unwrap();
    let snapshot = store.snapshot(&never);
    assert_eq!((snapshot.revision, snapshot.count(None, None)), (done.revision, 0));
    let snapshot = store.snapshot_at(&never, origin).unwrap();
    assert_eq!((snapshot.revision, snapshot.count(None, None)), (origin, 0));
}

/// No reader sees part of a batch: a change of two resources is visible as a whole.
pub(super) async fn batches_become_visible_at_once(bench: CaseContext) {
    let store = bench.store;
    let (a, b) = (key("configmaps", "ns", "a"), key("secrets", "ns", "b"));
    let both = |text: &str| Txn {
        guards: Vec::new(),
        writes: vec![Write::Put(put(&a, text)), Write::Put(put(&b, text))],
    };
    commit(&store, both("0")).await.unwrap();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (reader, stop) = (store.clone(), done.clone());
    let (first, second) = (a.clone(), b.clone());
    let reading = tokio::task::spawn_blocking(move || {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let one = reader.get(&first).unwrap().revision;
            let published = reader.revision();
            let other = reader.get(&second).unwrap().revision;
            assert!(published >= one, "{one} was visible before it was published");
            assert!(other >= one, "one resource was at {one}, the other later still at {other}");
            let snapshot = reader.snapshot(&first.to_prefix());
            assert!(snapshot.range(None, None).all(|entry| entry.revision <= snapshot.revision));
        }
    });
    for round in 0..200 {
        let tickets: Vec<_> = (0..4)
            .map(|number| store.submit(both(&format!("{round}.{number}"))).unwrap())
            .collect();
        for ticket in tickets {
            ticket.committed().await.unwrap();
        }
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    reading.await.unwrap();
}
