//! A real disk on which the process kills itself at a chosen call: before it, halfway through, or
//! after it.
//!
//! Only tests and debug builds open a store on it; the store does not know.

use crate::journal::io::{DirLock, File, Io, SystemDisk};
use rustix::process::{Signal, getpid, kill_process};
use std::io::Result;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When the process dies, relative to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailMoment {
    Before,
    /// After writing only a part.
    Half,
    After,
}

/// Where a process dies, parsed from `CALL FILE WHEN COUNT`, such as `sync log before 17` for the
/// seventeenth sync of a log. `dir` stands for directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failpoint {
    call: String,
    of: String,
    when: FailMoment,
    count: u64,
}

impl Failpoint {
    /// Calls and files that a running journal reaches.
    pub const PLACES: [&'static str; 14] = [
        "write log",
        "sync log",
        "truncate log",
        "create log",
        "rename log",
        "remove log",
        "create base",
        "write base",
        "sync base",
        "rename base",
        "remove base",
        "write manifest",
        "sync manifest",
        "sync dir",
    ];
}

impl FromStr for Failpoint {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut words = text.split(' ');
        let mut word = || {
            words.next().ok_or_else(|| format!("{text:?} is not CALL FILE before|half|after COUNT"))
        };
        let (call, of) = (word()?.to_owned(), word()?.to_owned());
        let when = match word()? {
            "before" => FailMoment::Before,
            "half" => FailMoment::Half,
            "after" => FailMoment::After,
            other => return Err(format!("{other:?} is not before, half or after")),
        };
        let count = word()?.parse().map_err(|_| format!("{text:?} does not end in a count"))?;
        Ok(Self { call, of, when, count })
    }
}

/// The real disk with an optional failpoint.
#[derive(Clone)]
pub struct FailpointDisk(Arc<ArmedFailpoint>);

struct ArmedFailpoint {
    failpoint: Option<Failpoint>,
    calls: AtomicU64,
}

impl FailpointDisk {
    /// Without a failpoint, behaves like the real disk.
    pub fn new(failpoint: Option<Failpoint>) -> Self {
        Self(Arc::new(ArmedFailpoint { failpoint, calls: AtomicU64::new(0) }))
    }

    /// Runs a call and dies at the failpoint; `half` does a part of the call.
    fn call<T>(
        &self,
        call: &str,
        of: &str,
        run: impl FnOnce() -> Result<T>,
        half: impl FnOnce(),
    ) -> Result<T> {
        let Some(Failpoint { when, count, .. }) = self
            .0
            .failpoint
            .as_ref()
            .filter(|failpoint| failpoint.call == call && failpoint.of == of)
        else {
            return run();
        };
        let is_here = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1 == *count;
        match when {
            FailMoment::Before if is_here => die(),
            FailMoment::Half if is_here => {
                half();
                die()
            }
            FailMoment::After if is_here => {
                let _ = run();
                die()
            }
            _ => run(),
        }
    }

    fn whole<T>(&self, call: &str, of: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.call(call, of, run, || {})
    }

    fn file(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FailpointFile { disk: self.clone(), of: kind(path), file })
    }
}

/// Like `kill -9`: no flush, no destructors.
fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

/// Type of a file, also under its temporary name.
fn kind(path: &Path) -> &'static str {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    [(".log", "log"), (".base", "base"), ("MANIFEST", "manifest")]
        .into_iter()
        .find(|(part, _)| name.contains(part))
        .map_or("other", |(_, kind)| kind)
}

impl Io for FailpointDisk {
    fn make_dir(&self, dir: &Path) -> Result<()> {
        SystemDisk.make_dir(dir)
    }

    fn lock(&self, dir: &Path) -> Result<Option<Box<dyn DirLock>>> {
        SystemDisk.lock(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        SystemDisk.list(dir)
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.whole("create", kind(path), || SystemDisk.create(path))
            .map(|file| self.file(path, file))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(self.file(path, SystemDisk.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.whole("rename", kind(to), || SystemDisk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.whole("remove", kind(path), || SystemDisk.remove(path))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.whole("sync", "dir", || SystemDisk.sync_dir(dir))
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        SystemDisk.free_bytes(dir)
    }
}

struct FailpointFile {
    disk: FailpointDisk,
    of: &'static str,
    file: Arc<dyn File>,
}

impl File for FailpointFile {
    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let half = || _ = self.file.write_at(offset, &bytes[..bytes.len() / 2]);
        self.disk.call("write", self.of, || self.file.write_at(offset, bytes), half)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.disk.whole("truncate", self.of, || self.file.truncate(len))
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.file.reserve(len)
    }

    fn sync(&self) -> Result<()> {
        self.disk.whole("sync", self.of, || self.file.sync())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_its_text() {
        for place in Failpoint::PLACES {
            let read: Failpoint = format!("{place} half 3").parse().unwrap();
            assert_eq!(
                (format!("{} {}", read.call, read.of).as_str(), read.when, read.count),
                (place, FailMoment::Half, 3)
            );
        }
        for bad in
            ["", "sync", "sync log", "sync log during 1", "sync log after", "sync log after x"]
        {
            assert!(bad.parse::<Failpoint>().is_err(), "{bad:?}");
        }
    }
}
