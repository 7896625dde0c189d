//! Checks of the journal: its integrity, and which process holds it.

use crate::Finding;
use ferrokube_storage::JournalFiles;
use ferrokube_storage::journal::io::{Io, SystemDisk};
use ferrokube_trace::with_causes;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

const STORE: &str = "store";
/// Bytes of the list of locks.
const MAX_LOCKS: usize = 4 << 20;

/// Reads the whole journal with its checksums, also while a server writes it.
pub fn journal(directory: &Path) -> Finding {
    let store = directory.join(STORE);
    let shown = store.display();
    let Ok(entries) = fs::read_dir(&store) else {
        return if directory.join("store.unfinished").exists() {
            let what = format!("{shown}.unfinished is of a migration that has not finished");
            Finding::failed(STORE, what, "repeat the migration: see docs/backup.md")
        } else if directory.join("store.made").exists() {
            let what = format!("{shown} is missing, but there was state in it");
            Finding::failed(STORE, what, "restore a backup: see docs/backup.md")
        } else {
            Finding::skipped(STORE, "the directory contains no state")
        };
    };
    // Opening a pipe or device could block.
    for entry in entries.filter_map(Result::ok) {
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let what = format!("{} is not a file", entry.path().display());
            return Finding::failed(STORE, what, "remove it: a journal is a directory of files");
        }
    }
    let io: Arc<dyn Io> = Arc::new(SystemDisk);
    match JournalFiles::of_directory(&io, &store).and_then(|files| files.check()) {
        Ok(revision) => Finding::ok(STORE, format!("whole up to revision {revision}")),
        Err(error) => Finding::failed(
            STORE,
            with_causes(&error),
            "keep a copy of the directory, and restore a backup: see docs/backup.md",
        ),
    }
}

/// The process that holds the directory, by the kernel's list of locks.
pub fn holder(directory: &Path) -> Option<u32> {
    let inode = fs::metadata(directory).ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok().filter(|text| text.len() < MAX_LOCKS)?;
    holder_in(&locks, inode)
}

/// Lines are like `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`.
fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = words[..] else { return None };
        let found: u64 = place.rsplit(':').next()?.parse().ok()?;
        if found == inode { pid.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckOutcome;
    use ferrokube_storage::{Config, Environment, Store};

    #[tokio::test]
    async fn damage_is_found_and_nothing_blocks() {
        let made = tempfile::tempdir().unwrap();
        let directory = made.path();
        assert_eq!(journal(directory).outcome, CheckOutcome::Skipped);
        fs::create_dir(directory.join("store.unfinished")).unwrap();
        assert!(journal(directory).what.ends_with("has not finished"), "{:?}", journal(directory));
        fs::remove_dir(directory.join("store.unfinished")).unwrap();
        fs::write(directory.join("store.made"), "").unwrap();
        assert_eq!(journal(directory).outcome, CheckOutcome::Failed);
        let config = Config::embedded(directory.join("store"));
        let store = Store::open_with(config, Environment::default()).unwrap();
        assert_eq!(journal(directory).outcome, CheckOutcome::Ok, "{:?}", journal(directory));
        store.close().await;
        for entry in fs::read_dir(directory.join("store")).unwrap() {
            let path = entry.unwrap().path();
            let bytes: Vec<u8> = fs::read(&path).unwrap().iter().map(|byte| byte ^ 0x55).collect();
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(journal(directory).outcome, CheckOutcome::Failed, "{:?}", journal(directory));
        fs::create_dir(directory.join("store/folder")).unwrap();
        assert!(journal(directory).what.ends_with("folder is not a file"));
    }

    #[test]
    fn the_holder_is_in_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:5678 0 EOF\n2: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF\n2: -> FLOCK\nnonsense\n";
        assert_eq!(holder_in(locks, 5678), Some(1234));
        assert_eq!(holder_in(locks, 1), None);
        let made = tempfile::tempdir().unwrap();
        let folder = fs::File::open(made.path()).unwrap();
        rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).unwrap();
        // The process may be in another container.
        let found = holder(made.path());
        assert!(found.is_none_or(|pid| pid == std::process::id()), "{found:?}");
    }
}
