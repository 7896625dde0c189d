//! Backups of stores: while they are written, over power cuts at every call, damaged.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ferrokube_backup::{
    BackupError, BackupLocation, BackupSource, CheckedBackup, KeyFile, PointInfo, Progress,
    RestoreTarget, take, verify,
};
use ferrokube_storage::journal::io::{Io, SystemDisk};
use ferrokube_storage::testing::{
    Crash, DiskFault, ManualClock, SimDisk, commit, delete, key, put, text, write,
};
use ferrokube_storage::{
    Config, Environment, JournalLimits, OpenError, Prefix, Put, Revision, Rewrites, Store, Txn,
    WatchError, Write,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn environment(io: Arc<dyn Io>) -> Environment {
    let journal = JournalLimits {
        segment_bytes: 16 << 10,
        retain_bytes: 32 << 10,
        watermark_bytes: 0,
        ballast_bytes: 16 << 10,
        rewrites: Rewrites::Inline,
    };
    Environment { io, journal, ..Environment::default() }
}

fn open(io: &Arc<dyn Io>, data: &Path) -> Result<Store, OpenError> {
    let config = Config { history_bytes: 4 << 10, ..Config::embedded(data.join("store")) };
    Store::open_with(config, environment(Arc::clone(io)))
}

fn source(data: &Path) -> BackupSource {
    let keys = vec![KeyFile { name: "pki/ca.key".to_owned(), bytes: b"secret".to_vec() }];
    BackupSource { journal: data.join("store"), keys }
}

fn target(data: &Path) -> RestoreTarget {
    RestoreTarget { directory: data.to_owned(), has_keys: true }
}

fn restore(
    io: &Arc<dyn Io>,
    location: &BackupLocation,
    target: &RestoreTarget,
    progress: &Progress,
) -> Result<PointInfo, BackupError> {
    CheckedBackup::open(io, location, progress)?.restore(target, progress)
}

fn state(store: &Store) -> BTreeMap<String, String> {
    let snapshot = store.snapshot(&Prefix::new("configmaps").unwrap());
    let all = snapshot.range(None, None);
    all.map(|entry| (entry.key.as_str().to_owned(), text(entry))).collect()
}

fn number(store: &Store, writer: usize) -> u64 {
    let entry = store.get(&key("configmaps", "ns", &format!("w{writer}")));
    entry.map_or(0, |entry| text(&entry).trim_start_matches('0').parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_01_a_backup_of_a_busy_store_has_all_that_was_acknowledged_before() {
    let folder = tempfile::tempdir().unwrap();
    let (data, io): (_, Arc<dyn Io>) = (folder.path().join("data"), Arc::new(SystemDisk));
    let location = BackupLocation::Directory(folder.path().join("backup"));
    let store = open(&io, &data).unwrap();
    let acknowledged: Arc<[AtomicU64; 3]> = Arc::default();
    let is_over = Arc::new(AtomicU64::new(0));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..3 {
        let (store, acknowledged, is_over) =
            (store.clone(), Arc::clone(&acknowledged), Arc::clone(&is_over));
        writers.spawn(async move {
            let key = key("configmaps", "ns", &format!("w{writer}"));
            for number in 1u64.. {
                // The zeros fill segments, so that files are merged and removed all the time.
                commit(&store, write(&key, &format!("{number:0>700}"))).await.unwrap();
                acknowledged[writer].store(number, Ordering::SeqCst);
                if is_over.load(Ordering::SeqCst) == 1 {
                    break;
                }
            }
        });
    }
    for round in 0..8 {
        while acknowledged.iter().any(|count| count.load(Ordering::SeqCst) < 50 * (round + 1)) {
            tokio::task::yield_now().await;
        }
        let before: Vec<u64> =
            acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        let revision = store.revision();
        let (used, from, to) = (Arc::clone(&io), source(&data), location.clone());
        let taken = tokio::task::spawn_blocking(move || {
            take(&used, &from, &to, 2, &Progress::none()).unwrap()
        });
        let taken = taken.await.unwrap();
        assert!(taken.revision >= revision.0, "{} {revision}", taken.revision);
        assert_eq!(verify(&io, &location, &Progress::none()).unwrap().revision, taken.revision);
        let restored = folder.path().join(format!("restored{round}"));
        restore(&io, &location, &target(&restored), &Progress::none()).unwrap();
        assert_eq!(std::fs::read(restored.join("pki/ca.key")).unwrap(), b"secret");
        let other = open(&io, &restored).unwrap();
        for (writer, least) in before.iter().enumerate() {
            assert!(number(&other, writer) >= *least, "round {round}: writer {writer}");
        }
        assert_eq!(other.revision(), Revision(taken.revision));
        // What the first store showed later is unknown here, and never assigned again.
        let prefix = Prefix::new("configmaps").unwrap();
        let lost = Revision(taken.revision + 1);
        assert!(matches!(other.watch(&prefix, lost), Err(WatchError::Compacted(_))));
        let next = commit(&other, write(&key("configmaps", "ns", "x"), "1")).await.unwrap();
        assert!(next.revision > store.revision());
        other.close().await;
    }
    is_over.store(1, Ordering::SeqCst);
    writers.join_all().await;
    store.close().await;
    assert_eq!(std::fs::read_dir(folder.path().join("backup/points")).unwrap().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_backup_costs_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, io): (_, Arc<dyn Io>) = (folder.path().join("data"), Arc::new(SystemDisk));
    let location = BackupLocation::Directory(folder.path().join("backup"));
    let store = Store::open(Config::embedded(data.join("store"))).unwrap();
    let filler = "x".repeat(100 << 10);
    for number in 0..40 {
        commit(&store, write(&key("configmaps", "ns", &format!("n{number}")), &filler))
            .await
            .unwrap();
    }
    let all = take(&io, &source(&data), &location, 3, &Progress::none()).unwrap();
    assert!(all.written > 4_000_000, "{all:?}");
    commit(&store, write(&key("configmaps", "ns", "small"), "1")).await.unwrap();
    // The last block of the log.
    let more = take(&io, &source(&data), &location, 3, &Progress::none()).unwrap();
    assert!((1..=1 << 20).contains(&more.written), "{more:?}");
    let none = take(&io, &source(&data), &location, 3, &Progress::none()).unwrap();
    assert_eq!(none.written, 0);
    store.close().await;
    // Without a server, and into a file.
    let file = BackupLocation::File(folder.path().join("one.backup"));
    let closed = take(&io, &source(&data), &file, 1, &Progress::none()).unwrap();
    assert_eq!(closed.revision, none.revision);
    let restored = folder.path().join("restored");
    restore(&io, &file, &target(&restored), &Progress::none()).unwrap();
    let other = open(&io, &restored).unwrap();
    assert_eq!(state(&other).len(), 41);
    other.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (data, io): (_, Arc<dyn Io>) = (folder.path().join("data"), Arc::new(SystemDisk));
    let path = folder.path().join("backup");
    let location = BackupLocation::Directory(path.clone());
    let taken = |source: &BackupSource, location: &BackupLocation| {
        take(&io, source, location, 1, &Progress::none()).map(|info| info.revision)
    };
    assert!(matches!(taken(&source(&data), &location), Err(BackupError::Journal(_))), "no journal");
    assert!(matches!(verify(&io, &location, &Progress::none()), Err(BackupError::NoPoint(_))));
    let store = open(&io, &data).unwrap();
    commit(&store, write(&key("configmaps", "ns", "a"), "1")).await.unwrap();
    taken(&source(&data), &location).unwrap();
    let other = folder.path().join("photos");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("cat.jpg"), "meow").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o700)).unwrap();
    let photos = BackupLocation::Directory(other.clone());
    assert!(matches!(taken(&source(&data), &photos), Err(BackupError::NotBackup(_))));
    assert!(matches!(verify(&io, &photos, &Progress::none()), Err(BackupError::NotBackup(_))));
    let photo = BackupLocation::File(other.join("cat.jpg"));
    assert!(matches!(verify(&io, &photo, &Progress::none()), Err(BackupError::NotBackup(_))));
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
    // Restored over a journal, and over another key.
    let restored = |data: &Path| restore(&io, &location, &target(data), &Progress::none());
    let occupied = restored(&data);
    assert!(
        matches!(occupied, Err(BackupError::Journal(OpenError::Locked(_)))),
        "in use: {occupied:?}"
    );
    store.close().await;
    drop(store);
    let occupied = restored(&data);
    assert!(matches!(occupied, Err(BackupError::Journal(OpenError::Occupied(_)))), "{occupied:?}");
    // Before anything is written: not even a key that is missing.
    std::fs::remove_dir_all(data.join("pki")).ok();
    assert!(restored(&data).is_err() && !data.join("pki").exists());
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir_all(elsewhere.join("pki")).unwrap();
    std::fs::write(elsewhere.join("pki/ca.key"), "another").unwrap();
    assert!(matches!(restored(&elsewhere), Err(BackupError::OtherKey(_))));
    assert!(!elsewhere.join("store").exists());
    open(&io, &data).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_names_every_key_that_it_takes_and_replaces_only_backups() {
    let folder = tempfile::tempdir().unwrap();
    let (data, io): (_, Arc<dyn Io>) = (folder.path().join("data"), Arc::new(SystemDisk));
    let store = open(&io, &data).unwrap();
    commit(&store, write(&key("configmaps", "ns", "a"), "1")).await.unwrap();
    let of = |name: &str, bytes: &[u8]| {
        let mut source = source(&data);
        source.keys.push(KeyFile { name: name.to_owned(), bytes: bytes.to_vec() });
        source
    };
    let places = [
        BackupLocation::Directory(folder.path().join("backups")),
        BackupLocation::File(folder.path().join("one.backup")),
    ];
    for location in &places {
        let taken = |source: &BackupSource| take(&io, source, location, 1, &Progress::none());
        // What is taken can be restored, whatever its name.
        taken(&of("pki/ca.crt~ of (old) \u{e9}", b"old")).unwrap();
        verify(&io, location, &Progress::none()).unwrap();
        // What cannot be named, or is no key, is refused before anything is written.
        let refused = taken(&of("pki/a\nblock x", b""));
        assert!(matches!(refused, Err(BackupError::KeyName(_))), "{refused:?}");
        let refused = taken(&of("pki/core", &vec![0; 17 << 20]));
        assert!(matches!(refused, Err(BackupError::ManyKeys(_))), "{refused:?}");
        let restored = folder.path().join("restored");
        restore(&io, location, &target(&restored), &Progress::none()).unwrap();
        assert_eq!(std::fs::read(restored.join("pki/ca.crt~ of (old) \u{e9}")).unwrap(), b"old");
        std::fs::remove_dir_all(restored).unwrap();
    }
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    let refused = take(&io, &source(&data), &BackupLocation::of(&notes), 1, &Progress::none());
    assert!(matches!(refused, Err(BackupError::NotBackup(_))), "{refused:?}");
    assert_eq!(std::fs::read(&notes).unwrap(), b"mine");
    // One that failed leaves nothing.
    let nothing = BackupSource { journal: folder.path().join("none"), keys: Vec::new() };
    take(&io, &nothing, &places[1], 1, &Progress::none()).unwrap_err();
    let left: Vec<String> = io.list(folder.path()).unwrap();
    assert!(!left.iter().any(|name| name.ends_with(".tmp")), "{left:?}");
    verify(&io, &places[1], &Progress::none()).unwrap();
    store.close().await;
}

/// An archive with this point, whose files all refer to one block of zeros.
fn forged(path: &Path, files: &[(&str, usize)]) {
    let block = vec![0; 1 << 20];
    let magic = b"ferrokube backup file 1\n";
    let digest = |bytes: &[u8]| -> String {
        use sha2::Digest;
        sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let line = format!("block {} {} {}\n", digest(&block), block.len(), magic.len());
    let mut point = "ferrokube backup, format 1\ntaken 1\nrevision 1\n".to_owned();
    for (name, blocks) in files {
        point += &format!("file {name}\n{}", line.repeat(*blocks));
    }
    point += &format!("sum {}\n", digest(point.as_bytes()));
    let at = (magic.len() + block.len()) as u64;
    let footer = [at.to_le_bytes(), (point.len() as u64).to_le_bytes()].concat();
    let bytes = [&magic[..], &block, point.as_bytes(), &footer, &magic[..]].concat();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_forged_backup_is_refused_before_it_costs_anything() {
    let folder = tempfile::tempdir().unwrap();
    let io: Arc<dyn Io> = Arc::new(SystemDisk);
    let path = folder.path().join("forged.backup");
    for files in [
        // A megabyte that says it is a terabyte of keys.
        &[("pki/ca.key", 1_000_000)][..],
        &[("pki/a", 10), ("pki/b", 10)],
        &[("pki/a", 1), ("pki/a", 1)],
        // Makes half a journal look whole.
        &[("store/FORMAT", 1)],
        &[("store/INSTALL.tmp", 1)],
        &[("store/MANIFEST", 0)],
    ] {
        forged(&path, files);
        let to = folder.path().join("to");
        let refused =
            restore(&io, &BackupLocation::File(path.clone()), &target(&to), &Progress::none());
        assert!(
            matches!(refused, Err(BackupError::Damaged { .. } | BackupError::Journal(_))),
            "{refused:?}"
        );
        assert!(!to.exists());
    }
}

/// A simulated disk with a store, and a backup of an earlier state of it.
async fn prepared() -> (SimDisk, u64) {
    let disk = SimDisk::default();
    let io: Arc<dyn Io> = Arc::new(disk.clone());
    let parts =
        Environment { clock: Arc::new(ManualClock::default()), ..environment(Arc::clone(&io)) };
    let store = Store::open_with(Config::embedded("/sim/data/store"), parts).unwrap();
    for number in 0..30 {
        let put = Put {
            ttl: (number % 3 == 0).then(|| Duration::from_secs(600)),
            ..put(&key("configmaps", "ns", &format!("n{number}")), &"x".repeat(900))
        };
        commit(&store, Txn { guards: Vec::new(), writes: vec![Write::Put(put)] }).await.unwrap();
    }
    let location = backup_location();
    let first = take(&io, &source(Path::new(DATA)), &location, 1, &Progress::none()).unwrap();
    for number in 0..10 {
        commit(&store, delete(&key("configmaps", "ns", &format!("n{number}")))).await.unwrap();
    }
    store.close().await;
    (disk, first.revision)
}

const DATA: &str = "/sim/data";

fn backup_location() -> BackupLocation {
    BackupLocation::Directory(PathBuf::from("/sim/backup"))
}

/// Runs with a power cut at each call in turn, until it gets through; then `check` looks at what
/// is left.
fn cut_everywhere(
    disk: &SimDisk,
    run: impl Fn(&Arc<dyn Io>) -> Result<PointInfo, BackupError>,
    check: impl Fn(&Arc<dyn Io>, Option<PointInfo>),
) {
    let files = disk.files();
    for call in 0.. {
        let crashing = SimDisk::with_files(&files);
        crashing.fail_at(call, DiskFault::PowerCut);
        let io: Arc<dyn Io> = Arc::new(crashing.clone());
        let done = run(&io).ok();
        let is_over = !crashing.is_off();
        for (seed, crash) in
            [Crash::Dropped, Crash::Killed, Crash::Torn, Crash::Reordered].into_iter().enumerate()
        {
            let io: Arc<dyn Io> = Arc::new(crashing.crash(crash, call + seed as u64));
            check(&io, done.clone());
        }
        if is_over {
            assert!(call > 20, "only {call} calls");
            return;
        }
    }
}

#[tokio::test]
async fn fault_03_a_power_cut_at_any_call_leaves_a_whole_backup() {
    let (disk, first) = prepared().await;
    let location = backup_location();
    let run =
        |io: &Arc<dyn Io>| take(io, &source(Path::new(DATA)), &location, 1, &Progress::none());
    let latest = run(&(Arc::new(SimDisk::with_files(&disk.files())) as Arc<dyn Io>)).unwrap();
    assert!(latest.revision > first);
    cut_everywhere(&disk, run, |io, done| {
        let left = verify(io, &location, &Progress::none()).unwrap();
        let least = done.map_or(first, |done| done.revision);
        assert!(left.revision == latest.revision || left.revision == least, "{left:?}");
        // The next one gets through, and leaves no rubbish.
        let again = run(io).unwrap();
        assert_eq!(again.revision, latest.revision);
        let blocks = io.list(Path::new("/sim/backup/blocks")).unwrap();
        assert!(blocks.iter().all(|name| name.len() == 64), "{blocks:?}");
        assert_eq!(io.list(Path::new("/sim/backup/points")).unwrap().len(), 1);
    });
}

#[tokio::test]
async fn fault_03_a_power_cut_while_restoring_leaves_nothing_that_opens_as_something_else() {
    let (disk, first) = prepared().await;
    let (location, to) = (backup_location(), Path::new("/sim/restored"));
    let run = |io: &Arc<dyn Io>| restore(io, &location, &target(to), &Progress::none());
    cut_everywhere(&disk, run, |io, done| {
        let must_exist = Config { must_exist: true, ..Config::embedded("/sim/restored/store") };
        let opened = Store::open_with(must_exist.clone(), environment(Arc::clone(io)));
        match opened {
            Ok(store) => {
                assert_eq!((store.revision(), state(&store).len()), (Revision(first), 30));
            }
            Err(error) => assert!(
                done.is_none()
                    && matches!(error, OpenError::Missing(_) | OpenError::Damaged { .. }),
                "{error}"
            ),
        }
    });
    // An interrupted one is repeated.
    let files = disk.files();
    for call in (0..).step_by(3) {
        let crashing = SimDisk::with_files(&files);
        crashing.fail_at(call, DiskFault::PowerCut);
        let io: Arc<dyn Io> = Arc::new(crashing.clone());
        let done = run(&io);
        let io: Arc<dyn Io> = Arc::new(crashing.crash(Crash::Reordered, call));
        let again = run(&io);
        let is_there =
            matches!(again, Err(BackupError::Journal(OpenError::Occupied(_)))) || again.is_ok();
        assert!(is_there, "{again:?}");
        let store = open(&io, to).unwrap();
        assert_eq!(state(&store).len(), 30);
        if done.is_ok() {
            return;
        }
    }
}

#[tokio::test]
async fn fault_08_a_flipped_bit_of_a_backup_is_found() {
    let (disk, _) = prepared().await;
    let io: Arc<dyn Io> = Arc::new(disk.clone());
    let archive = BackupLocation::File(PathBuf::from("/sim/one.backup"));
    take(&io, &source(Path::new(DATA)), &archive, 1, &Progress::none()).unwrap();
    for (path, bytes) in disk.files() {
        let location = match path.strip_prefix("/sim/backup") {
            Ok(_) => backup_location(),
            Err(_) if path == Path::new("/sim/one.backup") => archive.clone(),
            Err(_) => continue,
        };
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 40) {
            let rot = disk.rot(&path, at);
            let outcome = verify(&io, &location, &Progress::none());
            assert!(outcome.is_err(), "{}: byte {at}: {outcome:?}", path.display());
            let to = PathBuf::from(format!("/sim/rotten{at}"));
            restore(&io, &location, &target(&to), &Progress::none()).unwrap_err();
            assert!(io.list(&to).unwrap_or_default().is_empty());
            disk.heal(&rot);
        }
        verify(&io, &location, &Progress::none()).unwrap();
    }
    // A block that rotted is written again by the next backup.
    let (path, _) =
        disk.files().into_iter().find(|(path, _)| path.starts_with("/sim/backup/blocks")).unwrap();
    take(&io, &source(Path::new(DATA)), &backup_location(), 1, &Progress::none()).unwrap();
    let _ = disk.files().contains_key(&path).then(|| disk.rot(&path, 3));
    take(&io, &source(Path::new(DATA)), &backup_location(), 1, &Progress::none()).unwrap();
    verify(&io, &backup_location(), &Progress::none()).unwrap();
}
