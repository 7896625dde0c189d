//! Gathers the messages of calls that are ready at a time, as the server does for its clients: h2
//! writes out after each that is not small, which costs both ends a system call. With 16 clients
//! that create objects, six of ten are saved.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};

/// Size of the buffer, which a connection keeps.
const WRITE_BYTES: usize = 64 << 10;

/// Buffers what is written until [`Self::poll_drain`]; a flush does nothing. Clones share the
/// stream.
pub(crate) struct CallCork<S>(Arc<Mutex<BufWriter<S>>>);

impl<S> Clone for CallCork<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> CallCork<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(BufWriter::with_capacity(WRITE_BYTES, stream))))
    }

    /// Writes what is buffered.
    pub(crate) fn poll_drain(&self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(task)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CallCork<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(task, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CallCork<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(task, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::future::poll_fn;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn messages_leave_together_or_when_the_buffer_is_full() {
        let (near, mut far) = tokio::io::duplex(2 * WRITE_BYTES);
        let mut stream = CallCork::new(near);
        for message in ["a", "b"] {
            stream.write_all(message.as_bytes()).await.expect("buffered");
            stream.flush().await.expect("ignored");
        }
        let mut seen = vec![0; 2 * WRITE_BYTES];
        assert!(far.read(&mut seen).now_or_never().is_none());
        poll_fn(|task| stream.poll_drain(task)).await.expect("written");
        let length = far.read(&mut seen).await.expect("they arrive");
        assert_eq!(&seen[..length], b"ab");
        stream.write_all(&vec![0; WRITE_BYTES - 1]).await.expect("buffered");
        assert!(far.read(&mut seen).now_or_never().is_none());
        stream.write_all(b"cd").await.expect("buffered");
        assert_eq!(far.read(&mut seen).await.expect("they arrive"), WRITE_BYTES - 1);
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_waited_for() {
        let (near, mut far) = tokio::io::duplex(2);
        let mut stream = CallCork::new(near);
        stream.write_all(b"abc").await.expect("buffered");
        let mut written = pin!(poll_fn(|task| stream.poll_drain(task)));
        assert!(written.as_mut().now_or_never().is_none());
        let mut seen = [0; 2];
        far.read_exact(&mut seen).await.expect("they arrive");
        written.await.expect("written");
    }
}
