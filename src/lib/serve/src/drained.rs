//! A TLS stream that accepts no write while encrypted bytes wait for the socket, and gives other
//! connections a turn while it reads.
//!
//! The TLS library alone would encrypt up to [`WRITE_BYTES`](crate::WRITE_BYTES) for each of
//! thousands of clients that read nothing. A client that sends as fast as the server reads would
//! keep its worker for a millisecond at a time, and each request waits for its worker several times.

use crate::socket::Socket;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use tokio_rustls::server::TlsStream;

/// Bytes read before the task yields: some 50 us of receiving and decrypting.
const TURN_BYTES: usize = 64 << 10;

/// A TLS stream with at most one write pending, whose reads yield.
pub(crate) struct DrainedStream {
    stream: TlsStream<Socket>,
    /// Bytes read since the task last waited.
    turn_bytes: usize,
}

impl DrainedStream {
    pub(crate) fn new(stream: TlsStream<Socket>) -> Self {
        Self { stream, turn_bytes: 0 }
    }

    fn poll_drained(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.get_ref().1.wants_write() {
            Pin::new(&mut self.stream).poll_flush(task)
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
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            // Wakes the task after those that are ready.
            return pin!(yield_now()).poll(task).map(Ok);
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(task, buffer);
        self.turn_bytes = match polled.is_pending() {
            true => 0,
            false => self.turn_bytes + buffer.filled().len() - before,
        };
        polled
    }
}

impl AsyncWrite for DrainedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drained(task))?;
        Pin::new(&mut self.stream).poll_write(task, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drained(task))?;
        Pin::new(&mut self.stream).poll_write_vectored(task, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use socket2::SockRef;
    use std::future::poll_fn;
    use std::sync::Arc;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector, client};

    const SENT: usize = 3 * TURN_BYTES;
    const READ: usize = 16 << 10;

    async fn pair() -> (client::TlsStream<TcpStream>, TlsStream<Socket>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        SockRef::from(&connected).set_send_buffer_size(4 * SENT).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let (client, server) = (TlsConnector::from(Arc::new(client)), Arc::new(server));
        let (client, server) = tokio::join!(
            client.connect(name, connected),
            TlsAcceptor::from(server).accept(Socket(accepted))
        );
        (client.unwrap(), server.unwrap())
    }

    #[tokio::test]
    async fn fault_34_a_client_that_sends_fast_yields_to_other_connections() {
        let (mut client, server) = pair().await;
        client.write_all(&[0; SENT]).await.unwrap();
        client.flush().await.unwrap();
        let mut stream = DrainedStream::new(server);
        let mut turns = Vec::new();
        while turns.iter().sum::<usize>() < SENT {
            let mut turn = 0;
            poll_fn(|task| {
                let mut bytes = [0; READ];
                loop {
                    let mut buffer = ReadBuf::new(&mut bytes);
                    match Pin::new(&mut stream).poll_read(task, &mut buffer) {
                        Poll::Ready(read) => read.unwrap(),
                        Poll::Pending if turn == 0 => return Poll::Pending,
                        Poll::Pending => return Poll::Ready(()),
                    }
                    turn += buffer.filled().len();
                }
            })
            .await;
            turns.push(turn);
        }
        assert!(turns.iter().all(|turn| *turn <= TURN_BYTES + READ), "{turns:?}");
    }
}
