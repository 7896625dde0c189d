//! The TCP stream below TLS, which gives other connections a turn while it reads. A single slice is
//! sent by `send`, as `writev` (which the TLS library uses even then) first looks up the file type.
//!
//! A client that sends as fast as the server reads would keep its worker for a millisecond at a
//! time, and each request waits for its worker several times. Bytes are counted before they are
//! decrypted: the TLS library reads on while records carry no data.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::yield_now;

/// Bytes read before the task yields: some 30 us of receiving and decrypting, or 5 ms of key
/// updates.
pub(crate) const TURN_BYTES: usize = 32 << 10;

/// A connection's socket.
pub(crate) struct Socket {
    stream: TcpStream,
    /// Bytes read since the task last waited.
    turn_bytes: usize,
    /// Bytes read since [`Self::take_received`].
    received: usize,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, turn_bytes: 0, received: 0 }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Bytes read since the last call.
    pub(crate) fn take_received(&mut self) -> usize {
        std::mem::take(&mut self.received)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            // Wakes the task after those that are ready.
            return pin!(yield_now()).poll(task).map(Ok);
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(task, buffer);
        let bytes = buffer.filled().len() - before;
        self.turn_bytes = if polled.is_pending() { 0 } else { self.turn_bytes + bytes };
        self.received += bytes;
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(task, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match slices {
            [whole] => Pin::new(&mut self.stream).poll_write(task, whole),
            _ => Pin::new(&mut self.stream).poll_write_vectored(task, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}
