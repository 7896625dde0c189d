//! Work apart from the caller: blocking file operations, and tasks whose panics are failures.

use futures::FutureExt as _;
use std::io;
use std::panic::AssertUnwindSafe;

/// # Errors
/// The work's, or that it panicked.
pub(crate) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Runs a future; `None` if it panicked, which the process's panic hook has logged. What it shares
/// with others is as it left it. Not `async`, which would make room for the future twice.
pub(crate) fn unless_panicked<T>(work: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
    AssertUnwindSafe(work).catch_unwind().map(Result::ok)
}
