//! Stores that share a remote engine.

use ferrokube_storage::testing::{
    SharedClient, SharedEngine, SharedFault, TextValues, commit, create, delete, key, put,
    remote_suite, text, write,
};
use ferrokube_storage::{
    CommitError, Environment, Event, Guard, Prefix, Rejected, Revision, Store, Topic, Txn,
    WatchError, Write,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

async fn attach(client: &SharedClient) -> Store {
    let engine = Arc::new(client.clone());
    Store::attach(engine, Arc::new(TextValues), 64 << 20, Environment::default()).await.unwrap()
}

async fn two() -> (SharedEngine, [SharedClient; 2], [Store; 2]) {
    let engine = SharedEngine::default();
    let clients = [engine.client(), engine.client()];
    let stores = [attach(&clients[0]).await, attach(&clients[1]).await];
    (engine, clients, stores)
}

async fn catch_up(store: &Store) {
    store.barrier().expect("a remote engine has a barrier").await.unwrap();
}

fn at(head: Revision, txn: Txn) -> Txn {
    let key = txn.writes[0].key().clone();
    Txn { guards: vec![Guard::At(key, head)], ..txn }
}

#[tokio::test]
async fn a_write_is_read_here_at_once_and_elsewhere_after_a_barrier() {
    let (engine, _, [one, other]) = two().await;
    let object = key("configmaps", "ns", "a");
    let prefix = Prefix::new("configmaps").unwrap();
    let mut watch = other.watch(&prefix, Revision(0)).unwrap();
    let done = commit(&one, create(&object, "v")).await.unwrap();
    let entry = one.get(&object).unwrap();
    assert!(Arc::ptr_eq(&entry, &done.entries[0]), "the event and the answer share an entry");
    assert_eq!((entry.revision, entry.create_revision), (done.revision, done.revision));
    let foreign = engine.foreign_revision();
    catch_up(&other).await;
    assert_eq!(other.revision(), foreign, "also past revisions of others");
    let seen = other.get(&object).unwrap();
    assert_eq!((text(&seen).as_str(), seen.revision), ("v", done.revision));
    assert_eq!(seen.sidecar, entry.sidecar, "derived from the value");
    assert_eq!(watch.next(10).await.unwrap().len(), 1);
    assert_eq!(watch.bookmark(), Some(foreign));
    // A gap in the revisions is no gap in the history.
    assert_eq!(other.snapshot_at(&prefix, Revision(1)).unwrap().count(None, None), 0);
    let second = commit(&other, at(done.revision, write(&object, "w"))).await.unwrap();
    assert!(second.revision > foreign);
    assert_eq!(second.entries[0].create_revision, done.revision);
    catch_up(&one).await;
    assert_eq!(text(&one.get(&object).unwrap()), "w");
}

#[tokio::test]
async fn a_write_on_an_outdated_head_conflicts_and_then_sees_the_newer_one() {
    let (engine, clients, [one, other]) = two().await;
    let object = key("configmaps", "ns", "a");
    let first = commit(&one, create(&object, "1")).await.unwrap();
    catch_up(&other).await;
    clients[1].hold(true);
    let newer = commit(&one, at(first.revision, write(&object, "2"))).await.unwrap();
    let ticket = other.submit(at(first.revision, write(&object, "3"))).unwrap();
    let confirmation = other.confirm(&object, Some(first.revision)).unwrap();
    tokio::task::yield_now().await;
    clients[1].hold(false);
    let lost = ticket.committed().await;
    assert!(matches!(lost, Err(CommitError::Conflict(key)) if key == object));
    assert_eq!(other.pending(&object).unwrap().revision, newer.revision, "to compute again on");
    let outdated = confirmation.confirmed().await;
    assert!(matches!(outdated, Err(CommitError::Conflict(_))), "{outdated:?}");
    assert_eq!(engine.events_of(&object), 2);
    // Known to be outdated: refused without asking.
    let late = other.submit(at(first.revision, write(&object, "3")));
    assert!(matches!(late, Err(Rejected::Guard(_))));
    // An unguarded write follows whatever is there.
    clients[1].hold(true);
    let third = commit(&one, write(&object, "4")).await.unwrap();
    let ticket = other.submit(write(&object, "5")).unwrap();
    tokio::task::yield_now().await;
    clients[1].hold(false);
    assert!(ticket.committed().await.unwrap().revision > third.revision);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_is_applied_once() {
    let (engine, _, [one, _]) = two().await;
    for (round, faults) in [
        &[SharedFault::LoseReply][..],
        &[SharedFault::LoseRequest, SharedFault::LoseReply, SharedFault::LoseRequest],
        &[SharedFault::LoseReply, SharedFault::Unavailable],
    ]
    .into_iter()
    .enumerate()
    {
        let object = key("configmaps", "ns", &format!("n{round}"));
        for (expected, txn) in [(1, create(&object, "1")), (2, write(&object, "2"))] {
            engine.fail_next(faults);
            let done = commit(&one, txn).await.unwrap();
            assert_eq!(engine.events_of(&object), expected, "{faults:?}");
            assert_eq!(done.entries[0].revision, done.revision);
        }
        // Anyone may have deleted it: nothing tells the events apart.
        engine.fail_next(faults);
        let deleted = commit(&one, delete(&object)).await;
        assert!(matches!(deleted, Err(CommitError::Unknown(_))), "{deleted:?}");
        assert_eq!(engine.events_of(&object), 3, "{faults:?}");
    }
    // Another store's write in between is not taken for one's own.
    let object = key("configmaps", "ns", "other");
    let head = commit(&one, create(&object, "1")).await.unwrap().revision;
    engine.fail_next(&[SharedFault::LoseRequest]);
    let ticket = one.submit(at(head, write(&object, "mine"))).unwrap();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    engine.write_foreign(object.as_str(), Some("{\"v\":\"theirs\",\"z\":1}"));
    assert!(matches!(ticket.committed().await, Err(CommitError::Conflict(_))));
    assert_eq!(text(&one.get(&object).unwrap()), "theirs");
}

/// Counters: both stores write what follows the head.
#[tokio::test(start_paused = true)]
async fn the_same_value_of_another_store_is_not_taken_for_ones_own() {
    let (engine, _, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    let head = commit(&one, create(&object, "1")).await.unwrap().revision;
    engine.fail_next(&[SharedFault::LoseRequest]);
    let ticket = one.submit(at(head, write(&object, "2"))).unwrap();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    let theirs = engine.write_foreign(object.as_str(), Some("{\"v\":\"2\",\"z\":1}"));
    let mine = ticket.committed().await;
    assert!(matches!(mine, Err(CommitError::Unknown(_))), "{mine:?}");
    assert_eq!(one.get(&object).unwrap().revision, theirs);
}

/// A create with what it counts, such as a quota's usage; and a change with guards of others.
#[tokio::test(start_paused = true)]
async fn a_transaction_is_told_by_the_object_that_it_creates() {
    let (engine, _, [one, _]) = two().await;
    let [counter, object] = ["counter", "a"].map(|name| key("configmaps", "ns", name));
    let head = commit(&one, create(&counter, "1")).await.unwrap().revision;
    let counting = |head, count: &str| {
        let writes = vec![Write::Put(put(&object, "new")), Write::Put(put(&counter, count))];
        Txn { guards: vec![Guard::At(counter.clone(), head)], writes }
    };
    engine.fail_next(&[SharedFault::LoseReply]);
    let made = commit(&one, counting(head, "2")).await.unwrap();
    assert_eq!(one.get(&counter).unwrap().revision, made.revision);
    engine.fail_next(&[SharedFault::LoseRequest]);
    let ticket = one.submit(counting(made.revision, "3")).unwrap();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    engine.write_foreign(object.as_str(), Some("{\"v\":\"new\",\"z\":1}"));
    let changed = ticket.committed().await;
    assert!(matches!(changed, Err(CommitError::Unknown(_))), "{changed:?}");
    assert_eq!(text(&one.get(&counter).unwrap()), "2");
}

#[tokio::test(start_paused = true)]
async fn a_create_of_unknown_outcome_is_not_repeated_after_a_delete() {
    let (engine, _, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    engine.fail_next(&[SharedFault::LoseReply]);
    let ticket = one.submit(create(&object, "1")).unwrap();
    while engine.value(&object).is_none() {
        tokio::task::yield_now().await;
    }
    engine.write_foreign(object.as_str(), None);
    let created = ticket.committed().await.unwrap();
    assert_eq!(engine.events_of(&object), 2, "created once, deleted once");
    assert_eq!(engine.everything()[0].revision, created.revision);
    assert!(one.get(&object).is_none());
}

/// As after a member died with the watch.
#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_write_waits_for_a_late_history() {
    let (engine, clients, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    for txn in [create(&object, "1"), write(&object, "2")] {
        clients[0].hold(true);
        engine.fail_next(&[SharedFault::LoseReply]);
        let ticket = one.submit(txn).unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        clients[0].hold(false);
        let done = ticket.committed().await.unwrap();
        assert_eq!(one.get(&object).unwrap().revision, done.revision);
    }
    assert_eq!(engine.events_of(&object), 2);
}

/// What a client would not read here is not acknowledged.
#[tokio::test(start_paused = true)]
async fn a_write_that_the_feed_does_not_show_is_not_acknowledged() {
    let (engine, clients, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    clients[0].hold(true);
    let outcome = commit(&one, create(&object, "1")).await;
    assert!(matches!(outcome, Err(CommitError::Unknown(_))), "{outcome:?}");
    assert_eq!(engine.events_of(&object), 1);
    clients[0].hold(false);
    catch_up(&one).await;
    assert_eq!(text(&one.get(&object).unwrap()), "1");
}

#[tokio::test(start_paused = true)]
async fn a_full_engine_does_not_say_what_became_of_an_earlier_attempt() {
    let (engine, _, [one, _]) = two().await;
    engine.fail_next(&[SharedFault::LoseReply, SharedFault::Full, SharedFault::Full]);
    let object = key("configmaps", "ns", "a");
    let made = commit(&one, create(&object, "1")).await;
    assert!(made.is_ok() && engine.events_of(&object) == 1, "{made:?}");
    // An update whose request may still arrive: that there is no space now says nothing of it.
    engine.heal();
    engine.fail_next(&[SharedFault::LoseRequest]);
    engine.fail_next(&[SharedFault::Full; 1000]);
    let lost = commit(&one, write(&object, "2")).await;
    assert!(matches!(lost, Err(CommitError::Unknown(_))), "{lost:?}");
}

/// As by a member with other limits.
#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_say_what_became_of_an_earlier_attempt() {
    let (engine, _, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    engine.fail_next(&[SharedFault::Invalid]);
    let refused = commit(&one, create(&object, "1")).await;
    assert!(matches!(refused, Err(CommitError::Invalid(_))), "{refused:?}");
    commit(&one, create(&object, "1")).await.unwrap();
    engine.fail_next(&[SharedFault::LoseReply, SharedFault::Invalid]);
    let done = commit(&one, write(&object, "2")).await.unwrap();
    assert_eq!(one.get(&object).unwrap().revision, done.revision);
    assert_eq!(engine.events_of(&object), 2);
    engine.fail_next(&[SharedFault::LoseRequest]);
    engine.fail_next(&[SharedFault::Invalid; 1000]);
    let lost = commit(&one, write(&object, "3")).await;
    assert!(matches!(lost, Err(CommitError::Unknown(_))), "{lost:?}");
}

/// A write is known by the head that it replaced, not by its value alone.
#[tokio::test(start_paused = true)]
async fn the_same_value_on_another_head_is_not_taken_for_ones_own() {
    let (engine, _, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    commit(&one, create(&object, "1")).await.unwrap();
    engine.fail_next(&[SharedFault::LoseRequest]);
    let ticket = one.submit(write(&object, "mine")).unwrap();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    for theirs in ["theirs", "mine"] {
        engine.write_foreign(object.as_str(), Some(&format!("{{\"v\":\"{theirs}\",\"z\":1}}")));
    }
    let mine = ticket.committed().await.unwrap();
    assert_eq!(engine.events_of(&object), 4, "it is written after theirs");
    assert_eq!(engine.everything().last().unwrap().revision, mine.revision);
}

/// etcd applies the write that takes the last of its space, and refuses it.
#[tokio::test(start_paused = true)]
async fn a_write_that_is_applied_and_refused_for_space_is_acknowledged() {
    let (engine, _, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    for txn in [create(&object, "1"), write(&object, "2")] {
        engine.fail_next(&[SharedFault::FullAtLast]);
        let done = commit(&one, txn).await.unwrap();
        assert_eq!(one.get(&object).unwrap().revision, done.revision);
    }
    // Without the history, it is known if the head is unchanged.
    for (fault, is_known) in [(SharedFault::Full, true), (SharedFault::FullAtLast, false)] {
        engine.fail_next(&[fault]);
        let ticket = one.submit(write(&object, "3")).unwrap();
        engine.foreign_revision();
        engine.compact();
        let refused = ticket.committed().await;
        assert_eq!(matches!(refused, Err(CommitError::DiskFull)), is_known, "{refused:?}");
        assert_eq!(matches!(refused, Err(CommitError::Unknown(_))), !is_known, "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_engine_writes_and_consistent_reads_fail() {
    let (engine, clients, [one, _]) = two().await;
    let object = key("configmaps", "ns", "a");
    clients[0].cut(true);
    let lost = commit(&one, create(&object, "1")).await;
    assert!(matches!(lost, Err(CommitError::Unavailable(_))), "{lost:?}");
    one.barrier().unwrap().await.unwrap_err();
    assert!(one.confirm(&object, None).unwrap().confirmed().await.is_err(), "no 404 from a guess");
    clients[0].cut(false);
    engine.fail_next(&[SharedFault::Full]);
    assert!(matches!(commit(&one, create(&object, "1")).await, Err(CommitError::DiskFull)));
    assert!(!one.has_space());
    commit(&one, create(&object, "1")).await.unwrap();
    assert!(one.has_space());
    clients[0].hold(true);
    engine.foreign_revision();
    one.barrier().unwrap().await.unwrap_err();
}

/// The feed is open and silent, as that of a member that has lost the others.
#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_nobody_is_in_trouble_although_its_feed_is_open() {
    let (_, clients, [one, _]) = two().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(one.trouble(), None);
    clients[0].cut(true);
    one.barrier().unwrap().await.unwrap_err();
    assert_eq!(one.trouble(), None, "it may be late");
    let reached = async |is_in_trouble: bool| {
        while one.trouble().is_some() != is_in_trouble {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    reached(true).await;
    clients[0].cut(false);
    reached(false).await;
}

#[tokio::test]
async fn a_gap_in_the_history_ends_watches() {
    let (engine, clients, [one, other]) = two().await;
    let prefix = Prefix::new("configmaps").unwrap();
    for name in ["changed", "gone", "kept"] {
        commit(&one, create(&key("configmaps", "ns", name), "1")).await.unwrap();
    }
    catch_up(&other).await;
    let before = other.revision();
    let mut watch = other.watch(&prefix, before).unwrap();
    clients[1].hold(true);
    commit(&one, write(&key("configmaps", "ns", "changed"), "2")).await.unwrap();
    commit(&one, delete(&key("configmaps", "ns", "gone"))).await.unwrap();
    let last = commit(&one, create(&key("configmaps", "ns", "new"), "1")).await.unwrap();
    engine.compact();
    clients[1].hold(false);
    assert!(matches!(watch.next(10).await, Err(WatchError::Compacted(at)) if at == before));
    let found: Vec<(String, String)> = other
        .snapshot(&prefix)
        .range(None, None)
        .map(|entry| (entry.key.name().to_owned(), text(entry)))
        .collect();
    let expected = [("changed", "2"), ("kept", "1"), ("new", "1")];
    assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    assert_eq!(other.revision(), last.revision);
    assert!(matches!(other.watch(&prefix, before), Err(WatchError::Compacted(_))));
    assert!(other.snapshot_at(&prefix, before).is_err());
    let mut watch = other.watch(&prefix, last.revision).unwrap();
    commit(&one, write(&key("configmaps", "ns", "new"), "2")).await.unwrap();
    assert_eq!(text(&watch.next(10).await.unwrap()[0].entry), "2");
}

/// What an event replaces is what the event before it left, also if the feed gives both at once.
#[tokio::test]
async fn changes_of_a_key_that_come_together_follow_each_other() {
    let (_, clients, [one, other]) = two().await;
    let object = key("configmaps", "ns", "a");
    let mut watch = other.watch(&Prefix::new("configmaps").unwrap(), Revision(0)).unwrap();
    clients[1].hold(true);
    for txn in [create(&object, "1"), write(&object, "2"), delete(&object), create(&object, "3")] {
        commit(&one, txn).await.unwrap();
    }
    clients[1].hold(false);
    catch_up(&other).await;
    let given: Vec<(bool, String, Option<String>)> = watch
        .next(10)
        .await
        .unwrap()
        .iter()
        .map(|event| {
            (event.deleted, text(&event.entry), event.previous.as_ref().map(|entry| text(entry)))
        })
        .collect();
    let expected =
        [(false, "1", None), (false, "2", Some("1")), (true, "2", Some("2")), (false, "3", None)];
    let expected =
        expected.map(|(deleted, now, before)| (deleted, now.to_owned(), before.map(str::to_owned)));
    assert_eq!(given, expected);
}

#[tokio::test]
async fn a_revision_is_given_whole() {
    let (_, _, [one, other]) = two().await;
    let prefix = Prefix::new("quotas").unwrap();
    let writes = ["a", "b", "c"].map(|name| Write::Put(put(&key("quotas", "ns", name), "1")));
    let txn = Txn { guards: Vec::new(), writes: writes.to_vec() };
    let mut watch = other.watch(&prefix, Revision(0)).unwrap();
    let done = commit(&one, txn).await.unwrap();
    assert_eq!(done.entries.len(), 3);
    assert_eq!(watch.next(1).await.unwrap().len(), 3, "not split");
    let mut resumed = other.watch(&prefix, done.revision).unwrap();
    assert_eq!(resumed.next(1).await.unwrap().len(), 3, "the client may have seen only one");
}

/// A store that begins with a state does not know its events, of which a client may have seen one.
#[tokio::test]
async fn objects_of_the_last_revision_of_a_state_are_given_again() {
    let engine = SharedEngine::default();
    let one = attach(&engine.client()).await;
    let prefix = Prefix::new("quotas").unwrap();
    for name in ["a", "old"] {
        commit(&one, create(&key("quotas", "ns", name), "1")).await.unwrap();
    }
    let writes = ["a", "b", "c"].map(|name| Write::Put(put(&key("quotas", "ns", name), "2")));
    let txn = Txn { guards: Vec::new(), writes: writes.to_vec() };
    let shared = commit(&one, txn).await.unwrap().revision;

    let other = attach(&engine.client()).await;
    assert_eq!(other.revision(), shared, "who lists gets this revision, and may watch from it");
    let mut resumed = other.watch(&prefix, shared).unwrap();
    assert!(resumed.is_behind() && resumed.bookmark().is_none());
    let given = resumed.next(1).await.unwrap();
    let shown = |event: &Event| (event.entry.key.name().to_owned(), event.previous.is_none());
    let names = ["a", "b", "c"].map(|name| (name.to_owned(), name != "a"));
    assert_eq!(given.iter().map(shown).collect::<Vec<_>>(), names, "whether it was a create");
    assert!(given.iter().all(|event| text(&event.entry) == "2" && !event.deleted));
    assert_eq!(resumed.bookmark(), Some(shared));
    let mut narrow = other.watch_topic(&prefix, Topic::name("b"), shared).unwrap();
    assert_eq!(narrow.next(9).await.unwrap().len(), 1);
    let outside = other.watch_topic(&prefix, Topic::name("old"), shared).unwrap();
    assert_eq!(outside.bookmark(), Some(shared));
    let before = other.watch(&prefix, Revision(shared.0 - 1));
    assert!(matches!(before, Err(WatchError::Compacted(_))), "deletes are unknown");

    let next = commit(&one, create(&key("quotas", "ns", "d"), "1")).await.unwrap().revision;
    catch_up(&other).await;
    assert_eq!(resumed.next(9).await.unwrap()[0].revision(), next);
    // A revision of one object: who has seen it has seen all.
    let third = attach(&engine.client()).await;
    assert_eq!(third.watch(&prefix, next).unwrap().bookmark(), Some(next));
}

/// A client may have seen some of its events, and can no longer be given the others.
#[tokio::test]
async fn a_revision_of_which_a_part_was_evicted_is_compacted() {
    let (prefix, other) = (Prefix::new("quotas").unwrap(), key("configmaps", "ns", "a"));
    for history_bytes in [100, 2500] {
        let engine = Arc::new(SharedEngine::default().client());
        let parts = Environment::default();
        let attached = Store::attach(engine, Arc::new(TextValues), history_bytes, parts).await;
        let store = attached.unwrap();
        commit(&store, create(&other, "v")).await.unwrap();
        let writes = ["a", "b", "c"].map(|name| Write::Put(put(&key("quotas", "ns", name), "1")));
        let txn = Txn { guards: Vec::new(), writes: writes.to_vec() };
        let shared = commit(&store, txn).await.unwrap().revision;
        let (mut given, mut cut) = (0, 0);
        while cut < 5 {
            let watched = store.history(&prefix).watched;
            match store.watch(&prefix, shared) {
                Ok(mut watch) => {
                    assert!(watched <= shared && watch.is_behind(), "{watched} {shared}");
                    assert_eq!(watch.next(1).await.unwrap().len(), 3, "all of it again");
                    given += 1;
                }
                Err(WatchError::Compacted(at)) => {
                    assert!(at == shared && watched > shared, "{watched} {shared}");
                    cut += 1;
                }
                Err(error) => panic!("{error}"),
            }
            // Who lists now can watch from there.
            assert!(store.watch(&prefix, store.revision()).is_ok());
            commit(&store, write(&other, "v")).await.unwrap();
        }
        assert!(given > 0 && cut > 0, "{given} {cut}");
        store.close().await;
    }
}

#[tokio::test]
async fn unreadable_values_are_neither_served_nor_overwritten() {
    let (engine, _, [one, other]) = two().await;
    let object = key("configmaps", "ns", "a");
    commit(&one, create(&object, "1")).await.unwrap();
    engine.write_foreign(object.as_str(), Some("\u{1}garbage"));
    engine.write_foreign("/registry/strange", Some("?"));
    for store in [&one, &other] {
        catch_up(store).await;
        assert!(store.get(&object).is_none());
        let conflict = commit(store, create(&object, "2")).await;
        assert!(conflict.is_err(), "{conflict:?}");
    }
    assert_eq!(engine.value(&object).unwrap(), "\u{1}garbage");
    let third = attach(&engine.client()).await;
    assert!(third.get(&object).is_none());
    engine.write_foreign(object.as_str(), Some("{\"v\":\"fine\",\"z\":1}"));
    catch_up(&third).await;
    assert_eq!(text(&third.get(&object).unwrap()), "fine");
}

#[tokio::test]
async fn a_delete_shows_the_last_state_of_its_writer() {
    let (_, _, [one, other]) = two().await;
    let object = key("configmaps", "ns", "a");
    let prefix = Prefix::new("configmaps").unwrap();
    let made = commit(&one, create(&object, "1")).await.unwrap();
    catch_up(&other).await;
    let mut watches = [&one, &other].map(|store| store.watch(&prefix, made.revision).unwrap());
    let last = Some(put(&object, "deleted by x"));
    let txn = Txn { guards: Vec::new(), writes: vec![Write::Delete { key: object.clone(), last }] };
    let done = commit(&one, txn).await.unwrap();
    assert_eq!(text(&done.entries[0]), "deleted by x");
    for (watch, shown) in watches.iter_mut().zip(["deleted by x", "1"]) {
        let event = watch.next(1).await.unwrap().remove(0);
        assert!(event.deleted);
        assert_eq!((text(&event.entry).as_str(), event.revision()), (shown, done.revision));
    }
}

#[tokio::test]
async fn readers_share_a_probe_that_starts_after_them() {
    let (_, clients, [one, _]) = two().await;
    let readers: Vec<_> = (0..200).map(|_| one.barrier().unwrap()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    readers.into_iter().for_each(|reader| _ = tasks.spawn(reader));
    tasks.join_all().await.into_iter().for_each(Result::unwrap);
    assert!(clients[0].barriers() <= 3, "{} probes", clients[0].barriers());
}

/// A probe under way says nothing of what was acknowledged since it began.
#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_during_a_probe_waits_for_the_next() {
    let (_, clients, [one, other]) = two().await;
    let object = key("configmaps", "ns", "a");
    let probes = clients[1].barriers();
    clients[1].hold_probes(true);
    let early = tokio::spawn(other.barrier().unwrap());
    while clients[1].barriers() == probes {
        tokio::task::yield_now().await;
    }
    clients[1].hold(true);
    commit(&one, create(&object, "1")).await.unwrap();
    let late = tokio::spawn(other.barrier().unwrap());
    tokio::task::yield_now().await;
    clients[1].hold_probes(false);
    early.await.unwrap().unwrap();
    tokio::task::yield_now().await;
    assert!(other.get(&object).is_none() && !late.is_finished(), "it waits for the write");
    clients[1].hold(false);
    late.await.unwrap().unwrap();
    assert!(other.get(&object).is_some());
}

#[tokio::test]
async fn a_hot_key_of_two_stores_loses_no_write() {
    let (engine, _, stores) = two().await;
    let object = key("configmaps", "ns", "counter");
    commit(&stores[0], create(&object, "0")).await.unwrap();
    catch_up(&stores[1]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (store, object) = (stores[writer % 2].clone(), object.clone());
        tasks.spawn(async move {
            let mut left = 25;
            while left > 0 {
                let turn = store.turn(&object).await.unwrap();
                let head = turn.pending(&object).unwrap();
                let next = text(&head).parse::<u64>().unwrap() + 1;
                let ticket = turn.submit(at(head.revision, write(&object, &next.to_string())));
                match ticket.unwrap().committed().await {
                    Ok(_) => left -= 1,
                    Err(CommitError::Conflict(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    tasks.join_all().await;
    catch_up(&stores[0]).await;
    assert_eq!(text(&stores[0].get(&object).unwrap()), "200");
    assert_eq!(engine.events_of(&object), 201);
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_as_long_as_the_engine_is_away() {
    let engine = SharedEngine::default();
    engine.write_foreign("/registry/configmaps/ns/a", Some("=1"));
    let client = engine.client();
    // The first state arrives, and nothing after it.
    client.cut(true);
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let (waits, remote) = (Arc::clone(&reasons), Arc::new(client.clone()));
    let begun = tokio::time::Instant::now();
    let starting = tokio::spawn(async move {
        let waits = |why: &str| waits.lock().unwrap().push(why.to_owned());
        let parts = Environment::default();
        Store::attach_reporting(remote, Arc::new(TextValues), 64 << 20, parts, &waits).await
    });
    while begun.elapsed() < Duration::from_secs(3600) {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!starting.is_finished(), "{:?}", reasons.lock().unwrap());
    }
    assert!(reasons.lock().unwrap().iter().all(|why| why == "cut"));
    assert!(reasons.lock().unwrap().len() > 1000);
    client.cut(false);
    let store = starting.await.unwrap().unwrap();
    assert_eq!(text(&store.get(&key("configmaps", "ns", "a")).unwrap()), "1");
}

/// The cases of the suite that hold for every engine; revisions have gaps here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_with_gaps_between_revisions() {
    remote_suite(async |wish| {
        let engine = Arc::new(SharedEngine::default().client());
        let parts = Environment { clock: wish.clock.clone(), ..Environment::default() };
        Store::attach(engine, Arc::new(TextValues), wish.history_bytes, parts).await.unwrap()
    })
    .await;
}
