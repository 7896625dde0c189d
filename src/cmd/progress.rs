//! A progress bar on standard error, if that is a terminal.

use parking_lot::Mutex;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Redraw interval.
const REDRAW: Duration = Duration::from_millis(100);
const WIDTH: u64 = 30;

/// A bar that is redrawn in its line and removed at the end.
pub(crate) struct ProgressBar {
    what: &'static str,
    /// When it was drawn last; `None`: never.
    drawn: Mutex<Option<Instant>>,
    is_shown: bool,
}

impl ProgressBar {
    /// `what` is a verb, such as "copying".
    pub(crate) fn new(what: &'static str) -> Self {
        let is_shown = std::io::stderr().is_terminal();
        Self { what, drawn: Mutex::new(None), is_shown }
    }

    /// Draws it, unless it was drawn just now.
    pub(crate) fn report(&self, done: u64, total: u64, unit: fn(u64) -> String) {
        let mut drawn = self.drawn.lock();
        if !self.is_shown || drawn.is_some_and(|at| at.elapsed() < REDRAW) {
            return;
        }
        *drawn = Some(Instant::now());
        let line = line(self.what, done, total, unit);
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.drawn.lock().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, done: u64, total: u64, unit: fn(u64) -> String) -> String {
    let total = total.max(1);
    let done = done.min(total);
    let filled = usize::try_from(u128::from(done) * u128::from(WIDTH) / u128::from(total));
    let (filled, percent) = (filled.unwrap_or(0), u128::from(done) * 100 / u128::from(total));
    let bar = "#".repeat(filled) + &".".repeat(WIDTH as usize - filled);
    format!("{what} [{bar}] {percent} % of {}", unit(total))
}

/// `12.3 MB`.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} bytes"),
        1_000..1_000_000 => format!("{}.{} kB", count / 1_000, count % 1_000 / 100),
        _ => format!("{}.{} MB", count / 1_000_000, count % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_never_longer_than_its_line() {
        assert_eq!(
            line("copying", 2_500_000, 5_000_000, bytes),
            "copying [###############...............] 50 % of 5.0 MB"
        );
        assert_eq!(line("x", 9, 3, bytes), format!("x [{}] 100 % of 3 bytes", "#".repeat(30)));
        assert_eq!(line("x", 0, 0, bytes), format!("x [{}] 0 % of 1 bytes", ".".repeat(30)));
        assert_eq!(bytes(1234), "1.2 kB");
    }
}
