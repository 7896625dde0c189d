//! Keeps the audit log going for a while on a full disk: with space reserved in a file next to it,
//! then with that of its oldest closed files.

use super::output::{AuditOutput, is_full};
use ferrokube_trace::log::Rotating;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Space is reserved only while this much more is free: the rest belongs to the state.
const MIN_FREE_BYTES: u64 = 40 << 20;
/// The reserve shrinks by at least this much.
const MIN_RELEASE_BYTES: u64 = 64 << 10;
/// Bytes of lines between attempts to reserve space.
const HOLD_RETRY_BYTES: u64 = 1 << 20;

/// A log file and its reserve.
pub(super) struct Reserved {
    lines: Rotating,
    reserve: PathBuf,
    wanted: u64,
    held: u64,
    /// Bytes written since the last attempt to reserve space.
    written: u64,
}

impl Reserved {
    /// Reserves `wanted` bytes for a log at `path`.
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

    /// Reserves space if enough is free.
    fn hold(&mut self) {
        self.written = 0;
        if self.held >= self.wanted || !self.has_plenty() {
            return;
        }
        match self.open().and_then(|file| {
            Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, self.wanted)?)
        }) {
            Ok(()) => self.held = self.wanted,
            Err(error) => tracing::debug!(%error, "cannot reserve space for the audit log"),
        }
    }

    fn has_plenty(&self) -> bool {
        let folder = self
            .reserve
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or_else(|| Path::new("."));
        rustix::fs::statvfs(folder).is_ok_and(|stat| {
            stat.f_bavail.saturating_mul(stat.f_frsize) >= self.wanted + MIN_FREE_BYTES
        })
    }

    /// Frees up this many bytes. Returns whether any were freed.
    fn give_up(&mut self, bytes: u64) -> bool {
        if self.held > 0 {
            let rest = self.held.saturating_sub(bytes.max(MIN_RELEASE_BYTES));
            let outcome = self.open().and_then(|file| file.set_len(rest));
            self.held = if outcome.is_ok() { rest } else { 0 };
            return true;
        }
        let removed = self.lines.remove_oldest().unwrap_or(false);
        if removed {
            tracing::warn!("disk full, removed the oldest audit log");
        }
        removed
    }
}

impl AuditOutput for Reserved {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.lines.append(bytes) {
                Ok(()) => break,
                Err(error) if is_full(&error) && self.give_up(bytes.len() as u64) => {}
                Err(error) => return Err(error),
            }
        }
        self.written += bytes.len() as u64;
        if self.written >= HOLD_RETRY_BYTES {
            self.hold();
        }
        Ok(())
    }

    fn append_quickly(&mut self, bytes: &[u8]) -> bool {
        let written = self.written + bytes.len() as u64;
        let is_done = written < HOLD_RETRY_BYTES && self.lines.append_quickly(bytes);
        if is_done {
            self.written = written;
        }
        is_done
    }

    fn tidy(&mut self) {
        AuditOutput::tidy(&mut self.lines);
        self.hold();
    }
}
