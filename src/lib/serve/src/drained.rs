//! A TLS stream that accepts no write while encrypted bytes wait for the socket.
//!
//! The TLS library alone would encrypt up to [`WRITE_BYTES`](crate::WRITE_BYTES) for each of
//! thousands of clients that read nothing.

use crate::socket::Socket;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

/// A TLS stream with at most one write pending.
pub(crate) struct DrainedStream(pub(crate) TlsStream<Socket>);

impl DrainedStream {
    fn poll_drained(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.get_ref().1.wants_write() {
            Pin::new(&mut self.0).poll_flush(task)
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl AsyncRead for DrainedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(task, buffer)
    }
}

impl AsyncWrite for DrainedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drained(task))?;
        Pin::new(&mut self.0).poll_write(task, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drained(task))?;
        Pin::new(&mut self.0).poll_write_vectored(task, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(task)
    }
}
