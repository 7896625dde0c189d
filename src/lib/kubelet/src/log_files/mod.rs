//! Logs of containers on disk: the current file, and older ones next to it that rotation
//! (`rotation.rs`) has renamed and compressed.
//!
//! A container with a volume there could create symbolic links to any file of the machine. So a
//! directory is opened once without following links, and everything else happens relative to its
//! descriptor.

mod rotation;

pub(crate) use rotation::{forget, run};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags, Timestamps};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

const COMPRESSED: &str = ".gz";
/// Suffix of an incomplete compressed file.
const UNFINISHED: &str = ".tmp";
/// Max directory entries that are read.
const MAX_ENTRIES: usize = 4096;

/// The directory of a container's logs.
pub(crate) struct LogDirectory(File);

/// The files of a log that are not the current one.
#[derive(Debug, Default)]
struct OlderLogs {
    /// Complete files, oldest first.
    whole: Vec<String>,
    /// Leftovers of interrupted compressions.
    remains: Vec<String>,
}

/// Whether the text is a rotation time as in kubelet's file names: `20260102-150405`.
fn is_stamp(text: &str) -> bool {
    let is_shaped = |(at, byte): (usize, u8)| match at {
        8 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 15 && text.bytes().enumerate().all(is_shaped)
}

/// The path relative to the directory of all logs.
fn below<'a>(logs: &Path, path: &'a Path) -> io::Result<&'a Path> {
    let outside = || io::Error::new(io::ErrorKind::InvalidInput, "the log is not below podLogsDir");
    let below = path.strip_prefix(logs).map_err(|_| outside())?;
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain { Ok(below) } else { Err(outside()) }
}

/// Device and inode, which identify a file across renames.
fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn changed(meta: &Metadata) -> (i64, i64) {
    (meta.mtime(), meta.mtime_nsec())
}

/// Opens a file without following links or leaving `logs`: containers can write there.
pub(crate) fn open(logs: &Path, path: &Path) -> io::Result<File> {
    let below = below(logs, path)?;
    let directory = File::open(logs)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(&directory, below, flags, Mode::empty(), resolve)?;
    regular(File::from(file))
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is no regular file"))
}

impl LogDirectory {
    /// The container's directory of a log, and the log's name in it.
    pub(crate) fn of<'a>(logs: &Path, path: &'a Path) -> io::Result<(Self, &'a str)> {
        let below = below(logs, path)?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "a log without a name");
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong)?;
        let parent = below.parent().filter(|parent| parent.components().next().is_some());
        let parent = parent.ok_or_else(wrong)?;
        let root = File::open(logs)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let directory = rustix::fs::openat2(&root, parent, flags, Mode::empty(), resolve)?;
        Ok((Self(directory.into()), name))
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let flags =
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
        regular(rustix::fs::openat(&self.0, name, flags, Mode::empty())?.into())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Renames without replacing an existing file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.0, from, &self.0, to, RenameFlags::NOREPLACE) {
            // The file system lacks the flag; only the kubelet creates these names.
            Err(Errno::INVAL) if self.is_missing(to) => {
                Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
            }
            other => Ok(other?),
        }
    }

    fn is_missing(&self, name: &str) -> bool {
        let found = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_err_and(|error| error == Errno::NOENT)
    }

    fn older(&self, log: &str) -> io::Result<OlderLogs> {
        let mut older = OlderLogs::default();
        for entry in Dir::read_from(&self.0)?.take(MAX_ENTRIES) {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Some(rest) = name.strip_prefix(log).and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            let without = rest.strip_suffix(UNFINISHED);
            let stamp = without.unwrap_or(rest).strip_suffix(COMPRESSED);
            match stamp.or(without).unwrap_or(rest) {
                stamp if !is_stamp(stamp) => {}
                _ if without.is_some() => older.remains.push(name.to_owned()),
                _ => older.whole.push(name.to_owned()),
            }
        }
        older.whole.sort();
        // If both forms exist, the compressed one is complete.
        let is_twice = |name: &String| older.whole.contains(&format!("{name}{COMPRESSED}"));
        let twice: Vec<String> =
            older.whole.iter().filter(|name| is_twice(name)).cloned().collect();
        older.whole.retain(|name| !twice.contains(name));
        older.remains.extend(twice);
        Ok(older)
    }

    /// Compresses a file, and preserves its modification time.
    fn compress(&self, name: &str) -> io::Result<()> {
        let (made, whole) = (format!("{name}{UNFINISHED}"), format!("{name}{COMPRESSED}"));
        let mut source = self.open(name)?;
        let meta = source.metadata()?;
        self.remove(&made)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o640);
        let file = rustix::fs::openat(&self.0, made.as_str(), flags | OFlags::NOFOLLOW, mode)?;
        let written = (|| {
            let mut encoder = GzEncoder::new(File::from(file), Compression::default());
            io::copy(&mut source, &mut encoder)?;
            let file = encoder.finish()?;
            let time = rustix::fs::Timespec { tv_sec: meta.mtime(), tv_nsec: meta.mtime_nsec() };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(&file, &times)?;
            self.rename(&made, &whole)
        })();
        if let Err(error) = written {
            // The disk is full: remove the incomplete file to free its space.
            let _ = self.remove(&made);
            return Err(error);
        }
        self.remove(name)
    }

    /// The file that was written after this one, and whether it is the current one; `None`: this is
    /// the newest.
    pub(crate) fn after(&self, log: &str, own: &Metadata) -> io::Result<Option<(LogSource, bool)>> {
        let names = self.older(log)?.whole.into_iter().map(|name| (name, false));
        let mut files = Vec::new();
        for (name, is_current) in names.chain([(log.to_owned(), true)]) {
            match self.open(&name) {
                Ok(file) => files.push((file.metadata()?, name, file, is_current)),
                // Rotated or removed meanwhile, or no log at all.
                Err(error) if !is_current || error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let at = files.iter().position(|(meta, ..)| identity(meta) == identity(own));
        let next = match at {
            Some(at) => at + 1,
            // Compressed or removed: order by modification time.
            None => files
                .iter()
                .position(|(meta, ..)| changed(meta) > changed(own))
                .unwrap_or_else(|| files.len().saturating_sub(1)),
        };
        let found = files.into_iter().nth(next);
        Ok(found.map(|(_, name, file, is_current)| (LogSource::new(&name, file), is_current)))
    }
}

/// A file of a log, from its start.
pub(crate) enum LogSource {
    Plain(File),
    Compressed(Box<GzDecoder<File>>),
}

impl LogSource {
    fn new(name: &str, file: File) -> Self {
        match name.ends_with(COMPRESSED) {
            true => Self::Compressed(Box::new(GzDecoder::new(file))),
            false => Self::Plain(file),
        }
    }

    pub(crate) fn file(&self) -> &File {
        match self {
            Self::Plain(file) => file,
            Self::Compressed(decoder) => decoder.get_ref(),
        }
    }
}

impl Read for LogSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Compressed(decoder) => decoder.read(buffer),
        }
    }
}

/// Whether the current log is another file than this one.
pub(crate) fn is_replaced(logs: &Path, path: &Path, own: &Metadata) -> bool {
    let now = open(logs, path).and_then(|file| file.metadata());
    now.is_ok_and(|now| identity(&now) != identity(own))
}

#[cfg(test)]
mod tests;
