//! Where the audit log's lines go: a file that is rotated, or the process's standard output.

use ferrokube_trace::log::Rotating;
use std::io::{self, Write};

/// Where lines go; a seam, so that tests inject full disks.
pub(super) trait Sink: Send {
    /// Writes all of it or fails; a failed write leaves no torn line behind. `bytes` is whole
    /// lines.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Called about once an hour while nothing is written: what only time makes necessary.
    fn tidy(&mut self) {}
}

impl Sink for Rotating {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        Self::append(self, bytes)
    }

    fn tidy(&mut self) {
        if let Err(error) = Self::tidy(self) {
            tracing::warn!(%error, "the audit log cannot be rotated");
        }
    }
}

/// Lines to standard output, for `--audit-log-path=-`.
pub(super) struct Stdout;

impl Sink for Stdout {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }
}
