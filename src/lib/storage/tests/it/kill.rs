//! A real process on a real disk, killed at random times and at every kind of disk call.

use crate::load::block_on;
use ferrokube_storage::testing::{Dice, Failpoint, FailpointDisk, commit, key, text, write};
use ferrokube_storage::{
    Config, Environment, JournalLimits, Key, Prefix, Revision, Rewrites, Store,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Directory of the child process.
const CHILD: &str = "FERROKUBE_STORAGE_TEST_CHILD";
/// Failpoint of the child process.
const FAILPOINT: &str = "FERROKUBE_STORAGE_TEST_FAILPOINT";
const WRITERS: usize = 4;
/// Number of kills; `FERROKUBE_KILLS=500` for the long run.
const KILLS: usize = 24;

fn open(dir: &Path, failpoint: Option<Failpoint>) -> Store {
    // A life may be shorter than a background rewrite: without inline ones the journal would only
    // grow.
    let rewrites = if failpoint.is_some() { Rewrites::Background } else { Rewrites::Inline };
    let journal = JournalLimits {
        segment_bytes: 16 << 10,
        retain_bytes: 64 << 10,
        rewrites,
        ..JournalLimits::default()
    };
    let config = Config { history_bytes: 8 << 10, ..Config::embedded(dir.join("storage")) };
    Store::open_with(
        config,
        Environment {
            journal,
            io: Arc::new(FailpointDisk::new(failpoint)),
            ..Environment::default()
        },
    )
    .unwrap()
}

fn counter(writer: usize) -> Key {
    key("configmaps", "ns", &format!("w{writer}"))
}

fn count(store: &Store, writer: usize) -> u64 {
    store
        .get(&counter(writer))
        .map_or(0, |entry| text(&entry).trim_start_matches('0').parse().unwrap_or(0))
}

/// The child process: every writer counts, and reports each acknowledgement. A no-op in the parent.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let failpoint = std::env::var(FAILPOINT).ok().map(|text| text.parse().unwrap());
    block_on(async {
        let store = open(Path::new(&dir), failpoint);
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                for number in count(&store, writer) + 1.. {
                    // The zeros make frames span many sectors.
                    let done = commit(&store, write(&counter(writer), &format!("{number:0>1500}")))
                        .await
                        .unwrap();
                    println!("ack {writer} {number} {}", done.revision);
                }
            });
        }
        writers.join_all().await;
    });
}

/// What the child reported over all lives, and what was read after each.
#[derive(Default)]
struct ChildReport {
    acknowledged: [u64; WRITERS],
    highest: u64,
    /// Lives since the last read.
    lives: u64,
    /// Position of the watch, and what it showed.
    watched: u64,
}

/// Fault 1: `kill -9` at any time, or at a failpoint, loses no acknowledged write; the revision
/// never goes back; a watch misses nothing.
#[test]
fn fault_01_kill_9_loses_nothing_acknowledged() {
    let kills =
        std::env::var("FERROKUBE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let (dir, mut dice, mut told) =
        (tempfile::tempdir().unwrap(), Dice::new(3), ChildReport::default());
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for round in 0..kills {
        let place =
            (round % 2 == 1).then(|| Failpoint::PLACES[round / 2 % Failpoint::PLACES.len()]);
        if place == Some("truncate log") {
            // The next start cuts the torn frame.
            life(dir.path(), Some("write log half 5"), &mut told, &mut dice);
        }
        let failpoint = place.map(|place| failpoint(place, &mut dice));
        let died = life(dir.path(), failpoint.as_deref(), &mut told, &mut dice);
        *places.entry(place.filter(|_| died).unwrap_or("any moment")).or_default() += 1;
        block_on(check(dir.path(), &mut told));
    }
    println!("{kills} kills: {places:?}, revision {}", told.highest);
    let missed: Vec<_> =
        Failpoint::PLACES.iter().filter(|place| !places.contains_key(*place)).collect();
    assert!(kills < 4 * Failpoint::PLACES.len() || missed.is_empty(), "nothing died at {missed:?}");
}

/// A random failpoint around one of the first calls at a place.
fn failpoint(place: &str, dice: &mut Dice) -> String {
    let moments: &[&str] = if place.starts_with("write") {
        &["before", "half", "after"]
    } else {
        &["before", "after"]
    };
    let most = match place {
        "write log" | "sync log" | "write manifest" => 40,
        "truncate log" => 1,
        _ => 3,
    };
    format!("{place} {} {}", moments[dice.below(moments.len())], 1 + dice.below(most))
}

/// Runs one process to its end. Returns whether it died at the failpoint.
fn life(dir: &Path, failpoint: Option<&str>, told: &mut ChildReport, dice: &mut Dice) -> bool {
    told.lives += 1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["kill::child", "--exact", "--nocapture"]).env(CHILD, dir).stdout(Stdio::piped());
    if let Some(failpoint) = failpoint {
        command.env(FAILPOINT, failpoint);
    }
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let before = told.highest;
    let mut left = if failpoint.is_some() { 400 } else { 5 + dice.below(60) };
    let mut killed = false;
    for line in lines {
        let mut words = line.split(' ');
        if words.next() == Some("ack") {
            let mut number = || words.next().unwrap_or_default().parse::<u64>();
            // The last line may be incomplete.
            if let (Ok(writer), Ok(value), Ok(revision)) = (number(), number(), number()) {
                assert!(
                    revision > before,
                    "revision {revision} was assigned before the kill, which was after {before}"
                );
                told.highest = told.highest.max(revision);
                told.acknowledged[usize::try_from(writer).unwrap()] = value;
            }
            left = left.saturating_sub(1);
            if left == 0 {
                child.kill().unwrap();
                killed = true;
            }
        }
    }
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it ended by itself: {status}");
    !killed
}

async fn check(dir: &Path, told: &mut ChildReport) {
    let store = open(dir, None);
    assert!(store.revision().0 >= told.highest, "{} after {}", store.revision(), told.highest);
    for (writer, value) in told.acknowledged.iter_mut().enumerate() {
        let found = count(&store, writer);
        assert!(
            (*value..=*value + told.lives).contains(&found),
            "writer {writer}: {found}, acknowledged {value}"
        );
        *value = found;
    }
    // From the start of the history to its end, revisions are contiguous except for the gap that
    // each start leaves.
    let prefix = Prefix::new("configmaps").unwrap();
    let begin = store.history(&prefix).watched;
    let mut at = begin.0;
    let mut counts = [0; WRITERS];
    let mut cursor = store.watch(&prefix, begin).unwrap();
    while at < store.revision().0 {
        for event in cursor.next(10).await.unwrap() {
            let step = event.revision().0 - at;
            assert!(step == 1 || step >= 1000, "{} after {at}", event.revision());
            at = event.revision().0;
            let writer: usize = event.entry.key.name().trim_start_matches('w').parse().unwrap();
            let number = text(&event.entry).trim_start_matches('0').parse().unwrap();
            assert!(
                counts[writer] == 0 || number == counts[writer] + 1,
                "writer {writer}: {number} after {}",
                counts[writer]
            );
            counts[writer] = number;
        }
    }
    // A watch of the previous life resumes.
    if told.watched >= begin.0 {
        let mut cursor = store.watch(&prefix, Revision(told.watched)).unwrap();
        let mut seen = 0;
        while cursor.bookmark().is_none() {
            seen += cursor.next(64).await.unwrap().len();
        }
        assert!(seen > 0 || store.revision().0 == told.watched, "nothing after {}", told.watched);
    }
    (told.watched, told.highest, told.lives) = (at, store.revision().0, 0);
    store.close().await;
}
