//! Waiting on a condition with a bound, instead of for a time.

use std::future::Future;
use std::time::{Duration, Instant};

/// Far more than anything takes here; only a failing test waits as long.
pub const BOUND: Duration = Duration::from_secs(60);

/// Asks until there is an answer. `probe` gives the answer, or in words what was seen instead.
///
/// # Panics
/// After the bound, with what was seen last.
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
