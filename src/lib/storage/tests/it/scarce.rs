//! Out of file descriptors or inodes: open files keep working.

use crate::load::{block_on, parts};
use ferrokube_storage::journal::io::{DirLock, File, Io};
use ferrokube_storage::testing::{SimDisk, commit, delete, key, text, write};
use ferrokube_storage::{Config, Environment, JournalLimits, Rewrites, Store};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What is used up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scarce {
    /// Opens fail.
    Descriptors,
    /// New files fail as on a full disk.
    Inodes,
}

/// A disk on which something is scarce while `none` is set.
#[derive(Clone)]
struct ScarceDisk {
    disk: SimDisk,
    scarce: Scarce,
    none: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl ScarceDisk {
    fn opened<T>(&self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.scarce == Scarce::Descriptors && self.none.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()));
        }
        open()
    }

    fn created<T>(&self, create: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.scarce == Scarce::Inodes && self.none.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.opened(create)
    }
}

impl Io for ScarceDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.make_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        self.disk.lock(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.opened(|| self.disk.list(dir))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.created(|| self.disk.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.opened(|| self.disk.open(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.opened(|| self.disk.sync_dir(dir))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.disk.free_bytes(dir)
    }
}

/// The first revision of the last log.
fn logs(disk: &ScarceDisk) -> Option<String> {
    disk.disk
        .list(Path::new("/sim/storage"))
        .unwrap()
        .into_iter()
        .rfind(|name| name.ends_with(".log"))
}

#[test]
fn fault_38_without_descriptors_writes_go_on_and_segments_are_begun_later() {
    write_while_scarce(Scarce::Descriptors);
}

/// Fault 7: a file system has space, but no inodes. Nothing is refused, deletes least of all, and
/// the store can be opened.
#[test]
fn fault_07_without_inodes_writes_go_on_and_segments_are_begun_later() {
    write_while_scarce(Scarce::Inodes);
}

fn write_while_scarce(scarce: Scarce) {
    block_on(async {
        let disk = ScarceDisk {
            disk: SimDisk::default(),
            scarce,
            none: Arc::default(),
            refused: Arc::default(),
        };
        let config = || Config { history_bytes: 16 << 10, ..Config::embedded("/sim/storage") };
        let journal = JournalLimits {
            segment_bytes: 1500,
            retain_bytes: 3000,
            rewrites: Rewrites::Inline,
            ..JournalLimits::default()
        };
        let open = || {
            Store::open_with(
                config(),
                Environment {
                    io: Arc::new(disk.clone()),
                    journal: journal.clone(),
                    ..parts(&disk.disk)
                },
            )
        };
        let mut store = open().unwrap();
        let written = async |store: &Store, round: usize| {
            for at in 0..20 {
                commit(
                    store,
                    write(
                        &key("configmaps", "ns", &format!("o{at}")),
                        &format!("{round} {}", "x".repeat(400)),
                    ),
                )
                .await
                .unwrap();
            }
        };
        written(&store, 0).await;
        disk.none.store(true, Ordering::Relaxed);
        written(&store, 1).await;
        assert!(disk.refused.load(Ordering::Relaxed) > 10, "each append retried");
        assert_eq!(store.failure(), None);
        if scarce == Scarce::Inodes {
            for at in 0..10 {
                commit(&store, delete(&key("configmaps", "ns", &format!("o{at}")))).await.unwrap();
            }
            assert!(!store.stats().disk_full);
            store.close().await;
            store = open().unwrap();
            written(&store, 1).await;
        }
        disk.none.store(false, Ordering::Relaxed);
        let before = logs(&disk);
        written(&store, 2).await;
        assert!(logs(&disk) > before, "segments are begun again");
        store.close().await;
        drop(store);
        let store = open().unwrap();
        assert!(text(&store.get(&key("configmaps", "ns", "o7")).unwrap()).starts_with("2 "));
    });
}
