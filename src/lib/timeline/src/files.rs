//! Selects the files to search, and splits large ones into ranges, so that all cores have work.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size of the ranges that plain files are split into.
pub(crate) const RANGE_BYTES: u64 = 16 << 20;

/// The files at a path: itself, or the regular files in a directory and its direct subdirectories.
/// Links are not followed, hidden files (such as the reserve of the audit log) are not read.
///
/// # Errors
/// The path cannot be read.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if is_journal(path) || !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut out = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if is_hidden(&entry.path()) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_file() {
                out.push(entry.path());
            } else if kind.is_dir() && depth == 0 {
                folders.push((entry.path(), 1));
            }
        }
    }
    out.sort();
    Ok(out)
}

/// By the dot that its name starts with.
pub fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Pseudo-file for the systemd journal.
pub(crate) const JOURNAL: &str = "journald";

/// Whether a path denotes the journal. An existing file of that name takes precedence.
pub(crate) fn is_journal(path: &Path) -> bool {
    path.as_os_str() == JOURNAL && !path.exists()
}

/// A range of a file: the lines that begin in `begin..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    /// Index of the file.
    pub(crate) file: usize,
    /// Byte offset.
    pub(crate) begin: u64,
    /// Byte offset; `u64::MAX` for the rest of the file.
    pub(crate) end: u64,
}

/// Splits files into ranges for workers. Compressed files and files without a length (pipes) cannot
/// be split.
pub(crate) fn ranges(files: &[PathBuf]) -> Vec<FileRange> {
    let mut out = Vec::new();
    for (file, path) in files.iter().enumerate() {
        let length = std::fs::metadata(path)
            .map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 });
        let count = if is_gzip(path) { 1 } else { length.div_ceil(RANGE_BYTES).max(1) };
        // Open-ended, to include lines appended during the search.
        out.extend((0..count).map(|index| FileRange {
            file,
            begin: index * RANGE_BYTES,
            end: if index + 1 == count { u64::MAX } else { (index + 1) * RANGE_BYTES },
        }));
    }
    out
}

/// By the extension that log rotation uses.
pub(crate) fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// Positioned reads that leave the shared file offset alone.
pub(crate) struct ReadAt<'a> {
    pub(crate) file: &'a File,
    pub(crate) at: u64,
}

impl Read for ReadAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_cut_and_compressed_ones_are_not() {
        let directory = tempfile::tempdir().unwrap();
        for (name, length) in [
            (".a.reserve", 9),
            ("a.log", 0),
            ("b.log", 2 * RANGE_BYTES + 1),
            ("c.log.gz", 2 * RANGE_BYTES),
        ] {
            File::create(directory.path().join(name)).unwrap().set_len(length).unwrap();
        }
        let found = ranges(&files(directory.path()).unwrap());
        let whole = |file| FileRange { file, begin: 0, end: u64::MAX };
        let of_b = [(0, RANGE_BYTES), (RANGE_BYTES, 2 * RANGE_BYTES), (2 * RANGE_BYTES, u64::MAX)]
            .map(|(begin, end)| FileRange { file: 1, begin, end });
        assert_eq!(found, [&[whole(0)][..], &of_b, &[whole(2)]].concat());
    }
}
