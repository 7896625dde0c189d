//! Upgraded connections to an aggregated server through a real one, as `exec` uses them.

use crate::FERROKUBE;
use ferrokube_pki::Pki;
use ferrokube_serve::{
    Handler, ListenerLimits, Request, Response, Server, ShutdownTrigger, Tls, empty, full,
};
use ferrokube_testkit::{BOUND, Cluster, Launch, raw, wait_until};
use http::{HeaderValue, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const THING: &str = "/apis/ex.com/v1/namespaces/default/things/x";

/// Switches to SPDY for `exec`, and echoes.
struct EchoHandler;

impl Handler for EchoHandler {
    fn call(
        self: Arc<Self>,
        mut request: Request,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if path != format!("{THING}/exec") {
                let is_list = path == "/apis/ex.com/v1";
                let mut response = Response::new(full(&br#"{"resources": []}"#[..]));
                if !is_list {
                    *response.status_mut() = StatusCode::FORBIDDEN;
                }
                return response;
            }
            let mut response = Response::new(empty());
            let user = request.headers()["x-remote-user"].clone();
            response.headers_mut().insert("x-user", user);
            let protocol = request.headers()["upgrade"].clone();
            response.headers_mut().insert("upgrade", protocol);
            response.headers_mut().insert("connection", HeaderValue::from_static("Upgrade"));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(stream) = upgrade.await else { return };
                let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
            response
        })
    }
}

/// The head of a response.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

fn upgrade(path: &str) -> String {
    format!(
        "POST {path}?command=sh HTTP/1.1\r\nhost: x\r\nx-remote-user: root\r\ncontent-length: 0\r\n\
         connection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n"
    )
}

async fn start() -> (Cluster, ShutdownTrigger, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(&directory.path().join("pki")).unwrap();
    let pair = pki.serving(&["echo.backs.svc".to_owned()]).unwrap();
    let tls = Tls::new(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(any, tls, ListenerLimits::default()).unwrap();
    let address = server.local_address();
    let (trigger, shutdown) = ShutdownTrigger::new();
    tokio::spawn(server.serve(Arc::new(EchoHandler), shutdown));
    let front = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--storage=memory")
        .flag(format!("--service-address=echo.backs={address}"))
        .start()
        .unwrap();
    let client = front.admin().unwrap();
    let service = json!({"metadata": {"name": "v1.ex.com"}, "spec": {
        "group": "ex.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "insecureSkipTLSVerify": true, "service": {"namespace": "backs", "name": "echo"}}});
    assert_eq!(client.post(SERVICES, &service).await.unwrap().status, 201);
    wait_until("the condition of the API service", BOUND, async || {
        let text = client.get(&format!("{SERVICES}/v1.ex.com")).await.unwrap().text;
        if text.contains(r#""reason":"Passed""#) { Ok(()) } else { Err(text) }
    })
    .await;
    let warning = "insecureSkipTLSVerify: the certificate of an aggregated server is not verified";
    front.wait_for_log(warning).await;
    (front, trigger, directory)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_reaches_the_aggregated_server_and_carries_bytes_both_ways() {
    let (front, _trigger, _directory) = start().await;
    let mut stream = raw(&front, "http/1.1").await.unwrap();
    stream.write_all(upgrade(&format!("{THING}/exec")).as_bytes()).await.unwrap();
    let answer = head(&mut stream).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("upgrade: spdy/3.1\r\n"), "{answer}");
    assert!(answer.contains("x-user: ") && !answer.contains("x-user: root\r\n"), "{answer}");
    for sent in [b"stdin".as_slice(), &[0xff; 100_000]] {
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let mut echo = vec![0; sent.len()];
        let (written, got) = tokio::join!(write.write_all(sent), read.read_exact(&mut echo));
        written.unwrap();
        got.unwrap();
        assert_eq!(echo, sent);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_45_a_refused_upgrade_is_a_response_like_any_other() {
    let (front, _trigger, _directory) = start().await;
    let mut stream = raw(&front, "http/1.1").await.unwrap();
    stream.write_all(upgrade(&format!("{THING}/attach")).as_bytes()).await.unwrap();
    let answer = head(&mut stream).await;
    assert!(answer.starts_with("http/1.1 403 "), "{answer}");
}
