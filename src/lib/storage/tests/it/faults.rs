//! Regression tests by fault number (docs/faults.md).

use crate::damage::journal;
use crate::load::{block_on, open, parts};
use ferrokube_storage::journal::io::Io;
use ferrokube_storage::testing::{
    Crash, DiskEvent, DiskFault, ManualClock, Model, PATIENCE, SimDisk, check_present, check_store,
    commit, create, delete, key, put, text, write,
};
use ferrokube_storage::{
    CommitError, Config, Environment, OpenError, Prefix, Put, Rejected, Revision, Store,
    StoreLimits, Txn, Write,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DIR: &str = "/sim/storage";

fn config() -> Config {
    Config { history_bytes: 16 << 10, ..Config::embedded(DIR) }
}

fn object(name: &str) -> ferrokube_storage::Key {
    key("configmaps", "ns", name)
}

/// Until the sync of its batch returns, a write is neither acknowledged nor visible; then it is
/// both.
#[test]
fn fault_01_an_acknowledgement_follows_the_sync_of_its_batch() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        disk.hold_syncs();
        let mut first = Box::pin(store.submit(create(&object("a"), "1")).unwrap().committed());
        disk.wait_for_held_sync();
        let mut others = Vec::new();
        for number in 0..40 {
            others.push(store.submit(create(&object(&format!("n{number}")), "1")).unwrap());
        }
        assert!(
            tokio::time::timeout(Duration::from_millis(30), &mut first).await.is_err(),
            "acknowledged before the sync"
        );
        assert!(store.get(&object("a")).is_none(), "visible before the sync");
        assert_eq!(store.revision(), Revision(0));
        assert!(store.pending(&object("a")).is_some(), "but guards see it");
        let before = disk.syncs();
        disk.release_syncs();
        assert_eq!(first.await.unwrap().revision, Revision(1));
        for ticket in others {
            ticket.committed().await.unwrap();
        }
        assert_eq!(disk.syncs() - before, 2, "what gathered during a sync is one batch");
        store.close().await;
    });
}

/// Also under its temporary name.
fn is_log(path: &Path) -> bool {
    path.to_string_lossy().contains(".log")
}

/// The same for every batch of a load with many writers: every acknowledged write is in a frame
/// that a sync followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_01_every_acknowledgement_follows_a_sync() {
    let disk = SimDisk::default();
    disk.record();
    let store = open(&disk).unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let (store, disk) = (store.clone(), disk.clone());
        writers.spawn(async move {
            for number in 0..20 {
                let done = commit(&store, write(&object(&format!("{writer}-{}", number % 3)), "v"))
                    .await
                    .unwrap();
                disk.note(done.revision.0);
            }
        });
    }
    writers.join_all().await;
    store.close().await;
    let (mut written, mut synced, mut notes) = (0, 0, 0);
    for traced in disk.trace() {
        match traced {
            // Byte 16 of a frame header: the last revision.
            DiskEvent::Wrote(path, bytes) if is_log(&path) && !bytes.starts_with(b"ferrokub") => {
                written = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
            }
            DiskEvent::Synced(path) if is_log(&path) => synced = written,
            DiskEvent::Note(revision) => {
                notes += 1;
                assert!(revision <= synced, "{revision} was acknowledged, synced up to {synced}");
            }
            _ => {}
        }
    }
    assert_eq!(notes, 320);
}

/// Fault 5: a failed batch fails everything computed on it, later writes are refused, and the
/// reason is reported.
#[test]
fn fault_05_a_failed_sync_is_fatal_and_takes_all_that_waited() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        commit(&store, create(&object("before"), "1")).await.unwrap();
        disk.hold_syncs();
        let first = store.submit(create(&object("a"), "1")).unwrap();
        disk.wait_for_held_sync();
        let second = store.submit(write(&object("a"), "2")).unwrap();
        disk.fail_at(disk.calls(), DiskFault::Eio);
        disk.release_syncs();
        assert!(matches!(first.committed().await, Err(CommitError::Failed(_))));
        assert!(matches!(second.committed().await, Err(CommitError::Failed(_))));
        let reason = store.failed().await;
        assert!(reason.contains("cannot sync the journal"), "{reason}");
        assert_eq!(store.failure(), Some(reason));
        assert!(matches!(store.submit(create(&object("b"), "1")), Err(Rejected::Closed(_))));
        let after = disk.calls();
        store.close().await;
        assert_eq!(disk.calls(), after, "nothing is retried");
        assert!(store.get(&object("a")).is_none() && store.pending(&object("a")).is_none());
        assert_eq!(text(&store.get(&object("before")).unwrap()), "1", "reads go on");
    });
}

/// Fault 7: puts are refused with a reason, reads and deletes keep working, and so do puts once
/// there is space.
#[test]
fn fault_07_a_full_disk_still_deletes_and_recovers() {
    block_on(async {
        let disk = SimDisk::default();
        disk.set_capacity(Some(64 << 10));
        let store = open(&disk).unwrap();
        let mut model = Model::default();
        let mut refused = 0;
        for number in 0..400 {
            let txn = write(&object(&format!("n{number}")), &"v".repeat(300));
            match commit(&store, txn.clone()).await {
                Ok(done) => model.record(done.revision, &txn),
                Err(CommitError::DiskFull) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 100 && store.failure().is_none(), "{refused} refused");
        check_present(&store, &model);
        // Another process takes the rest: only the ballast helps.
        disk.set_capacity(Some(disk.used()));
        for number in 0..10 {
            let txn = delete(&object(&format!("n{number}")));
            let done = commit(&store, txn.clone()).await.expect("deletes work on a full disk");
            model.record(done.revision, &txn);
        }
        assert!(matches!(
            commit(&store, write(&object("late"), &"v".repeat(9000))).await,
            Err(CommitError::DiskFull)
        ));
        assert!(store.stats().disk_full);
        disk.set_capacity(None);
        let recovered = async {
            while commit(&store, write(&object("late"), "v")).await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, recovered)
            .await
            .expect("puts work again without intervention");
        model.record(store.revision(), &write(&object("late"), "v"));
        assert!(!store.stats().disk_full);
        check_store(&store, &model).await;
        store.close().await;
        let store = open(&disk.crash(Crash::Dropped, 0)).unwrap();
        check_store(&store, &model).await;
        store.close().await;
    });
}

/// Fault 7: on a full disk, deletes alone regain space.
#[test]
fn fault_07_deletes_regain_space() {
    block_on(async {
        let disk = SimDisk::default();
        disk.set_capacity(Some(64 << 10));
        let store = open(&disk).unwrap();
        let mut model = Model::default();
        let mut number = 0;
        loop {
            let txn = write(&object(&format!("n{number}")), &"v".repeat(700));
            match commit(&store, txn.clone()).await {
                Ok(done) => model.record(done.revision, &txn),
                Err(error) => break assert!(matches!(error, CommitError::DiskFull)),
            }
            number += 1;
        }
        for gone in 2..number {
            let txn = delete(&object(&format!("n{gone}")));
            model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
        }
        let recovered = async {
            while commit(&store, write(&object("again"), "v")).await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, recovered).await.expect("space is regained");
        model.record(store.revision(), &write(&object("again"), "v"));
        check_store(&store, &model).await;
        assert!(disk.used() < 52 << 10, "{} bytes are used", disk.used());
        store.close().await;
        let store = open(&disk.crash(Crash::Dropped, 0)).unwrap();
        check_store(&store, &model).await;
        store.close().await;
    });
}

/// Fault 7: a half-written batch leaves no bytes behind a shorter one that follows.
#[test]
fn fault_07_a_half_written_batch_leaves_no_rest() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        let mut model = Model::default();
        let before = create(&object("before"), "1");
        model.record(commit(&store, before.clone()).await.unwrap().revision, &before);
        disk.fail_next_write(".log", DiskFault::Enospc);
        let refused = commit(&store, write(&object("a"), &"long".repeat(2000))).await;
        assert!(matches!(refused, Err(CommitError::DiskFull)), "{refused:?}");
        let short = write(&object("b"), "short");
        model.record(commit(&store, short.clone()).await.unwrap().revision, &short);
        check_present(&store, &model);
        store.close().await;
        for crash in [Crash::Dropped, Crash::Killed, Crash::Torn, Crash::Reordered] {
            let store = open(&disk.crash(crash, 3)).unwrap();
            check_present(&store, &model);
            store.close().await;
        }
    });
}

/// Fault 12.
#[test]
fn fault_12_a_second_store_on_the_same_directory_is_refused() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::embedded(dir.path().join("storage"));
        let store = Store::open(config.clone()).unwrap();
        let error = Store::open(config.clone()).err().unwrap();
        assert!(matches!(&error, OpenError::Locked(path) if path.ends_with("storage")), "{error}");
        commit(&store, create(&object("a"), "1")).await.unwrap();
        store.close().await;
        let store = Store::open(config).unwrap();
        assert_eq!(store.revision(), Revision(1));
        store.close().await;
    });
}

/// Fault 12: a copy of the directory that consists of links has a lock of its own, but the same
/// files.
#[test]
fn fault_12_links_to_the_files_of_a_store_are_refused_while_it_runs() {
    use std::os::unix::fs::DirBuilderExt;
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::embedded(dir.path().join("storage"));
        for life in 0..2 {
            let store = Store::open(config.clone()).unwrap();
            let copy = dir.path().join(format!("copy{life}"));
            std::fs::DirBuilder::new().mode(0o700).create(&copy).unwrap();
            for entry in std::fs::read_dir(dir.path().join("storage")).unwrap() {
                let entry = entry.unwrap();
                std::fs::hard_link(entry.path(), copy.join(entry.file_name())).unwrap();
            }
            let error = Store::open(Config::embedded(&copy)).err().unwrap();
            assert!(matches!(&error, OpenError::Locked(path) if *path == copy), "{error}");
            commit(&store, create(&object(&format!("a{life}")), "1")).await.unwrap();
            store.close().await;
        }
        let store = Store::open(config).unwrap();
        assert!(store.get(&object("a0")).is_some() && store.get(&object("a1")).is_some());
        store.close().await;
    });
}

/// Directories and files are accessible by their owner only; other directories are refused.
#[test]
fn files_are_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/storage");
        let store = Store::open(Config::embedded(&path)).unwrap();
        commit(&store, create(&object("a"), "1")).await.unwrap();
        store.close().await;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        let mut files = 0;
        for entry in std::fs::read_dir(&path).unwrap() {
            files += 1;
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
        assert!(files >= 4);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(
            Store::open(Config::embedded(&path)),
            Err(OpenError::Io { what: "make", .. })
        ));
    });
}

/// Fault 13: while a sync hangs, reads respond, only durable data is served, and the probe reports
/// the stall.
#[test]
fn fault_13_a_hanging_sync_is_seen_and_hangs_nothing_else() {
    block_on(async {
        let disk = SimDisk::default();
        let clock = Arc::new(ManualClock::default());
        let limits = StoreLimits { queue_txns: 10, ..StoreLimits::default() };
        let store = Store::open_with(
            config(),
            Environment { clock: clock.clone(), limits, ..parts(&disk) },
        )
        .unwrap();
        commit(&store, create(&object("a"), "1")).await.unwrap();
        disk.hold_syncs();
        let waiting = store.submit(write(&object("a"), "2")).unwrap();
        disk.wait_for_held_sync();
        clock.advance(Duration::from_secs(30));
        assert!(store.stalled_for() >= Duration::from_secs(30), "{:?}", store.stalled_for());
        assert_eq!(text(&store.get(&object("a")).unwrap()), "1");
        assert_eq!(store.snapshot(&Prefix::new("configmaps").unwrap()).revision, Revision(1));
        assert_eq!(store.stats().revision, Revision(1));
        // The queue is bounded.
        let queued: Vec<_> = (0..10)
            .map(|number| store.submit(create(&object(&format!("q{number}")), "1")).unwrap())
            .collect();
        assert!(matches!(store.submit(create(&object("more"), "1")), Err(Rejected::Busy)));
        disk.release_syncs();
        waiting.committed().await.unwrap();
        for ticket in queued {
            ticket.committed().await.unwrap();
        }
        commit(&store, create(&object("more"), "1")).await.unwrap();
        store.close().await;
        assert_eq!(store.stalled_for(), Duration::ZERO);
    });
}

fn expiring(name: &str, seconds: u64) -> Txn {
    let put =
        Put { ttl: Some(Duration::from_secs(seconds)), ..put(&key("events", "ns", name), "v") };
    Txn { guards: Vec::new(), writes: vec![Write::Put(put)] }
}

/// Fault 14: deadlines survive a restart by the wall clock, bounded by their TTL if it jumped.
#[test]
fn fault_14_deadlines_survive_a_restart_and_leaps_of_the_wall_clock() {
    block_on(async {
        for (leap, expires_at_once) in [(-10i64, false), (0, false), (10, true)] {
            let disk = SimDisk::default();
            let clock = Arc::new(ManualClock::default());
            let store =
                Store::open_with(config(), Environment { clock: clock.clone(), ..parts(&disk) })
                    .unwrap();
            for _ in 0..30 {
                commit(&store, expiring("a", 3600)).await.unwrap();
            }
            commit(&store, create(&object("kept"), "1")).await.unwrap();
            store.close().await;
            let later = Arc::new(ManualClock::default());
            let years = Duration::from_secs(leap.unsigned_abs() * 365 * 86400);
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + 1800);
            later.set_wall(if leap < 0 { now - years } else { now + years });
            let store =
                Store::open_with(config(), Environment { clock: later.clone(), ..parts(&disk) })
                    .unwrap();
            let mut cursor = store.watch(&Prefix::new("events").unwrap(), Revision(31)).unwrap();
            if !expires_at_once {
                assert!(store.get(&key("events", "ns", "a")).is_some());
                assert_eq!(store.revision(), Revision(31));
                later.advance(Duration::from_secs(3601));
            }
            let events =
                tokio::time::timeout(PATIENCE, cursor.next(1)).await.expect("the delete").unwrap();
            assert!(events[0].deleted && events[0].revision() > Revision(31));
            assert!(store.get(&object("kept")).is_some());
            store.close().await;
        }
    });
}

/// Fault 21: after a restart a watch resumes from any journaled revision; others are compacted.
#[test]
fn fault_21_watches_resume_across_a_restart() {
    let (disk, run) = journal();
    block_on(async {
        let store = open(&disk).unwrap();
        check_store(&store, &run.model).await;
        let prefix = Prefix::new("configmaps").unwrap();
        let oldest = (0..=run.model.revision().0)
            .find(|after| store.watch(&prefix, Revision(*after)).is_ok())
            .unwrap();
        assert!(oldest > 0 && oldest + 5 < run.model.revision().0, "rewritten up to {oldest}");
        store.close().await;
    });
}

/// An idle store does no IO.
#[test]
fn an_idle_store_does_no_io() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        commit(&store, create(&object("a"), "1")).await.unwrap();
        commit(&store, delete(&object("a"))).await.unwrap();
        // The committer may not have finished with the last write yet.
        let begun = std::time::Instant::now();
        let mut calls = u64::MAX;
        while std::mem::replace(&mut calls, disk.calls()) != calls {
            assert!(begun.elapsed() < PATIENCE, "{calls} calls");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        store.get(&object("a"));
        store.stats();
        assert_eq!(disk.calls(), calls);
        store.close().await;
    });
}

/// Dropping a store without closing it unlocks its directory.
#[test]
fn a_dropped_store_frees_its_directory() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        let ticket = store.submit(create(&object("a"), "1")).unwrap();
        drop(store);
        ticket.committed().await.unwrap();
        let reopened = async {
            loop {
                match open(&disk) {
                    Ok(store) => break store,
                    Err(OpenError::Locked(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let store = tokio::time::timeout(PATIENCE, reopened).await.unwrap();
        assert_eq!(store.revision(), Revision(1));
        store.close().await;
    });
}

/// The real disk matches the simulated one.
#[test]
fn the_real_disk_behaves_as_the_journal_needs() {
    let dir = tempfile::tempdir().unwrap();
    let io = ferrokube_storage::journal::io::SystemDisk;
    let path = |name: &str| dir.path().join(name);
    let file = io.create(&path("a")).unwrap();
    file.write_at(0, b"hello world").unwrap();
    file.truncate(5).unwrap();
    file.write_at(5, b"!").unwrap();
    file.sync().unwrap();
    let mut bytes = [0; 16];
    assert_eq!(
        (io.open(&path("a")).unwrap().read_at(1, &mut bytes).unwrap(), &bytes[..5]),
        (5, b"ello!".as_slice())
    );
    assert_eq!(file.len().unwrap(), 6);
    io.create(&path("b")).unwrap().reserve(1 << 20).unwrap();
    io.rename(&path("a"), &path("b")).unwrap();
    io.sync_dir(dir.path()).unwrap();
    assert_eq!(io.list(dir.path()).unwrap(), ["b"]);
    assert_eq!(io.open(&path("b")).unwrap().len().unwrap(), 6);
    io.remove(&path("b")).unwrap();
    assert!(io.open(&path("b")).is_err());
    assert!(io.free_bytes(dir.path()).unwrap() > 0);
    let held = io.lock(dir.path()).unwrap();
    assert!(held.is_some() && io.lock(dir.path()).unwrap().is_none());
    drop(held);
    assert!(io.lock(dir.path()).unwrap().is_some());
}
