//! Streams files as lines and searches them on all cores, with gzip support and bounded memory.

use crate::files::{FileRange, ReadAt, is_gzip, is_journal, ranges};
use crate::finder::Needle;
use crate::line::{self, LogLine};
use flate2::read::MultiGzDecoder;
use memchr::{memchr, memrchr};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of one read.
const CHUNK: usize = 256 << 10;
/// Longer lines are skipped and counted.
pub const MAX_LINE: usize = 1 << 20;
/// Lines kept per search; further ones are counted.
pub const MAX_FOUND: usize = 100_000;
/// Bytes of lines kept per search; further ones are counted.
pub const MAX_FOUND_BYTES: usize = 16 << 20;

/// A matching line.
#[derive(Clone, Debug)]
pub struct MatchedLine {
    /// Index of the file.
    pub file: usize,
    /// Parsed line.
    pub line: LogLine,
}

/// Matches in all files, and the files that were skipped.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// Matching lines, unordered.
    pub found: Vec<MatchedLine>,
    /// Matching lines of unknown form, those beyond [`MAX_FOUND`] or [`MAX_FOUND_BYTES`], and all
    /// lines longer than [`MAX_LINE`].
    pub dropped: usize,
    /// Files that could not be read, with the error.
    pub failed: Vec<(PathBuf, io::Error)>,
    /// Bytes read, after decompression.
    pub bytes: u64,
}

/// Finds all lines with one of the ids (lower-case hexadecimal digits, as whole words), in all
/// files, on all cores.
pub fn scan(files: &[PathBuf], ids: &[String]) -> ScanResult {
    scan_for(files, &Needle::ids(ids))
}

/// Finds all lines that contain a text.
pub(crate) fn scan_text(files: &[PathBuf], text: &str) -> ScanResult {
    scan_for(files, &Needle::text(text))
}

fn scan_for(files: &[PathBuf], wanted: &Needle) -> ScanResult {
    let (ranges, next, kept) = (ranges(files), AtomicUsize::new(0), MatchBudget::default());
    let all = Mutex::new(ScanResult::default());
    let workers =
        std::thread::available_parallelism().map_or(2, usize::from).min(8).min(ranges.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut search = ScanWorker {
                    wanted,
                    kept: &kept,
                    out: ScanResult::default(),
                    buffer: Vec::new(),
                };
                while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = search.range(&files[range.file], *range) {
                        search.out.failed.push((files[range.file].clone(), error));
                    }
                }
                let one = search.out;
                let mut all = all.lock();
                all.dropped += one.dropped;
                all.found.extend(one.found);
                all.failed.extend(one.failed);
                all.bytes += one.bytes;
            });
        }
    });
    all.into_inner()
}

/// Limits shared by all workers.
#[derive(Default)]
struct MatchBudget {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

impl MatchBudget {
    /// Whether another line fits.
    fn take(&self, bytes: usize) -> bool {
        self.lines.fetch_add(1, Ordering::Relaxed) < MAX_FOUND
            && self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_FOUND_BYTES
    }
}

/// Scans ranges of files, on a thread of its own.
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
            // Also taken for files that cannot be read at an offset, such as pipes.
            return self.stream(&mut file, range);
        }
        // Starts one byte early: a line starts at `begin` only if that byte ends another.
        self.stream(&mut ReadAt { file: &file, at: range.begin.saturating_sub(1) }, range)
    }

    /// The whole systemd journal, as a stream of JSON lines.
    fn journal(&mut self, range: FileRange) -> io::Result<()> {
        let mut command = Command::new("journalctl");
        let mut child = command
            .args(["--no-pager", "--quiet", "--output=json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let result = match child.stdout.take() {
            Some(mut output) => self.stream(&mut output, range),
            None => Ok(()),
        };
        // Its output is closed by now, so it exits.
        let status = child.wait()?;
        result.and_then(|()| {
            if status.success() {
                Ok(())
            } else {
                Err(io::Error::other(format!("journalctl: {status}")))
            }
        })
    }

    fn stream(&mut self, source: &mut dyn Read, range: FileRange) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(CHUNK + MAX_LINE, 0);
        let result = self.lines(source, range, &mut buffer);
        self.buffer = buffer;
        result
    }

    /// `kept` bytes of an incomplete line are at the front of the buffer, which is at offset `at`
    /// of the file.
    fn lines(
        &mut self,
        source: &mut dyn Read,
        range: FileRange,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let mut at = range.begin.saturating_sub(1);
        // The rest of a line of the previous range, or of one that was too long.
        let (mut kept, mut skipping) = (0, range.begin > 0);
        loop {
            let read = source.read(&mut buffer[kept..][..CHUNK])?;
            self.out.bytes += read as u64;
            let filled = kept + read;
            let complete = if read == 0 {
                filled
            } else {
                memrchr(b'\n', &buffer[..filled]).map_or(0, |at| at + 1)
            };
            if complete > 0 {
                let begin = if skipping {
                    memchr(b'\n', &buffer[..complete]).map_or(complete, |at| at + 1)
                } else {
                    0
                };
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

    /// Collects complete lines. Lines that begin beyond the range belong to another worker.
    fn collect(&mut self, block: &[u8], at: u64, range: FileRange) {
        let mut from = 0;
        while let Some(hit) = self.wanted.find(block, from) {
            let begin = memrchr(b'\n', &block[..hit.start]).map_or(0, |at| at + 1);
            let end =
                memchr(b'\n', &block[hit.end..]).map_or(block.len(), |length| hit.end + length);
            if at + begin as u64 >= range.end {
                return;
            }
            self.keep(&block[begin..end], range.file);
            from = end;
        }
    }

    fn keep(&mut self, line: &[u8], file: usize) {
        let parsed = if self.kept.take(line.len()) {
            line::parse(&String::from_utf8_lossy(line))
        } else {
            None
        };
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
        let mut gzip = flate2::write::GzEncoder::new(
            File::create(directory.path().join("b.log.1.gz")).unwrap(),
            flate2::Compression::fast(),
        );
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap();
        let scanned = scanned(&directory);
        assert_eq!(
            scanned.found.len(),
            10,
            "{:?}",
            scanned.found.iter().map(|found| found.line.message.len()).collect::<Vec<_>>()
        );
        assert_eq!(scanned.dropped, 2, "the line of three megabytes, twice");
        assert!(scanned.failed.is_empty());
        assert_eq!(scanned.bytes, 2 * text.len() as u64);
    }

    #[test]
    fn a_line_at_the_edge_of_pieces_is_found_once() {
        let directory = tempfile::tempdir().unwrap();
        let marked = line("edge");
        for shift in [0, 1, 2, marked.len() - 1, marked.len(), marked.len() + 1] {
            // Short lines up to a place near the boundary, so that the marked line begins before,
            // at or after it.
            let mut text = "f\n".repeat(RANGE_BYTES as usize / 2 + 40).into_bytes();
            text.truncate(RANGE_BYTES as usize + 1 - shift);
            *text.last_mut().unwrap() = b'\n';
            text.extend(marked.as_bytes());
            text.extend(marked.as_bytes());
            text.extend("f\n".repeat(2 * MAX_LINE).as_bytes());
            std::fs::write(directory.path().join("a.log"), &text).unwrap();
            assert_eq!(scanned(&directory).found.len(), 2, "shifted by {shift}");
        }
        // A line longer than a range: counted once, and the next line is found.
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
        let text = format!(
            "2026-11-21T03:00:00Z INFO x: part of another trace_id={ID}{ID}\nno form at all {ID}\n{{\"broken\": \"{ID}\"\n\u{fffd}\n{}",
            line("good")
        );
        std::fs::write(directory.path().join("a"), text.replace('\u{fffd}', "\u{0}\u{1}")).unwrap();
        let scanned = scanned(&directory);
        assert_eq!((scanned.found.len(), scanned.dropped), (1, 2));
    }

    #[test]
    fn matches_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let long = line(&"w".repeat(100_000));
        std::fs::write(directory.path().join("a"), long.repeat(2 * MAX_FOUND_BYTES / long.len()))
            .unwrap();
        let scanned = scanned(&directory);
        assert!(
            scanned.found.len() <= MAX_FOUND_BYTES / long.len() && scanned.found.len() > 100,
            "{}",
            scanned.found.len()
        );
        assert!(scanned.dropped >= scanned.found.len() - 1, "{}", scanned.dropped);
    }
}
