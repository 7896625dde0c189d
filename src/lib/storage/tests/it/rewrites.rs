//! Background rewrites, and transformed values.

use crate::load::{block_on, parts};
use ferrokube_storage::journal::io::{DirLock, File, Io};
use ferrokube_storage::journal::transform::{OpenedValue, Transformer};
use ferrokube_storage::testing::{
    Dice, Model, SimDisk, check_present, check_store, commit, create, delete, key, put, settle,
    text, write,
};
use ferrokube_storage::{
    Config, Environment, JournalLimits, Key, OpenError, Prefix, Revision, Rewrites, Store,
    WatchError,
};
use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn small() -> Environment {
    let journal = JournalLimits {
        segment_bytes: 8 << 10,
        retain_bytes: 32 << 10,
        ..JournalLimits::default()
    };
    Environment { journal, ..Environment::default() }
}

/// Watches from random revisions, on a real disk, while segments are merged underneath: the exact
/// history or `Compacted`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_03_watches_during_rewrites_miss_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { history_bytes: 4096, ..Config::embedded(dir.path().join("storage")) };
    let store = Store::open_with(config.clone(), small()).unwrap();
    let prefix = Prefix::new("configmaps").unwrap();
    let (done, complete) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut watchers = tokio::task::JoinSet::new();
    for seed in 0..4 {
        let (store, prefix, done, complete) =
            (store.clone(), prefix.clone(), done.clone(), complete.clone());
        watchers.spawn(async move {
            let mut dice = Dice::new(seed);
            while !done.load(Ordering::Relaxed) {
                let now = store.revision().0;
                let mut at = now - dice.below(usize::try_from(now).unwrap().min(400) + 1) as u64;
                let Ok(mut cursor) = store.watch(&prefix, Revision(at)) else { continue };
                while at < now {
                    match cursor.next(1 + dice.below(20)).await {
                        Ok(events) => {
                            for event in events {
                                at += 1;
                                assert_eq!(event.revision().0, at, "no gap");
                                assert_eq!(
                                    event.previous.is_none(),
                                    event.entry.create_revision == event.revision()
                                );
                                assert!(
                                    event
                                        .previous
                                        .as_ref()
                                        .is_none_or(|previous| previous.key == event.entry.key
                                            && previous.revision < event.revision())
                                );
                            }
                        }
                        Err(WatchError::Compacted(_)) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                complete.fetch_add(usize::from(at >= now), Ordering::Relaxed);
            }
        });
    }
    let mut model = Model::default();
    let mut dice = Dice::new(77);
    for _ in 0..250 {
        let mut tickets = Vec::new();
        for _ in 0..8 {
            let object = key("configmaps", "ns", &format!("n{}", dice.below(12)));
            let gone = store.pending(&object).is_some() && dice.below(3) == 0;
            let txn =
                if gone { delete(&object) } else { write(&object, &"v".repeat(dice.below(200))) };
            tickets.push((store.submit(txn.clone()).unwrap(), txn));
        }
        for (ticket, txn) in tickets {
            model.record(ticket.committed().await.unwrap().revision, &txn);
        }
    }
    done.store(true, Ordering::Relaxed);
    watchers.join_all().await;
    assert!(complete.load(Ordering::Relaxed) > 20, "{complete:?} watches went through");
    let stats = store.stats();
    // How far watches lag depends on the machine; the space bound is tested with inline rewrites.
    assert!(stats.rewrites > 0, "{stats:?}");
    store.close().await;
    let store = Store::open_with(config, small()).unwrap();
    check_present(&store, &model);
    store.close().await;
}

/// A value that never changes survives many rewrites and restarts.
#[test]
fn unchanged_values_survive_every_rewrite() {
    block_on(async {
        let disk = SimDisk::default();
        let mut model = Model::default();
        let open = || {
            let journal = JournalLimits {
                segment_bytes: 2000,
                retain_bytes: 2000,
                rewrites: Rewrites::Inline,
                ..JournalLimits::default()
            };
            let parts =
                Environment { io: Arc::new(disk.clone()), journal, ..Environment::default() };
            Store::open_with(
                Config { history_bytes: 1000, ..Config::embedded("/sim/storage") },
                parts,
            )
            .unwrap()
        };
        let mut written = Vec::new();
        for round in 0..6 {
            let store = open();
            check_store(&store, &model).await;
            for number in 0..60 {
                let txn = match number {
                    0 => create(&key("configmaps", "ns", &format!("kept-{round}")), "stays"),
                    _ => write(&key("leases", "ns", "l"), &"beat".repeat(number % 20)),
                };
                let revision = commit(&store, txn.clone()).await.unwrap().revision;
                model.record(revision, &txn);
                if number == 0 {
                    written.push(revision);
                }
            }
            assert!(
                store.stats().rewrites >= 1 && store.stats().journal_bytes < 12_000,
                "{:?}",
                store.stats()
            );
            store.close().await;
        }
        let store = open();
        for (round, revision) in written.into_iter().enumerate() {
            let entry = store.get(&key("configmaps", "ns", &format!("kept-{round}"))).unwrap();
            assert_eq!((text(&entry).as_str(), entry.revision), ("stays", revision));
        }
        store.close().await;
    });
}

/// Inverts every byte and appends one that depends on the key.
struct InvertingTransformer(u8);

impl Transformer for InvertingTransformer {
    fn seal(&self, key: &Key, parts: &[&[u8]], sealed: &mut Vec<u8>) {
        sealed.push(u8::try_from(key.as_str().len()).unwrap() ^ self.0);
        sealed.extend(parts.concat().iter().map(|byte| !byte));
    }

    fn open<'a>(&self, key: &Key, sealed: &'a [u8]) -> Result<OpenedValue<'a>, String> {
        match sealed.split_first() {
            Some((first, rest)) if usize::from(first ^ self.0) == key.as_str().len() => {
                Ok(OpenedValue {
                    value: Cow::Owned(rest.iter().map(|byte| !byte).collect()),
                    stale: self.0 == 9,
                })
            }
            _ => Err("sealed differently".to_owned()),
        }
    }
}

#[test]
fn values_are_sealed_on_disk_and_a_wrong_secret_is_an_error_naming_the_key() {
    block_on(async {
        let disk = SimDisk::default();
        let parts = |secret| Environment {
            io: Arc::new(disk.clone()),
            transformer: Arc::new(InvertingTransformer(secret)),
            ..Environment::default()
        };
        let config = Config { history_bytes: 1, ..Config::embedded("/sim/storage") };
        let object = key("secrets", "ns", "token");
        let store = Store::open_with(config.clone(), parts(9)).unwrap();
        commit(&store, create(&object, "canary-secret")).await.unwrap();
        commit(&store, write(&object, "canary-secret-2")).await.unwrap();
        assert_eq!(text(&store.get(&object).unwrap()), "canary-secret-2");
        // Read back from the journal: nothing of it is in memory.
        let mut cursor = store.watch(&Prefix::new("secrets").unwrap(), Revision(0)).unwrap();
        assert_eq!(text(&cursor.next(1).await.unwrap()[0].entry), "canary-secret");
        store.close().await;
        assert!(
            disk.files().values().all(|bytes| !bytes.windows(6).any(|window| window == b"canary")),
            "the plain value is on the disk"
        );
        let store = Store::open_with(config.clone(), parts(9)).unwrap();
        let entry = store.get(&object).unwrap();
        assert!(text(&entry) == "canary-secret-2" && !store.is_fresh(&entry));
        assert_eq!(put(&object, "canary-secret-2").sidecar.marks, entry.sidecar.marks);
        store.close().await;
        match Store::open_with(config, parts(8)).err().unwrap() {
            OpenError::Damaged { what, .. } => assert!(
                what.contains("/registry/secrets/ns/token") && !what.contains("canary"),
                "{what}"
            ),
            error => panic!("{error}"),
        }
    });
}

fn is_base(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".base")
}

/// A disk that has no room to make the name of the first base durable.
struct UnsyncedBase {
    disk: SimDisk,
    /// A base was just renamed.
    is_renamed: AtomicBool,
    /// Number of bases whose names were to be made durable.
    named: AtomicUsize,
    /// The first one was removed before there was another.
    is_removed: AtomicBool,
}

impl Io for UnsyncedBase {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.make_dir(dir)
    }

    fn lock(&self, dir: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        self.disk.lock(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.is_renamed.store(is_base(to), Ordering::Relaxed);
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if is_base(path) && self.named.load(Ordering::Relaxed) == 1 {
            self.is_removed.store(true, Ordering::Relaxed);
        }
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.is_renamed.swap(false, Ordering::Relaxed)
            && self.named.fetch_add(1, Ordering::Relaxed) == 0
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.disk.sync_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.free_bytes(dir)
    }
}

/// The next merge may take other files: bases that overlap would keep the store from starting.
#[test]
fn fault_07_a_base_whose_name_is_not_durable_is_removed() {
    let disk = SimDisk::default();
    let [is_renamed, is_removed] = [(); 2].map(|()| AtomicBool::new(false));
    let named = AtomicUsize::new(0);
    let io = Arc::new(UnsyncedBase { disk: disk.clone(), is_renamed, named, is_removed });
    let (config, object) = (Config::embedded("/sim/storage"), key("configmaps", "ns", "a"));
    block_on(async {
        let environment = Environment { io: io.clone(), ..parts(&disk) };
        let store = Store::open_with(config.clone(), environment).unwrap();
        let mut last = 0;
        // The second base stays.
        while io.named.load(Ordering::Relaxed) < 2 {
            last += 1;
            assert!(last < 1000, "nothing is merged");
            commit(&store, write(&object, &format!("{last:0300}"))).await.unwrap();
            settle(&store);
        }
        assert!(io.is_removed.load(Ordering::Relaxed));
        store.close().await;
        let again = Store::open_with(config, parts(&disk)).unwrap();
        assert_eq!(text(&again.get(&object).unwrap()), format!("{last:0300}"));
        again.close().await;
    });
}
