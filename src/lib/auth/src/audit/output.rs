//! Outputs of the audit log: a rotated file or standard output.

use ferrokube_trace::log::Rotating;
use std::io::{self, ErrorKind, Write};

/// Tests inject failing ones.
pub(super) trait AuditOutput: Send {
    /// Appends `bytes`, which are whole lines. A failed append leaves no torn line.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Appends the same if that takes one write to an open file. False: nothing was appended.
    fn append_quickly(&mut self, _bytes: &[u8]) -> bool {
        false
    }

    /// Rotates and removes files that have become too old. Called about hourly while idle.
    fn tidy(&mut self) {}
}

impl AuditOutput for Rotating {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        Self::append(self, bytes)
    }

    fn append_quickly(&mut self, bytes: &[u8]) -> bool {
        Self::append_quickly(self, bytes)
    }

    fn tidy(&mut self) {
        if let Err(error) = Self::tidy(self) {
            tracing::warn!(%error, "cannot rotate the audit log");
        }
    }
}

/// For `--audit-log-path=-`.
pub(super) struct Stdout;

impl AuditOutput for Stdout {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }
}

/// The output of a log that is disabled.
pub(super) struct NoOutput;

impl AuditOutput for NoOutput {
    fn append(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a write failed for lack of space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
