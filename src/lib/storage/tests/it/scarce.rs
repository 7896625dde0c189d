//! Out of file descriptors: opens fail, open files keep working.

use crate::load::{block_on, parts};
use ferrokube_storage::journal::io::{DirLock, File, Io};
use ferrokube_storage::testing::{SimDisk, commit, key, text, write};
use ferrokube_storage::{Config, Environment, JournalLimits, Rewrites, Store};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A disk whose opens fail while descriptors are scarce.
#[derive(Clone)]
struct ScarceDisk {
    disk: SimDisk,
    none: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl ScarceDisk {
    fn opened<T>(&self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.none.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error()));
        }
        open()
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
        self.opened(|| self.disk.create(path))
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

#[test]
fn fault_38_without_descriptors_writes_go_on_and_segments_are_begun_later() {
    block_on(async {
        let disk =
            ScarceDisk { disk: SimDisk::default(), none: Arc::default(), refused: Arc::default() };
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
        let store = open().unwrap();
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
        disk.none.store(false, Ordering::Relaxed);
        written(&store, 2).await;
        store.close().await;
        drop(store);
        let store = open().unwrap();
        assert!(text(&store.get(&key("configmaps", "ns", "o7")).unwrap()).starts_with("2 "));
    });
}
