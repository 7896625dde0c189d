//! Files as streams of lines: fast search for ids, on all cores, gzip read on the way, memory bounded.

use crate::files::{FileRange, ReadAt, is_gzip, is_journal, ranges};
use crate::finder::Needle;
use crate::line::{self, LogLine};
use flate2::read::MultiGzDecoder;
use memchr::{memchr, memrchr};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Read at a time.
const CHUNK: usize = 256 << 10;
/// Longer lines are passed over and counted.
pub const MAX_LINE: usize = 1 << 20;
/// Lines that one search keeps; more are counted.
pub const MAX_FOUND: usize = 100_000;
/// Bytes of lines that one search keeps; more lines are counted.
pub const MAX_FOUND_BYTES: usize = 16 << 20;

/// A line that holds one of the ids.
#[derive(Clone, Debug)]
pub struct MatchedLine {
    /// Index of the file.
    pub file: usize,
    /// What it says.
    pub line: LogLine,
}

/// What a scan gave.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// Matching lines, in no order.
    pub found: Vec<MatchedLine>,
    /// Matching lines of no known form, matching lines beyond [`MAX_FOUND`] or [`MAX_FOUND_BYTES`], and all lines longer than [`MAX_LINE`].
    pub dropped: usize,
    /// Files that could not be read, with why.
    pub failed: Vec<(PathBuf, io::Error)>,
    /// Bytes that were read (after decompression).
    pub bytes: u64,
}

/// Finds all lines that hold one of the ids (lower-case hexadecimal digits, whole words), over all files, on all cores.
pub fn scan(files: &[PathBuf], ids: &[String]) -> ScanResult {
    scan_for(files, &Needle::ids(ids))
}

/// Finds all lines that hold a text.
pub(crate) fn scan_text(files: &[PathBuf], text: &str) -> ScanResult {
    scan_for(files, &Needle::text(text))
}

fn scan_for(files: &[PathBuf], wanted: &Needle) -> ScanResult {
    let (ranges, next, kept) = (ranges(files), AtomicUsize::new(0), MatchBudget::default());
    let all = Mutex::new(ScanResult::default());
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8).min(ranges.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut search = ScanWorker { wanted, kept: &kept, out: ScanResult::default(), buffer: Vec::new() };
                while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = search.range(&files[range.file], *range) {
                        search.out.failed.push((files[range.file].clone(), error));
                    }
                }
                let one = search.out;
                let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                all.dropped += one.dropped;
                all.found.extend(one.found);
                all.failed.extend(one.failed);
                all.bytes += one.bytes;
            });
        }
    });
    all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What all workers have kept.
#[derive(Default)]
struct MatchBudget {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

impl MatchBudget {
    /// Whether there is room for one more line.
    fn take(&self, bytes: usize) -> bool {
        self.lines.fetch_add(1, Ordering::Relaxed) < MAX_FOUND && self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_FOUND_BYTES
    }
}

/// One worker.
struct ScanWorker<'a> {
    wanted: &'a Needle,
    kept: &'a MatchBudget,
    out: ScanResult,
    buffer: Vec<u8>,
}

impl ScanWorker<'_> {
    fn range(&mut self, path: &PathBuf, range: FileRange) -> io::Result<()> {
        if is_journal(path) {
            return self.journal(range);
        }
        let mut file = File::open(path)?;
        if is_gzip(path) {
            return self.stream(&mut MultiGzDecoder::new(file), range);
        }
        if range.end == u64::MAX && range.begin == 0 {
            // Also what cannot be read from any place, such as a pipe.
            return self.stream(&mut file, range);
        }
        // One byte earlier: a line begins here only if that one ends a line.
        self.stream(&mut ReadAt { file: &file, at: range.begin.saturating_sub(1) }, range)
    }

    /// Everything that the system's journal holds, as one stream of JSON lines.
    fn journal(&mut self, range: FileRange) -> io::Result<()> {
        let mut command = Command::new("journalctl");
        let mut child = command.args(["--no-pager", "--quiet", "--output=json"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let result = match child.stdout.take() {
            Some(mut output) => self.stream(&mut output, range),
            None => Ok(()),
        };
        // Its output is closed by now, so that it ends.
        let status = child.wait()?;
        result.and_then(|()| if status.success() { Ok(()) } else { Err(io::Error::other(format!("journalctl: {status}"))) })
    }

    fn stream(&mut self, source: &mut dyn Read, range: FileRange) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(CHUNK + MAX_LINE, 0);
        let result = self.lines(source, range, &mut buffer);
        self.buffer = buffer;
        result
    }

    /// `kept` bytes of an unfinished line are at the buffer's front, which is at `at` in the file.
    fn lines(&mut self, source: &mut dyn Read, range: FileRange, buffer: &mut [u8]) -> io::Result<()> {
        let mut at = range.begin.saturating_sub(1);
        // The rest of somebody else's line, or of one that was too long.
        let (mut kept, mut skipping) = (0, range.begin > 0);
        loop {
            let read = source.read(&mut buffer[kept..][..CHUNK])?;
            self.out.bytes += read as u64;
            let filled = kept + read;
            let complete = if read == 0 { filled } else { memrchr(b'\n', &buffer[..filled]).map_or(0, |at| at + 1) };
            if complete > 0 {
                let begin = if skipping { memchr(b'\n', &buffer[..complete]).map_or(complete, |at| at + 1) } else { 0 };
                skipping = false;
                self.collect(&buffer[begin..complete], at + begin as u64, range);
            }
            at += complete as u64;
            if read == 0 || at >= range.end {
                return Ok(());
            }
            buffer.copy_within(complete..filled, 0);
            kept = filled - complete;
            if kept >= MAX_LINE {
                self.out.dropped += usize::from(!skipping);
                at += kept as u64;
                (kept, skipping) = (0, true);
            }
        }
    }

    /// Whole lines only; those that begin beyond the piece are another worker's.
    fn collect(&mut self, block: &[u8], at: u64, range: FileRange) {
        let mut from = 0;
        while let Some(hit) = self.wanted.find(block, from) {
            let begin = memrchr(b'\n', &block[..hit.start]).map_or(0, |at| at + 1);
            let end = memchr(b'\n', &block[hit.end..]).map_or(block.len(), |length| hit.end + length);
            if at + begin as u64 >= range.end {
                return;
            }
            self.keep(&block[begin..end], range.file);
            from = end;
        }
    }

    fn keep(&mut self, line: &[u8], file: usize) {
        let parsed = if self.kept.take(line.len()) { line::parse(&String::from_utf8_lossy(line)) } else { None };
        match parsed {
            Some(line) => self.out.found.push(MatchedLine { file, line }),
            None => self.out.dropped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{RANGE_BYTES, files};
    use std::io::Write;

    const ID: &str = "b7ad6b7169203331";

    fn scanned(directory: &tempfile::TempDir) -> ScanResult {
        scan(&files(directory.path()).unwrap(), &[ID.to_owned()])
    }

    fn line(text: &str) -> String {
        format!("2026-11-21T03:00:00Z INFO x: {text} span_id={ID}\n")
    }

    #[test]
    fn lines_are_found_across_chunks_in_plain_and_gzip_files() {
        let directory = tempfile::tempdir().unwrap();
        let filler = format!("{}\n", "x".repeat(999));
        let mut text = String::new();
        for index in 0..3000 {
            text += &if index % 1000 == 999 { line("here") } else { filler.clone() };
        }
        text += &line(&"y".repeat(3 * MAX_LINE));
        text += &line(&"z".repeat(MAX_LINE - 1000));
        text += line("the last one has no end").trim_end();
        std::fs::write(directory.path().join("a.log"), &text).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(File::create(directory.path().join("b.log.1.gz")).unwrap(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap();
        let scanned = scanned(&directory);
        assert_eq!(scanned.found.len(), 10, "{:?}", scanned.found.iter().map(|found| found.line.message.len()).collect::<Vec<_>>());
        assert_eq!(scanned.dropped, 2, "the line of three megabytes, twice");
        assert!(scanned.failed.is_empty());
        assert_eq!(scanned.bytes, 2 * text.len() as u64);
    }

    #[test]
    fn a_line_at_the_edge_of_pieces_is_found_once() {
        let directory = tempfile::tempdir().unwrap();
        let marked = line("edge");
        for shift in [0, 1, 2, marked.len() - 1, marked.len(), marked.len() + 1] {
            // Short lines up to a place near the edge, so that the marked line begins before, at or after it.
            let mut text = "f\n".repeat(RANGE_BYTES as usize / 2 + 40).into_bytes();
            text.truncate(RANGE_BYTES as usize + 1 - shift);
            *text.last_mut().unwrap() = b'\n';
            text.extend(marked.as_bytes());
            text.extend(marked.as_bytes());
            text.extend("f\n".repeat(2 * MAX_LINE).as_bytes());
            std::fs::write(directory.path().join("a.log"), &text).unwrap();
            assert_eq!(scanned(&directory).found.len(), 2, "shifted by {shift}");
        }
        // A line that no piece can read whole: counted once, and what follows is found.
        let mut text = vec![b'x'; 2 * RANGE_BYTES as usize + 10];
        text.push(b'\n');
        text.extend(marked.as_bytes());
        std::fs::write(directory.path().join("a.log"), &text).unwrap();
        let scanned = scanned(&directory);
        assert_eq!((scanned.found.len(), scanned.dropped), (1, 1));
    }

    #[test]
    fn unreadable_files_are_reported_and_the_others_read() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("bad.gz"), b"not gzip").unwrap();
        std::fs::write(directory.path().join("good"), line("good")).unwrap();
        let scanned = scanned(&directory);
        assert_eq!((scanned.found.len(), scanned.failed.len()), (1, 1));
    }

    #[test]
    fn an_id_is_a_word_and_lines_of_other_forms_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let text =
            format!("2026-11-21T03:00:00Z INFO x: part of another trace_id={ID}{ID}\nno form at all {ID}\n{{\"broken\": \"{ID}\"\n\u{fffd}\n{}", line("good"));
        std::fs::write(directory.path().join("a"), text.replace('\u{fffd}', "\u{0}\u{1}")).unwrap();
        let scanned = scanned(&directory);
        assert_eq!((scanned.found.len(), scanned.dropped), (1, 2));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let long = line(&"w".repeat(100_000));
        std::fs::write(directory.path().join("a"), long.repeat(2 * MAX_FOUND_BYTES / long.len())).unwrap();
        let scanned = scanned(&directory);
        assert!(scanned.found.len() <= MAX_FOUND_BYTES / long.len() && scanned.found.len() > 100, "{}", scanned.found.len());
        assert!(scanned.dropped >= scanned.found.len() - 1, "{}", scanned.dropped);
    }
}
