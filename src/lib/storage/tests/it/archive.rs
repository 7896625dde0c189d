//! The journal's use of the file system: bytes read, and which errors it takes for a missing file.

use crate::load::{block_on, parts};
use ferrokube_storage::journal::io::{DirLock, File, Io};
use ferrokube_storage::testing::{SimDisk, commit, create, key, text, write};
use ferrokube_storage::{Config, Environment, JournalLimits, OpenError, Prefix, Revision, Store};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A disk that counts reads and refuses some calls.
#[derive(Clone, Default)]
struct CountingDisk(Arc<CountingDiskInner>);

#[derive(Default)]
struct CountingDiskInner {
    disk: SimDisk,
    read: AtomicU64,
    /// Errors for the next attempts to open a log.
    opens: Mutex<Vec<Error>>,
    /// Persistent error for syncs of one directory.
    bad_dir: Mutex<Option<(PathBuf, ErrorKind)>>,
}

struct CountedFile(Arc<CountingDiskInner>, Arc<dyn File>);

impl CountingDisk {
    fn open_store(&self) -> std::result::Result<Store, OpenError> {
        let disk = SimDisk::default();
        let journal = JournalLimits {
            segment_bytes: 4 << 20,
            retain_bytes: 64 << 20,
            ..parts(&disk).journal
        };
        let config = Config { history_bytes: 2000, ..Config::embedded("/sim/storage") };
        Store::open_with(
            config,
            Environment { io: Arc::new(self.clone()), journal, ..parts(&disk) },
        )
    }
}

impl Io for CountingDisk {
    fn make_dir(&self, dir: &Path) -> Result<()> {
        self.0.disk.make_dir(dir)
    }

    fn lock(&self, dir: &Path) -> Result<Option<Box<dyn DirLock>>> {
        self.0.disk.lock(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.0.disk.list(dir)
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(Arc::new(CountedFile(self.0.clone(), self.0.disk.create(path)?)))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        if path.extension().is_some_and(|kind| kind == "log")
            && let Some(error) = self.0.opens.lock().unwrap().pop()
        {
            return Err(error);
        }
        Ok(Arc::new(CountedFile(self.0.clone(), self.0.disk.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        match &*self.0.bad_dir.lock().unwrap() {
            Some((bad, kind)) if bad == dir => Err((*kind).into()),
            _ => self.0.disk.sync_dir(dir),
        }
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        self.0.disk.free_bytes(dir)
    }
}

impl File for CountedFile {
    fn len(&self) -> Result<u64> {
        self.1.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let read = self.1.read_at(offset, buffer)?;
        self.0.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.1.write_at(offset, bytes)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.1.truncate(len)
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.1.reserve(len)
    }

    fn sync(&self) -> Result<()> {
        self.1.sync()
    }
}

/// Many keys in turn, as with lease renewals: the value an event replaces lies far behind it.
#[test]
fn fault_21_a_resumed_watch_reads_the_journal_a_few_times_not_once_for_each_event() {
    block_on(async {
        let disk = CountingDisk::default();
        let store = disk.open_store().unwrap();
        let (keys, rounds) = (2000, 3);
        for round in 0..rounds {
            let mut waiting = Vec::new();
            for number in 0..keys {
                let value = format!("{round}-{number}-{}", "v".repeat(200));
                waiting.push(
                    store
                        .submit(write(&key("leases", "ns", &format!("n{number}")), &value))
                        .unwrap(),
                );
                if waiting.len() == 50 {
                    for ticket in waiting.drain(..) {
                        ticket.committed().await.unwrap();
                    }
                }
            }
        }
        let journal = store.stats().journal_bytes;
        disk.0.read.store(0, Ordering::Relaxed);
        let mut cursor = store.watch(&Prefix::new("leases").unwrap(), Revision(0)).unwrap();
        let mut seen = 0;
        while seen < keys * rounds {
            for event in cursor.next(1000).await.unwrap() {
                let (round, number) = (seen / keys, seen % keys);
                assert!(text(&event.entry).starts_with(&format!("{round}-{number}-")));
                let previous = event.previous.as_ref().map(|previous| text(previous));
                assert_eq!(previous.is_some(), round > 0);
                assert!(
                    previous
                        .is_none_or(|text| text.starts_with(&format!("{}-{number}-", round - 1)))
                );
                seen += 1;
            }
        }
        let read = disk.0.read.load(Ordering::Relaxed);
        assert!(read <= 4 * journal, "{read} bytes of a journal of {journal}");
        store.close().await;
    });
}

/// A file merged away in between, or a temporary lack of descriptors, does not break a watch.
#[test]
fn fault_21_present_entries_are_not_reported_gone() {
    block_on(async {
        let disk = CountingDisk::default();
        let store = disk.open_store().unwrap();
        for number in 0..200 {
            commit(
                &store,
                create(
                    &key(["leases", "jobs"][number % 2], "ns", &format!("n{number}")),
                    &"v".repeat(100),
                ),
            )
            .await
            .unwrap();
        }
        let scarce = || Error::from_raw_os_error(24);
        // Separate resources, so that neither finds the other's cached blocks.
        for (resource, errors) in [
            ("leases", vec![ErrorKind::NotFound.into()]),
            ("jobs", vec![scarce(), scarce(), scarce()]),
        ] {
            *disk.0.opens.lock().unwrap() = errors;
            let mut cursor = store.watch(&Prefix::new(resource).unwrap(), Revision(0)).unwrap();
            let first = cursor.next(1).await.unwrap();
            assert!(first[0].revision() <= Revision(2), "{resource}");
            assert!(disk.0.opens.lock().unwrap().is_empty());
        }
        store.close().await;
    });
}

/// Ancestors of the data directory may be on a file system that cannot sync directories.
#[test]
fn a_directory_far_above_need_not_be_synced() {
    block_on(async {
        for (dir, kind, may) in [
            ("/", ErrorKind::InvalidInput, true),
            ("/", ErrorKind::ReadOnlyFilesystem, true),
            ("/", ErrorKind::PermissionDenied, true),
            ("/", ErrorKind::Other, false),
            ("/sim", ErrorKind::InvalidInput, false),
        ] {
            let disk = CountingDisk::default();
            *disk.0.bad_dir.lock().unwrap() = Some((dir.into(), kind));
            match disk.open_store() {
                Ok(store) => {
                    assert!(may, "{dir} {kind}");
                    store.close().await;
                }
                Err(error) => assert!(!may, "{dir} {kind}: {error:?}"),
            }
        }
    });
}
