//! Back-off of failed pulls: 10 s, doubled up to 5 minutes, per pod and image.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(300);
/// An entry expires this long after its last failure.
const EXPIRY: Duration = Duration::from_secs(2 * MOST.as_secs());

/// Failures by pod and image. Bounded by expiry, since every entry stems from a failed pull.
#[derive(Default)]
pub(crate) struct PullBackoff(Mutex<HashMap<String, FailedPull>>);

struct FailedPull {
    pause: Duration,
    since: Instant,
    message: String,
}

impl PullBackoff {
    /// Message of the last failure, while its back-off lasts.
    pub(crate) fn pending(&self, key: &str) -> Option<String> {
        let failures = self.0.lock();
        let failure = failures.get(key)?;
        (failure.since.elapsed() < failure.pause).then(|| failure.message.clone())
    }

    /// Records a failure.
    pub(crate) fn failed(&self, key: &str, message: String) {
        let mut failures = self.0.lock();
        failures.retain(|_, failure| failure.since.elapsed() < EXPIRY);
        let earlier = failures.get(key).map(|failure| failure.pause);
        let pause = earlier.map_or(FIRST, |pause| MOST.min(pause * 2));
        failures.insert(key.to_owned(), FailedPull { pause, since: Instant::now(), message });
    }

    /// Drops expired entries.
    pub(crate) fn tidy(&self) {
        self.0.lock().retain(|_, failure| failure.since.elapsed() < EXPIRY);
    }
}
