//! Damage to files of a running store: they are replaced from memory.

use crate::damage::journal;
use crate::load::{LoadRun, block_on, open, parts};
use ferrokube_storage::testing::{
    Crash, DiskFault, Model, PATIENCE, SimDisk, check_present, commit, create, delete, key, settle,
    write,
};
use ferrokube_storage::{
    CommitError, Config, Environment, JournalLimits, OpenError, Prefix, Revision, Rewrites, Store,
    WatchError,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn kind(path: &Path) -> &str {
    path.extension().and_then(|kind| kind.to_str()).unwrap_or_default()
}

/// Files that are complete: bases, and all logs but the last.
fn closed(disk: &SimDisk) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = disk
        .files()
        .into_keys()
        .filter(|path| kind(path) == "log" || kind(path) == "base")
        .collect();
    let active = files.iter().rposition(|path| kind(path) == "log").unwrap();
    files.remove(active);
    files
}

/// Reads all history. Returns whether all of it was there.
async fn watch_all(store: &Store) -> bool {
    let mut is_whole = true;
    for resource in ["configmaps", "secrets", "example.com/widgets"] {
        let prefix = Prefix::new(resource).unwrap();
        let mut cursor = store.watch(&prefix, store.history(&prefix).watched).unwrap();
        while cursor.bookmark().is_none() {
            match cursor.next(100).await {
                Ok(_) => {}
                Err(WatchError::Compacted(_)) => {
                    is_whole = false;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        settle(store);
    }
    is_whole
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Fault 8: a byte of a closed log goes bad while the store runs on a real disk. Once a watch has
/// found it the files are replaced; the next start has everything, and a watch from before is
/// refused rather than silent.
#[tokio::test]
async fn fault_08_a_closed_log_that_goes_bad_is_replaced_from_memory() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("storage");
    let config = Config { history_bytes: 4096, ..Config::embedded(&path) };
    // Inline, so that no rewrite removes the damaged log before it is read.
    let (segment_bytes, rewrites) = (8 << 10, Rewrites::Inline);
    let journal = JournalLimits { segment_bytes, rewrites, ..JournalLimits::default() };
    let parts = || Environment { journal: journal.clone(), ..Environment::default() };
    let store = Store::open_with(config.clone(), parts()).unwrap();
    let (prefix, mut model) = (Prefix::new("configmaps").unwrap(), Model::default());
    for round in 0..300 {
        let object = key("configmaps", "ns", &format!("n{}", round % 40));
        let gone = round % 7 == 0 && store.get(&object).is_some();
        let txn = if gone { delete(&object) } else { write(&object, &"v".repeat(round % 200)) };
        model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
    }
    let (before, from) = (store.revision(), store.history(&prefix).watched);
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| kind(path) == "log");
    names.sort();
    assert!(names.len() > 1, "{names:?}");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&names[0]).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 300).unwrap();
    file.write_all_at(&[byte[0] ^ 16], 300).unwrap();
    let mut cursor = store.watch(&prefix, from).unwrap();
    assert!(matches!(cursor.next(1000).await, Err(WatchError::Compacted(_))));
    until("repaired", || store.stats().repairs == 1).await;
    let stats = store.stats();
    assert!(!stats.damaged && !stats.repair_failed && stats.history_lost == before, "{stats:?}");
    assert!(store.watch(&prefix, from).is_err(), "what was dropped is refused");
    check_present(&store, &model);
    let txn = write(&key("configmaps", "ns", "after"), "later");
    model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
    store.close().await;
    let store = Store::open_with(config, parts()).unwrap();
    check_present(&store, &model);
    assert!(store.watch(&prefix, from).is_err());
    assert_eq!(store.watch(&prefix, before).unwrap().next(10).await.unwrap().len(), 1);
    store.close().await;
}

/// Fault 8: any byte of any closed file, found by a watch or a rewrite.
#[test]
fn fault_08_every_closed_file_that_goes_bad_is_replaced() {
    let (disk, run) = journal();
    let files = disk.files();
    let (mut by_watch, mut by_rewrite) = (0, 0);
    for (number, path) in closed(&disk).iter().enumerate() {
        for at in (48..files[path].len()).step_by(61) {
            let disk = SimDisk::with_files(&files);
            let mut run = LoadRun { model: run.model.clone(), ..LoadRun::default() };
            block_on(async {
                let store = open(&disk).unwrap();
                let _rot = disk.rot(path, at);
                by_watch += usize::from(!watch_all(&store).await);
                for seed in 0..100 {
                    if store.stats().repairs > 0 {
                        break;
                    }
                    by_rewrite += usize::from(seed == 0);
                    run.load(&store, 1, 1000 + number as u64 + seed).await;
                }
                assert_eq!(store.stats().repairs, 1, "byte {at} of {path:?}");
                assert!(!disk.files().contains_key(path), "{path:?} is replaced");
                check_present(&store, &run.model);
                assert!(watch_all(&store).await, "what is left of the history is whole");
                assert_eq!(store.stats().repairs, 1, "once");
                store.close().await;
                run.check(&disk.crash(Crash::Dropped, 0), true).await;
            });
        }
    }
    assert!(by_watch > 10 && by_rewrite > 10, "{by_watch} {by_rewrite}");
}

/// Fault 8: a file that is cut short or missing is one that went bad.
#[test]
fn fault_08_a_closed_file_that_is_cut_or_removed_is_replaced() {
    use ferrokube_storage::journal::io::Io;
    let (disk, run) = journal();
    let files = disk.files();
    let log = closed(&disk).into_iter().rfind(|path| kind(path) == "log").unwrap();
    for is_removed in [false, true] {
        let disk = SimDisk::with_files(&files);
        block_on(async {
            let store = open(&disk).unwrap();
            if is_removed {
                disk.remove(&log).unwrap();
            } else {
                disk.open(&log).unwrap().truncate(100).unwrap();
            }
            assert!(!watch_all(&store).await);
            assert_eq!(store.stats().repairs, 1);
            store.close().await;
            run.check(&disk.crash(Crash::Dropped, 0), true).await;
        });
    }
}

/// Fault 8: power fails at each call of a repair. What is on the disk is whole, but for the byte
/// that went bad if its file was not replaced yet.
#[test]
fn fault_08_power_cut_at_every_call_of_a_repair() {
    let (disk, run) = journal();
    let files = disk.files();
    let path = closed(&disk).into_iter().rfind(|path| kind(path) == "log").unwrap();
    let (mut refused, mut whole) = (0, 0);
    for crash in [Crash::Dropped, Crash::Torn, Crash::Reordered] {
        for call in 0.. {
            let disk = SimDisk::with_files(&files);
            let store = open(&disk).unwrap();
            let rot = disk.rot(&path, 60);
            disk.fail_at(disk.calls() + call, DiskFault::PowerCut);
            let is_over = block_on(async {
                watch_all(&store).await;
                settle(&store);
                let is_over = !disk.is_off();
                let after = disk.crash(crash, call);
                store.close().await;
                match open(&after) {
                    Err(OpenError::Damaged { file, .. }) => {
                        assert_eq!(file, path);
                        refused += 1;
                        after.heal(&rot);
                    }
                    Err(error) => panic!("call {call}: {error}"),
                    Ok(store) => {
                        whole += 1;
                        store.close().await;
                    }
                }
                run.check(&after, true).await;
                is_over
            });
            if is_over {
                break;
            }
        }
    }
    assert!(refused > 30 && whole > 10, "{refused} {whole}");
}

/// Fault 8: of an object that was deleted, neither its value nor its delete can be read. Power
/// fails at each call of the repair, and the disk gives both again: the object stays deleted.
#[test]
fn fault_08_a_repair_of_two_files_that_power_interrupts_brings_nothing_back() {
    let (object, prefix) = (key("configmaps", "ns", "gone"), Prefix::new("configmaps").unwrap());
    let disk = SimDisk::default();
    let environment = || Environment {
        journal: JournalLimits {
            segment_bytes: 2000,
            retain_bytes: 1 << 20,
            ..parts(&disk).journal
        },
        ..parts(&disk)
    };
    let config = Config { history_bytes: 500, ..Config::embedded("/sim/storage") };
    let open = |disk: &SimDisk| {
        Store::open_with(
            config.clone(),
            Environment { io: Arc::new(disk.clone()), ..environment() },
        )
    };
    block_on(async {
        let store = open(&disk).unwrap();
        commit(&store, create(&object, "value")).await.unwrap();
        for number in 0..24 {
            let other = key("configmaps", "ns", &format!("n{number}"));
            commit(&store, create(&other, &"v".repeat(300))).await.unwrap();
            if number == 23 {
                commit(&store, delete(&object)).await.unwrap();
            }
        }
        store.close().await;
    });
    let files = disk.files();
    let has_name = |path: &&PathBuf| files[*path].windows(8).any(|bytes| bytes == b"/ns/gone");
    let damaged: Vec<&PathBuf> = files.keys().filter(has_name).collect();
    let last = files.keys().rfind(|path| kind(path) == "log");
    assert!(damaged.len() == 2 && last == damaged.last().copied(), "{damaged:?}");
    for call in 0.. {
        let disk = SimDisk::with_files(&files);
        let store = open(&disk).unwrap();
        let rots: Vec<_> = damaged.iter().map(|path| disk.rot(path, 60)).collect();
        disk.fail_at(disk.calls() + call, DiskFault::PowerCut);
        let is_over = block_on(async {
            let from = store.history(&prefix).watched;
            let _ = store.watch(&prefix, from).unwrap().next(1000).await;
            settle(&store);
            let is_over = !disk.is_off();
            let after = disk.crash(Crash::Dropped, call);
            store.close().await;
            rots.iter().for_each(|rot| after.heal(rot));
            let store = open(&after).unwrap();
            assert!(store.get(&object).is_none(), "call {call}");
            assert_eq!(store.snapshot(&prefix).count(None, None), 24);
            store.close().await;
            is_over
        });
        if is_over {
            assert!(call > 30, "{call}");
            break;
        }
    }
}

/// Fault 8: a full disk is not merged while a repair waits for room: a new log would take what
/// deletes need.
#[test]
fn fault_08_no_merge_begins_while_a_repair_waits_for_room() {
    use ferrokube_storage::journal::io::Io;
    let (disk, run) = journal();
    let path = closed(&disk).into_iter().rfind(|path| kind(path) == "log").unwrap();
    let mut parts = parts(&disk);
    parts.journal.segment_bytes = 64 << 10;
    parts.clock = Environment::default().clock;
    let config = Config { history_bytes: 2000, ..Config::embedded("/sim/storage") };
    block_on(async {
        let store = Store::open_with(config, parts).unwrap();
        let _rot = disk.rot(&path, 60);
        disk.remove(&Path::new("/sim/storage").join("SPARE")).unwrap();
        disk.set_capacity(Some(disk.used()));
        watch_all(&store).await;
        until("said", || store.has_repair_failed()).await;
        let before = closed(&disk);
        let mut model = run.model.clone();
        let object = key("configmaps", "ns", "n0");
        let mut writes = 0;
        loop {
            let txn = write(&object, "x");
            match commit(&store, txn.clone()).await {
                Ok(done) => model.record(done.revision, &txn),
                Err(error) => break assert!(matches!(error, CommitError::DiskFull), "{error}"),
            }
            writes += 1;
        }
        assert!(writes > 0, "the ballast is for them");
        assert_eq!(closed(&disk), before, "no log was closed");
        assert!(store.stats().damaged && store.stats().repairs == 0);
        disk.set_capacity(None);
        until("repaired", || store.stats().repairs == 1).await;
        check_present(&store, &model);
        store.close().await;
    });
}

/// Fault 8: the group with the last log fits, one with a large value does not. The repair is not
/// over: a start would still refuse that file.
#[test]
fn fault_08_a_repair_is_not_over_while_a_group_has_no_room() {
    let disk = SimDisk::default();
    let mut parts = parts(&disk);
    parts.journal.retain_bytes = 1 << 20;
    parts.clock = Environment::default().clock;
    let config = Config { history_bytes: 500, ..Config::embedded("/sim/storage") };
    let mut model = Model::default();
    block_on(async {
        let store = Store::open_with(config.clone(), parts.clone()).unwrap();
        for number in 0..24 {
            let len = if number == 0 { 20_000 } else { 300 };
            let object = key("configmaps", "ns", &format!("n{number}"));
            let txn = create(&object, &"v".repeat(len));
            model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
        }
        let logs = closed(&disk);
        let large = logs.iter().find(|path| disk.files()[*path].len() > 20_000).unwrap();
        assert!(logs.len() > 4 && logs.iter().all(|path| kind(path) == "log"), "{logs:?}");
        disk.set_capacity(Some(disk.used() + (8 << 10)));
        let _rot = disk.rot(&logs[2], 60);
        watch_all(&store).await;
        until("said", || store.has_repair_failed()).await;
        let now = closed(&disk);
        assert!(now.contains(large) && !now.contains(&logs[2]), "{now:?}");
        let stats = store.stats();
        assert!(stats.damaged && stats.repairs == 0, "{stats:?}");
        disk.set_capacity(None);
        until("repaired", || store.stats().repairs == 1).await;
        assert!(!store.stats().damaged && !closed(&disk).contains(large));
        store.close().await;
        let store = Store::open_with(config, parts).unwrap();
        check_present(&store, &model);
        store.close().await;
    });
}

/// Nothing can be merged while a repair waits for room: when the ballast is used up, deletes get
/// what the spare file has beyond the largest file.
#[test]
fn fault_07_deletes_use_the_spare_file_when_nothing_else_is_left() {
    use ferrokube_storage::journal::io::Io;
    let disk = SimDisk::default();
    let mut parts = parts(&disk);
    parts.journal.retain_bytes = 1 << 20;
    let config = Config { history_bytes: 500, ..Config::embedded("/sim/storage") };
    let names: Vec<_> = (0..400).map(|n| key("configmaps", "ns", &format!("n{n}"))).collect();
    let spare = || disk.open(Path::new("/sim/storage/SPARE")).unwrap();
    block_on(async {
        let store = Store::open_with(config.clone(), parts.clone()).unwrap();
        for object in &names {
            commit(&store, create(object, &"v".repeat(200))).await.unwrap();
        }
        store.close().await;
        // One file of usual size does not fit the spare file of the next start.
        spare().reserve(24 << 10).unwrap();
        disk.set_capacity(Some(disk.used()));
        parts.journal.segment_bytes = 256 << 10;
        parts.clock = Environment::default().clock;
        let store = Store::open_with(config, parts).unwrap();
        let _rot = disk.rot(&closed(&disk)[2], 60);
        watch_all(&store).await;
        until("said", || store.has_repair_failed()).await;
        assert_eq!(spare().len().unwrap(), 24 << 10);
        let mut deleted = 0;
        for object in &names {
            if let Err(error) = commit(&store, delete(object)).await {
                assert!(matches!(error, CommitError::DiskFull), "{error}");
                break;
            }
            deleted += 1;
        }
        let left = spare().len().unwrap();
        assert!(deleted > 0 && left < 24 << 10, "{deleted} deleted, {left} bytes left");
        store.close().await;
    });
}

/// Fault 8: without room a repair is reported as failed and retried; the reserves for a full disk
/// make room.
#[test]
fn fault_08_a_repair_waits_for_room() {
    let (disk, run) = journal();
    let files = disk.files();
    let path = closed(&disk).into_iter().rfind(|path| kind(path) == "log").unwrap();
    for has_reserve in [false, true] {
        let disk = SimDisk::with_files(&files);
        let mut parts = parts(&disk);
        if !has_reserve {
            for name in ["BALLAST", "SPARE"] {
                use ferrokube_storage::journal::io::Io;
                let _ = disk.remove(&Path::new("/sim/storage").join(name));
            }
            parts.journal.ballast_bytes = 0;
        }
        parts.clock = Environment::default().clock;
        let config = Config { history_bytes: 2000, ..Config::embedded("/sim/storage") };
        block_on(async {
            let store = Store::open_with(config, parts).unwrap();
            let _rot = disk.rot(&path, 60);
            disk.set_capacity(Some(disk.used()));
            watch_all(&store).await;
            if !has_reserve {
                until("said", || store.has_repair_failed()).await;
                let stats = store.stats();
                assert!(stats.damaged && stats.repairs == 0, "{stats:?}");
                check_present(&store, &run.model);
                disk.set_capacity(None);
            }
            until("repaired", || store.stats().repairs == 1).await;
            assert!(!store.stats().damaged && !store.has_repair_failed());
            store.close().await;
            disk.set_capacity(None);
            run.check(&disk.crash(Crash::Dropped, 0), true).await;
        });
    }
}

/// Deadlines survive a repair and a start.
#[test]
fn deadlines_survive_a_repair() {
    use ferrokube_storage::testing::{ManualClock, put};
    use ferrokube_storage::{Put, Txn, Write};
    let disk = SimDisk::default();
    let object = key("events", "ns", "e");
    block_on(async {
        let clock = Arc::new(ManualClock::default());
        let parts = Environment { clock: clock.clone(), ..parts(&disk) };
        let config = Config { history_bytes: 2000, ..Config::embedded("/sim/storage") };
        let store = Store::open_with(config.clone(), parts.clone()).unwrap();
        let value = Put { ttl: Some(Duration::from_secs(100)), ..put(&object, "event") };
        let txn = Txn { guards: Vec::new(), writes: vec![Write::Put(value)] };
        commit(&store, txn).await.unwrap();
        let mut run = LoadRun::default();
        run.load(&store, 40, 5).await;
        clock.advance(Duration::from_secs(60));
        settle(&store);
        let _rot = disk.rot(&closed(&disk)[0], 60);
        for seed in 6.. {
            if store.stats().repairs > 0 {
                break;
            }
            run.load(&store, 1, seed).await;
        }
        store.close().await;
        let store = Store::open_with(config, parts).unwrap();
        assert!(store.get(&object).is_some());
        clock.advance(Duration::from_secs(39));
        settle(&store);
        assert!(store.get(&object).is_some());
        clock.advance(Duration::from_secs(2));
        settle(&store);
        assert!(store.get(&object).is_none() && store.revision() > Revision(0));
        store.close().await;
    });
}
