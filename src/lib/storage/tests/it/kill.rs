//! A real process on a real disk, killed at any moment.

use crate::load::block_on;
use ferrokube_storage::testing::{Dice, commit, key, text, write};
use ferrokube_storage::{Config, JournalLimits, Key, Parts, Prefix, Revision, Store};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const CHILD: &str = "FERROKUBE_STORAGE_TEST_CHILD";
const WRITERS: usize = 4;
const ROUNDS: usize = 12;

fn open(dir: &Path) -> Store {
    let journal = JournalLimits { segment_bytes: 16 << 10, retain_bytes: 64 << 10, ..JournalLimits::default() };
    let config = Config { history_bytes: 8 << 10, ..Config::embedded(dir.join("storage")) };
    Store::open_with(config, Parts { journal, ..Parts::default() }).unwrap()
}

fn counter(writer: usize) -> Key {
    key("configmaps", "ns", &format!("w{writer}"))
}

fn count(store: &Store, writer: usize) -> u64 {
    store.get(&counter(writer)).map_or(0, |entry| text(&entry).trim_start_matches('0').parse().unwrap_or(0))
}

/// What the killed process does: every writer counts, and says so after each acknowledgement. Does nothing unless it is that process.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    block_on(async {
        let store = open(Path::new(&dir));
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                for number in count(&store, writer) + 1.. {
                    // The zeros make frames of many sectors.
                    let done = commit(&store, write(&counter(writer), &format!("{number:0>1500}"))).await.unwrap();
                    println!("ack {writer} {number} {}", done.revision);
                }
            });
        }
        writers.join_all().await;
    });
}

/// Fault 1: `kill -9` at any moment loses nothing that was acknowledged, and the revision never goes back.
#[test]
fn fault_01_kill_9_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice::new(3);
    let (mut acknowledged, mut highest) = ([0u64; WRITERS], 0);
    for _ in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["kill::child", "--exact", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let before = highest;
        let mut left = 5 + dice.below(60);
        for line in lines {
            let mut words = line.split(' ');
            if words.next() == Some("ack") {
                let mut number = || words.next().unwrap_or_default().parse::<u64>();
                // The last line may be cut.
                if let (Ok(writer), Ok(value), Ok(revision)) = (number(), number(), number()) {
                    assert!(revision > before, "revision {revision} was given before the kill, which was after {before}");
                    highest = highest.max(revision);
                    acknowledged[usize::try_from(writer).unwrap()] = value;
                }
                left = left.saturating_sub(1);
                if left == 0 {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        block_on(check(dir.path(), &acknowledged, highest));
    }
}

async fn check(dir: &Path, acknowledged: &[u64; WRITERS], highest: u64) {
    let store = open(dir);
    assert!(store.revision().0 >= highest, "{} after {highest}", store.revision());
    for (writer, value) in acknowledged.iter().enumerate() {
        let found = count(&store, writer);
        assert!(found == *value || found == value + 1, "writer {writer}: {found}, acknowledged {value}");
    }
    // From where the history begins to its end: every event follows another, but for what each start leaves out.
    let prefix = Prefix::new("configmaps").unwrap();
    let mut at = store.history(&prefix).watched.0;
    let mut cursor = store.watch(&prefix, Revision(at)).unwrap();
    while at < store.revision().0 {
        for event in cursor.next(10).await.unwrap() {
            let step = event.revision().0 - at;
            assert!(step == 1 || step >= 1000, "{} after {at}", event.revision());
            at = event.revision().0;
        }
    }
    store.close().await;
}
