//! Time as the store sees it: deadlines go by a clock that only moves forward, the wall clock only carries them over a restart.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;

    /// The wall clock; may leap.
    fn wall(&self) -> SystemTime;

    /// Called once by each store: `wake` is to be called when the time was changed by hand.
    fn on_leap(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        drop(wake);
    }
}

/// The system's clocks.
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

/// Milliseconds since 1970 by the wall clock.
pub(crate) fn wall_ms(clock: &dyn Clock) -> u64 {
    clock.wall().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

/// Milliseconds of the clock that only moves forward.
pub(crate) fn monotonic_ms(clock: &dyn Clock) -> u64 {
    millis(clock.monotonic())
}

/// A duration in whole milliseconds, at most `u64::MAX`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
