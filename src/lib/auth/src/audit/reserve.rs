//! An audit log that goes on for a while on a full disk: with space that it holds back in a file
//! next to it, then with that of its oldest closed files.

use super::sink::Sink;
use ferrokube_trace::log::Rotating;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Space is held back only while so much more is free: what is left belongs to the state.
const PLENTY_BYTES: u64 = 40 << 20;
/// Given up at least at once.
const STEP_BYTES: u64 = 64 << 10;
/// After so many bytes of lines it is tried again to hold space back.
const AGAIN_BYTES: u64 = 1 << 20;

/// A file of lines and its reserve.
pub(super) struct Reserved {
    lines: Rotating,
    reserve: PathBuf,
    wanted: u64,
    held: u64,
    /// Bytes written since it was tried to hold space back.
    written: u64,
}

impl Reserved {
    /// Holds back so many bytes for a log at `path`.
    pub(super) fn new(lines: Rotating, path: &Path, wanted: u64) -> Self {
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let reserve = path.with_file_name(format!(".{name}.reserve"));
        let held = std::fs::metadata(&reserve).map_or(0, |metadata| metadata.len());
        let mut reserved = Self { lines, reserve, wanted, held, written: 0 };
        reserved.hold();
        reserved
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.reserve)
    }

    /// Holds space back if there is plenty.
    fn hold(&mut self) {
        self.written = 0;
        if self.held >= self.wanted || !self.has_plenty() {
            return;
        }
        match self.open().and_then(|file| {
            Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, self.wanted)?)
        }) {
            Ok(()) => self.held = self.wanted,
            Err(error) => tracing::debug!(%error, "no space is held back for the audit log"),
        }
    }

    fn has_plenty(&self) -> bool {
        let folder = self
            .reserve
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or_else(|| Path::new("."));
        rustix::fs::statvfs(folder).is_ok_and(|stat| {
            stat.f_bavail.saturating_mul(stat.f_frsize) >= self.wanted + PLENTY_BYTES
        })
    }

    /// Makes space for so many bytes; whether there is more than before.
    fn give_up(&mut self, bytes: u64) -> bool {
        if self.held > 0 {
            let rest = self.held.saturating_sub(bytes.max(STEP_BYTES));
            let outcome = self.open().and_then(|file| file.set_len(rest));
            self.held = if outcome.is_ok() { rest } else { 0 };
            return true;
        }
        let removed = self.lines.remove_oldest().unwrap_or(false);
        if removed {
            tracing::warn!("the oldest audit log was removed: there is no space");
        }
        removed
    }
}

impl Sink for Reserved {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.lines.append(bytes) {
                Ok(()) => break,
                Err(error) if is_full(&error) && self.give_up(bytes.len() as u64) => {}
                Err(error) => return Err(error),
            }
        }
        self.written += bytes.len() as u64;
        if self.written >= AGAIN_BYTES {
            self.hold();
        }
        Ok(())
    }

    fn tidy(&mut self) {
        Sink::tidy(&mut self.lines);
        self.hold();
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
