//! Blocking file operations, off the async workers.

use std::io;

/// # Errors
/// The work's, or that it panicked.
pub(crate) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
