//! Token bucket of registryPullQPS and registryBurst.

use parking_lot::Mutex;
use tokio::time::Instant;

/// Rejects pulls above the rate.
pub(crate) struct PullBucket {
    per_second: f64,
    burst: f64,
    level: Mutex<(f64, Instant)>,
}

impl PullBucket {
    /// `None` for a rate of 0: no limit.
    pub(crate) fn new(per_second: u32, burst: u32) -> Option<Self> {
        let burst = f64::from(burst);
        (per_second > 0).then(|| Self {
            per_second: f64::from(per_second),
            burst,
            level: Mutex::new((burst, Instant::now())),
        })
    }

    /// Takes a token if one is available.
    pub(crate) fn take(&self) -> bool {
        let mut level = self.level.lock();
        let (tokens, since) = *level;
        let now = Instant::now();
        let tokens =
            (tokens + now.duration_since(since).as_secs_f64() * self.per_second).min(self.burst);
        let has_one = tokens >= 1.0;
        *level = (if has_one { tokens - 1.0 } else { tokens }, now);
        has_one
    }
}
