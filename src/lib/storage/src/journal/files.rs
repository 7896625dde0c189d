//! The files of a journal for backups and migrations: of a directory that a server may be writing,
//! or of a copy.
//!
//! Reading takes no lock. Logs are only appended to, other files do not change, and a merge creates
//! its output before it removes its input. So files that are listed twice in the same way, and open
//! in between, are a whole journal; whole frames of the last log hold everything that was
//! acknowledged before. Two races end in another attempt: a removed file may become the spare file
//! and be written again while it is open here, and a batch may be taken back on a full disk.

use crate::clock::{self, SystemClock};
use crate::config::{JournalLimits, OpenError};
use crate::entry::Entry;
use crate::journal::dir::{JournalDir, io_error};
use crate::journal::frame::{SEGMENT_HEADER, SegmentHeader};
use crate::journal::frame_reader::{self, FrameProblem, FrameReader};
use crate::journal::io::{DirLock, File, Io};
use crate::journal::layout::SegmentName;
use crate::journal::manifest::{Acknowledged, Manifest};
use crate::journal::recover::{self, RecoveryVisitor};
use crate::journal::transform::PlainValues;
use crate::key::{Key, Revision};
use crate::txn::{Event, Expires};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Attempts to find the files unchanged.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;
/// In a directory while files are copied into it. Removed by recovery, like every temporary file.
const INSTALLING: &str = "INSTALL.tmp";

/// One of the files that a backup copies.
#[derive(Clone)]
pub struct JournalFile {
    /// Name in the journal's directory.
    pub name: String,
    /// Immutable content; not writable.
    pub file: Arc<dyn File>,
}

/// All files that make up a journal.
pub struct JournalFiles {
    /// For messages.
    origin: PathBuf,
    files: Vec<JournalFile>,
}

/// An entry of [`JournalFiles::state`].
#[derive(Clone, Debug)]
pub struct StoredEntry {
    /// As it would be published.
    pub entry: Arc<Entry>,
    /// Time until it expires.
    pub ttl: Option<Duration>,
}

/// The state that a journal holds.
#[derive(Debug, Default)]
pub struct JournalState {
    /// Last revision in the file.
    pub revision: Revision,
    /// Everything that exists at `revision`.
    pub entries: BTreeMap<Key, StoredEntry>,
}

impl JournalFiles {
    /// The files of a directory, which a server may be writing.
    ///
    /// # Errors
    /// [`OpenError`]: it contains no journal, or a damaged one.
    pub fn of_directory(io: &Arc<dyn Io>, dir: &Path) -> Result<Self, OpenError> {
        let journal_dir = read_only(dir, Arc::clone(io));
        let mut attempt = 0;
        loop {
            attempt += 1;
            match open_all(&journal_dir) {
                Ok(Some(files)) => return Ok(Self { origin: dir.to_owned(), files }),
                Err(error) if attempt == ATTEMPTS || !may_be_a_race(&error) => return Err(error),
                Ok(None) if attempt == ATTEMPTS => {
                    let source = io::Error::other("its files keep changing");
                    return Err(OpenError::Io { what: "read", path: dir.to_owned(), source });
                }
                Ok(None) | Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Files from elsewhere; `origin` is what messages call it.
    pub fn new(origin: PathBuf, files: Vec<JournalFile>) -> Self {
        Self { origin, files }
    }

    /// The files, in the order of their revisions.
    pub fn files(&self) -> &[JournalFile] {
        &self.files
    }

    /// Whether a merge or the like has replaced files of the directory since.
    pub fn is_outdated(&self, io: &Arc<dyn Io>) -> bool {
        let Ok(names) = io.list(&self.origin) else { return true };
        self.files.iter().any(|file| !names.contains(&file.name))
    }

    /// Reads everything as recovery would, with all checksums; nothing may be missing at the end.
    /// Returns the last revision.
    ///
    /// # Errors
    /// [`OpenError`]: what is damaged.
    pub fn check(&self) -> Result<Revision, OpenError> {
        self.read(&mut NoState).map(|(revision, _)| revision)
    }

    /// Reads the state.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn state(&self) -> Result<JournalState, OpenError> {
        let wall_ms = clock::wall_ms(&SystemClock::default());
        let mut collected = CollectedState { state: JournalState::default(), wall_ms };
        let (revision, _) = self.read(&mut collected)?;
        Ok(JournalState { revision, ..collected.state })
    }

    /// Returns the last revision and the chain value after it.
    fn read(&self, visitor: &mut dyn RecoveryVisitor) -> Result<(Revision, u64), OpenError> {
        let opened = OpenedFiles(self.files.clone());
        let names: Vec<String> = self.files.iter().map(|file| file.name.clone()).collect();
        // Any other would be installed unread: a format file makes half a journal a whole one.
        let known = recover::segments(&names);
        if let Some(other) = names.iter().find(|name| !known.contains(name)) {
            let (file, what) = (self.origin.join(other), "no file of a journal".to_owned());
            return Err(OpenError::Damaged { file, offset: 0, what });
        }
        let journal_dir = read_only(&self.origin, Arc::new(opened));
        recover::read_state(&journal_dir, &names, visitor)
    }

    /// Whether [`Self::install`] would find room; nothing is written.
    ///
    /// # Errors
    /// [`OpenError::Occupied`], [`OpenError::Locked`], [`OpenError::Io`].
    pub fn check_room(io: &Arc<dyn Io>, dir: &Path) -> Result<(), OpenError> {
        let journal_dir = read_only(dir, Arc::clone(io));
        let names = match io.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(io_error("list", dir))?,
        };
        let lock = io.lock(dir).map_err(io_error("lock", dir))?;
        let _lock = lock.ok_or_else(|| OpenError::Locked(dir.to_owned()))?;
        check_names(&journal_dir, &names)
    }

    /// Copies the files into a directory, where a store then opens them. Its next revisions are
    /// far above: see [`crate::journal`]. An interrupted call is repeated; until the end the
    /// directory is none that a store opens. `copied` gets the number of bytes of each step.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Occupied`] if the directory contains anything else.
    pub fn install(
        &self,
        io: &Arc<dyn Io>,
        dir: &Path,
        copied: &mut dyn FnMut(u64),
    ) -> Result<Revision, OpenError> {
        let (revision, chain) = self.read(&mut NoState)?;
        let journal_dir = read_only(dir, Arc::clone(io));
        let _lock = journal_dir.enter()?;
        make_room(&journal_dir)?;
        journal_dir.sync_ancestors()?;
        for JournalFile { name, file } in &self.files {
            let path = journal_dir.path(name);
            copy(&**file, &journal_dir, &path, copied).map_err(io_error("write", &path))?;
        }
        let first = revision.0 + 1;
        let (_, log) =
            journal_dir.begin_log(first, chain).map_err(io_error("begin a log in", dir))?;
        let end = Acknowledged { log: first, len: log.len, revision: revision.0, key: log.key };
        journal_dir
            .create_manifest(end)
            .and_then(|mut manifest| manifest.settle(end, true))
            .map_err(io_error("create", &journal_dir.manifest_path()))?;
        journal_dir.write_format()?;
        let mark = journal_dir.path(INSTALLING);
        io.remove(&mark).map_err(io_error("remove", &mark))?;
        Ok(revision)
    }
}

/// A directory that is read, or filled by [`JournalFiles::install`].
fn read_only(dir: &Path, io: Arc<dyn Io>) -> JournalDir {
    JournalDir {
        dir: dir.to_owned(),
        io,
        transformer: Arc::new(PlainValues),
        limits: JournalLimits::default(),
        must_exist: true,
    }
}

fn may_be_a_race(error: &OpenError) -> bool {
    match error {
        OpenError::Damaged { .. } => true,
        OpenError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

/// `None` if the files changed on the way.
fn open_all(journal_dir: &JournalDir) -> Result<Option<Vec<JournalFile>>, OpenError> {
    let list = || journal_dir.io.list(&journal_dir.dir).map_err(io_error("list", &journal_dir.dir));
    let names = list()?;
    if journal_dir.check_format(&names)?.is_none() {
        return Err(OpenError::Absent(journal_dir.dir.clone()));
    }
    let acknowledged = acknowledged(journal_dir, &names)?;
    let segments = recover::segments(&names);
    let mut files = Vec::with_capacity(segments.len());
    for name in &segments {
        let path = journal_dir.path(name);
        let file = journal_dir.io.open_to_read(&path).map_err(io_error("open", &path))?;
        files.push(JournalFile { name: name.clone(), file });
    }
    if recover::segments(&list()?) != segments {
        return Ok(None);
    }
    // Begun before the manifest names it, and never merged while it is the last.
    let last = SegmentName::log(acknowledged.log);
    if acknowledged.log > 0 && !segments.contains(&last) && !is_covered(&segments, acknowledged) {
        let what = "missing log".to_owned();
        return Err(OpenError::Damaged { file: journal_dir.path(&last), offset: 0, what });
    }
    let mut is_end = true;
    let mut whole = Vec::with_capacity(files.len());
    for JournalFile { name, file } in files.into_iter().rev() {
        let path = journal_dir.path(&name);
        let first = match SegmentName::parse(&name) {
            SegmentName::Log(first) => Some(first),
            _ => None,
        };
        let len = match first {
            Some(first) if is_end => {
                let bound = if acknowledged.log == first { acknowledged.len } else { 0 };
                whole_frames(&file, &path, bound)?
            }
            _ => file.len().map_err(io_error("measure", &path))?,
        };
        if first == Some(acknowledged.log) {
            check_key(&file, &path, acknowledged)?;
        }
        if first.is_some() && len <= SEGMENT_HEADER as u64 {
            continue;
        }
        is_end = false;
        whole.push(JournalFile { name, file: Arc::new(FileStart { file, len }) });
    }
    whole.reverse();
    Ok(Some(whole))
}

/// Writes that were certainly acknowledged; none without a manifest, as in format 1.
fn acknowledged(journal_dir: &JournalDir, names: &[String]) -> Result<Acknowledged, OpenError> {
    let path = journal_dir.manifest_path();
    let is_there = names.iter().any(|name| journal_dir.path(name) == path);
    if !is_there {
        return Ok(Acknowledged::default());
    }
    let file = journal_dir.io.open_to_read(&path).map_err(io_error("open", &path))?;
    let found = Manifest::open(file).map_err(io_error("read", &path))?;
    Ok(found.map(|(_, last)| last.acknowledged).unwrap_or_default())
}

/// Whether what was acknowledged is in a later log, or in a base: more was written since the
/// manifest.
fn is_covered(segments: &[String], acknowledged: Acknowledged) -> bool {
    segments.iter().any(|name| match SegmentName::parse(name) {
        SegmentName::Log(first) => first > acknowledged.log,
        SegmentName::Base(covers) => covers.last >= acknowledged.log,
        SegmentName::Temporary | SegmentName::Other => false,
    })
}

/// Refuses a log that is not the one whose length was recorded.
fn check_key(file: &Arc<dyn File>, path: &Path, bound: Acknowledged) -> Result<(), OpenError> {
    let mut bytes = [0; SEGMENT_HEADER];
    let read = file.read_at(0, &mut bytes).map_err(io_error("read", path))?;
    match SegmentHeader::decode(&bytes[..read]) {
        Ok(header) if !header.key.may_be(bound.key) => Err(recover::foreign_log(path)),
        // An invalid header has its own message.
        _ => Ok(()),
    }
}

/// Length of a log up to the end of its last whole frame. What follows may be a batch that is being
/// written, or was never written in full.
fn whole_frames(file: &Arc<dyn File>, path: &Path, acknowledged: u64) -> Result<u64, OpenError> {
    let len = file.len().map_err(io_error("measure", path))?;
    let mut bytes = [0; SEGMENT_HEADER];
    let read = file.read_at(0, &mut bytes).map_err(io_error("read", path))?;
    let damaged = |offset: u64, what: &str| OpenError::Damaged {
        file: path.to_owned(),
        offset,
        what: what.to_owned(),
    };
    let header = match SegmentHeader::decode(&bytes[..read]) {
        Ok(header) => header,
        Err(_) if len <= SEGMENT_HEADER as u64 && acknowledged == 0 => return Ok(0),
        Err(_) => return Err(damaged(0, "invalid header")),
    };
    let mut frames = FrameReader::whole(Arc::clone(file), len, header.key, header.chain);
    loop {
        match frames.next() {
            Ok(Some(_)) => {}
            Ok(None) if len < acknowledged => {
                return Err(damaged(len, "acknowledged, but missing"));
            }
            Ok(None) => return Ok(len),
            Err(FrameProblem::Io(source)) => {
                return Err(OpenError::Io { what: "read", path: path.to_owned(), source });
            }
            Err(FrameProblem::Bad { offset, what, header: found }) => {
                let is_torn = offset >= acknowledged
                    && frame_reader::is_torn(&**file, offset..len, header.key, found)
                        .map_err(io_error("read", path))?;
                return if is_torn { Ok(offset) } else { Err(damaged(offset, &what)) };
            }
        }
    }
}

/// Prepares a directory for [`JournalFiles::install`]: it is empty, or an earlier call did not end.
fn make_room(journal_dir: &JournalDir) -> Result<(), OpenError> {
    let names =
        journal_dir.io.list(&journal_dir.dir).map_err(io_error("list", &journal_dir.dir))?;
    check_names(journal_dir, &names)?;
    let mark = journal_dir.path(INSTALLING);
    journal_dir.io.create(&mark).map_err(io_error("create", &mark))?;
    let synced = journal_dir.io.sync_dir(&journal_dir.dir);
    synced.map_err(io_error("sync", &journal_dir.dir))?;
    for name in names.iter().filter(|name| *name != INSTALLING) {
        let path = journal_dir.path(name);
        journal_dir.io.remove(&path).map_err(io_error("remove", &path))?;
    }
    Ok(())
}

/// Whether these are none, or those of an earlier call that did not end.
fn check_names(journal_dir: &JournalDir, names: &[String]) -> Result<(), OpenError> {
    let is_own =
        names.iter().any(|name| name == INSTALLING) && journal_dir.check_format(names)?.is_none();
    if names.is_empty() || is_own {
        return Ok(());
    }
    Err(OpenError::Occupied(journal_dir.dir.clone()))
}

fn copy(
    file: &dyn File,
    journal_dir: &JournalDir,
    path: &Path,
    copied: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let (len, target) = (file.len()?, journal_dir.io.create(path)?);
    let (mut at, mut buffer) = (0, vec![0; COPY_BYTES]);
    while at < len {
        let count = file.read_at(at, &mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        target.write_at(at, &buffer[..count])?;
        at += count as u64;
        copied(count as u64);
    }
    target.sync()
}

/// The beginning of a file.
struct FileStart {
    file: Arc<dyn File>,
    len: u64,
}

impl File for FileStart {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(buffer.len());
        self.file.read_at(offset, &mut buffer[..count])
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        refused()
    }

    fn truncate(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn reserve(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }
}

/// Files as a directory, for recovery's reader.
struct OpenedFiles(Vec<JournalFile>);

impl Io for OpenedFiles {
    fn make_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn lock(&self, _dir: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        refused()
    }

    fn list(&self, _dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.0.iter().map(|file| file.name.clone()).collect())
    }

    fn create(&self, _path: &Path) -> io::Result<Arc<dyn File>> {
        refused()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let is_it = |file: &&JournalFile| path.file_name().is_some_and(|name| *name == *file.name);
        let found = self.0.iter().find(is_it).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::clone(&found.file))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        refused()
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

/// Checks only.
struct NoState;

impl RecoveryVisitor for NoState {
    fn origin(&mut self, _revision: Revision) {}

    fn entry(&mut self, _entry: Arc<Entry>, _expires: Option<Expires>) {}

    fn absent(&mut self, _key: &Key) {}

    fn present(&mut self, _key: &Key) -> Option<Arc<Entry>> {
        None
    }

    fn event(&mut self, _event: Event, _expires: Option<Expires>) -> bool {
        false
    }

    fn gap(&mut self, _after: Revision, _before: Revision) {}

    fn end(&mut self, _revision: Revision) {}
}

struct CollectedState {
    state: JournalState,
    wall_ms: u64,
}

impl RecoveryVisitor for CollectedState {
    fn origin(&mut self, _revision: Revision) {}

    fn entry(&mut self, entry: Arc<Entry>, expires: Option<Expires>) {
        let left = |expires: Expires| {
            Duration::from_millis(expires.wall_ms.saturating_sub(self.wall_ms).min(expires.ttl_ms))
        };
        let ttl = expires.map(left);
        self.state.entries.insert(entry.key.clone(), StoredEntry { entry, ttl });
    }

    fn absent(&mut self, key: &Key) {
        self.state.entries.remove(key);
    }

    fn present(&mut self, _key: &Key) -> Option<Arc<Entry>> {
        None
    }

    fn event(&mut self, _event: Event, _expires: Option<Expires>) -> bool {
        false
    }

    fn gap(&mut self, _after: Revision, _before: Revision) {}

    fn end(&mut self, _revision: Revision) {}
}
