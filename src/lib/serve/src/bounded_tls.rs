//! A TLS stream that accepts no write while encrypted bytes wait for the socket, and ends when its
//! client sends records without data.
//!
//! The TLS library alone would encrypt up to [`WRITE_BYTES`](crate::WRITE_BYTES) for each of
//! thousands of clients that read nothing, and derive keys for each of a flood of key updates: 27
//! bytes each, and 4 us.

use crate::socket::Socket;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

/// Bytes that records may have beyond twice their data: those of a new connection, and the most
/// that time and data accrue. More than an incomplete record.
const OVERHEAD_BYTES: usize = 64 << 10;
const OVERHEAD_BYTES_PER_SECOND: u128 = 16 << 10;

/// A TLS stream with at most one write pending.
pub(crate) struct BoundedTlsStream {
    stream: TlsStream<Socket>,
    /// Bytes of overhead that the client may still send, as of `since`.
    overhead: usize,
    since: Instant,
}

impl BoundedTlsStream {
    pub(crate) fn new(mut stream: TlsStream<Socket>) -> Self {
        // The handshake has its own limits.
        let _ = stream.get_mut().0.take_received();
        Self { stream, overhead: OVERHEAD_BYTES, since: Instant::now() }
    }

    /// Charges received bytes, and credits the data in them. False if the share of data is too low.
    fn charge(&mut self, received: usize, data: usize) -> bool {
        if received > self.overhead {
            let earned = self.since.elapsed().as_millis() * OVERHEAD_BYTES_PER_SECOND / 1000;
            self.credit(usize::try_from(earned).unwrap_or(usize::MAX));
            self.since = Instant::now();
        }
        let left = self.overhead.checked_sub(received);
        self.overhead = left.unwrap_or(0);
        self.credit(2 * data);
        left.is_some()
    }

    fn credit(&mut self, bytes: usize) {
        self.overhead = self.overhead.saturating_add(bytes).min(OVERHEAD_BYTES);
    }

    fn poll_drained(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.get_ref().1.wants_write() {
            Pin::new(&mut self.stream).poll_flush(task)
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl AsyncRead for BoundedTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(task, buffer);
        let received = self.stream.get_mut().0.take_received();
        match self.charge(received, buffer.filled().len() - before) {
            true => polled,
            false => Poll::Ready(Err(io::Error::other("too many TLS records without data"))),
        }
    }
}

impl AsyncWrite for BoundedTlsStream {
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
    use crate::socket::TURN_BYTES;
    use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use socket2::SockRef;
    use std::future::poll_fn;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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
            TlsAcceptor::from(server).accept(Socket::new(accepted))
        );
        (client.unwrap(), server.unwrap())
    }

    #[tokio::test]
    async fn fault_34_a_client_that_sends_fast_yields_to_other_connections() {
        let (mut client, server) = pair().await;
        client.write_all(&[0; SENT]).await.unwrap();
        client.flush().await.unwrap();
        let mut stream = BoundedTlsStream::new(server);
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

    #[tokio::test]
    async fn fault_37_a_flood_of_key_updates_is_cut() {
        let (mut client, server) = pair().await;
        let flood = tokio::spawn(async move {
            loop {
                // The TLS library accepts a few between data.
                for _ in 0..20 {
                    client.get_mut().1.refresh_traffic_keys().unwrap();
                }
                if client.write_all(b"x").await.is_err() || client.flush().await.is_err() {
                    return;
                }
            }
        });
        let mut stream = BoundedTlsStream::new(server);
        let mut bytes = [0; READ];
        let error = loop {
            match stream.read(&mut bytes).await {
                Ok(count) => assert!(count > 0),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "too many TLS records without data");
        drop(stream);
        flood.await.unwrap();
    }

    #[tokio::test]
    async fn small_records_of_data_are_no_flood() {
        let (mut client, server) = pair().await;
        let sent = tokio::spawn(async move {
            for _ in 0..20_000 {
                client.write_all(&[0; 25]).await.unwrap();
                client.flush().await.unwrap();
            }
            client
        });
        let mut stream = BoundedTlsStream::new(server);
        let mut left = 20_000 * 25;
        let mut bytes = [0; READ];
        while left > 0 {
            left -= stream.read(&mut bytes).await.unwrap();
        }
        drop(sent.await.unwrap());
    }
}
