//! Files of logs: links, older ones, and what a follower reads next.

use super::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

#[test]
fn a_log_that_is_a_link_or_no_file_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "2026-01-01T00:00:00Z stdout F secret\n").unwrap();
    let logs = directory.path().join("logs");
    fs::create_dir_all(logs.join("p/real")).unwrap();
    symlink(&secret, logs.join("p/real/0.log")).unwrap();
    symlink(directory.path(), logs.join("p/linked")).unwrap();
    fs::create_dir(logs.join("p/real/1.log")).unwrap();
    for path in ["p/real/0.log", "p/linked/secret", "p/real/1.log", "p/../../secret"] {
        assert!(open(&logs, &logs.join(path)).is_err(), "{path}");
    }
    assert!(open(&logs, &secret).is_err());
}

/// A log with files of these names, each with its own name in it.
fn written(names: &[&str]) -> (tempfile::TempDir, LogDirectory) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("p/c")).unwrap();
    for name in names {
        fs::write(folder.path().join("p/c").join(name), name).unwrap();
    }
    let path = folder.path().join("p/c/0.log");
    let (directory, log) = LogDirectory::of(folder.path(), &path).unwrap();
    assert_eq!(log, "0.log");
    (folder, directory)
}

const FIRST: &str = "0.log.20260101-000000";
const SECOND: &str = "0.log.20260101-000010";

#[test]
fn only_names_that_rotation_makes_are_older_logs() {
    let twice = format!("{SECOND}.gz");
    let half = format!("{SECOND}.tmp");
    let (_folder, directory) = written(&[
        "0.log",
        FIRST,
        SECOND,
        &twice,
        &half,
        "1.log",
        "0.log.bak",
        "0.log.20260101",
        "10.log",
    ]);
    let older = directory.older("0.log").unwrap();
    assert_eq!(older.whole, [FIRST, &twice], "the complete one of two forms");
    assert_eq!(older.remains.len(), 2);
    assert!(older.remains.contains(&half) && older.remains.contains(&SECOND.to_owned()));
}

#[test]
fn a_follower_finds_the_next_file_also_when_its_own_was_compressed_or_removed() {
    let (folder, directory) = written(&[FIRST]);
    let at = |name: &str| folder.path().join("p/c").join(name);
    let own = File::open(at(FIRST)).unwrap();
    // Older than its compressed form would be by itself.
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    own.set_modified(old).unwrap();
    let next = || {
        let found = directory.after("0.log", &own.metadata().unwrap()).unwrap();
        found.map(|(mut source, is_current)| {
            let mut text = String::new();
            source.read_to_string(&mut text).unwrap();
            (text, is_current)
        })
    };
    assert!(next().is_none(), "it is the newest: the runtime has not reopened the log");
    // Later than any granularity of the file system.
    let later = |name: &str, seconds| {
        let mut file = File::create(at(name)).unwrap();
        file.write_all(name.as_bytes()).unwrap();
        let time = own.metadata().unwrap().modified().unwrap();
        file.set_modified(time + std::time::Duration::from_secs(seconds)).unwrap();
    };
    later("0.log", 20);
    assert_eq!(next(), Some(("0.log".to_owned(), true)));
    later(SECOND, 10);
    assert_eq!(next(), Some((SECOND.to_owned(), false)));
    directory.compress(FIRST).unwrap();
    assert!(!at(FIRST).exists());
    assert_eq!(next(), Some((SECOND.to_owned(), false)), "compressed, it is not its own successor");
    directory.compress(SECOND).unwrap();
    assert_eq!(next(), Some((SECOND.to_owned(), false)), "read through its compression");
    fs::remove_file(at(&format!("{FIRST}.gz"))).unwrap();
    fs::remove_file(at(&format!("{SECOND}.gz"))).unwrap();
    assert_eq!(next(), Some(("0.log".to_owned(), true)), "what was removed is lost");
}

#[test]
fn fault_56_rotation_follows_no_link_and_replaces_no_file() {
    let (folder, directory) = written(&["0.log", SECOND]);
    let secret = folder.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, folder.path().join("p/c").join(FIRST)).unwrap();
    assert!(directory.compress(FIRST).is_err());
    assert!(directory.rename("0.log", SECOND).is_err(), "it exists");
    assert!(directory.rename("0.log", FIRST).is_err(), "it is a link");
    directory.remove(FIRST).unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    symlink(folder.path().join("p/c"), folder.path().join("p/link")).unwrap();
    assert!(LogDirectory::of(folder.path(), &folder.path().join("p/link/0.log")).is_err());
    assert!(LogDirectory::of(folder.path(), &folder.path().join("p/../p/c/0.log")).is_err());
    assert!(LogDirectory::of(folder.path(), &folder.path().join("0.log")).is_err());
}
