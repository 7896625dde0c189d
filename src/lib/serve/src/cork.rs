//! Gathers the writes of one HTTP/2 connection into few TLS records and system calls.
//!
//! hyper writes and flushes every DATA frame by itself: a hundred watches on one connection cost a
//! hundred records and system calls per event. Here writes go into a buffer, flushing does nothing,
//! and [`Turns`] drains the buffer after each poll of the connection. To gather more, a connection
//! with several requests in flight first lets the tasks of its streams run, which the same event
//! woke.

use crate::activity::Activity;
use crate::body::{SLICE_BYTES, WRITE_BYTES, short_slices};
use crate::slow_client::Wait;
use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Above this, the buffer grows to its full size at once.
const FEW_BYTES: usize = 8 * 1024;

/// The stream that hyper gets. Clones share it.
pub(crate) struct Cork<T>(Arc<Mutex<CorkState<T>>>);

struct CorkState<T> {
    inner: T,
    /// At most [`WRITE_BYTES`]; then the connection waits for its client.
    buffer: Vec<u8>,
    /// Bytes of the buffer that are written.
    sent: usize,
    /// A flush is due: the TLS library may keep what is written.
    unflushed: bool,
    /// Number of socket writes, wrapping.
    moved: usize,
    /// A failed drain, returned by the next use.
    failed: Option<io::Error>,
}

impl<T> Cork<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self(Arc::new(Mutex::new(CorkState {
            inner,
            buffer: Vec::new(),
            sent: 0,
            unflushed: false,
            moved: 0,
            failed: None,
        })))
    }

    /// Never contended: hyper and the driver are one task.
    fn lock(&self) -> MutexGuard<'_, CorkState<T>> {
        self.0.lock()
    }
}

impl<T> Clone for Cork<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: AsyncWrite + Unpin> CorkState<T> {
    /// Writes the buffer.
    fn poll_drain(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        if self.buffer.is_empty() && !self.unflushed {
            return Poll::Ready(Ok(()));
        }
        self.unflushed = true;
        while self.sent < self.buffer.len() {
            let mut slices = [IoSlice::new(&[]); WRITE_BYTES.div_ceil(SLICE_BYTES)];
            let count = short_slices(&self.buffer[self.sent..], &mut slices);
            let sent =
                ready!(Pin::new(&mut self.inner).poll_write_vectored(task, &slices[..count]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
            self.moved = self.moved.wrapping_add(1);
        }
        // An idle connection keeps no buffer.
        (self.buffer, self.sent) = (Vec::new(), 0);
        ready!(Pin::new(&mut self.inner).poll_flush(task))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_gather(
        &mut self,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.failed.is_some() || self.buffer.len() >= WRITE_BYTES {
            ready!(self.poll_drain(task))?;
        }
        let before = self.buffer.len();
        let after =
            (before + slices.iter().map(|slice| slice.len()).sum::<usize>()).min(WRITE_BYTES);
        if after > self.buffer.capacity() && after > FEW_BYTES {
            // At once: growing step by step would copy the buffer each time.
            self.buffer.reserve_exact(WRITE_BYTES - before);
        }
        for slice in slices {
            let room = WRITE_BYTES - self.buffer.len();
            // Short copies, for the reason given at `short_slices`.
            slice[..slice.len().min(room)]
                .chunks(SLICE_BYTES)
                .for_each(|piece| self.buffer.extend_from_slice(piece));
        }
        Poll::Ready(Ok(self.buffer.len() - before))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Cork<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().inner).poll_read(task, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Cork<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_gather(task, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_gather(task, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The driver drains after each turn.
    fn poll_flush(self: Pin<&mut Self>, _task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathering = self.lock();
        ready!(gathering.poll_drain(task))?;
        Pin::new(&mut gathering.inner).poll_shutdown(task)
    }
}

/// Polls a connection and drains its cork after each poll.
pub(crate) struct Turns<C, T> {
    connection: Pin<Box<C>>,
    cork: Cork<T>,
    activity: Arc<Activity>,
    /// The streams' tasks have run.
    waited: bool,
    /// The buffer waits for the client.
    blocked: Wait,
    /// Write count when the wait began.
    moved: usize,
}

impl<C, T> Turns<C, T> {
    pub(crate) fn new(connection: C, cork: Cork<T>, activity: Arc<Activity>) -> Self {
        // The buffer, and as much of it encrypted.
        let blocked = activity.idle_wait(2 * WRITE_BYTES);
        Self { connection: Box::pin(connection), cork, activity, waited: false, blocked, moved: 0 }
    }

    pub(crate) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }
}

impl<C: Future, T: AsyncWrite + Unpin> Future for Turns<C, T> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        if !this.waited && this.activity.in_flight() > 1 {
            this.waited = true;
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.waited = false;
        let result = this.connection.as_mut().poll(task);
        let mut gathering = this.cork.lock();
        match gathering.poll_drain(task) {
            Poll::Ready(Ok(())) => this.blocked.set(false),
            Poll::Ready(Err(error)) => {
                gathering.failed = Some(error);
                task.waker().wake_by_ref();
            }
            Poll::Pending
                if std::mem::replace(&mut this.moved, gathering.moved) != gathering.moved =>
            {
                this.blocked.restart()
            }
            Poll::Pending => this.blocked.set(true),
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn the_writes_of_a_turn_are_sent_at_its_end() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let mut cork = Cork::new(ours);
        let driven = cork.clone();
        for piece in ["a", "b", "c"] {
            cork.write_all(piece.as_bytes()).await.unwrap();
            cork.flush().await.unwrap();
        }
        assert_eq!(driven.lock().buffer, b"abc");
        Turns::new(async {}, driven.clone(), Arc::default()).await;
        assert!(driven.lock().buffer.is_empty());
        let mut seen = [0; 3];
        theirs.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"abc");
    }

    #[tokio::test]
    async fn the_buffer_is_bounded_and_nothing_is_lost_for_a_slow_client() {
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let cork = Cork::new(ours);
        let mut writer = cork.clone();
        let writing = async move {
            for piece in 0..200_u8 {
                writer.write_all(&[piece; 4096]).await.unwrap();
                assert!(writer.lock().buffer.len() <= WRITE_BYTES);
            }
            writer.shutdown().await.unwrap();
        };
        let reading = async {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.unwrap();
            all
        };
        let ((), all) = tokio::join!(Turns::new(writing, cork, Arc::default()), reading);
        assert_eq!(all, (0..200_u8).flat_map(|piece| [piece; 4096]).collect::<Vec<u8>>());
    }

    /// Takes everything, and has it sent at the second flush.
    #[derive(Default)]
    struct LateFlush {
        taken: usize,
        flushes: usize,
    }

    impl AsyncWrite for LateFlush {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.taken += bytes.len();
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            if self.flushes == 1 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_the_tls_library_keeps_is_flushed_without_another_write() {
        let mut cork = Cork::new(LateFlush::default());
        cork.write_all(b"abc").await.unwrap();
        let driven = cork.clone();
        let mut turns = Turns::new(std::future::pending::<()>(), cork, Arc::default());
        for flushes in [1, 2, 2] {
            assert!(futures::poll!(&mut turns).is_pending());
            let state = driven.lock();
            assert_eq!((state.inner.taken, state.inner.flushes), (3, flushes));
        }
    }

    #[tokio::test]
    async fn a_dead_client_fails_the_next_write() {
        let (ours, theirs) = tokio::io::duplex(1000);
        drop(theirs);
        let mut cork = Cork::new(ours);
        cork.write_all(b"x").await.unwrap();
        Turns::new(async {}, cork.clone(), Arc::default()).await;
        assert!(cork.write_all(b"y").await.is_err());
    }
}
