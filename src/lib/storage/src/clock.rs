//! Time sources. Deadlines use the monotonic clock; the wall clock only carries them across a
//! restart.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A pair of clocks, one monotonic, one wall.
pub trait Clock: Send + Sync + 'static {
    /// Time since an arbitrary fixed moment; never goes back.
    fn monotonic(&self) -> Duration;

    /// Wall-clock time; may jump in either direction.
    fn wall(&self) -> SystemTime;

    /// Registers a callback to run after the time was changed by hand. Called once per store.
    fn on_leap(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        drop(wake);
    }
}

/// The operating system's clocks.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// Wall-clock milliseconds since 1970.
pub(crate) fn wall_ms(clock: &dyn Clock) -> u64 {
    clock.wall().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

/// Monotonic milliseconds.
pub(crate) fn monotonic_ms(clock: &dyn Clock) -> u64 {
    millis(clock.monotonic())
}

/// Whole milliseconds, saturating at `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
