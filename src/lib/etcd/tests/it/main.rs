//! The engine on real etcd servers, of every installed version.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod faults;
mod judged;
mod proxy;
mod slow;
mod tls;

use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_etcd::{Etcd, EtcdConfig, EtcdTls};
use ferrokube_storage::remote::{ProposalOutcome, RemoteEngine};
use ferrokube_storage::testing::{
    TextValues, commit, create, delete, key, put, remote_suite, text, write,
};
use ferrokube_storage::{
    CommitError, Environment, Guard, Prefix, Put, Revision, Store, Txn, Write,
};
use futures::FutureExt;
use proxy::Proxy;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a few writes, an election included, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn config(url: &str) -> EtcdConfig {
    EtcdConfig {
        servers: vec![url.to_owned()],
        prefix: "/registry".to_owned(),
        renamed: &[],
        tls: EtcdTls::default(),
        tls_source: None,
        compaction_interval: Duration::ZERO,
        remembered: None,
    }
}

async fn attach_with(config: &EtcdConfig) -> Store {
    let engine = Arc::new(Etcd::new(config).unwrap());
    let opened = Store::attach(engine, Arc::new(TextValues), 64 << 20, Environment::default());
    opened.await.unwrap()
}

async fn attach(etcd: &EtcdProcess) -> Store {
    attach_with(&config(&etcd.url())).await
}

/// An etcd of each version, with a directory for its data.
fn etcds() -> Vec<(EtcdProcess, tempfile::TempDir)> {
    let start = |executable| {
        let directory = tempfile::tempdir().unwrap();
        (EtcdProcess::start(executable, &directory.path().join("etcd")), directory)
    };
    EtcdProcess::executables().iter().map(|executable| start(executable)).collect()
}

/// Reads at a current revision; on a busy machine that may take more than an attempt.
async fn catch_up(store: &Store) {
    soon(async { while store.barrier().unwrap().await.is_err() {} }).await;
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}

/// Repeats a write until the store takes it.
async fn until_written(store: &Store, txn: impl Fn() -> Txn) -> Revision {
    soon(async {
        loop {
            match commit(store, txn()).await {
                Ok(done) => return done.revision,
                Err(CommitError::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_share_an_etcd() {
    for (etcd, _directory) in etcds() {
        let (one, other) = (attach(&etcd).await, attach(&etcd).await);
        let prefix = Prefix::new("configmaps").unwrap();
        let mut watch = other.watch(&prefix, other.revision()).unwrap();
        let object = key("configmaps", "ns", "a");
        let made = commit(&one, create(&object, "1")).await.unwrap();
        assert!(commit(&one, create(&key("secrets", "ns", "a"), "1")).await.is_ok());
        catch_up(&other).await;
        let seen = other.get(&object).unwrap();
        assert_eq!((text(&seen).as_str(), seen.revision), ("1", made.revision));
        assert_eq!(seen.sidecar, made.entries[0].sidecar);
        assert_eq!(soon(watch.next(10)).await.unwrap().len(), 1);
        let txn =
            Txn { guards: vec![Guard::At(object.clone(), made.revision)], ..write(&object, "22") };
        let changed = commit(&other, txn.clone()).await.unwrap();
        assert!(changed.revision > made.revision);
        assert_eq!(changed.entries[0].create_revision, made.revision);
        // Unless it does not know yet, and learns it from etcd.
        let known = one.get(&object).unwrap().revision;
        assert!(one.submit(txn).is_err() || known < changed.revision);
        commit(&one, delete(&object)).await.unwrap();
        catch_up(&other).await;
        assert!(other.get(&object).is_none());
        let events = soon(async {
            let mut events = Vec::new();
            while events.len() < 2 {
                events.extend(watch.next(10).await.unwrap());
            }
            events
        });
        let deletes: Vec<bool> = events.await.iter().map(|event| event.deleted).collect();
        assert_eq!(deletes, [false, true]);
        // As it was: a watch resumes from any revision.
        let mut again = other.watch(&prefix, made.revision).unwrap();
        assert_eq!(again.next(10).await.unwrap().len(), 2);
        let third = attach(&etcd).await;
        catch_up(&third).await;
        assert_eq!(third.snapshot(&Prefix::new("secrets").unwrap()).count(None, None), 1);
        // Its history reaches back to before it was there.
        let mut resumed = third.watch(&prefix, made.revision).unwrap();
        catch_up(&third).await;
        assert_eq!(resumed.next(10).await.unwrap().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_key_of_two_stores_loses_no_write() {
    for (etcd, _directory) in etcds() {
        let stores = [attach(&etcd).await, attach(&etcd).await];
        let object = key("configmaps", "ns", "counter");
        commit(&stores[0], create(&object, "0")).await.unwrap();
        catch_up(&stores[1]).await;
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let (store, object) = (stores[writer % 2].clone(), object.clone());
            tasks.spawn(async move {
                let mut left = 10;
                while left > 0 {
                    let turn = store.turn(&object).await.unwrap();
                    let head = turn.pending(&object).unwrap();
                    let next = text(&head).parse::<u64>().unwrap() + 1;
                    let guards = vec![Guard::At(object.clone(), head.revision)];
                    let txn = Txn { guards, ..write(&object, &next.to_string()) };
                    // Another store's write may arrive in between.
                    let Ok(ticket) = turn.submit(txn) else { continue };
                    match ticket.committed().await {
                        Ok(_) => left -= 1,
                        Err(CommitError::Conflict(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        soon(tasks.join_all()).await;
        catch_up(&stores[0]).await;
        assert_eq!(text(&stores[0].get(&object).unwrap()), "80");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_an_etcd_that_dies_and_comes_back_loses_nothing() {
    for (mut etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        let before = commit(&store, create(&key("configmaps", "ns", "a"), "1")).await.unwrap();
        etcd.kill();
        soon(async {
            while store.trouble().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        assert!(store.barrier().unwrap().await.is_err(), "reads fail closed");
        assert!(
            store.confirm(&key("configmaps", "ns", "b"), None).unwrap().confirmed().await.is_err()
        );
        let waiting = store.submit(create(&key("configmaps", "ns", "b"), "1")).unwrap();
        etcd.restart();
        let waiting = soon(waiting.committed()).await;
        assert!(matches!(&waiting, Ok(_) | Err(CommitError::Unavailable(_))), "{waiting:?}");
        until_written(&store, || write(&key("configmaps", "ns", "c"), "1")).await;
        soon(async {
            while store.trouble().is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        catch_up(&store).await;
        assert_eq!(store.get(&key("configmaps", "ns", "a")).unwrap().revision, before.revision);
        let expected = store.snapshot(&prefix).count(None, None);
        let mut seen = 0;
        while seen < expected {
            let events = soon(watch.next(10)).await.unwrap();
            assert!(events.iter().all(|event| event.previous.is_none()), "each once");
            seen += events.len();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_09_an_etcd_that_lost_its_revisions_is_refused() {
    for (mut etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        for number in 0..20 {
            commit(&store, write(&key("configmaps", "ns", &format!("n{number}")), "1"))
                .await
                .unwrap();
        }
        etcd.kill();
        etcd.forget();
        etcd.restart();
        let why = soon(store.failed()).await;
        assert!(why.contains("another etcd cluster") || why.contains("went back"), "{why}");
        assert!(store.submit(write(&key("configmaps", "ns", "a"), "1")).is_err());
    }
}

/// Writes that wait for an etcd that comes back with an older state: none is made on that.
#[tokio::test(flavor = "multi_thread")]
async fn fault_09_an_etcd_that_is_restored_gets_no_waiting_write() {
    for (mut etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        for number in 0..20 {
            let object = key("configmaps", "ns", &format!("n{number}"));
            commit(&store, write(&object, "1")).await.unwrap();
        }
        etcd.kill();
        etcd.forget();
        let waiting: Vec<_> = (0..64)
            .map(|number| store.submit(create(&key("secrets", "ns", &format!("w{number}")), "1")))
            .collect();
        etcd.restart();
        for ticket in waiting {
            assert!(soon(ticket.unwrap().committed()).await.is_err());
        }
        soon(store.failed()).await;
        let fresh = attach(&etcd).await;
        catch_up(&fresh).await;
        assert_eq!(fresh.snapshot(&Prefix::new("secrets").unwrap()).count(None, None), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_expire_with_their_leases() {
    for (etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        let [short, kept] = ["short", "kept"].map(|name| key("events", "ns", name));
        let expiring = |key| {
            let put = Put { ttl: Some(Duration::from_secs(1)), ..put(key, "1") };
            Txn { guards: Vec::new(), writes: vec![Write::Put(put)] }
        };
        let mut watch = store.watch(&short.to_prefix(), store.revision()).unwrap();
        commit(&store, expiring(&short)).await.unwrap();
        commit(&store, expiring(&kept)).await.unwrap();
        commit(&store, write(&kept, "without")).await.unwrap();
        let event = soon(async {
            loop {
                if let Some(event) =
                    watch.next(1).await.unwrap().pop().filter(|event| event.deleted)
                {
                    return event;
                }
            }
        });
        assert_eq!(event.await.entry.key, short);
        assert!(store.get(&kept).is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_about_a_minute_share_a_lease() {
    for (etcd, _directory) in etcds() {
        let store = attach(&etcd).await;
        for (name, hours) in [("a", 1), ("b", 1), ("c", 2)] {
            let ttl = Some(Duration::from_secs(3600 * hours));
            let put = Put { ttl, ..put(&key("events", "ns", name), "1") };
            let txn = Txn { guards: Vec::new(), writes: vec![Write::Put(put)] };
            commit(&store, txn).await.unwrap();
        }
        let leases = etcd.post("/v3/lease/leases", "{}");
        assert_eq!(leases.matches("\"ID\"").count(), 2, "one for each TTL: {leases}");
    }
}

/// Else no create would be accepted until the lease is replaced anyway, a minute later.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_of_a_fence_is_replaced_at_once() {
    for (etcd, _directory) in etcds() {
        let engine = Etcd::new(&config(&etcd.url())).unwrap();
        soon(async { while engine.barrier().await.is_err() {} }).await;
        let txn = create(&key("configmaps", "ns", "a"), "1");
        // What is cancelled is unknown, so the next fence is written.
        let cancel = || engine.propose(&txn, None).now_or_never().is_none();
        assert!(cancel());
        soon(async { while engine.settle().await.is_err() {} }).await;
        let leases = etcd.post("/v3/lease/leases", "{}");
        let id = leases.split("\"ID\":").nth(1).unwrap();
        let id: String = id.chars().filter(char::is_ascii_digit).collect();
        etcd.post("/v3/lease/revoke", &format!(r#"{{"ID":"{id}"}}"#));
        // A keepalive may have found already that it is gone.
        cancel();
        let mut attempts = 0;
        while let Err(why) = engine.settle().await {
            attempts += 1;
            assert!(attempts < 10, "{why}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_lasts_until_another_process_writes() {
    for (etcd, _directory) in etcds() {
        let [one, other] =
            [(); 2].map(|()| Etcd::new(&config(&etcd.url())).expect("a configuration"));
        soon(async { while one.barrier().await.is_err() {} }).await;
        let mut feed = one.open();
        let (a, b) = (key("configmaps", "ns", "a"), key("configmaps", "ns", "b"));
        let (claim, at) = one.claim().await.unwrap().expect("etcd has claims");
        assert_eq!((one.claimed(), other.claimed()), (Some(claim), None));
        let committed =
            |outcome: &ProposalOutcome| matches!(outcome, ProposalOutcome::Committed(_));
        for (text, relies_on) in [("1", Some(claim)), ("2", None), ("3", Some(claim))] {
            let outcome = one.propose(&write(&a, text), relies_on).await;
            assert!(committed(&outcome), "{outcome:?}");
        }
        let revoking = other.propose(&create(&b, "1"), None).await;
        assert!(committed(&revoking), "{revoking:?}");
        // It has no news of that yet, and writes nothing.
        let refused = one.propose(&create(&key("configmaps", "ns", "c"), "1"), Some(claim)).await;
        assert!(matches!(refused, ProposalOutcome::NotSole), "{refused:?}");
        assert_eq!(one.claimed(), None);
        let outcome = one.propose(&write(&b, "2"), None).await;
        assert!(committed(&outcome), "{outcome:?}");
        // The next claim is another one, of which its feed tells that it is revoked.
        let (next, again) = one.claim().await.unwrap().expect("etcd has claims");
        assert!(next != claim && again > at);
        let outcome = one.propose(&write(&a, "4"), Some(claim)).await;
        assert!(matches!(outcome, ProposalOutcome::NotSole), "{outcome:?}");
        assert!(committed(&other.propose(&write(&b, "3"), None).await));
        soon(async {
            while one.claimed().is_some() {
                feed.next().await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_compacted_and_nothing_else_is_lost() {
    for (etcd, _directory) in etcds() {
        let often =
            EtcdConfig { compaction_interval: Duration::from_millis(200), ..config(&etcd.url()) };
        let stores = [attach_with(&often).await, attach_with(&often).await];
        let mut watches = stores.each_ref().map(|store| {
            store.watch(&Prefix::new("configmaps").unwrap(), store.revision()).unwrap()
        });
        for number in 0..200 {
            commit(&stores[number % 2], write(&key("configmaps", "ns", "a"), &number.to_string()))
                .await
                .unwrap();
        }
        for watch in &mut watches {
            let mut seen = 0;
            while seen < 200 {
                seen += soon(watch.next(50)).await.unwrap().len();
            }
            assert_eq!(seen, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_member_is_passed_over() {
    for (etcd, _directory) in etcds() {
        let servers = vec!["http://127.0.0.1:1".to_owned(), etcd.url()];
        let store = attach_with(&EtcdConfig { servers, ..config("") }).await;
        commit(&store, create(&key("configmaps", "ns", "a"), "1")).await.unwrap();
        catch_up(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_are_kept_apart() {
    for (etcd, _directory) in etcds() {
        let other = EtcdConfig { prefix: "/other/tenant".to_owned(), ..config(&etcd.url()) };
        let stores = [attach(&etcd).await, attach_with(&other).await];
        let object = key("configmaps", "ns", "a");
        for (store, value) in stores.iter().zip(["1", "other"]) {
            commit(store, create(&object, value)).await.unwrap();
        }
        // Revisions of the other prefix have no event here.
        for (store, value) in stores.iter().zip(["1", "other"]) {
            catch_up(store).await;
            assert_eq!(text(&store.get(&object).unwrap()), value);
            assert_eq!(store.stats().entries.iter().map(|(_, count)| count).sum::<usize>(), 1);
        }
    }
}

#[tokio::test]
async fn wrong_configurations_are_refused() {
    let with = |servers: &[&str], prefix: &str, tls: EtcdTls| {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        let config = EtcdConfig { servers, prefix: prefix.to_owned(), tls, ..config("") };
        Etcd::new(&config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let none = EtcdTls::default;
    assert_eq!(with(&["http://127.0.0.1:1"], "/registry", none()), "");
    assert!(with(&[], "/registry", none()).contains("no etcd server"));
    for url in ["127.0.0.1:2379", "ftp://x", "http://", ""] {
        assert!(with(&[url], "/registry", none()).contains("no http or https URL"), "{url}");
    }
    for prefix in ["", "registry", "/", "/registry/"] {
        assert!(with(&["http://127.0.0.1:1"], prefix, none()).contains("no prefix"), "{prefix}");
    }
    assert!(with(&["https://127.0.0.1:1"], "/registry", none()).contains("certificate authority"));
    let identity = EtcdTls { identity: Some((Vec::new(), Vec::new())), ..none() };
    assert!(with(&["http://127.0.0.1:1"], "/registry", identity).contains("needs https"));
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance() {
    for (etcd, _directory) in etcds() {
        remote_suite(async |wish| {
            let config = EtcdConfig { prefix: format!("/{}", wish.name), ..config(&etcd.url()) };
            let engine = Arc::new(Etcd::new(&config).unwrap());
            let parts = Environment { clock: wish.clock.clone(), ..Environment::default() };
            Store::attach(engine, Arc::new(TextValues), wish.history_bytes, parts).await.unwrap()
        })
        .await;
    }
}

/// A member that is paused, behind two names of one etcd.
async fn two_ways(etcd: &EtcdProcess) -> (Store, Proxy) {
    // The first member would be left if it were not up yet.
    drop(attach(etcd).await);
    let proxy = Proxy::new(&etcd.url()).await;
    let servers = vec![proxy.url(), etcd.url()];
    let store = attach_with(&EtcdConfig { servers, ..config("") }).await;
    (store, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_a_member_that_hangs_is_left_by_reads_and_watches() {
    for (etcd, _directory) in etcds() {
        let (store, proxy) = two_ways(&etcd).await;
        let other = attach(&etcd).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let mut watch = store.watch(&prefix, store.revision()).unwrap();
        proxy.hold();
        let object = key("configmaps", "ns", "a");
        commit(&other, create(&object, "1")).await.unwrap();
        let began = tokio::time::Instant::now();
        soon(async { while store.barrier().unwrap().await.is_err() {} }).await;
        assert!(began.elapsed() < Duration::from_secs(35), "not when the connection is given up");
        assert!(store.get(&object).is_some());
        assert_eq!(soon(watch.next(10)).await.unwrap().len(), 1);
    }
}

/// Sum of the samples of a counter of transactions; `None` without a reply.
fn transactions(etcd: &EtcdProcess, counter: &str) -> Option<u64> {
    let url = etcd.url();
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).ok()?;
    // Bodies of HTTP/1.0 have no chunks.
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let is_wanted = |line: &&str| line.starts_with(counter) && line.contains("\"Txn\"");
    let samples = text.lines().filter(is_wanted);
    Some(samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

/// Waits until etcd has replied to every transaction that it got, and to more than `replies`.
/// Returns their number.
async fn handled_transactions(etcd: &EtcdProcess, replies: u64) -> u64 {
    soon(async {
        loop {
            let handled = transactions(etcd, "grpc_server_handled_total");
            let is_idle = handled == transactions(etcd, "grpc_server_started_total");
            match handled.filter(|handled| is_idle && *handled > replies) {
                Some(handled) => return handled,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_a_create_that_is_delivered_late_restores_nothing() {
    for (etcd, _directory) in etcds() {
        let (store, proxy) = two_ways(&etcd).await;
        let object = key("configmaps", "ns", "a");
        commit(&store, create(&key("configmaps", "ns", "before"), "1")).await.unwrap();
        proxy.hold();
        let waiting = store.submit(create(&object, "1")).unwrap();
        soon(proxy.keeps(b"/registry/configmaps/ns/a")).await;
        proxy.cut();
        // Sent again to the other member, without which the outcome is unknown.
        let made = soon(waiting.committed()).await;
        assert!(made.is_ok(), "{made:?}");
        commit(&store, delete(&object)).await.unwrap();
        // Without reads that wait, nothing else is sent.
        catch_up(&store).await;
        let before = handled_transactions(&etcd, 0).await;
        proxy.deliver();
        handled_transactions(&etcd, before).await;
        catch_up(&store).await;
        let other = attach(&etcd).await;
        assert!(other.get(&object).is_none(), "the deleted object is back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_09_a_member_of_another_cluster_gets_no_write() {
    let (one, other) = (etcds(), etcds());
    for ((mut etcd, _one), (stranger, _other)) in one.into_iter().zip(other) {
        let servers = vec![etcd.url(), stranger.url()];
        let store = attach_with(&EtcdConfig { servers, ..config("") }).await;
        commit(&store, create(&key("configmaps", "ns", "a"), "1")).await.unwrap();
        etcd.kill();
        let written = store.submit(create(&key("configmaps", "ns", "b"), "1")).unwrap();
        assert!(soon(written.committed()).await.is_err());
        let why = soon(store.failed()).await;
        assert!(why.contains("another etcd cluster"), "{why}");
        let theirs = attach(&stranger).await;
        assert!(theirs.get(&key("configmaps", "ns", "b")).is_none());
    }
}
