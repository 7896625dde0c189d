//! Transactions.

use super::context::CaseContext;
use crate::testing::{Model, PATIENCE, check_store, commit, create, delete, key, put, text, write};
use crate::{CommitError, Guard, Key, Rejected, Revision, Sidecar, Txn, Write};
use std::sync::Arc;

/// The key whose guard fails: at once or, with a remote engine, at the commit.
async fn conflict(store: &crate::Store, txn: Txn) -> Option<Key> {
    let ticket = match store.submit(txn) {
        Ok(ticket) => ticket,
        Err(Rejected::Guard(key)) => return Some(key),
        Err(error) => panic!("{error}"),
    };
    match ticket.committed().await {
        Ok(_) => None,
        Err(CommitError::Conflict(key)) => Some(key),
        Err(error) => panic!("{error}"),
    }
}

/// Fault 11: revisions come from one owner, rise, and match the spliced one.
pub(super) async fn revisions_follow_each_other(bench: CaseContext) {
    let store = &bench.store;
    let mut model = Model::default();
    let mut last = store.revision();
    for number in 1..=30u64 {
        let txn = write(
            &key("configmaps", "ns", &format!("n{}", number % 7)),
            &"x".repeat(number as usize),
        );
        let done = commit(store, txn.clone()).await.unwrap();
        assert!(done.revision > last);
        last = done.revision;
        assert_eq!(done.entries.len(), 1);
        assert_eq!(done.entries[0].revision, done.revision);
        assert_eq!(
            store.get(&done.entries[0].key).unwrap().bytes,
            done.entries[0].bytes,
            "a writer reads its write"
        );
        model.record(done.revision, &txn);
    }
    check_store(store, &model).await;
}

pub(super) async fn guards_hold_on_several_keys(bench: CaseContext) {
    let store = &bench.store;
    let (namespace, quota, object) = (
        key("namespaces", "x", "ns"),
        key("resourcequotas", "ns", "q"),
        key("configmaps", "ns", "a"),
    );
    let namespace_at = commit(store, write(&namespace, "active")).await.unwrap().revision;
    let quota_at = commit(store, write(&quota, "0")).await.unwrap().revision;
    let mut txn = create(&object, "v");
    txn.guards.push(Guard::At(namespace.clone(), namespace_at));
    txn.guards.push(Guard::At(quota.clone(), quota_at));
    txn.writes.push(Write::Put(put(&quota, "1")));
    let done = commit(store, txn.clone()).await.unwrap();
    assert!(done.revision > quota_at);
    assert_eq!(done.entries.len(), 2, "two changes at one revision");
    assert_eq!(store.get(&quota).unwrap().revision, store.get(&object).unwrap().revision);

    for (guards, failing) in [
        (
            vec![Guard::At(namespace.clone(), namespace_at), Guard::At(quota.clone(), quota_at)],
            &quota,
        ),
        (vec![Guard::Absent(object.clone())], &object),
        (
            vec![Guard::At(key("configmaps", "ns", "none"), Revision(1))],
            &key("configmaps", "ns", "none"),
        ),
        (vec![Guard::At(namespace.clone(), Revision(1 << 50))], &namespace),
    ] {
        let txn = Txn { guards, ..write(&key("configmaps", "ns", "b"), "v") };
        assert_eq!(conflict(store, txn).await.as_ref(), Some(failing));
    }
    assert!(store.get(&key("configmaps", "ns", "b")).is_none());
    assert_eq!(store.revision(), done.revision, "a refused transaction takes no revision");
}

pub(super) async fn guards_see_what_is_pending(bench: CaseContext) {
    let store = &bench.store;
    let object = key("configmaps", "ns", "a");
    let first = store.submit(create(&object, "1")).unwrap();
    assert_eq!(text(&store.pending(&object).unwrap()), "1", "whether it is published or not");
    assert!(matches!(store.submit(create(&object, "2")), Err(Rejected::Guard(_))));
    let at = first.entries()[0].revision;
    let second = store
        .submit(Txn { guards: vec![Guard::At(object.clone(), at)], ..write(&object, "2") })
        .unwrap();
    let gone = store
        .submit(Txn {
            guards: vec![Guard::At(object.clone(), second.entries()[0].revision)],
            ..delete(&object)
        })
        .unwrap();
    assert!(store.pending(&object).is_none());
    assert!(
        matches!(store.submit(delete(&object)), Err(Rejected::Guard(_))),
        "its delete is pending"
    );
    let third = store.submit(create(&object, "3")).unwrap();
    let mut last = Revision(0);
    for ticket in [first, second, gone, third] {
        let done = ticket.committed().await.unwrap();
        assert!(done.revision > last);
        last = done.revision;
    }
    let entry = store.get(&object).unwrap();
    assert_eq!(
        (text(&entry).as_str(), entry.create_revision),
        ("3", Revision(4)),
        "created again after the delete"
    );
}

pub(super) async fn a_delete_shows_its_last_state(bench: CaseContext) {
    let store = &bench.store;
    let (a, b) = (key("configmaps", "ns", "a"), key("configmaps", "ns", "b"));
    let mut model = Model::default();
    let last = Txn {
        guards: Vec::new(),
        writes: vec![Write::Delete { key: b.clone(), last: Some(put(&b, "deleted by x")) }],
    };
    let mut created = Revision(0);
    let txns =
        [write(&a, "1"), write(&b, "1"), write(&b, "22"), delete(&a), last, write(&a, "again")];
    for (index, txn) in txns.into_iter().enumerate() {
        let done = commit(store, txn.clone()).await.unwrap();
        model.record(done.revision, &txn);
        if index == 1 {
            created = done.revision;
        }
        if index == 4 {
            assert_eq!(
                (
                    text(&done.entries[0]).as_str(),
                    done.entries[0].revision,
                    done.entries[0].create_revision
                ),
                ("deleted by x", done.revision, created)
            );
        }
    }
    check_store(store, &model).await;
}

pub(super) async fn invalid_transactions_are_refused(bench: CaseContext) {
    let store = &bench.store;
    let (a, b) = (key("configmaps", "ns", "a"), key("configmaps", "ns", "b"));
    let two = Txn {
        guards: Vec::new(),
        writes: vec![
            Write::Put(put(&b, "1")),
            Write::Put(put(&a, "1")),
            Write::Delete { key: a.clone(), last: None },
        ],
    };
    let outside = Txn {
        guards: Vec::new(),
        writes: vec![Write::Put(crate::Put {
            sidecar: Sidecar { revision_at: 99, ..Sidecar::default() },
            ..put(&a, "1")
        })],
    };
    let other = Txn {
        guards: Vec::new(),
        writes: vec![Write::Delete { key: a.clone(), last: Some(put(&b, "1")) }],
    };
    let before = store.revision();
    for txn in [Txn::default(), two, outside, other] {
        assert!(matches!(store.submit(txn), Err(Rejected::Invalid(_))));
    }
    assert!(matches!(store.submit(delete(&a)), Err(Rejected::Guard(_))), "nothing to delete");
    assert_eq!(store.revision(), before);
}

/// Further writes to one resource come first, at revisions of their own; all are accepted or none.
pub(super) async fn several_changes_of_one_resource_are_several_resume_points(bench: CaseContext) {
    let store = &bench.store;
    let [a, b, c] = ["a", "b", "c"].map(|name| key("quotas", "ns", name));
    let object = key("configmaps", "ns", "o");
    let mut model = Model::default();
    for name in [&a, &b, &c] {
        let txn = create(name, "0");
        model.record(commit(store, txn.clone()).await.unwrap().revision, &txn);
    }
    let writes = [&object, &a, &b, &c].map(|key| Write::Put(put(key, "1"))).to_vec();
    let stale = Txn { guards: vec![Guard::At(c.clone(), Revision(2))], writes: writes.clone() };
    assert!(matches!(store.submit(stale), Err(Rejected::Guard(key)) if key == c));
    let missing = key("quotas", "ns", "d");
    let gone = Txn {
        guards: Vec::new(),
        writes: [writes.clone(), vec![Write::Delete { key: missing, last: None }]].concat(),
    };
    assert!(matches!(store.submit(gone), Err(Rejected::Guard(_))), "no part of it happens");
    let txn = Txn {
        guards: vec![Guard::Absent(object.clone()), Guard::At(b.clone(), Revision(2))],
        writes,
    };
    let done = commit(store, txn.clone()).await.unwrap();
    model.record(done.revision, &txn);
    let written: Vec<(&str, u64)> =
        done.entries.iter().map(|entry| (entry.key.name(), entry.revision.0)).collect();
    assert_eq!(
        (done.revision, written),
        (Revision(6), vec![("o", 6), ("a", 6), ("b", 4), ("c", 5)]),
        "in the order of the transaction"
    );
    check_store(store, &model).await;
}

pub(super) async fn writers_of_one_key_take_turns(bench: CaseContext) {
    let store = Arc::new(bench.store);
    let object = key("configmaps", "ns", "counter");
    commit(&store, create(&object, "0")).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (store, object) = (store.clone(), object.clone());
        tasks.spawn(async move {
            for _ in 0..25 {
                let ticket = {
                    let turn = store.turn(&object).await.unwrap();
                    let head = turn.pending(&object).unwrap();
                    let next = text(&head).parse::<u64>().unwrap() + 1;
                    turn.submit(Txn {
                        guards: vec![Guard::At(object.clone(), head.revision)],
                        ..write(&object, &next.to_string())
                    })
                    .unwrap()
                };
                ticket.committed().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(text(&store.get(&object).unwrap()), "400", "none failed, none was lost");
}

pub(super) async fn a_turn_survives_a_panic(bench: CaseContext) {
    let store = bench.store;
    let object = key("configmaps", "ns", "a");
    let (other, copy) = (store.clone(), object.clone());
    let panicked = tokio::spawn(async move {
        let _turn = other.turn(&copy).await;
        std::panic::resume_unwind(Box::new("a request panics in its turn"));
    });
    assert!(panicked.await.is_err());
    store
        .turn(&object)
        .await
        .unwrap()
        .submit(create(&object, "1"))
        .unwrap()
        .committed()
        .await
        .unwrap();
}

pub(super) async fn a_dropped_ticket_changes_nothing(bench: CaseContext) {
    let store = &bench.store;
    let object = key("configmaps", "ns", "a");
    drop(store.submit(create(&object, "1")).unwrap());
    commit(store, write(&key("configmaps", "ns", "b"), "1")).await.unwrap();
    let written = async {
        while store.get(&object).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("it is written");
}
