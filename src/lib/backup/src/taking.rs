//! Takes backups.

use crate::archive::{BackupArchive, NewArchive};
use crate::blocks::{BLOCK_BYTES, BlockFile, BlockHash, BlockSource, BlockTarget, Progress};
use crate::directory::BackupDirectory;
use crate::error::{BackupError, io_error};
use crate::point::{MAX_KEYS_BYTES, Point, PointFile, PointInfo, STORE, is_name};
use ferrokube_storage::journal::io::{File, Io};
use ferrokube_storage::{JournalFile, JournalFiles, OpenError, Revision};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Max attempts to copy a consistent set of files while merges replace them.
const ATTEMPTS: u32 = 10;

/// A file of keys or certificates.
#[derive(Clone)]
pub struct KeyFile {
    /// Relative to the data directory: a folder and a name.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// The journal and the key files to back up.
pub struct BackupSource {
    /// The journal's directory, possibly in use by a server.
    pub journal: PathBuf,
    /// Files that belong to it.
    pub keys: Vec<KeyFile>,
}

/// Target of a backup, and source of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupLocation {
    /// A directory, for several points.
    Directory(PathBuf),
    /// A single file, with one.
    File(PathBuf),
}

impl BackupLocation {
    /// Determined by what exists; otherwise a name ending in `.backup` is a file.
    pub fn of(path: &Path) -> Self {
        let is_file = if path.exists() {
            path.is_file()
        } else {
            path.extension().is_some_and(|end| end == "backup")
        };
        if is_file { Self::File(path.to_owned()) } else { Self::Directory(path.to_owned()) }
    }
}

/// Takes a backup of everything acknowledged before the call. In a directory, only the last `keep`
/// points are kept, at least the new one.
///
/// # Errors
/// [`BackupError`].
pub fn take(
    io: &Arc<dyn Io>,
    source: &BackupSource,
    location: &BackupLocation,
    keep: usize,
    progress: &Progress,
) -> Result<PointInfo, BackupError> {
    let taken_ms = now_ms();
    match location {
        BackupLocation::Directory(path) => {
            check_keys(&source.keys)?;
            let mut directory = BackupDirectory::new(io, path);
            let _lock = directory.enter()?;
            let reader: Arc<dyn BlockSource> = Arc::new(directory.clone());
            let copied = copy(io, source, &mut directory, &reader, progress)?;
            directory.settle()?;
            let (point, written) = copied.point(taken_ms);
            directory.add(&point)?;
            directory.prune(keep)?;
            Ok(point.info(written))
        }
        BackupLocation::File(path) => {
            check_keys(&source.keys)?;
            BackupArchive::check_replaced(io, path)?;
            let mut archive = NewArchive::create(io, path)?;
            let reader: Arc<dyn BlockSource> = Arc::new(archive.reader());
            let copied = copy(io, source, &mut archive, &reader, progress)?;
            let (point, written) = copied.point(taken_ms);
            archive.finish(&point)?;
            Ok(point.info(written))
        }
    }
}

fn check_keys(keys: &[KeyFile]) -> Result<(), BackupError> {
    let bytes: u64 = keys.iter().map(|key| key.bytes.len() as u64).sum();
    if bytes > MAX_KEYS_BYTES {
        return Err(BackupError::ManyKeys(bytes));
    }
    match keys.iter().find(|key| !is_name(&key.name)) {
        Some(key) => Err(BackupError::KeyName(key.name.clone())),
        None => Ok(()),
    }
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

struct CopiedFiles {
    files: Vec<PointFile>,
    revision: Revision,
    written: u64,
}

impl CopiedFiles {
    fn point(self, taken_ms: u64) -> (Point, u64) {
        let Self { files, revision, written } = self;
        (Point { taken_ms, revision: revision.0, files }, written)
    }
}

/// Copies everything, and verifies the copies by reading them.
fn copy(
    io: &Arc<dyn Io>,
    source: &BackupSource,
    target: &mut dyn BlockTarget,
    reader: &Arc<dyn BlockSource>,
    progress: &Progress,
) -> Result<CopiedFiles, BackupError> {
    let mut written = 0;
    for attempt in 1.. {
        let journal = JournalFiles::of_directory(io, &source.journal)?;
        match copy_journal(&journal, target, reader, progress, &mut written) {
            Ok((mut files, revision)) => {
                for key in &source.keys {
                    files.push(copy_key(key, target, &mut written)?);
                }
                return Ok(CopiedFiles { files, revision, written });
            }
            // A file reused by a merge was rewritten while it was read.
            Err(_) if attempt < ATTEMPTS && journal.is_outdated(io) => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last attempt returns")
}

fn copy_journal(
    journal: &JournalFiles,
    target: &mut dyn BlockTarget,
    reader: &Arc<dyn BlockSource>,
    progress: &Progress,
    written: &mut u64,
) -> Result<(Vec<PointFile>, Revision), BackupError> {
    for JournalFile { name, file } in journal.files() {
        let len = file.len().map_err(io_error("measure", Path::new(name)))?;
        // Copied, then read back.
        progress.expect(2 * len);
    }
    let mut files = Vec::new();
    for JournalFile { name, file } in journal.files() {
        files.push(copy_file(name, &**file, target, progress, written)?);
    }
    let revision = checked(journal_files(&files, reader, progress, Path::new(STORE)))?;
    Ok((files, revision))
}

/// Reads a copied journal with all its checksums.
pub(crate) fn checked(files: JournalFiles) -> Result<Revision, BackupError> {
    files.check().map_err(|error| match error {
        OpenError::Io { path, source, .. } if source.kind() == ErrorKind::InvalidData => {
            BackupError::Damaged { path, what: source.to_string() }
        }
        error => error.into(),
    })
}

/// The journal's files of a point.
pub(crate) fn journal_files(
    files: &[PointFile],
    reader: &Arc<dyn BlockSource>,
    progress: &Progress,
    origin: &Path,
) -> JournalFiles {
    let of_journal = files.iter().filter_map(|file| {
        let name = file.name.strip_prefix(STORE)?.strip_prefix('/')?.to_owned();
        let blocks = BlockFile::new(Arc::clone(reader), file.blocks.clone(), progress.clone());
        Some(JournalFile { name, file: Arc::new(blocks) })
    });
    JournalFiles::new(origin.to_owned(), of_journal.collect())
}

fn copy_file(
    name: &str,
    file: &dyn File,
    target: &mut dyn BlockTarget,
    progress: &Progress,
    written: &mut u64,
) -> Result<PointFile, BackupError> {
    let path = Path::new(name);
    let len = file.len().map_err(io_error("measure", path))?;
    let (mut blocks, mut at, mut buffer) = (Vec::new(), 0, vec![0; BLOCK_BYTES]);
    while at < len {
        let want = usize::try_from(len - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let count = file.read_at(at, &mut buffer[..want]).map_err(io_error("read", path))?;
        if count < want {
            let cut = std::io::Error::from(ErrorKind::UnexpectedEof);
            return Err(io_error("read", path)(cut));
        }
        blocks.push(put(target, &buffer[..count], written)?);
        at += count as u64;
        progress.add(count as u64);
    }
    Ok(PointFile { name: format!("{STORE}/{name}"), blocks })
}

fn copy_key(
    key: &KeyFile,
    target: &mut dyn BlockTarget,
    written: &mut u64,
) -> Result<PointFile, BackupError> {
    let blocks = key.bytes.chunks(BLOCK_BYTES).map(|bytes| put(target, bytes, written));
    Ok(PointFile { name: key.name.clone(), blocks: blocks.collect::<Result<_, _>>()? })
}

fn put(
    target: &mut dyn BlockTarget,
    bytes: &[u8],
    written: &mut u64,
) -> Result<crate::blocks::BlockRef, BackupError> {
    let (block, is_new) = target.put(BlockHash::of(bytes), bytes)?;
    if is_new {
        *written += bytes.len() as u64;
    }
    Ok(block)
}
