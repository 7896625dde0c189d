//! Tests with aggregated servers that misbehave, over real connections.

use crate::backend::{Backend, DelegatedRequest, FetchError};
use crate::dial::Dialer;
use crate::resolve::ListedServices;
use crate::service::RemoteService;
use crate::tls::ProxyIdentity;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::BudgetCaller;
use ferrokube_pki::Pki;
use ferrokube_relay::{DelegationError, Tunnels, take_upgrade};
use ferrokube_serve::{
    Handler, ListenerLimits, Request, Response, Server, Shutdown, ShutdownTrigger, Tls,
};
use ferrokube_trace::SpanInfo;
use ferrokube_webhook::{CertificateFaults, ServiceResolver};
use futures::stream;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Listening servers; they end when it is dropped.
struct Servers {
    pki: Pki,
    _directory: tempfile::TempDir,
    _trigger: ShutdownTrigger,
    shutdown: Shutdown,
}

impl Servers {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki")).unwrap();
        let (trigger, shutdown) = ShutdownTrigger::new();
        Self { pki, _directory: directory, _trigger: trigger, shutdown }
    }

    fn listen(&self, handler: Arc<dyn Handler>) -> SocketAddr {
        let names = ["hostile.ns.svc", "localhost"].map(str::to_owned);
        let pair = self.pki.serving(&names).unwrap();
        let tls = Tls::new(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(address, tls, ListenerLimits::default()).unwrap();
        let address = server.local_address();
        tokio::spawn(server.serve(handler, self.shutdown.clone()));
        address
    }

    fn service(&self) -> RemoteService {
        RemoteService {
            namespace: "ns".to_owned(),
            name: "hostile".to_owned(),
            port: 443,
            ca_bundle: STANDARD.encode(self.pki.ca_pem()),
            insecure: false,
        }
    }

    /// A backend at an address, by which other servers than its own can be reached, too.
    fn backend(&self, address: SocketAddr, service: RemoteService) -> Arc<Backend> {
        let entry = format!("{}.{}={address}", service.name, service.namespace);
        let resolver: Arc<dyn ServiceResolver> =
            Arc::new(ListedServices::new([entry.parse().unwrap()]));
        let ended = watch::Sender::new(false).subscribe();
        let tunnels = Arc::new(Tunnels::new(ended.clone()));
        let certificates = CertificateFaults::default();
        let dialer = Dialer::new(service, resolver, &ProxyIdentity::default(), certificates);
        let backend = Backend::new("ex.com", "v1", dialer, &tunnels, ended);
        backend.set_available(true);
        Arc::new(backend)
    }

    fn hostile(&self) -> Arc<Backend> {
        let address = self.listen(Arc::new(Hostile));
        self.backend(address, self.service())
    }
}

/// Answers by path.
struct Hostile;

impl Handler for Hostile {
    fn call(
        self: Arc<Self>,
        mut request: Request,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let mut response = Response::new(ferrokube_serve::full("<html>"));
            let headers = response.headers_mut();
            match request.uri().path() {
                "/redirect" => {
                    headers.insert("location", HeaderValue::from_static("https://[fe80::1]/"));
                    *response.status_mut() = StatusCode::FOUND;
                }
                "/hang" => std::future::pending().await,
                "/endless" => {
                    let piece = || Ok(Bytes::from_static(&[b'x'; 16 << 10]));
                    let pieces = stream::repeat_with(piece);
                    *response.body_mut() = ferrokube_serve::stream(pieces);
                }
                "/long-head" => {
                    let long = HeaderValue::from_bytes(&[b'x'; 200_000]).unwrap();
                    headers.insert("x-long", long);
                }
                "/many-fields" => {
                    for _ in 0..300 {
                        headers.append("x", HeaderValue::from_static("y"));
                    }
                }
                "/user" => {
                    let user = request.headers()["x-remote-user"].clone();
                    headers.insert("x-user", user);
                    headers.insert("x-host", request.headers()["host"].clone());
                }
                "/echo" | "/other" => {
                    let other = request.uri().path() == "/other";
                    let protocol = if other { "h2c" } else { "websocket" };
                    let upgrade = hyper::upgrade::on(&mut request);
                    tokio::spawn(async move {
                        let Ok(stream) = upgrade.await else { return };
                        let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
                        let _ = tokio::io::copy(&mut read, &mut write).await;
                    });
                    headers.insert("connection", HeaderValue::from_static("upgrade"));
                    headers.insert("upgrade", HeaderValue::from_static(protocol));
                    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                }
                _ => *response.status_mut() = StatusCode::FORBIDDEN,
            }
            response
        })
    }
}

/// Forwards everything, like the API server, and counts it.
struct Front {
    backend: Arc<Backend>,
    calls: AtomicUsize,
}

impl Handler for Front {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let (mut head, _) = request.into_parts();
            let upgrade = take_upgrade(&mut head.extensions);
            let user = user();
            let mut delegated = delegated(head.uri.path(), &head.headers, &user);
            delegated.upgrade = upgrade;
            self.backend.forward(delegated).await.unwrap_or_else(|error| {
                let mut response = Response::new(ferrokube_serve::full(error.to_string()));
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response
            })
        })
    }
}

fn user() -> UserInfo {
    UserInfo { name: "alice".to_owned(), ..UserInfo::default() }
}

fn delegated<'a>(
    path: &'a str,
    headers: &'a HeaderMap,
    user: &'a UserInfo,
) -> DelegatedRequest<'a> {
    static AUDIT_ID: HeaderValue = HeaderValue::from_static("id");
    DelegatedRequest {
        method: Method::GET,
        path,
        query: String::new(),
        headers,
        body: ferrokube_serve::empty(),
        user,
        audit_id: &AUDIT_ID,
        peer: None,
        caller: BudgetCaller::default(),
        timeout: Some(Duration::from_secs(60)),
        upgrade: None,
        span: SpanInfo { name: "get", resource: "", namespace: "", object: "" },
    }
}

async fn get(backend: &Backend, path: &str) -> Result<Response, DelegationError> {
    backend.forward(delegated(path, &HeaderMap::new(), &user())).await
}

#[tokio::test]
async fn fault_46_a_redirect_is_neither_followed_nor_forwarded() {
    let servers = Servers::new();
    let answer = get(&servers.hostile(), "/redirect").await;
    assert_eq!(answer.unwrap_err(), DelegationError::Redirect);
}

#[tokio::test]
async fn the_server_gets_the_user_and_its_own_name() {
    let servers = Servers::new();
    let answer = get(&servers.hostile(), "/user").await.unwrap();
    assert_eq!(answer.headers()["x-user"], "alice");
    assert_eq!(answer.headers()["x-host"], "hostile.ns.svc");
}

#[tokio::test]
async fn fault_47_a_server_with_another_name_or_ca_gets_no_request() {
    let servers = Servers::new();
    let address = servers.listen(Arc::new(Hostile));
    let untrusted =
        DelegationError::Unreachable("its certificate could not be verified".to_owned());
    let other_name = RemoteService { name: "other".to_owned(), ..servers.service() };
    let answer = get(&servers.backend(address, other_name), "/user").await;
    assert_eq!(answer.unwrap_err(), untrusted);
    let ca_bundle = STANDARD.encode(servers.pki.client_ca_pem());
    let other_ca = RemoteService { ca_bundle, ..servers.service() };
    let answer = get(&servers.backend(address, other_ca.clone()), "/user").await;
    assert_eq!(answer.unwrap_err(), untrusted);
    let unverified = RemoteService { insecure: true, ca_bundle: String::new(), ..other_ca };
    let answer = get(&servers.backend(address, unverified), "/user").await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let without_ca = RemoteService { ca_bundle: String::new(), ..servers.service() };
    let answer = get(&servers.backend(address, without_ca), "/user").await;
    let why = "its caBundle has no certificates".to_owned();
    assert_eq!(answer.unwrap_err(), DelegationError::Unreachable(why));
}

#[tokio::test]
async fn fault_33_long_and_late_answers_are_bounded() {
    let servers = Servers::new();
    let backend = servers.hostile();
    let (none, alice) = (HeaderMap::new(), user());
    for path in ["/long-head", "/many-fields"] {
        let answer = get(&backend, path).await;
        let why = "the connection broke before it answered".to_owned();
        assert_eq!(answer.unwrap_err(), DelegationError::Unreachable(why), "{path}");
    }
    let late = DelegatedRequest {
        timeout: Some(Duration::from_millis(20)),
        ..delegated("/hang", &none, &alice)
    };
    let why = "it did not answer in time".to_owned();
    assert_eq!(backend.forward(late).await.unwrap_err(), DelegationError::Unreachable(why));
    let fetched = backend.fetch("/endless", "*/*", None, 1 << 20).await;
    let why = "its answer is longer than 1048576 bytes".to_owned();
    assert_eq!(fetched.err(), Some(FetchError::Failed(why)));
    // Forwarded, it is as long as the client reads, and no longer than the request may take.
    // With more time until the answer begins within it, which a busy machine may need.
    let mut timeout = Duration::from_millis(100);
    let mut frames = 0_u64;
    while frames == 0 {
        timeout *= 2;
        assert!(timeout < Duration::from_secs(180), "it never begins");
        let endless =
            DelegatedRequest { timeout: Some(timeout), ..delegated("/endless", &none, &alice) };
        let Ok(response) = backend.forward(endless).await else { continue };
        let mut body = response.into_body();
        let end = loop {
            match body.frame().await {
                Some(Ok(_)) => frames += 1,
                end => break end,
            }
        };
        assert!(end.is_some_and(|end| end.is_err()), "cut, not ended");
    }
}

/// A connection to the front, after its response to an upgrade.
async fn upgrade(
    servers: &Servers,
    front: SocketAddr,
    path: &str,
) -> (TlsStream<TcpStream>, String) {
    let roots =
        RemoteService { ca_bundle: STANDARD.encode(servers.pki.ca_pem()), ..servers.service() };
    let config = crate::tls::config(&roots, &ProxyIdentity::default()).unwrap();
    let socket = TcpStream::connect(front).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(answer).unwrap())
}

fn front(servers: &Servers) -> (Arc<Front>, SocketAddr) {
    let front = Arc::new(Front { backend: servers.hostile(), calls: AtomicUsize::new(0) });
    let address = servers.listen(Arc::clone(&front) as _);
    (front, address)
}

#[tokio::test]
async fn a_websocket_is_tunnelled() {
    let servers = Servers::new();
    let (_, address) = front(&servers);
    let (mut stream, answer) = upgrade(&servers, address, "/echo").await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
}

#[tokio::test]
async fn fault_45_a_refused_upgrade_opens_no_tunnel() {
    let servers = Servers::new();
    for (path, code) in [("/refused", "403"), ("/other", "503")] {
        let (front, address) = front(&servers);
        let (mut stream, answer) = upgrade(&servers, address, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
        // What follows is a request of its own, which is authorized again.
        let _ =
            stream.write_all(b"GET /user HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        let rest = String::from_utf8_lossy(&rest);
        let calls = front.calls.load(Ordering::Relaxed);
        assert!(calls == 2 && rest.contains("x-user: alice"), "{path} {calls} {rest}");
    }
}

/// A server that answers everything with these bytes.
async fn raw(servers: &Servers, pair: &CertifiedPair, bytes: &'static [u8]) -> Arc<Backend> {
    let chain = CertificateDer::pem_slice_iter(pair.chain_pem.as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(socket).await else { continue };
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
        }
    });
    let ca_bundle = STANDARD.encode(&pair.ca_pem);
    servers.backend(address, RemoteService { ca_bundle, ..servers.service() })
}

#[tokio::test]
async fn fault_45_a_101_that_nobody_asked_for_is_not_forwarded() {
    let servers = Servers::new();
    let pair = CertifiedPair::of(&servers);
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let answer = get(&*raw(&servers, &pair, switch).await, "/").await;
    let why = "it switched protocols without being asked to".to_owned();
    assert_eq!(answer.unwrap_err(), DelegationError::Unreachable(why));
    let two_lengths = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let answer = get(&*raw(&servers, &pair, two_lengths).await, "/").await.unwrap();
    assert!(!answer.headers().contains_key("content-length"));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn a_server_whose_own_certificate_is_the_bundle_is_trusted() {
    let servers = Servers::new();
    let pair = CertifiedPair::self_signed("hostile.ns.svc");
    let fine = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let answer = get(&*raw(&servers, &pair, fine).await, "/").await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let other = CertifiedPair::self_signed("other.ns.svc");
    let answer = get(&*raw(&servers, &other, fine).await, "/").await;
    assert!(matches!(answer, Err(DelegationError::Unreachable(_))), "another name");
}

/// A certificate and who signed it.
struct CertifiedPair {
    chain_pem: String,
    key_pem: String,
    ca_pem: String,
}

impl CertifiedPair {
    fn of(servers: &Servers) -> Self {
        let pair = servers.pki.serving(&["hostile.ns.svc".to_owned()]).unwrap();
        let ca_pem = servers.pki.ca_pem().to_owned();
        Self { chain_pem: pair.chain_pem, key_pem: pair.key_pem, ca_pem }
    }

    fn self_signed(name: &str) -> Self {
        let pair = ferrokube_pki::self_signed(&[name.to_owned()]).unwrap();
        let ca_pem = pair.chain_pem.clone();
        Self { chain_pem: pair.chain_pem, key_pem: pair.key_pem, ca_pem }
    }
}
