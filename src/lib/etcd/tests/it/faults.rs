//! An etcd that is full, cut off, compacted by others, restored, or has values of others.

use crate::proxy::Proxy;
use crate::{attach, attach_with, catch_up, config, etcds, soon, until_written};
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_etcd::{EtcdConfig, MigratedEtcd};
use ferrokube_storage::testing::{TextValues, commit, create, delete, key, text, write};
use ferrokube_storage::{
    CommitError, Environment, Key, OpenError, Prefix, Revision, Store, WatchError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// In the JSON of etcd's gateway, keys and values are in base64.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * index)) as usize & 63];
            text.push(if index > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    text
}

fn put_foreign(etcd: &EtcdProcess, key: &[u8], value: &[u8]) {
    let body = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(key), base64(value));
    let reply = etcd.post("/v3/kv/put", &body);
    assert!(reply.contains("revision"), "{reply}");
}

fn compact(etcd: &EtcdProcess, store: &Store) {
    let reply =
        etcd.post("/v3/kv/compaction", &format!(r#"{{"revision":"{}"}}"#, store.revision()));
    assert!(reply.contains("header"), "{reply}");
}

fn disarm(etcd: &EtcdProcess) {
    const ALARM: &str = "/v3/maintenance/alarm";
    let alarms = etcd.post(ALARM, r#"{"action":"GET"}"#);
    let member = alarms.split("\"memberID\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let Some(member) = member else { return };
    let body = format!(r#"{{"action":"DEACTIVATE","memberID":"{member}","alarm":"NOSPACE"}}"#);
    etcd.post(ALARM, &body);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_07_a_full_etcd_takes_no_more_keeps_all_and_recovers() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let quota = ["--quota-backend-bytes=4194304".to_owned()];
        let path = directory.path().join("etcd");
        let etcd = EtcdProcess::start_with(&executable, &path, "http", &quota);
        let store = attach(&etcd).await;
        let written = fill(&store).await;
        assert!(!store.has_space());
        // Nothing is lost for present and later clients; reads and deletes continue.
        catch_up(&store).await;
        for store in [&store, &attach(&etcd).await] {
            assert!(written.iter().all(|object| store.get(object).is_some()));
        }
        for object in &written[1..] {
            soon(commit(&store, delete(object))).await.unwrap();
        }
        assert!(!store.has_space(), "a delete needs none");
        compact(&etcd, &store);
        until_room(&etcd, &store, &key("configmaps", "ns", "after")).await;
        assert!(store.has_space() && store.get(&written[0]).is_some());
    }
}

/// etcd refuses for lack of space what it has applied, too, if the last of it is used meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn fault_07_writes_that_a_full_etcd_refuses_are_absent() {
    const WRITERS: usize = 32;
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let quota = ["--quota-backend-bytes=4194304".to_owned()];
        let path = directory.path().join("etcd");
        let etcd = EtcdProcess::start_with(&executable, &path, "http", &quota);
        let store = attach(&etcd).await;
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                let large = "x".repeat(40 << 10);
                for number in 0..1000 {
                    let object = key("configmaps", "ns", &format!("n{writer}-{number}"));
                    match commit(&store, create(&object, &large)).await {
                        Ok(_) => {}
                        Err(CommitError::DiskFull) => return Some(object),
                        // It says nothing that could be wrong.
                        Err(_) => return None,
                    }
                }
                panic!("the quota holds");
            });
        }
        let refused = soon(writers.join_all()).await;
        catch_up(&store).await;
        for object in refused.into_iter().flatten() {
            assert!(store.get(&object).is_none(), "{object:?} was refused");
        }
    }
}

/// Fills an etcd with writes of a store.
async fn fill(store: &Store) -> Vec<Key> {
    let large = "x".repeat(300 << 10);
    let mut written = Vec::new();
    loop {
        let object = key("configmaps", "ns", &format!("n{}", written.len()));
        match commit(store, create(&object, &large)).await {
            Ok(_) => written.push(object),
            Err(CommitError::DiskFull | CommitError::Unknown(_)) => return written,
            Err(error) => panic!("{error}"),
        }
        assert!(written.len() < 100, "the quota holds");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_07_a_full_etcd_is_compacted_and_read_past_revisions_of_others() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let quota = ["--quota-backend-bytes=4194304".to_owned()];
        let path = directory.path().join("etcd");
        let etcd = EtcdProcess::start_with(&executable, &path, "http", &quota);
        let interval = Duration::from_millis(100);
        let often = EtcdConfig { compaction_interval: interval, ..config(&etcd.url()) };
        let store = attach(&etcd).await;
        let foreign = [b"/other/a", b"/other/b", b"/other/c"];
        for key in foreign {
            put_foreign(&etcd, key, b"x");
        }
        let written = fill(&store).await;
        let made = store.get(&written[0]).unwrap().revision;
        put_foreign_until_refused(&etcd);
        for key in foreign {
            // A revision without an event here, and no room for a marker.
            etcd.post("/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, base64(key)));
            catch_up(&store).await;
        }
        // A client that comes now can read, and compacts.
        let other = attach_with(&often).await;
        catch_up(&other).await;
        assert!(written.iter().all(|object| other.get(object).is_some()));
        // All but one: a fast machine writes twice the quota before etcd finds out.
        for object in &written[1..] {
            soon(commit(&other, delete(object))).await.unwrap();
        }
        let at = format!(r#"{{"key":"{}","revision":"{made}"}}"#, base64(b"/registry/x"));
        soon(async {
            while !etcd.post("/v3/kv/range", &at).contains("compacted") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        until_room(&etcd, &other, &key("configmaps", "ns", "after")).await;
        catch_up(&store).await;
        assert!(store.get(&written[0]).is_some() && store.get(&written[1]).is_none());
    }
}

/// Writes small values outside of the prefix, until the alarm is raised for them, too.
fn put_foreign_until_refused(etcd: &EtcdProcess) {
    for number in 0..100_000 {
        let key = base64(format!("/other/{number}").as_bytes());
        let reply = etcd.post("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"eA=="}}"#));
        if reply.contains("space exceeded") {
            return;
        }
    }
    panic!("the quota holds");
}

/// Makes room as an operator would, and repeats a write until there is some: etcd frees what a
/// compaction removed a while after its answer.
async fn until_room(etcd: &EtcdProcess, store: &Store, object: &Key) {
    soon(async {
        loop {
            etcd.post("/v3/maintenance/defragment", "{}");
            disarm(etcd);
            match commit(store, write(object, "1")).await {
                Ok(_) => return,
                Err(
                    CommitError::DiskFull | CommitError::Unavailable(_) | CommitError::Unknown(_),
                ) => {}
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_20_a_start_while_others_compact_without_a_pause_reads_everything() {
    const OBJECTS: usize = 2500;
    for (etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        let objects: Vec<Key> =
            (0..OBJECTS).map(|number| key("configmaps", "ns", &format!("n{number}"))).collect();
        for batch in objects.chunks(100) {
            let commits = batch.iter().map(|object| commit(&store, create(object, "1")));
            for done in futures::future::join_all(commits).await {
                done.unwrap();
            }
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (busy, over, hot) = (store.clone(), Arc::clone(&is_over), objects[0].clone());
        let etcd = Arc::new(etcd);
        let compactor = Arc::clone(&etcd);
        let others = tokio::spawn(async move {
            let mut count = 0_usize;
            while !over.load(Ordering::Relaxed) {
                commit(&busy, write(&hot, &count.to_string())).await.unwrap();
                let (etcd, store) = (Arc::clone(&compactor), busy.clone());
                tokio::task::spawn_blocking(move || compact(&etcd, &store)).await.unwrap();
                count += 1;
            }
            count
        });
        for _ in 0..3 {
            let started = attach(&etcd).await;
            catch_up(&started).await;
            let prefix = Prefix::new("configmaps").unwrap();
            assert_eq!(started.snapshot(&prefix).count(None, None), OBJECTS);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(soon(others).await.unwrap() > 0);
    }
}

/// Otherwise a restart would end all watches that are older, as kube-apiserver's does.
#[tokio::test(flavor = "multi_thread")]
async fn fault_20_a_start_after_a_compaction_has_the_history_that_is_left() {
    for (etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        let object = key("configmaps", "ns", "a");
        let mut written = Vec::new();
        for number in 0..10 {
            let done = commit(&store, write(&object, &number.to_string())).await.unwrap();
            written.push(done.revision);
        }
        let compacted = format!(r#"{{"revision":"{}"}}"#, written[4]);
        assert!(etcd.post("/v3/kv/compaction", &compacted).contains("header"));
        let started = attach(&etcd).await;
        catch_up(&started).await;
        let prefix = Prefix::new("configmaps").unwrap();
        assert!(started.watch(&prefix, written[3]).is_err(), "that is compacted");
        let mut watch = started.watch(&prefix, written[4]).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 5 {
            let events = soon(watch.next(10)).await.unwrap();
            seen.extend(events.iter().map(|event| event.revision()));
        }
        assert_eq!(seen, written[5..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_08_values_of_others_are_left_alone() {
    for (etcd, _directory) in etcds() {
        let foreign: [(&[u8], &[u8]); 4] = [
            (b"/registry/configmaps/ns/foreign", b"\xff\x00 no object"),
            (b"/registry/configmaps/ns/\xff", b"no text"),
            (b"/registry/nothing", b""),
            (b"/registryx/configmaps/ns/a", b"below another prefix"),
        ];
        for (key, value) in foreign {
            put_foreign(&etcd, key, value);
        }
        let store = attach(&etcd).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        for (key, value) in foreign {
            put_foreign(&etcd, key, value);
        }
        commit(&store, create(&key("configmaps", "ns", "own"), "1")).await.unwrap();
        catch_up(&store).await;
        assert_eq!(store.snapshot(&prefix).count(None, None), 1, "what can be read is served");
        assert_eq!(soon(watch.next(10)).await.unwrap().len(), 1);
        let object = key("configmaps", "ns", "foreign");
        let taken = soon(commit(&store, create(&object, "1"))).await;
        assert!(matches!(taken, Err(CommitError::Conflict(_))), "{taken:?}");
        for (key, value) in foreign {
            let found = etcd.post("/v3/kv/range", &format!(r#"{{"key":"{}"}}"#, base64(key)));
            assert!(value.is_empty() || found.contains(&base64(value)), "{found}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_20_a_compaction_while_cut_off_ends_watches_and_loses_nothing() {
    for (etcd, _directory) in etcds() {
        let proxy = Proxy::new(&etcd.url()).await;
        let store = attach_with(&config(&proxy.url())).await;
        let other = attach(&etcd).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let object = |name: &str| key("configmaps", "ns", name);
        for name in ["kept", "deleted", "changed"] {
            commit(&store, create(&object(name), "1")).await.unwrap();
        }
        catch_up(&other).await;
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        proxy.sever();
        commit(&other, delete(&object("deleted"))).await.unwrap();
        commit(&other, write(&object("changed"), "2")).await.unwrap();
        commit(&other, create(&object("new"), "1")).await.unwrap();
        compact(&etcd, &other);
        assert!(store.barrier().unwrap().await.is_err(), "cut off, reads fail");
        proxy.heal();
        soon(async { while store.barrier().unwrap().await.is_err() {} }).await;
        let ended = soon(watch.next(10)).await;
        assert!(matches!(ended, Err(WatchError::Compacted(_))), "{ended:?}");
        let found: Vec<(String, String)> = store
            .snapshot(&prefix)
            .range(None, None)
            .map(|entry| (entry.key.name().to_owned(), text(entry)))
            .collect();
        let expected = [("changed", "2"), ("kept", "1"), ("new", "1")];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        let mut again = store.watch(&prefix, store.revision()).unwrap();
        until_written(&other, || write(&object("kept"), "2")).await;
        assert_eq!(soon(again.next(10)).await.unwrap().len(), 1);
    }
}

/// etcd before 3.4.34 and 3.5.16 leaves a delete out of a watch that begins at its revision, once
/// the history is compacted up to it (etcd#18089): of the versions installed here, 3.4 does.
#[tokio::test(flavor = "multi_thread")]
async fn fault_20_a_delete_that_is_compacted_while_cut_off_is_not_missed() {
    for (etcd, _directory) in etcds() {
        let proxy = Proxy::new(&etcd.url()).await;
        let store = attach_with(&config(&proxy.url())).await;
        let other = attach(&etcd).await;
        let [deleted, kept] = ["deleted", "kept"].map(|name| key("configmaps", "ns", name));
        commit(&other, create(&kept, "1")).await.unwrap();
        let mut round = 0;
        let mut is_next = false;
        while !is_next {
            round += 1;
            let made = commit(&other, create(&deleted, "1")).await.unwrap().revision;
            catch_up(&store).await;
            proxy.sever();
            let gone = commit(&other, delete(&deleted)).await.unwrap().revision;
            let body = format!(r#"{{"revision":"{gone}","physical":true}}"#);
            assert!(etcd.post("/v3/kv/compaction", &body).contains("header"));
            let value = format!("{round}");
            commit(&other, write(&kept, &value)).await.unwrap();
            proxy.heal();
            catch_up(&store).await;
            assert!(store.get(&deleted).is_none());
            assert_eq!(text(&store.get(&kept).unwrap()), value);
            // Else the marker that tells old versions' progress was written in between.
            is_next = gone == Revision(made.0 + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_20_after_a_partition_a_watch_goes_on_where_it_was() {
    for (etcd, _directory) in etcds() {
        let proxy = Proxy::new(&etcd.url()).await;
        let store = attach_with(&config(&proxy.url())).await;
        let other = attach(&etcd).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let object = key("configmaps", "ns", "a");
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        let mut expected = Vec::new();
        for round in 0..6 {
            // Bytes that are kept, and connections that end.
            if round % 2 == 0 {
                proxy.hold()
            } else {
                proxy.sever()
            }
            for number in 0..5 {
                let value = format!("{round}-{number}");
                let written = commit(&other, write(&object, &value)).await.unwrap();
                expected.push((written.revision, value));
            }
            assert!(store.barrier().unwrap().await.is_err());
            proxy.heal();
            soon(async { while store.barrier().unwrap().await.is_err() {} }).await;
        }
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            let events = soon(watch.next(100)).await.unwrap();
            seen.extend(events.iter().map(|event| (event.revision(), text(&event.entry))));
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_begins_to_ask_for_credentials_is_unavailable() {
    for (etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        let object = key("configmaps", "ns", "a");
        commit(&store, create(&object, "1")).await.unwrap();
        for (path, body) in [
            ("user/add", r#"{"name":"root","password":"p"}"#),
            ("role/add", r#"{"name":"root"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            let reply = etcd.post(&format!("/v3/auth/{path}"), body);
            assert!(reply.contains("header"), "{path}: {reply}");
        }
        let refused = soon(commit(&store, write(&object, "2"))).await;
        assert!(
            matches!(&refused, Err(CommitError::Unavailable(why)) if why.contains("user name")),
            "{refused:?}"
        );
        let Err(unavailable) = store.barrier().unwrap().await else { panic!("a read is allowed") };
        assert!(unavailable.to_string().contains("user name"), "{unavailable}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_09_an_etcd_that_is_restored_between_two_starts_is_refused() {
    for (mut etcd, directory) in etcds() {
        let path = directory.path().join("etcd-revision");
        let config = EtcdConfig { remembered: Some(path.clone()), ..config(&etcd.url()) };
        let open = async || {
            // As a server.
            let engine = Arc::new(MigratedEtcd::new(&config).unwrap());
            Store::attach(engine, Arc::new(TextValues), 1 << 20, Environment::default()).await
        };
        let store = open().await.unwrap();
        for number in 0..20 {
            commit(&store, write(&key("configmaps", "ns", &format!("n{number}")), "1"))
                .await
                .unwrap();
        }
        drop(store);
        soon(async {
            while !path.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let store = open().await.unwrap();
        assert!(store.get(&key("configmaps", "ns", "n19")).is_some(), "a restart is no restore");
        drop(store);
        etcd.kill();
        etcd.forget();
        etcd.restart();
        let refused = soon(open()).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            refused.contains("another etcd cluster") || refused.contains("went back"),
            "{refused}"
        );
        assert!(refused.contains(&format!("remove {}", path.display())), "{refused}");
        std::fs::remove_file(&path).unwrap();
        let accepted = open().await;
        assert!(!matches!(accepted, Err(OpenError::Remote(_))), "as the operator decided");
    }
}
