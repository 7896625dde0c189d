//! Gathers the messages of calls that are ready at a time, as the server does for its clients: h2
//! writes out after each that is not small, which costs both ends a system call. With 16 clients
//! that create objects, six of ten are saved.
//!
//! Acknowledgements of PINGs wait for a while: etcd measures the connection with a PING for each
//! message that arrives while none is on its way. Acknowledged at once, each call would wake both
//! ends once more.

use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are gathered, in a buffer that a connection keeps.
const WRITE_BYTES: usize = 64 << 10;
/// Length of the text that a client sends before its frames.
const PREFACE_BYTES: usize = 24;
/// Bytes of acknowledgements that may wait: four.
const ACK_BYTES: usize = 4 * 17;
/// How long they wait. etcd takes a connection for dead after 20 s.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(100);

/// Buffers what is written until [`Self::poll_drain`]; a flush does nothing. Clones share the
/// stream.
pub(crate) struct CallCork<S>(Arc<Mutex<CorkedCalls<S>>>);

struct CorkedCalls<S> {
    stream: S,
    frames: FrameSplitter,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are written.
    sent: usize,
    /// A flush is due: the TLS library may keep what is written.
    unflushed: bool,
    /// Acknowledgements that wait.
    acks: Vec<u8>,
}

impl<S> Clone for CallCork<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> CallCork<S> {
    /// To be given to a client before it sends anything.
    pub(crate) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(CorkedCalls {
            stream,
            frames: FrameSplitter::default(),
            buffer: Vec::with_capacity(WRITE_BYTES + ACK_BYTES + 2 * FrameSplitter::HEAD_BYTES),
            sent: 0,
            unflushed: false,
            acks: Vec::new(),
        })))
    }

    /// Writes what is buffered.
    pub(crate) fn poll_drain(&self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_drain(task)
    }

    /// Whether acknowledgements wait.
    pub(crate) fn has_acks(&self) -> bool {
        !self.0.lock().acks.is_empty()
    }

    /// Buffers the acknowledgements that wait.
    pub(crate) fn release_acks(&self) {
        self.0.lock().release_acks();
    }
}

impl<S: AsyncWrite + Unpin> CorkedCalls<S> {
    fn poll_drain(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() && !self.unflushed {
            return Poll::Ready(Ok(()));
        }
        self.unflushed = true;
        while self.sent < self.buffer.len() {
            let left = &self.buffer[self.sent..];
            let sent = ready!(Pin::new(&mut self.stream).poll_write(task, left))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.buffer.clear();
        self.sent = 0;
        ready!(Pin::new(&mut self.stream).poll_flush(task))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn release_acks(&mut self) {
        // Not into a frame: its end follows soon.
        if self.frames.is_between() {
            self.buffer.append(&mut self.acks);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CallCork<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(task, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CallCork<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let state = &mut *self.0.lock();
        if state.buffer.len() >= WRITE_BYTES {
            ready!(state.poll_drain(task))?;
        }
        let taken = bytes.len().min(WRITE_BYTES - state.buffer.len());
        state.frames.split(&bytes[..taken], &mut state.buffer, &mut state.acks);
        if state.acks.len() > ACK_BYTES {
            state.release_acks();
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.lock();
        ready!(state.poll_drain(task))?;
        Pin::new(&mut state.stream).poll_shutdown(task)
    }
}

/// Tells acknowledgements of PINGs from everything else that an HTTP/2 client sends.
struct FrameSplitter {
    /// Start of a frame, as far as it is known.
    head: Vec<u8>,
    /// Bytes left of the frame, or of the preface.
    left: usize,
    is_ack: bool,
}

impl Default for FrameSplitter {
    fn default() -> Self {
        Self { head: Vec::with_capacity(Self::HEAD_BYTES), left: PREFACE_BYTES, is_ack: false }
    }
}

impl FrameSplitter {
    const HEAD_BYTES: usize = 9;
    const PING: u8 = 6;
    const ACK: u8 = 1;

    fn is_between(&self) -> bool {
        self.left == 0 && self.head.is_empty()
    }

    fn split(&mut self, mut bytes: &[u8], others: &mut Vec<u8>, acks: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let (part, rest) = cut(bytes, Self::HEAD_BYTES - self.head.len());
                self.head.extend_from_slice(part);
                bytes = rest;
                if let [a, b, c, kind, flags, ..] = self.head[..]
                    && self.head.len() == Self::HEAD_BYTES
                {
                    self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                    self.is_ack = kind == Self::PING && flags & Self::ACK > 0;
                    let whose = if self.is_ack { &mut *acks } else { &mut *others };
                    whose.append(&mut self.head);
                }
                continue;
            }
            let (part, rest) = cut(bytes, self.left);
            let whose = if self.is_ack { &mut *acks } else { &mut *others };
            whose.extend_from_slice(part);
            self.left -= part.len();
            bytes = rest;
        }
    }
}

fn cut(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at(at.min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::future::poll_fn;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    const PREFACE: [u8; PREFACE_BYTES] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn ack(number: u8) -> Vec<u8> {
        frame(FrameSplitter::PING, FrameSplitter::ACK, &[number; 8])
    }

    async fn drain(stream: &CallCork<DuplexStream>, far: &mut DuplexStream) -> Vec<u8> {
        poll_fn(|task| stream.poll_drain(task)).await.expect("written");
        let mut seen = vec![0; 2 * WRITE_BYTES];
        let length = far.read(&mut seen).now_or_never().map_or(0, |read| read.expect("arrives"));
        seen.truncate(length);
        seen
    }

    #[tokio::test]
    async fn messages_leave_together_or_when_the_buffer_is_full() {
        let (near, mut far) = tokio::io::duplex(2 * WRITE_BYTES);
        let mut stream = CallCork::new(near);
        let few = [&PREFACE[..], &frame(0, 0, b"a"), &frame(0, 0, b"b")];
        for message in few {
            stream.write_all(message).await.expect("buffered");
            stream.flush().await.expect("ignored");
        }
        let mut seen = vec![0; 2 * WRITE_BYTES];
        assert!(far.read(&mut seen).now_or_never().is_none());
        assert_eq!(drain(&stream, &mut far).await, few.concat());
        let long = frame(0, 0, &vec![0; WRITE_BYTES - 10]);
        stream.write_all(&long).await.expect("buffered");
        assert!(far.read(&mut seen).now_or_never().is_none());
        stream.write_all(&long).await.expect("buffered");
        assert!(far.read(&mut seen).await.expect("they arrive") >= WRITE_BYTES);
    }

    /// Takes everything, and has it sent at the second flush.
    #[derive(Default)]
    struct SecondFlush(usize);

    impl AsyncWrite for SecondFlush {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0 += 1;
            if self.0 == 1 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_the_tls_library_keeps_is_flushed_without_another_write() {
        let mut stream = CallCork::new(SecondFlush::default());
        stream.write_all(&PREFACE).await.expect("buffered");
        let drain = || poll_fn(|task| stream.poll_drain(task)).now_or_never();
        assert!(drain().is_none());
        drain().expect("flushed").expect("no error");
        drain().expect("nothing to do").expect("no error");
        assert_eq!(stream.0.lock().stream.0, 2);
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_waited_for() {
        let (near, mut far) = tokio::io::duplex(2);
        let mut stream = CallCork::new(near);
        stream.write_all(&PREFACE).await.expect("buffered");
        let mut written = pin!(poll_fn(|task| stream.poll_drain(task)));
        assert!(written.as_mut().now_or_never().is_none());
        let mut seen = [0; PREFACE_BYTES];
        let (read, written) = tokio::join!(far.read_exact(&mut seen), written);
        read.expect("they arrive");
        written.expect("written");
        assert_eq!(seen, PREFACE);
    }

    #[tokio::test]
    async fn acknowledgements_wait_wherever_writes_are_cut() {
        let (before, after) = ([&PREFACE[..], &frame(4, 1, b"")].concat(), frame(0, 0, b"after"));
        // Those of SETTINGS, and PINGs, do not.
        let ping = frame(FrameSplitter::PING, 0, &[3; 8]);
        let all = [&before[..], &ack(1), &ping, &ack(2), &after].concat();
        for cut in 0..all.len() {
            let (near, mut far) = tokio::io::duplex(2 * WRITE_BYTES);
            let mut stream = CallCork::new(near);
            stream.write_all(&all[..cut]).await.expect("buffered");
            stream.release_acks();
            let mut seen = drain(&stream, &mut far).await;
            stream.write_all(&all[cut..]).await.expect("buffered");
            seen.append(&mut drain(&stream, &mut far).await);
            assert_eq!(stream.has_acks(), cut != all.len() - after.len(), "{cut}");
            stream.release_acks();
            seen.append(&mut drain(&stream, &mut far).await);
            assert!(!stream.has_acks());
            let mut frames = frames(&seen[PREFACE_BYTES..]);
            assert_eq!(&seen[..PREFACE_BYTES], PREFACE);
            frames.sort();
            let mut whole = [&before[PREFACE_BYTES..], &ping, &after].map(<[u8]>::to_vec).to_vec();
            whole.extend([ack(1), ack(2)]);
            whole.sort();
            assert_eq!(frames, whole, "cut at {cut}");
        }
    }

    /// Frames in these bytes.
    fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (frame, rest) = bytes.split_at(FrameSplitter::HEAD_BYTES + usize::from(bytes[2]));
            frames.push(frame.to_vec());
            bytes = rest;
        }
        frames
    }

    #[tokio::test]
    async fn few_acknowledgements_wait() {
        let (near, mut far) = tokio::io::duplex(2 * WRITE_BYTES);
        let mut stream = CallCork::new(near);
        stream.write_all(&PREFACE).await.expect("buffered");
        for number in 0..5 {
            assert_eq!(stream.has_acks(), number > 0);
            stream.write_all(&ack(number)).await.expect("buffered");
        }
        assert!(!stream.has_acks());
        assert_eq!(drain(&stream, &mut far).await.len(), PREFACE_BYTES + 5 * 17);
    }
}
