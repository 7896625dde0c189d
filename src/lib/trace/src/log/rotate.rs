//! An append-only file of lines, rotated by size and age. Rotated files are limited by count and
//! age.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// When to rotate, and which rotated files to keep.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Max bytes of a file; 0: unlimited.
    pub max_bytes: u64,
    /// Max rotated files; 0: unlimited.
    pub max_backups: usize,
    /// Max age of a rotated file's last line; zero: unlimited. With a limit, a file is also rotated
    /// once its first line is a day old (or this old, if shorter), so that no line stays much
    /// longer.
    pub max_age: Duration,
}

/// Max time between rotations with an age limit.
const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for Rotation {
    fn default() -> Self {
        Self { max_bytes: 100 * 1024 * 1024, max_backups: 10, max_age: Duration::ZERO }
    }
}

/// The wall clock; injected by tests.
type LogClock = Box<dyn Fn() -> SystemTime + Send>;

/// The current file and its rotated predecessors.
pub struct Rotating {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    /// No device or pipe, which may keep a writer waiting.
    is_regular: bool,
    size: u64,
    /// Time of the first line.
    begun: SystemTime,
    clock: LogClock,
    /// Whether to sync each append.
    sync: bool,
}

impl Rotating {
    /// Opens or creates the file, readable only by its owner, and cuts a torn last line (never
    /// acknowledged). `sync`: sync each append.
    ///
    /// # Errors
    /// The file cannot be opened, read or cut.
    pub fn open(path: &Path, rotation: Rotation, sync: bool) -> io::Result<Self> {
        Self::open_at(path, rotation, sync, Box::new(SystemTime::now))
    }

    fn open_at(path: &Path, rotation: Rotation, sync: bool, clock: LogClock) -> io::Result<Self> {
        let mut file = open(path)?;
        let size = cut_torn_line(&mut file)?;
        let metadata = file.metadata()?;
        // Not every file system has creation times; fall back to the last modification.
        let begun = metadata.created().or_else(|_| metadata.modified()).unwrap_or_else(|_| clock());
        let (path, is_regular) = (path.to_owned(), metadata.is_file());
        let opened = Self { path, rotation, file, is_regular, size, begun, clock, sync };
        opened.sync_names()?;
        opened.remove_surplus();
        Ok(opened)
    }

    /// Rotates and removes files by age. Call it regularly.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn tidy(&mut self) -> io::Result<()> {
        if self.is_old() {
            return self.rotate();
        }
        self.remove_surplus();
        Ok(())
    }

    /// Appends whole lines, all or none: a failed write leaves no torn line.
    ///
    /// # Errors
    /// The system's; may be retried.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        if self.is_due(length) {
            self.rotate()?;
        }
        if self.size == 0 {
            self.begun = (self.clock)();
        }
        let written = self
            .file
            .write_all(bytes)
            .and_then(|()| if self.sync { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = written {
            // Devices cannot be truncated, but are not read back.
            let _ = self.file.set_len(self.size);
            return Err(error);
        }
        self.size += length;
        Ok(())
    }

    /// [`Self::append`], if that takes one write to an open file and succeeds. False: nothing was
    /// appended.
    pub fn append_quickly(&mut self, bytes: &[u8]) -> bool {
        let is_one_write = self.is_regular && !self.sync && !self.is_due(bytes.len() as u64);
        is_one_write && self.append(bytes).is_ok()
    }

    /// Whether these bytes go to a new file.
    fn is_due(&self, length: u64) -> bool {
        let limit = self.rotation.max_bytes;
        limit > 0 && self.size > 0 && self.size + length > limit || self.is_old()
    }

    /// Removes the oldest rotated file, to free disk space. Returns whether there was one.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_oldest(&self) -> io::Result<bool> {
        match self.closed()?.first() {
            Some(oldest) => fs::remove_file(oldest).map(|()| true),
            None => Ok(false),
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let stamp = stamp((self.clock)());
        let (stem, extension) = names(&self.path);
        match fs::rename(&self.path, self.path.with_file_name(format!("{stem}-{stamp}{extension}")))
        {
            // Removed externally, or by an earlier attempt that failed later.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = open(&self.path)?;
        self.size = 0;
        self.is_regular = self.file.metadata()?.is_file();
        self.sync_names()?;
        self.remove_surplus();
        Ok(())
    }

    fn is_old(&self) -> bool {
        let Rotation { max_age, .. } = self.rotation;
        !max_age.is_zero()
            && self.size > 0
            && (self.clock)().duration_since(self.begun).is_ok_and(|age| age >= max_age.min(DAY))
    }

    fn remove_surplus(&self) {
        if let Err(error) = self.remove_old() {
            tracing::warn!(%error, "cannot remove old log files");
        }
    }

    fn folder(&self) -> &Path {
        self.path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or_else(|| Path::new("."))
    }

    /// Syncs the directory: without that, a new file may be lost with the power.
    fn sync_names(&self) -> io::Result<()> {
        if self.sync { File::open(self.folder())?.sync_all() } else { Ok(()) }
    }

    /// The rotated files, oldest first.
    fn closed(&self) -> io::Result<Vec<PathBuf>> {
        let (stem, extension) = names(&self.path);
        let mut closed: Vec<PathBuf> = fs::read_dir(self.folder())?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| {
                path.file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| is_backup(name, &stem, &extension))
            })
            .collect();
        closed.sort();
        Ok(closed)
    }

    fn remove_old(&self) -> io::Result<()> {
        let (stem, extension) = names(&self.path);
        let old = self.closed()?;
        let surplus = if self.rotation.max_backups == 0 {
            0
        } else {
            old.len().saturating_sub(self.rotation.max_backups)
        };
        // Names contain the time of the last line and sort by it.
        let oldest = (self.clock)()
            .checked_sub(self.rotation.max_age)
            .filter(|_| !self.rotation.max_age.is_zero());
        let oldest = oldest
            .map(|time| self.path.with_file_name(format!("{stem}-{}{extension}", stamp(time))));
        for (index, path) in old.iter().enumerate() {
            if index < surplus || oldest.as_ref().is_some_and(|oldest| path < oldest) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// The time in a rotated file's name: `2026-11-22T01-58-00-123456Z`.
fn stamp(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H-%M-%S-%6fZ").to_string()
}

impl std::fmt::Debug for Rotating {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rotating")
            .field("path", &self.path)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Write for Rotating {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Cuts everything after the last line feed; returns the new size.
fn cut_torn_line(file: &mut File) -> io::Result<u64> {
    let size = file.seek(SeekFrom::End(0))?;
    let mut end = size;
    let mut chunk = vec![0; 64 * 1024];
    while end > 0 {
        let begin = end.saturating_sub(chunk.len() as u64);
        let part = &mut chunk[..usize::try_from(end - begin).expect("at most a chunk")];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|&byte| byte == b'\n') {
            end = begin + at as u64 + 1;
            break;
        }
        end = begin;
    }
    if end < size {
        file.set_len(end)?;
    }
    Ok(end)
}

fn names(path: &Path) -> (String, String) {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = path
        .extension()
        .map(|extension| format!(".{}", extension.to_string_lossy()))
        .unwrap_or_default();
    (stem, extension)
}

fn is_backup(name: &str, stem: &str, extension: &str) -> bool {
    name.strip_prefix(stem)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(extension))
        .is_some_and(|stamp| {
            stamp.len() == 27
                && stamp.ends_with('Z')
                && stamp.as_bytes()[4] == b'-'
                && stamp.as_bytes()[10] == b'T'
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_by_size_and_limits_the_count() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("audit.log");
        let mut file = Rotating::open(
            &path,
            Rotation { max_bytes: 100, max_backups: 2, max_age: Duration::ZERO },
            false,
        )
        .expect("open");
        for _ in 0..10 {
            file.append(&[b"x".repeat(59), b"\n".to_vec()].concat()).expect("append");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 3);
        assert_eq!(fs::metadata(&path).expect("file").len(), 60);
    }

    #[test]
    fn rotates_by_age_and_limits_the_age() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU64, Ordering};
        let (hours, folder) = (Arc::new(AtomicU64::new(0)), tempfile::tempdir().expect("folder"));
        let begin = SystemTime::now();
        let clock = {
            let hours = Arc::clone(&hours);
            move || begin + Duration::from_secs(3600 * hours.load(Ordering::SeqCst))
        };
        let rotation = Rotation { max_bytes: 0, max_backups: 0, max_age: 3 * DAY };
        let path = folder.path().join("audit.log");
        let open =
            || Rotating::open_at(&path, rotation, false, Box::new(clock.clone())).expect("open");
        let closed = || fs::read_dir(folder.path()).expect("list").count() - 1;
        let mut file = open();
        for (hour, want) in [(0, 0), (23, 0), (25, 1), (48, 1), (50, 2)] {
            hours.store(hour, Ordering::SeqCst);
            file.append(b"x\n").expect("append");
            assert_eq!(closed(), want, "at hour {hour}");
        }
        fs::write(folder.path().join("audit-other.log"), "not ours").expect("write");
        // Without writes, time alone rotates and removes the file.
        for (hour, want) in [(60, 2), (75, 3), (98, 2), (123, 1), (148, 0)] {
            hours.store(hour, Ordering::SeqCst);
            file.tidy().expect("tidy");
            assert_eq!(closed() - 1, want, "at hour {hour}");
        }
        assert_eq!(fs::metadata(&path).expect("file").len(), 0);
        file.append(b"x\n").expect("append");
        hours.store(200, Ordering::SeqCst);
        file.append(b"x\n").expect("append");
        hours.store(300, Ordering::SeqCst);
        drop(open());
        assert_eq!(closed() - 1, 0, "a start removes what is too old, too");
    }

    #[test]
    fn fault_55_a_torn_line_is_cut_at_open() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("audit.log");
        fs::write(&path, [b"{\"a\":1}\n".to_vec(), b"y".repeat(200_000)].concat()).expect("write");
        let mut file = Rotating::open(&path, Rotation::default(), false).expect("open");
        file.append(b"{\"b\":2}\n").expect("append");
        assert_eq!(fs::read_to_string(&path).expect("read"), "{\"a\":1}\n{\"b\":2}\n");
    }

    /// The null device accepts writes and refuses syncs, which reveals a sync.
    #[test]
    fn fault_55_with_sync_a_line_is_synced_before_it_counts() {
        let null = Path::new("/dev/null");
        Rotating::open(null, Rotation::default(), false)
            .expect("open")
            .append(b"x\n")
            .expect("no sync");
        assert!(
            Rotating::open(null, Rotation::default(), true).expect("open").append(b"x\n").is_err()
        );
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("audit.log");
        let mut file =
            Rotating::open(&path, Rotation { max_bytes: 8, ..Rotation::default() }, true)
                .expect("open");
        for _ in 0..3 {
            file.append(b"12345\n").expect("append");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 3);
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("audit.log");
        drop(Rotating::open(&path, Rotation::default(), false).expect("open"));
        assert_eq!(fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
    }
}
