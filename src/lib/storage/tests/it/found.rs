//! What a start finds: a late manifest, a batch that a kill or a power cut left incomplete, names
//! that only the page cache has, and what is not the store's own.

use crate::load::{LoadRun, block_on, open, parts};
use crate::truth::{DIR, FileBytes, last_log, object};
use ferrokube_storage::testing::{Crash, DiskFault, SimDisk, commit, create, write};
use ferrokube_storage::{Config, Environment, JournalLimits, OpenError, Prefix, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The files after each of three commits, the last one as a kill leaves them.
fn three_commits() -> [FileBytes; 3] {
    let disk = SimDisk::default();
    let journal = JournalLimits { segment_bytes: 1 << 20, ..parts(&disk).journal };
    block_on(async {
        let store =
            Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(&disk) })
                .unwrap();
        let mut images = Vec::new();
        for name in ["a", "b", "c"] {
            commit(&store, create(&object(name), &"v".repeat(3000))).await.unwrap();
            ferrokube_storage::testing::settle(&store);
            images.push(disk.crash(Crash::Killed, 0).files());
        }
        store.close().await;
        images.try_into().unwrap()
    })
}

/// Fault 8: a batch was synced before the next one was written, whatever the manifest says.
#[test]
fn fault_08_damage_before_a_whole_batch_is_not_an_incomplete_batch() {
    let [first, second, mut image] = three_commits();
    let (log, manifest) = (last_log(&image), PathBuf::from(DIR).join("MANIFEST"));
    image.insert(manifest.clone(), first[&manifest].clone());
    assert!(open(&SimDisk::with_files(&image)).is_ok(), "a manifest may be late");
    let sector = (first[&log].len() + 1000).next_multiple_of(512);
    assert!(sector + 512 < second[&log].len());
    image.get_mut(&log).unwrap()[sector..sector + 512].fill(0);
    assert!(matches!(open(&SimDisk::with_files(&image)), Err(OpenError::Damaged { .. })));
}

/// Fault 4: a process may die in the middle of a write, anywhere within a sector.
#[test]
fn fault_04_a_batch_that_ends_within_a_sector_is_cut() {
    let [first, second, _] = three_commits();
    let (log, manifest) = (last_log(&second), PathBuf::from(DIR).join("MANIFEST"));
    let end = second[&log].len();
    assert!(end % 512 > 20, "its last sector has other bytes");
    for zeros in [1, 8, 10] {
        let mut image = second.clone();
        image.insert(manifest.clone(), first[&manifest].clone());
        image.get_mut(&log).unwrap()[end - zeros..].fill(0);
        let store = open(&SimDisk::with_files(&image)).unwrap();
        assert!(store.get(&object("a")).is_some() && store.get(&object("b")).is_none());
        block_on(store.close());
    }
}

/// Fault 4: the process dies at any call, the next one finds what was not synced, acknowledges a
/// write, and the power fails.
#[test]
fn fault_04_what_a_start_found_in_the_page_cache_outlives_a_power_cut() {
    let mut calls = 0;
    loop {
        let disk = SimDisk::default();
        block_on(async {
            let store = open(&disk).unwrap();
            let mut run = LoadRun::default();
            run.load(&store, 2, 1).await;
            let begun = disk.calls();
            disk.fail_at(begun + calls, DiskFault::PowerCut);
            run.load(&store, 12, 2).await;
            drop(store);
        });
        if !disk.is_off() {
            break;
        }
        let next = disk.crash(Crash::Killed, 0);
        let model = block_on(async {
            let store = open(&next).unwrap_or_else(|error| panic!("call {calls}: {error}"));
            let late = create(&object("late"), "v");
            let done = commit(&store, late).await.unwrap();
            let held = store.get(&object("late")).unwrap();
            assert_eq!(held.revision, done.revision);
            let all: Vec<_> = ["configmaps", "secrets", "example.com/widgets"]
                .map(|prefix| store.snapshot(&Prefix::new(prefix).unwrap()).count(None, None))
                .into();
            (all, done.revision)
        });
        let last = open(&next.crash(Crash::Dropped, 0))
            .unwrap_or_else(|error| panic!("call {calls}, then a power cut: {error}"));
        assert!(last.get(&object("late")).is_some(), "call {calls}");
        let all: Vec<_> = ["configmaps", "secrets", "example.com/widgets"]
            .map(|prefix| last.snapshot(&Prefix::new(prefix).unwrap()).count(None, None))
            .into();
        assert_eq!((all, last.revision()), model, "call {calls}");
        block_on(last.close());
        calls += 1;
    }
    assert!(calls > 40, "{calls} calls");
}

/// Fault 7: what has a reserve's name and is none is refused: writes would be, forever.
#[test]
fn fault_07_a_directory_in_place_of_a_reserve_is_refused() {
    for name in ["BALLAST", "SPARE"] {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("storage");
        let config = || Config::embedded(journal.clone());
        block_on(Store::open(config()).unwrap().close());
        let _ = std::fs::remove_file(journal.join(name));
        std::fs::create_dir(journal.join(name)).unwrap();
        match Store::open(config()) {
            Err(OpenError::Io { path, .. }) => assert_eq!(path, journal.join(name)),
            other => panic!("{name}: {:?}", other.err()),
        }
        std::fs::remove_dir(journal.join(name)).unwrap();
        block_on(async {
            let store = Store::open(config()).unwrap();
            commit(&store, create(&object("a"), "v")).await.unwrap();
            store.close().await;
        });
    }
}

/// A snapshot is the state at its revision: with one key, the last write of it.
#[test]
fn a_snapshot_and_its_revision_are_of_one_moment() {
    let store = Store::open(Config::memory()).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (store, ended) = (store.clone(), Arc::clone(&ended));
        move || {
            block_on(async {
                while !ended.load(Ordering::Relaxed) {
                    commit(&store, write(&object("a"), "v")).await.unwrap();
                }
            });
        }
    });
    let prefix = Prefix::new("configmaps").unwrap();
    while store.get(&object("a")).is_none() {
        std::thread::yield_now();
    }
    for _ in 0..20_000 {
        let snapshot = store.snapshot(&prefix);
        let entry = snapshot.get("ns/a").unwrap();
        assert_eq!(entry.revision, snapshot.revision);
    }
    ended.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    block_on(store.close());
}
