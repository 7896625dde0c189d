//! A listener over a real socket, and clients for it.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by test binaries that use parts of it"
)]

use bytes::{Buf, Bytes};
use ferrokube_pki::{Pair, Pki};
use ferrokube_serve::{
    BodyError, Chunk, CloseConnection, Handler, InProcess, ListenerLimits, Peer, Request, Response,
    Server, Shutdown, ShutdownTrigger, Tls, TlsPolicy,
};
use ferrokube_serve::{boxed, chunks, empty, full, read_body, stream};
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Far beyond what anything takes on the slowest machine.
pub const BOUND: Duration = Duration::from_secs(180);

/// Responses by path; `/hang` waits for a permit, `/watch` for the shutdown.
pub struct TestHandler {
    pub shutdown: Shutdown,
    pub hung: Semaphore,
    pub release: Semaphore,
}

impl Handler for TestHandler {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        assert_ne!(request.uri().path(), "/panic-at-once", "expected");
        Box::pin(async move { self.answer(request).await })
    }

    fn panicked(&self) -> Response {
        let mut response = Response::new(full("by the hook"));
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    }
}

impl TestHandler {
    async fn answer(&self, mut request: Request) -> Response {
        let peer = Arc::clone(request.extensions().get::<Arc<Peer>>().unwrap());
        match request.uri().path() {
            "/panic" => {
                tokio::task::yield_now().await;
                panic!("expected")
            }
            "/thread" => {
                Response::new(full(std::thread::current().name().unwrap_or_default().to_owned()))
            }
            "/peer" => Response::new(full(format!(
                "{} {} {}",
                usize::from(peer.certificate.is_some()),
                usize::from(peer.proxy_certificate.is_some()),
                peer.unverified_certificate
            ))),
            "/address" => Response::new(full(peer.address.to_string())),
            "/body" => match read_body(request.into_body(), 1000, BOUND).await {
                Ok(bytes) => Response::new(full(bytes)),
                Err(BodyError::TooLarge { .. }) => Response::new(full("too large")),
                Err(error) => Response::new(full(error.to_string())),
            },
            "/body-soon" => {
                let read = read_body(request.into_body(), 1000, Duration::from_millis(300)).await;
                Response::new(full(read.expect_err("it is not whole").to_string()))
            }
            "/close" => {
                let mut response = Response::new(full("bye"));
                response.extensions_mut().insert(CloseConnection);
                response
            }
            "/hang" => {
                self.hung.add_permits(1);
                let _permit = self.release.acquire().await.unwrap();
                Response::new(full("released"))
            }
            "/tunnel" => {
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let Ok(stream) = upgrade.await else { return };
                    let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
                let mut response = Response::new(empty());
                *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
                let headers = response.headers_mut();
                headers.insert("connection", http::HeaderValue::from_static("upgrade"));
                headers.insert("upgrade", http::HeaderValue::from_static("echo"));
                response
            }
            "/lent" => {
                let frames = (0..LENT_FRAMES).map(|at| {
                    Ok(Frame::data(Chunk::lent(
                        lent(at, 10).chain(lent(at, 3000)).chain(lent(at, 20_000)),
                    )))
                });
                Response::new(boxed(StreamBody::new(futures::stream::iter(frames))))
            }
            "/small" => Response::new(chunks(futures::stream::once(std::future::ready(Ok(
                CountedBytesChunk::chunk(15_900),
            ))))),
            "/large" => Response::new(full(vec![0; 64 << 20])),
            // Endless; chunks made and not sent yet are counted.
            "/events" => Response::new(chunks(futures::stream::repeat_with(|| {
                Ok(CountedBytesChunk::chunk(8 << 10))
            }))),
            "/frames" => Response::new(chunks(futures::stream::repeat_with(|| {
                Ok(CountedBytesChunk::chunk(60 << 10))
            }))),
            "/slow-frames" => {
                let frames = futures::stream::repeat_with(|| CountedBytesChunk::chunk(60 << 10))
                    .then(|chunk| async move {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Ok(chunk)
                    });
                Response::new(chunks(frames))
            }
            "/watch" => {
                let shutdown = self.shutdown.clone();
                let end = futures::stream::once(async move {
                    shutdown.begun().await;
                    Ok(Bytes::from_static(b"end"))
                });
                let begin =
                    futures::stream::once(std::future::ready(Ok(Bytes::from_static(b"begin "))));
                Response::new(stream(begin.chain(end)))
            }
            _ => Response::new(full(format!("{:?}", request.version()))),
        }
    }
}

/// Bytes and number of unsent chunks over all connections of this process.
pub static UNSENT: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// A chunk that counts itself while it exists.
struct CountedBytesChunk(Bytes, usize);

impl CountedBytesChunk {
    fn chunk(length: usize) -> Chunk {
        UNSENT.0.fetch_add(length, Ordering::Relaxed);
        UNSENT.1.fetch_add(1, Ordering::Relaxed);
        Chunk::lent(Self(vec![b'x'; length].into(), length))
    }
}

impl Drop for CountedBytesChunk {
    fn drop(&mut self) {
        UNSENT.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Buf for CountedBytesChunk {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn chunk(&self) -> &[u8] {
        &self.0
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }
}

pub const LENT_FRAMES: usize = 300;

/// Bytes that encode their position.
pub fn lent(at: usize, length: usize) -> Bytes {
    (at..at + length).map(|place| (place % 251) as u8).collect::<Vec<u8>>().into()
}

pub struct Setup {
    pub _directory: tempfile::TempDir,
    pub pki: Pki,
    pub tls: Tls,
    pub address: SocketAddr,
    pub trigger: ShutdownTrigger,
    pub handler: Arc<TestHandler>,
    pub stats: Arc<ferrokube_serve::ListenerStats>,
    pub in_process: InProcess,
    pub serving: JoinHandle<usize>,
    /// Receive buffer of a client's socket; 0 for the system's default.
    pub receive_bytes: u32,
}

pub fn setup(limits: ListenerLimits) -> Setup {
    setup_with(limits, &TlsPolicy::default())
}

pub fn setup_with(limits: ListenerLimits, policy: &TlsPolicy) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(&directory.path().join("pki")).unwrap();
    let pair = pki.serving(&["localhost".into(), "127.0.0.1".into()]).unwrap();
    let tls = Tls::with_policy(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes(), policy).unwrap();
    tls.replace_client_ca(pki.client_ca_pem().as_bytes()).unwrap();
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), tls.clone(), limits).unwrap();
    let (address, stats) = (server.local_address(), server.stats());
    let in_process = server.in_process();
    let (trigger, shutdown) = ShutdownTrigger::new();
    let handler = Arc::new(TestHandler {
        shutdown: shutdown.clone(),
        hung: Semaphore::new(0),
        release: Semaphore::new(0),
    });
    let serving = tokio::spawn(server.serve(Arc::clone(&handler) as Arc<dyn Handler>, shutdown));
    Setup {
        _directory: directory,
        pki,
        tls,
        address,
        trigger,
        handler,
        stats,
        in_process,
        serving,
        receive_bytes: 0,
    }
}

impl Setup {
    pub async fn connect(&self, alpn: &str, client: Option<&Pair>) -> TlsStream<TcpStream> {
        self.try_connect(alpn, client).await.unwrap()
    }

    /// Until a handshake is in time: on a busy machine, a short limit may cut it.
    pub async fn connect_in_time(&self, alpn: &str) -> TlsStream<TcpStream> {
        loop {
            if let Ok(stream) = self.try_connect(alpn, None).await {
                return stream;
            }
        }
    }

    pub async fn try_connect(
        &self,
        alpn: &str,
        client: Option<&Pair>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_with(self.client_config(alpn, client)).await
    }

    pub async fn connect_with(
        &self,
        config: impl Into<Arc<ClientConfig>>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = match self.receive_bytes {
            0 => TcpStream::connect(self.address).await?,
            bytes => {
                let socket = TcpSocket::new_v4()?;
                socket.set_recv_buffer_size(bytes)?;
                socket.connect(self.address).await?
            }
        };
        TlsConnector::from(config.into())
            .connect(ServerName::try_from("localhost").unwrap(), socket)
            .await
    }

    pub fn client_config(&self, alpn: &str, client: Option<&Pair>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pki.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match client {
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.chain_pem.as_bytes())
                    .map(Result::unwrap)
                    .collect();
                builder
                    .with_client_auth_cert(
                        chain,
                        PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap(),
                    )
                    .unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        config
    }

    pub async fn http1(&self, client: Option<&Pair>) -> http1::SendRequest<Full<Bytes>> {
        let (sender, connection) =
            http1::handshake(TokioIo::new(self.connect("http/1.1", client).await)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub async fn http2(&self) -> (http2::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(self.connect("h2", None).await))
                .await
                .unwrap();
        (sender, tokio::spawn(connection))
    }
}

pub fn get(path: &str) -> http::Request<Full<Bytes>> {
    http::Request::get(format!("https://localhost{path}"))
        .header("host", "localhost")
        .body(Full::default())
        .unwrap()
}

pub async fn text(response: http::Response<hyper::body::Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

pub async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("in time")
}

pub async fn read_to_end(stream: &mut TlsStream<TcpStream>) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A raw HTTP/2 frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Opens an HTTP/2 stream per path with raw frames, each with a window of `window` bytes.
pub async fn ask_without_window(
    setup: &Setup,
    window: u32,
    paths: &[&str],
) -> TlsStream<TcpStream> {
    let mut stream = setup.connect("h2", None).await;
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    let mut hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &settings)].concat();
    for (id, path) in (1..).step_by(2).zip(paths) {
        let fields = [
            b"\x82\x87\x41\x09localhost\x04",
            &[u8::try_from(path.len()).unwrap()][..],
            path.as_bytes(),
        ]
        .concat();
        hello.extend_from_slice(&frame(1, 5, id, &fields));
    }
    stream.write_all(&hello).await.unwrap();
    stream
}
