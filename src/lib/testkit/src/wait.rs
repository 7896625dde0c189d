//! Waits for conditions with a bound, never for a fixed time.

use std::future::Future;
use std::time::{Duration, Instant};

/// Far beyond what anything takes on the slowest machine; only failing tests wait that long.
pub const BOUND: Duration = Duration::from_secs(180);

/// Polls `probe` until it returns a value. `Err` describes what was seen instead.
///
/// # Panics
/// After the bound, with the last description.
pub async fn wait_until<T, F>(what: &str, bound: Duration, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + bound;
    let mut pause = Duration::from_millis(1);
    loop {
        let seen = match probe().await {
            Ok(answer) => return answer,
            Err(seen) => seen,
        };
        assert!(Instant::now() < deadline, "{what}: not within {bound:?}; seen last: {seen}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
