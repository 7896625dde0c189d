//! Files as streams of lines: fast search for ids, several files side by side, gzip read on the way, memory bounded.

use flate2::read::MultiGzDecoder;
use memchr::{memchr_iter, memmem, memrchr};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Read at a time.
const CHUNK: usize = 1 << 20;
/// Longer lines are cut off and counted.
const MAX_LINE: usize = 1 << 20;
/// Lines that one search keeps; more are counted.
pub const MAX_FOUND: usize = 100_000;

/// A line that holds one of the needles.
#[derive(Clone, Debug)]
pub struct Found {
    /// Index of the file.
    pub file: usize,
    /// The line's text; invalid UTF-8 is replaced.
    pub text: String,
}

/// What a scan gave.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Matching lines, in no order.
    pub found: Vec<Found>,
    /// Matching lines beyond [`MAX_FOUND`], and lines longer than 1 MiB.
    pub dropped: usize,
    /// Files that could not be read, with why.
    pub failed: Vec<(PathBuf, io::Error)>,
    /// Bytes that were read (after decompression).
    pub bytes: u64,
}

/// The files below a path: itself, or every regular file in the directory (links are not followed), one level of folders deep.
///
/// # Errors
/// The path cannot be read.
pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut out = Vec::new();
    let mut folders = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
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

/// Finds all lines that hold one of the needles (lower-case hexadecimal ids), over all files, on all cores.
pub fn scan(files: &[PathBuf], needles: &[String]) -> Scanned {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Scanned::default());
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8).min(files.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let file = next.fetch_add(1, Ordering::Relaxed);
                    let Some(path) = files.get(file) else { return };
                    let mut one = Scanned::default();
                    if let Err(error) = scan_file(path, file, needles, &mut one) {
                        one.failed.push((path.clone(), error));
                    }
                    let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let room = MAX_FOUND.saturating_sub(all.found.len());
                    all.dropped += one.dropped + one.found.len().saturating_sub(room);
                    all.found.extend(one.found.into_iter().take(room));
                    all.failed.extend(one.failed);
                    all.bytes += one.bytes;
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn scan_file(path: &Path, file: usize, needles: &[String], out: &mut Scanned) -> io::Result<()> {
    let mut source = File::open(path)?;
    if path.extension().is_some_and(|extension| extension == "gz") {
        return scan_stream(&mut MultiGzDecoder::new(source), file, needles, out);
    }
    scan_stream(&mut source, file, needles, out)
}

fn scan_stream(source: &mut dyn Read, file: usize, needles: &[String], out: &mut Scanned) -> io::Result<()> {
    let finders: Vec<memmem::Finder<'_>> = needles.iter().map(|needle| memmem::Finder::new(needle.as_bytes())).collect();
    let mut buffer = vec![0; CHUNK + MAX_LINE];
    let (mut kept, mut skipping) = (0, false);
    loop {
        let read = source.read(&mut buffer[kept..])?;
        out.bytes += read as u64;
        let filled = kept + read;
        let complete = if read == 0 { filled } else { memrchr(b'\n', &buffer[..filled]).map_or(0, |at| at + 1) };
        if complete > 0 {
            // The rest of a line that was too long ends at the first line break.
            let begin = if skipping { memchr_iter(b'\n', &buffer[..complete]).next().map_or(complete, |at| at + 1) } else { 0 };
            skipping = false;
            collect(&buffer[begin..complete], file, &finders, out);
        }
        if read == 0 {
            return Ok(());
        }
        buffer.copy_within(complete..filled, 0);
        kept = filled - complete;
        if kept >= MAX_LINE {
            out.dropped += usize::from(!skipping);
            (kept, skipping) = (0, true);
        }
    }
}

/// Whole lines only.
fn collect(block: &[u8], file: usize, finders: &[memmem::Finder<'_>], out: &mut Scanned) {
    let mut lines: Vec<(usize, usize)> = Vec::new();
    for finder in finders {
        let mut from = 0;
        while let Some(at) = finder.find(&block[from..]).map(|at| at + from) {
            let begin = memrchr(b'\n', &block[..at]).map_or(0, |at| at + 1);
            let end = memchr::memchr(b'\n', &block[at..]).map_or(block.len(), |length| at + length);
            lines.push((begin, end));
            from = end;
        }
    }
    lines.sort_unstable();
    lines.dedup();
    for (begin, end) in lines {
        if out.found.len() >= MAX_FOUND {
            out.dropped += 1;
        } else {
            out.found.push(Found { file, text: String::from_utf8_lossy(&block[begin..end]).into_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_found_across_chunks_in_plain_and_gzip_files() {
        let directory = tempfile::tempdir().unwrap();
        let filler = format!("{}\n", "x".repeat(999));
        let mut text = String::new();
        for index in 0..3000 {
            text += if index % 1000 == 999 { "here is abcdef12 to find\n" } else { &filler };
        }
        text += &format!("{} abcdef12\n", "y".repeat(3 * MAX_LINE));
        text += "the last abcdef12 has no line end";
        std::fs::write(directory.path().join("a.log"), &text).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(File::create(directory.path().join("b.log.1.gz")).unwrap(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap();
        let scanned = scan(&files(directory.path()).unwrap(), &["abcdef12".to_owned()]);
        assert_eq!(scanned.found.len(), 8, "{:?}", scanned.found.iter().map(|found| found.text.len()).collect::<Vec<_>>());
        assert_eq!(scanned.dropped, 2);
        assert!(scanned.failed.is_empty());
        assert_eq!(scanned.bytes, 2 * text.len() as u64);
    }

    #[test]
    fn unreadable_files_are_reported_and_the_others_read() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("bad.gz"), b"not gzip").unwrap();
        std::fs::write(directory.path().join("good"), b"abc 1\n").unwrap();
        let scanned = scan(&files(directory.path()).unwrap(), &["abc".to_owned()]);
        assert_eq!((scanned.found.len(), scanned.failed.len()), (1, 1));
    }
}
