//! What the store reports is true: its end, its revisions, its gaps.

use crate::damage::journal;
use crate::load::{LoadRun, block_on, open, parts};
use ferrokube_storage::journal::io::Io;
use ferrokube_storage::testing::{
    Crash, Dice, DiskFault, ManualClock, Model, SimDisk, check_present, check_store, commit,
    create, hold, key, put, release, write,
};
use ferrokube_storage::{
    CommitError, Config, Environment, Guard, JournalFiles, JournalLimits, Key, OpenError, Prefix,
    Put, Rejected, Revision, Store, Txn, WatchError, Write,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const DIR: &str = "/sim/storage";

pub(crate) type FileBytes = BTreeMap<PathBuf, Vec<u8>>;

pub(crate) fn object(name: &str) -> Key {
    key("configmaps", "ns", name)
}

pub(crate) fn last_log(files: &FileBytes) -> PathBuf {
    files.keys().rfind(|path| path.extension().is_some_and(|kind| kind == "log")).unwrap().clone()
}

/// Opens completely, or is refused as damaged. Returns whether it opened.
fn whole_or_refused(files: &FileBytes, model: &Model, what: &str) -> bool {
    match open(&SimDisk::with_files(files)) {
        Ok(store) => {
            check_present(&store, model);
            block_on(store.close());
            true
        }
        Err(OpenError::Damaged { .. } | OpenError::Newer { .. }) => false,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Damaged copies; `FERROKUBE_DAMAGES=20000` for the long run.
const DAMAGES: usize = 1000;

/// Fault 8: a thousand damaged copies; none shows less than what was acknowledged.
#[test]
fn fault_08_damaged_copies_are_whole_or_refused() {
    let damages = std::env::var("FERROKUBE_DAMAGES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(DAMAGES);
    let (disk, run) = journal();
    // What was acknowledged at the close, whatever a start does to the files.
    let (closed, closed_model) = (disk.files(), run.model.clone());
    let store = open(&disk).unwrap();
    let mut killed = LoadRun { model: run.model, ..LoadRun::default() };
    block_on(killed.load(&store, 3, 5));
    ferrokube_storage::testing::settle(&store);
    let dead = disk.crash(Crash::Killed, 0).files();
    block_on(store.close());
    let mut dice = Dice::new(8);
    let (mut whole, mut copy) = (0, 0);
    while copy < damages {
        let (files, model) =
            if copy % 2 == 0 { (&closed, &closed_model) } else { (&dead, &killed.model) };
        let mut files = files.clone();
        let path = files.keys().nth(dice.below(files.len())).unwrap().clone();
        let bytes = files.get_mut(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let before = bytes.clone();
        let (at, kind) = (dice.below(bytes.len()), dice.below(3));
        match kind {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes.truncate(at),
            _ => {
                let from = if dice.below(2) == 0 { at } else { (bytes.len() - 1) / 512 * 512 };
                bytes[from..].fill(0);
            }
        }
        if *bytes == before {
            continue;
        }
        copy += 1;
        whole += usize::from(whole_or_refused(
            &files,
            model,
            &format!("copy {copy}: {kind} at {at} of {}", path.display()),
        ));
    }
    let most = damages * 7 / 10;
    assert!((1..most).contains(&whole), "most damage is found; {whole} of {damages} opened");
}

/// Fault 8: acknowledged data is never mistaken for an incomplete batch.
#[test]
fn fault_08_a_zeroed_or_missing_end_of_what_was_acknowledged_is_refused() {
    let (disk, _) = journal();
    let files = disk.files();
    let log = last_log(&files);
    let end = files[&log].len();
    for from in [end - 1, (end - 1) / 512 * 512, end - 60, 48] {
        let mut image = files.clone();
        image.get_mut(&log).unwrap()[from..].fill(0);
        assert!(
            matches!(open(&SimDisk::with_files(&image)), Err(OpenError::Damaged { .. })),
            "zeros from {from}"
        );
        let mut image = files.clone();
        image.get_mut(&log).unwrap().truncate(from);
        assert!(
            matches!(open(&SimDisk::with_files(&image)), Err(OpenError::Damaged { .. })),
            "cut at {from}"
        );
    }
    let mut image = files;
    image.remove(&log);
    assert!(
        matches!(open(&SimDisk::with_files(&image)), Err(OpenError::Damaged { file, .. }) if file == log),
        "the last log is missing"
    );
}

/// Fault 8: the log or the manifest of another journal, whole and of the same name, is not taken
/// for the one that was written.
#[test]
fn fault_08_the_log_or_manifest_of_another_journal_is_refused() {
    let journal = |count: u32| {
        let disk = SimDisk::default();
        block_on(async {
            let journal = JournalLimits { segment_bytes: 1 << 20, ..parts(&disk).journal };
            let store =
                Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(&disk) })
                    .unwrap();
            for number in 0..count {
                commit(&store, create(&object(&format!("of{count}-{number}")), "v")).await.unwrap();
            }
            store.close().await;
        });
        disk.files()
    };
    let (short, long) = (journal(3), journal(9));
    let (log, manifest) = (last_log(&short), PathBuf::from(DIR).join("MANIFEST"));
    assert_eq!(log, last_log(&long));
    for path in [&log, &manifest] {
        for (mine, others) in [(&short, &long), (&long, &short)] {
            let mut image = mine.clone();
            image.insert(path.clone(), others[path].clone());
            match open(&SimDisk::with_files(&image)) {
                Err(OpenError::Damaged { file, .. }) => assert_eq!(file, log),
                Err(error) => panic!("{error:?}"),
                Ok(_) => panic!("{path:?} of another journal is opened"),
            }
            // Likewise in a backup, and by those who look.
            match files_of(&image) {
                Err(OpenError::Damaged { file, .. }) => assert_eq!(file, log),
                other => panic!("{path:?} of another journal is read: {:?}", other.err()),
            }
        }
    }
    let mut image = long;
    image.remove(&log);
    match files_of(&image) {
        Err(OpenError::Damaged { file, .. }) => assert_eq!(file, log),
        other => panic!("without its log it is read: {:?}", other.err()),
    }
}

fn files_of(image: &FileBytes) -> Result<JournalFiles, OpenError> {
    let io: Arc<dyn Io> = Arc::new(SimDisk::with_files(image));
    JournalFiles::of_directory(&io, Path::new(DIR))
}

/// Fault 8: as little is a base of another journal, though each of its frames is valid.
#[test]
fn fault_08_a_base_of_another_journal_is_refused() {
    let journal = |name: &str| {
        let disk = SimDisk::default();
        block_on(async {
            let store = open(&disk).unwrap();
            for number in 0..200 {
                let object = object(&format!("{name}{}", number % 7));
                commit(&store, write(&object, &"v".repeat(100))).await.unwrap();
            }
            store.close().await;
        });
        disk.files()
    };
    let (one, other) = (journal("a"), journal("b"));
    let is_base = |path: &&PathBuf| path.extension().is_some_and(|kind| kind == "base");
    let shared: Vec<_> =
        one.keys().filter(is_base).filter(|path| other.contains_key(*path)).collect();
    assert!(shared.len() > 1, "{:?} {:?}", one.keys(), other.keys());
    for path in shared {
        let mut image = one.clone();
        image.insert(path.clone(), other[path].clone());
        let opened = open(&SimDisk::with_files(&image));
        assert!(matches!(opened, Err(OpenError::Damaged { .. })), "{path:?}: {:?}", opened.err());
    }
}

/// Fault 8: a batch removed from the middle of a log is detected, though everything around it is
/// valid and nothing builds on it.
#[test]
fn fault_08_a_batch_that_is_taken_out_is_missed() {
    block_on(async {
        let disk = SimDisk::default();
        let journal = JournalLimits { segment_bytes: 1 << 20, ..parts(&disk).journal };
        let store =
            Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(&disk) })
                .unwrap();
        for number in 0..5 {
            commit(&store, create(&object(&format!("n{number}")), "v")).await.unwrap();
        }
        store.close().await;
        let mut files = disk.files();
        let log = files.get_mut(&last_log(&disk.files())).unwrap();
        // A frame has a header of 48 bytes, which contains the length of the rest, and is padded to
        // 8 bytes.
        let length = |log: &[u8], at: usize| {
            (48 + u32::from_le_bytes(log[at + 4..at + 8].try_into().unwrap()) as usize + 1)
                .next_multiple_of(8)
        };
        let second = 48 + length(log, 48);
        let third = second + length(log, second);
        let rest = log.split_off(third);
        log.truncate(second);
        log.extend(rest);
        assert!(matches!(open(&SimDisk::with_files(&files)), Err(OpenError::Damaged { .. })));
    });
}

/// Fault 8: a missing log is detected even if a power cut lost the mark of what was acknowledged in
/// it, and even if there once was no space to record anything.
#[test]
fn fault_08_a_missing_log_is_refused_also_after_a_power_cut() {
    for without_room in [None, Some(3), Some(4), Some(5)] {
        let disk = SimDisk::default();
        let journal =
            JournalLimits { segment_bytes: 1000, retain_bytes: 1 << 20, ..parts(&disk).journal };
        let parts = Environment { journal, ..parts(&disk) };
        let mut files = block_on(async {
            let store = Store::open_with(Config::embedded(DIR), parts).unwrap();
            for number in 0..12 {
                if without_room == Some(number) {
                    disk.fail_next_write("MANIFEST", DiskFault::Enospc);
                }
                let object = object(&format!("n{number}"));
                commit(&store, create(&object, &"v".repeat(300))).await.unwrap();
            }
            let files = disk.crash(Crash::Dropped, 0).files();
            store.close().await;
            files
        });
        let logs = files.keys().filter(|path| path.extension().is_some_and(|kind| kind == "log"));
        assert!(logs.count() > 2);
        files.remove(&last_log(&files));
        let refused = open(&SimDisk::with_files(&files)).err();
        assert!(
            matches!(&refused, Some(OpenError::Damaged { what, .. }) if what.contains("missing")),
            "{without_room:?}: {refused:?}"
        );
    }
}

/// Fault 4: value content is never mistaken for a frame, so no value makes a torn batch look
/// damaged.
#[test]
fn fault_04_a_value_cannot_pass_for_a_frame() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        let mut model = Model::default();
        let before = create(&object("before"), "1");
        model.record(commit(&store, before.clone()).await.unwrap().revision, &before);
        let mut header = [0u8; 48];
        header[..4].copy_from_slice(b"fkFr");
        header[4] = 8;
        header[32] = 1;
        let crc = crc32fast::hash(&header[..44]);
        header[44..].copy_from_slice(&crc.to_le_bytes());
        // At every alignment a frame may have.
        let value: Vec<u8> =
            (0..8).flat_map(|shift| [vec![b'x'; shift], header.repeat(20)].concat()).collect();
        disk.hold_syncs();
        let put = Put { value: value.into(), ..put(&object("a"), "") };
        let sidecar = ferrokube_storage::Sidecar { revision_at: 0, ..put.sidecar.clone() };
        let waiting = store
            .submit(Txn { guards: Vec::new(), writes: vec![Write::Put(Put { sidecar, ..put })] })
            .unwrap();
        disk.wait_for_held_sync();
        let mut files = disk.files();
        disk.release_syncs();
        waiting.committed().await.unwrap();
        store.close().await;
        // The power cut came before the first sector of the batch was written.
        let bytes = files.get_mut(&last_log(&disk.files())).unwrap();
        let begin = bytes.windows(6).rposition(|window| window == b"before").unwrap() + 30;
        let begin = (begin..bytes.len()).find(|at| at % 512 == 0).unwrap();
        bytes[begin..begin + 512].fill(0);
        let store = open(&SimDisk::with_files(&files)).unwrap();
        check_present(&store, &model);
        store.close().await;
    });
}

/// Fault 9: an empty directory that held a journal is not a new one.
#[test]
fn fault_09_a_missing_journal_is_not_an_empty_one() {
    let disk = SimDisk::default();
    let config = || Config { must_exist: true, ..Config::embedded(DIR) };
    let refused = Store::open_with(config(), parts(&disk));
    assert!(matches!(refused.err(), Some(OpenError::Missing(dir)) if dir == Path::new(DIR)));
    block_on(async {
        let store = open(&disk).unwrap();
        commit(&store, create(&object("a"), "1")).await.unwrap();
        store.close().await;
        Store::open_with(config(), parts(&disk)).unwrap().close().await;
    });
}

/// Fault 3: a failed attempt to begin a log leaves a log behind; its predecessor continues.
#[test]
fn fault_03_the_rest_of_a_failed_roll_is_known_for_what_it_is() {
    block_on(async {
        let begin = |disk: &SimDisk, segment_bytes| {
            let journal =
                JournalLimits { segment_bytes, retain_bytes: 1 << 20, ..parts(disk).journal };
            Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(disk) }).unwrap()
        };
        let disk = SimDisk::default();
        let store = begin(&disk, 1 << 20);
        let mut model = Model::default();
        for number in 0..5 {
            let txn = create(&object(&format!("n{number}")), "v");
            model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
        }
        store.close().await;
        let files = disk.files();
        // One copy begins a new log, the other continues the old one.
        let rolled = SimDisk::with_files(&files);
        let store = begin(&rolled, 60);
        commit(&store, create(&object("rolled"), "v")).await.unwrap();
        store.close().await;
        let (rest, bytes) =
            (last_log(&rolled.files()), rolled.files()[&last_log(&rolled.files())][..48].to_vec());
        let went_on = SimDisk::with_files(&files);
        let store = begin(&went_on, 1 << 20);
        let txn = create(&object("went-on"), "v");
        model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
        store.close().await;
        let mut image = went_on.files();
        assert!(image.insert(rest.clone(), bytes).is_none());
        let disk = SimDisk::with_files(&image);
        for _ in 0..2 {
            let store = begin(&disk, 1 << 20);
            check_store(&store, &model).await;
            let txn = write(&object("more"), "v");
            model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
            store.close().await;
        }
        assert!(!disk.files().contains_key(&rest), "it is removed");
    });
}

/// Fault 3: the same in the middle of the sequence, if the leftover could not be removed.
#[test]
fn fault_03_the_rest_of_a_failed_roll_may_stand_between_logs() {
    block_on(async {
        let begin = |disk: &SimDisk, segment_bytes| {
            let journal =
                JournalLimits { segment_bytes, retain_bytes: 1 << 20, ..parts(disk).journal };
            Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(disk) }).unwrap()
        };
        // Too large to be merged.
        let (disk, value) = (SimDisk::default(), "v".repeat(400));
        let store = begin(&disk, 1 << 20);
        let mut model = Model::default();
        for number in 0..5 {
            let txn = create(&object(&format!("n{number}")), &value);
            model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
        }
        store.close().await;
        let rolled = SimDisk::with_files(&disk.files());
        let store = begin(&rolled, 60);
        commit(&store, create(&object("rolled"), &value)).await.unwrap();
        store.close().await;
        let (rest, bytes) =
            (last_log(&rolled.files()), rolled.files()[&last_log(&rolled.files())][..48].to_vec());
        for (name, segment_bytes) in [("went-on", 1 << 20), ("later", 60)] {
            let store = begin(&disk, segment_bytes);
            let txn = create(&object(name), &value);
            model.record(commit(&store, txn.clone()).await.unwrap().revision, &txn);
            store.close().await;
        }
        let mut image = disk.files();
        assert!(image.keys().all(|path| path.extension().is_none_or(|kind| kind != "base")));
        assert!(last_log(&image) > rest && image.insert(rest.clone(), bytes).is_none());
        let disk = SimDisk::with_files(&image);
        let store = begin(&disk, 1 << 20);
        check_store(&store, &model).await;
        store.close().await;
        assert!(!disk.files().contains_key(&rest), "it is removed");
    });
}

/// Fault 8: a log records how its predecessor ended, even while it is empty and the manifest lags.
#[test]
fn fault_08_the_end_of_a_closed_log_is_not_taken_for_torn() {
    block_on(async {
        let disk = SimDisk::default();
        let journal =
            JournalLimits { segment_bytes: 1000, retain_bytes: 1 << 20, ..parts(&disk).journal };
        let store =
            Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(&disk) })
                .unwrap();
        let early = disk.files();
        let manifest = early.keys().find(|path| path.ends_with("MANIFEST")).unwrap();
        let first = last_log(&early);
        let mut number = 0;
        while last_log(&disk.files()) == first {
            commit(&store, create(&object(&format!("n{number}")), &"v".repeat(100))).await.unwrap();
            number += 1;
        }
        let mut image = disk.files();
        store.close().await;
        image.get_mut(&last_log(&disk.files())).unwrap().truncate(48);
        image.insert(manifest.clone(), early[manifest].clone());
        let log = image.get_mut(&first).unwrap();
        let from = (log.len() - 1) / 512 * 512;
        log[from..].fill(0);
        assert!(
            matches!(open(&SimDisk::with_files(&image)), Err(OpenError::Damaged { file, .. }) if file == first)
        );
    });
}

/// Fault 7: a guard computed on a refused batch never holds later.
#[test]
fn fault_07_revisions_of_a_refused_batch_are_not_given_again() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        commit(&store, create(&object("a"), "1")).await.unwrap();
        hold(&store);
        disk.fail_next_write(".log", DiskFault::Enospc);
        let refused = store.submit(write(&object("a"), "22")).unwrap();
        let seen = store.pending(&object("a")).unwrap().revision;
        release(&store);
        assert!(matches!(refused.committed().await, Err(CommitError::DiskFull)));
        let done = commit(&store, write(&object("a"), "3")).await.unwrap();
        assert!(done.revision > seen, "{} after {seen}", done.revision);
        let late = Txn { guards: vec![Guard::At(object("a"), seen)], ..write(&object("a"), "4") };
        assert!(matches!(store.submit(late), Err(Rejected::Guard(_))));
        store.close().await;
        let store = open(&disk).unwrap();
        assert_eq!(store.revision(), done.revision);
        store.close().await;
    });
}

/// Skipped revisions were never assigned: a client that names one has seen lost data.
#[test]
fn fault_09_a_revision_that_was_lost_is_gone() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open(&disk).unwrap();
        let last = commit(&store, create(&object("a"), "1")).await.unwrap().revision;
        let disk = disk.crash(Crash::Killed, 0);
        store.close().await;
        let prefix = Prefix::new("configmaps").unwrap();
        for _ in 0..2 {
            let store = open(&disk).unwrap();
            for lost in [last.0 + 1, last.0 + 1000] {
                assert!(
                    matches!(store.watch(&prefix, Revision(lost)), Err(WatchError::Compacted(_))),
                    "after {lost}"
                );
                assert!(
                    matches!(
                        store.snapshot_at(&prefix, Revision(lost)),
                        Err(WatchError::Compacted(_))
                    ),
                    "at {lost}"
                );
            }
            let mut resumed = store.watch(&prefix, last).unwrap();
            let next = commit(&store, write(&object("a"), "2")).await.unwrap().revision;
            assert!(next.0 > last.0 + 1000);
            assert!(
                !resumed.next(10).await.unwrap().is_empty(),
                "what was shown last can be resumed from"
            );
            store.close().await;
        }
    });
}

/// Fault 9: an older copy of the directory, closed or not, cannot be told from the original.
/// Revisions shown by the newer one are not assigned again.
#[test]
fn fault_09_an_older_copy_that_is_put_back_gives_no_revision_again() {
    block_on(async {
        let clock = Arc::new(ManualClock::default());
        let begin = |disk: &SimDisk| {
            Store::open_with(
                Config::embedded(DIR),
                Environment { clock: clock.clone(), ..parts(disk) },
            )
            .unwrap()
        };
        let disk = SimDisk::default();
        let store = begin(&disk);
        commit(&store, create(&object("a"), "1")).await.unwrap();
        let running = disk.crash(Crash::Killed, 0);
        store.close().await;
        let closed = SimDisk::with_files(&disk.files());
        // Meanwhile the newer one continues, with one more start.
        let mut shown = Revision(0);
        for _ in 0..2 {
            clock.advance(Duration::from_millis(5));
            let store = begin(&disk);
            for number in 0..20 {
                shown = commit(&store, write(&object("a"), &number.to_string()))
                    .await
                    .unwrap()
                    .revision;
            }
            store.close().await;
        }
        clock.advance(Duration::from_millis(5));
        for copy in [closed, running] {
            let store = begin(&copy);
            let prefix = Prefix::new("configmaps").unwrap();
            assert!(
                matches!(store.watch(&prefix, shown), Err(WatchError::Compacted(_))),
                "a watch that goes on from what was shown"
            );
            let late =
                Txn { guards: vec![Guard::At(object("a"), shown)], ..write(&object("a"), "late") };
            assert!(matches!(store.submit(late), Err(Rejected::Guard(_))));
            let next = commit(&store, write(&object("a"), "2")).await.unwrap().revision;
            assert!(next > shown, "{next} after {shown}");
            store.close().await;
        }
    });
}

/// Revisions rise whether the wall clock is behind or ahead.
#[test]
fn fault_09_revisions_rise_whatever_the_wall_clock_says() {
    block_on(async {
        let (disk, clock) = (SimDisk::default(), Arc::new(ManualClock::default()));
        let mut last = Revision(0);
        for years in [30, 70, 2, 0, 31, 500_000, 31] {
            clock.set_wall(
                std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(years * 365 * 86_400),
            );
            let store = Store::open_with(
                Config::embedded(DIR),
                Environment { clock: clock.clone(), ..parts(&disk) },
            )
            .unwrap();
            let next = commit(&store, write(&object("a"), "v")).await.unwrap().revision;
            assert!(
                next > last && (last == Revision(0) || next.0 - last.0 > 100_000),
                "{next} after {last}"
            );
            assert!(next < Revision::MAX, "{next}");
            last = next;
            store.close().await;
        }
    });
}

/// Publishing an earlier write of a key does not replace its pending head.
#[test]
fn a_published_write_does_not_hide_a_pending_one() {
    block_on(async {
        let disk = SimDisk::default();
        let journal = JournalLimits { segment_bytes: 1 << 20, ..parts(&disk).journal };
        let store =
            Store::open_with(Config::embedded(DIR), Environment { journal, ..parts(&disk) })
                .unwrap();
        disk.hold_syncs();
        let first = store.submit(write(&object("a"), "1")).unwrap();
        disk.wait_for_held_sync();
        let second = store.submit(write(&object("a"), "2")).unwrap();
        let (older, newer) = (first.entries()[0].revision, second.entries()[0].revision);
        disk.let_one_sync();
        first.committed().await.unwrap();
        disk.wait_for_held_sync();
        assert_eq!(store.pending(&object("a")).unwrap().revision, newer);
        let outdated =
            Txn { guards: vec![Guard::At(object("a"), older)], ..write(&object("a"), "3") };
        assert!(
            matches!(store.submit(outdated), Err(Rejected::Guard(_))),
            "would undo the second write"
        );
        disk.release_syncs();
        second.committed().await.unwrap();
        store.close().await;
    });
}

/// An entry rewritten just when it expires stays.
#[test]
fn an_entry_renewed_while_it_expires_is_kept() {
    block_on(async {
        let (disk, clock) = (SimDisk::default(), Arc::new(ManualClock::default()));
        let journal = JournalLimits { segment_bytes: 1 << 20, ..parts(&disk).journal };
        let store = Store::open_with(
            Config::embedded(DIR),
            Environment { clock: clock.clone(), journal, ..parts(&disk) },
        )
        .unwrap();
        let short = key("events", "ns", "short");
        let lasting = |seconds| {
            Write::Put(Put { ttl: Some(Duration::from_secs(seconds)), ..put(&short, "v") })
        };
        commit(&store, Txn { guards: Vec::new(), writes: vec![lasting(10)] }).await.unwrap();
        disk.hold_syncs();
        let other = store.submit(write(&object("a"), "1")).unwrap();
        disk.wait_for_held_sync();
        clock.advance(Duration::from_secs(11));
        // Queued while the committer finds the older one expired.
        let renewed =
            store.submit(Txn { guards: Vec::new(), writes: vec![lasting(1000)] }).unwrap();
        disk.let_one_sync();
        other.committed().await.unwrap();
        disk.wait_for_held_sync();
        disk.release_syncs();
        renewed.committed().await.unwrap();
        store.close().await;
        assert!(store.get(&short).is_some());
    });
}

/// Entries expire under constant load.
#[test]
fn fault_18_load_that_never_ends_does_not_keep_entries_alive() {
    block_on(async {
        let disk = SimDisk::default();
        let clock = Arc::new(ManualClock::default());
        // One sync per batch: segments are never full.
        let journal = JournalLimits { segment_bytes: 1 << 20, ..parts(&disk).journal };
        let store = Store::open_with(
            Config::embedded(DIR),
            Environment { clock: clock.clone(), journal, ..parts(&disk) },
        )
        .unwrap();
        let short = key("events", "ns", "short");
        let expiring = Put { ttl: Some(Duration::from_secs(10)), ..put(&short, "v") };
        commit(&store, Txn { guards: Vec::new(), writes: vec![Write::Put(expiring)] })
            .await
            .unwrap();
        disk.hold_syncs();
        let mut first = store.submit(write(&object("a"), "0")).unwrap();
        disk.wait_for_held_sync();
        clock.advance(Duration::from_secs(11));
        for number in 1..12 {
            // The queue is never empty when a batch ends.
            let next = store.submit(write(&object("a"), &number.to_string())).unwrap();
            disk.let_one_sync();
            first.committed().await.unwrap();
            disk.wait_for_held_sync();
            first = next;
        }
        assert!(store.get(&short).is_none(), "it is due for eleven batches");
        disk.release_syncs();
        first.committed().await.unwrap();
        store.close().await;
    });
}

/// Fault 16: the first write of a resource is in every snapshot at its revision.
#[test]
fn fault_16_a_snapshot_of_a_new_resource_is_not_ahead_of_itself() {
    let store = Store::open(Config { origin: Some(Revision(0)), ..Config::memory() }).unwrap();
    for number in 0..600 {
        let prefix = Prefix::new(&format!("r{number}")).unwrap();
        let (done, empty) = (AtomicBool::new(false), AtomicU64::new(0));
        let first = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot(&prefix);
                    if snapshot.count(None, None) == 0 {
                        empty.store(snapshot.revision.0, Ordering::Relaxed);
                    }
                }
            });
            let first = block_on(commit(&store, create(&prefix.key(None, "a").unwrap(), "v")))
                .unwrap()
                .revision
                .0;
            done.store(true, Ordering::Relaxed);
            first
        });
        assert!(empty.into_inner() < first, "a snapshot at {first} lacks what was written there");
    }
    block_on(store.close());
}
