//! Migrations between directories and real etcd servers, of every installed version.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_etcd::{EtcdConfig, EtcdKeys, EtcdTls, MigratedEtcd, MigrationNote};
use ferrokube_migrate::{DirectoryTarget, MigrateError, MigrationSummary, to_directory, to_etcd};
use ferrokube_storage::journal::io::{Io, SystemDisk};
use ferrokube_storage::testing::{
    PATIENCE, TextValues, commit, create, delete, key, put, text, write,
};
use ferrokube_storage::{
    Config, Environment, OpenError, Prefix, Put, Revision, Store, Txn, ValueCodec, WatchError,
    Write,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn config(url: &str) -> EtcdConfig {
    EtcdConfig {
        servers: vec![url.to_owned()],
        prefix: "/registry".to_owned(),
        renamed: &[("/secrets/", "/elsewhere.io/secrets/")],
        tls: EtcdTls::default(),
        tls_source: None,
        compaction_interval: Duration::ZERO,
        remembered: None,
    }
}

fn disk() -> Arc<dyn Io> {
    Arc::new(SystemDisk)
}

async fn attach(config: &EtcdConfig) -> Result<Store, OpenError> {
    let engine = Arc::new(MigratedEtcd::new(config).unwrap());
    Store::attach(engine, Arc::new(TextValues), 64 << 20, Environment::default()).await
}

async fn into_etcd(journal: &Path, etcd: &EtcdConfig) -> Result<MigrationSummary, MigrateError> {
    to_etcd(&disk(), journal, etcd, &TextValues, &|_, _| {}).await
}

fn target(journal: &Path) -> DirectoryTarget {
    DirectoryTarget {
        journal: journal.to_owned(),
        unfinished: journal.with_extension("unfinished"),
        observed: Duration::ZERO,
    }
}

async fn from_etcd(etcd: &EtcdConfig, journal: &Path) -> Result<MigrationSummary, MigrateError> {
    let codec: Arc<dyn ValueCodec> = Arc::new(TextValues);
    to_directory(etcd, &codec, &target(journal), &|_, _| {}).await
}

/// A store with some values, one of which expires.
async fn filled(journal: &Path) -> Revision {
    let store = Store::open(Config::embedded(journal)).unwrap();
    for number in 0..40 {
        for resource in ["configmaps", "secrets"] {
            let key = key(resource, "ns", &format!("n{number}"));
            commit(&store, create(&key, &number.to_string())).await.unwrap();
        }
    }
    commit(&store, delete(&key("configmaps", "ns", "n7"))).await.unwrap();
    let brief = Put {
        ttl: Some(Duration::from_secs(600)),
        ..put(&key("configmaps", "ns", "brief"), "soon")
    };
    let txn = Txn { guards: Vec::new(), writes: vec![Write::Put(brief)] };
    let revision = commit(&store, txn).await.unwrap().revision;
    store.close().await;
    revision
}

fn check(store: &Store) {
    for (resource, count) in [("configmaps", 40), ("secrets", 40)] {
        assert_eq!(store.snapshot(&Prefix::new(resource).unwrap()).count(None, None), count);
    }
    for number in [0, 6, 39] {
        let found = store.get(&key("secrets", "ns", &format!("n{number}"))).unwrap();
        assert_eq!(text(&found), number.to_string());
    }
    assert!(store.get(&key("configmaps", "ns", "n7")).is_none());
    assert_eq!(text(&store.get(&key("configmaps", "ns", "brief")).unwrap()), "soon");
}

fn is_gone(store: &Store, revision: Revision) -> bool {
    let watch = store.watch(&Prefix::new("configmaps").unwrap(), revision);
    matches!(watch, Err(WatchError::Compacted(_)))
}

async fn keys_of(etcd: &EtcdConfig) -> EtcdKeys {
    let keys = EtcdKeys::new(etcd).unwrap();
    let ready = async {
        while keys.migration().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.expect("etcd answers in time");
    keys
}

fn etcds() -> Vec<(EtcdProcess, tempfile::TempDir)> {
    let start = |executable| {
        let directory = tempfile::tempdir().unwrap();
        (EtcdProcess::start(executable, &directory.path().join("etcd")), directory)
    };
    EtcdProcess::executables().iter().map(|executable| start(executable)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_09_a_migration_there_and_back_keeps_all_and_revisions_rise() {
    for (etcd, folder) in etcds() {
        let etcd = config(&etcd.url());
        let (journal, back) = (folder.path().join("store"), folder.path().join("back"));
        keys_of(&etcd).await;
        let last = filled(&journal).await;
        let done = into_etcd(&journal, &etcd).await.unwrap();
        assert_eq!((done.keys, done.present), (79, 0));
        assert!(matches!(into_etcd(&journal, &etcd).await, Err(MigrateError::NotEmpty(_))));
        let store = attach(&etcd).await.unwrap();
        check(&store);
        assert!(store.revision() > last && is_gone(&store, last));
        let object = key("configmaps", "ns", "n1");
        let before = store.get(&object).unwrap();
        assert!(before.revision > last, "{} {last}", before.revision);
        // Guards and events are shifted as well.
        let mut watch = store.watch(&Prefix::new("configmaps").unwrap(), store.revision()).unwrap();
        let changed = commit(&store, write(&object, "again")).await.unwrap();
        assert!(changed.revision > before.revision);
        assert_eq!(watch.next(10).await.unwrap()[0].entry.revision, changed.revision);
        store.barrier().unwrap().await.unwrap();
        let shown = store.revision();
        store.close().await;
        drop(store);
        let returned = from_etcd(&etcd, &back).await.unwrap();
        assert_eq!(returned.keys, 79);
        assert!(returned.unserved.is_empty(), "{:?}", returned.unserved);
        assert!(matches!(from_etcd(&etcd, &back).await, Err(MigrateError::NotEmpty(_))));
        let store = Store::open(Config::embedded(&back)).unwrap();
        check(&store);
        assert_eq!(text(&store.get(&object).unwrap()), "again");
        assert!(store.get(&object).unwrap().revision > shown);
        for revision in [last, shown, Revision(1)] {
            assert!(is_gone(&store, revision), "{revision}");
        }
        assert!(commit(&store, write(&object, "more")).await.unwrap().revision > shown);
        store.close().await;
        expires(&back);
    }
}

/// `text` in base64, for requests in JSON.
fn base64(text: &str) -> &str {
    match text {
        "/registry/configmaps/ns/n1" => "L3JlZ2lzdHJ5L2NvbmZpZ21hcHMvbnMvbjE=",
        "/registry/events/ns/late" => "L3JlZ2lzdHJ5L2V2ZW50cy9ucy9sYXRl",
        "=x" => "PXg=",
        other => panic!("{other:?} is not encoded"),
    }
}

/// Servers that were not stopped: whatever one writes, the copy is not taken for the state.
#[tokio::test(flavor = "multi_thread")]
async fn fault_09_a_write_to_etcd_during_a_migration_is_noticed() {
    for (process, folder) in etcds() {
        let etcd = config(&process.url());
        let journal = folder.path().join("store");
        keys_of(&etcd).await;
        filled(&journal).await;
        into_etcd(&journal, &etcd).await.unwrap();
        let [object, event, value] =
            ["/registry/configmaps/ns/n1", "/registry/events/ns/late", "=x"].map(base64);
        process.post("/v3/lease/grant", r#"{"TTL":"600","ID":"77"}"#);
        let changes = [
            ("/v3/kv/put", format!(r#"{{"key":"{object}","value":"{value}"}}"#)),
            ("/v3/kv/put", format!(r#"{{"key":"{event}","value":"{value}","lease":"77"}}"#)),
            ("/v3/kv/deleterange", format!(r#"{{"key":"{object}"}}"#)),
            ("/v3/kv/put", format!(r#"{{"key":"{object}","value":"{value}"}}"#)),
        ];
        let back = target(&folder.path().join("back"));
        let codec: Arc<dyn ValueCodec> = Arc::new(TextValues);
        for (index, (path, body)) in changes.iter().enumerate() {
            let written = AtomicBool::new(false);
            // At the first key, or after most of them.
            let report = |done, _| {
                if (done > 70 || index == 0) && !written.swap(true, Ordering::Relaxed) {
                    process.post(path, body);
                }
            };
            let outcome = to_directory(&etcd, &codec, &back, &report).await;
            assert!(matches!(outcome, Err(MigrateError::Changed)), "{path} {body}: {outcome:?}");
            assert!(!back.journal.exists() && back.unfinished.exists());
        }
        let observed = Duration::from_millis(1500);
        let begun = Instant::now();
        let back = DirectoryTarget { observed, ..back };
        let done = to_directory(&etcd, &codec, &back, &|_, _| {}).await.unwrap();
        assert!(done.started_over && begun.elapsed() >= observed, "{:?}", begun.elapsed());
        let store = Store::open(Config::embedded(&back.journal)).unwrap();
        assert_eq!(text(&store.get(&key("configmaps", "ns", "n1")).unwrap()), "x");
        assert!(store.get(&key("events", "ns", "late")).is_some());
        store.close().await;
    }
}

/// What expired before, expires still.
fn expires(journal: &Path) {
    let state = ferrokube_storage::JournalFiles::of_directory(&disk(), journal).unwrap().state();
    let entries = state.unwrap().entries;
    let ttls: Vec<_> = entries.values().filter_map(|entry| entry.ttl).collect();
    assert_eq!(ttls.len(), 1);
    assert!(ttls[0] > Duration::from_secs(300) && ttls[0] <= Duration::from_secs(660), "{ttls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_migration_is_continued_and_no_server_starts_on_it() {
    for (etcd, folder) in etcds() {
        let etcd = config(&etcd.url());
        let journal = folder.path().join("store");
        filled(&journal).await;
        let keys = keys_of(&etcd).await;
        let note = |from: &Path| MigrationNote::Unfinished(from.display().to_string()).text();
        // As left by a run that was killed: some keys, one outdated, one deleted since.
        keys.note_migration(&note(Path::new("/elsewhere"))).await.unwrap();
        assert!(matches!(into_etcd(&journal, &etcd).await, Err(MigrateError::OtherSource { .. })));
        keys.note_migration(&note(&journal)).await.unwrap();
        let whole = put(&key("configmaps", "ns", "n1"), "1");
        let whole = TextValues.write(&whole.key, &whole.value);
        keys.create("/registry/configmaps/ns/n1", whole, None).await.unwrap();
        keys.create("/registry/configmaps/ns/n2", "old".into(), None).await.unwrap();
        keys.create("/registry/configmaps/ns/n7", "deleted".into(), None).await.unwrap();
        let refused = attach(&etcd).await.err().unwrap().to_string();
        assert!(refused.contains("has not finished"), "{refused}");
        let back = folder.path().join("back");
        let source = from_etcd(&etcd, &back).await;
        assert!(matches!(source, Err(MigrateError::SourceUnfinished(_))), "{source:?}");
        let done = into_etcd(&journal, &etcd).await.unwrap();
        assert_eq!((done.keys, done.present), (79, 1));
        let store = attach(&etcd).await.unwrap();
        check(&store);
        store.close().await;
        // The other way starts over.
        let to = target(&back);
        std::fs::create_dir(&to.unfinished).unwrap();
        std::fs::write(to.unfinished.join("rubbish"), "x").unwrap();
        assert!(from_etcd(&etcd, &back).await.unwrap().started_over);
        assert!(!to.unfinished.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_cannot_be_copied_are_named_and_the_target_stays_empty() {
    for (process, folder) in etcds() {
        let etcd = config(&process.url());
        let journal: PathBuf = folder.path().join("store");
        let keys = keys_of(&etcd).await;
        // `/registry/secrets/ns/own`: nothing of a store is there, as secrets have another place.
        let foreign = r#"{"key":"L3JlZ2lzdHJ5L3NlY3JldHMvbnMvb3du","value":"eA=="}"#;
        process.post("/v3/kv/put", foreign);
        keys.create(
            "/registry/configmaps/ns/good",
            put(&key("configmaps", "ns", "good"), "1").value,
            None,
        )
        .await
        .unwrap();
        // Not readable as a key of a store.
        keys.create("/registry/lonely", "x".into(), None).await.unwrap();
        let done = from_etcd(&etcd, &journal).await.unwrap();
        assert_eq!(done.keys, 1);
        let unserved = done.unserved.into_iter().collect::<Vec<_>>();
        assert_eq!(unserved, [("keys of no resource".to_owned(), 1), ("lonely".to_owned(), 1)]);
        keys.create("/registry/configmaps/ns/bad", "\u{1}".into(), None).await.unwrap();
        let other = folder.path().join("other");
        let refused = from_etcd(&etcd, &other).await.unwrap_err();
        assert!(
            matches!(&refused, MigrateError::Unreadable { count: 1, key, .. } if key.ends_with("/bad")),
            "{refused}"
        );
        assert!(!other.exists());
        let full = into_etcd(&journal, &etcd).await;
        let full = full.expect_err("it has keys");
        assert!(matches!(full, MigrateError::NotEmpty(_)), "{full:?}");
        assert!(full.to_string().contains("is not empty: choose another --to"), "{full}");
        let held = Store::open(Config::embedded(&journal)).unwrap();
        let elsewhere = EtcdConfig { prefix: "/other".to_owned(), ..etcd.clone() };
        let in_use = into_etcd(&journal, &elsewhere).await;
        assert!(matches!(in_use, Err(MigrateError::Journal(OpenError::Locked(_)))), "{in_use:?}");
        held.close().await;
    }
}

/// Each has another remaining time, and etcd handles few leases well.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_expire_share_leases_after_a_migration() {
    for (etcd, folder) in etcds() {
        let (journal, target) = (folder.path().join("store"), config(&etcd.url()));
        keys_of(&target).await;
        let store = Store::open(Config::embedded(&journal)).unwrap();
        for number in 0..20 {
            let ttl = Some(Duration::from_millis(3_600_000 + 7 * number));
            let brief = Put { ttl, ..put(&key("events", "ns", &format!("n{number}")), "soon") };
            let txn = Txn { guards: Vec::new(), writes: vec![Write::Put(brief)] };
            commit(&store, txn).await.unwrap();
        }
        store.close().await;
        drop(store);
        into_etcd(&journal, &target).await.unwrap();
        let leases = etcd.post("/v3/lease/leases", "{}");
        let count = leases.matches("\"ID\"").count();
        assert!((1..=3).contains(&count), "{leases}");
    }
}
