//! Clients in the process of the listener.
#![allow(clippy::unwrap_used, missing_docs, reason = "test code")]

mod support;

use bytes::Bytes;
use ferrokube_pki::{LEAF_LIFETIME, Pair, Pki, Subject};
use ferrokube_serve::{
    InProcessBody, InProcessClient, ListenerLimits, Server, ShutdownTrigger, Tls, TlsError,
};
use http_body_util::{BodyExt, Full};
use hyper::service::Service;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::{TestHandler, bounded, get, setup};
use tokio::sync::Semaphore;

const SOMEONE: Subject<'_> = Subject { common_name: "someone", organizations: &["group"] };

async fn text(response: http::Response<InProcessBody>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn answer(client: &InProcessClient, path: &str) -> String {
    text(bounded(client.call(get(path))).await.unwrap()).await
}

fn refusal(answered: io::Result<http::Response<InProcessBody>>) -> io::ErrorKind {
    answered.map(|response| response.status()).unwrap_err().kind()
}

#[tokio::test]
async fn fault_53_a_client_in_the_process_is_who_its_certificate_says_now() {
    let setup = setup(ListenerLimits::default());
    let client = |pair: &Pair| setup.in_process.client(pair).unwrap();
    let own = client(&setup.pki.client(&SOMEONE, LEAF_LIFETIME).unwrap());
    assert_eq!(answer(&own, "/peer").await, "1 0 false");
    assert_eq!(answer(&own, "/address").await, "127.0.0.1:0");
    assert_eq!(answer(&setup.in_process.anonymous_client(), "/peer").await, "0 0 false");
    // For servers only.
    let serving = client(&setup.pki.serving(&["localhost".into()]).unwrap());
    assert_eq!(answer(&serving, "/peer").await, "0 0 true");
    let directory = tempfile::tempdir().unwrap();
    let other = Pki::open(&directory.path().join("pki")).unwrap();
    let foreign = client(&other.client(&SOMEONE, LEAF_LIFETIME).unwrap());
    assert_eq!(answer(&foreign, "/peer").await, "0 0 true");
    setup.tls.replace_client_ca(other.client_ca_pem().as_bytes()).unwrap();
    assert_eq!(answer(&foreign, "/peer").await, "1 0 false");
    assert_eq!(answer(&own, "/peer").await, "0 0 true");
    assert_eq!(setup.stats.accepted.load(Ordering::Relaxed), 0, "no connection");
    assert_eq!(setup.stats.requests.load(Ordering::Relaxed), 7);
}

#[tokio::test]
async fn a_certificate_without_its_key_makes_no_client() {
    let setup = setup(ListenerLimits::default());
    let [mut shown, other] = [(); 2].map(|()| setup.pki.client(&SOMEONE, LEAF_LIFETIME).unwrap());
    shown.key_pem = other.key_pem;
    assert!(matches!(setup.in_process.client(&shown).unwrap_err(), TlsError::Pair(_)));
    shown.key_pem = String::new();
    assert!(matches!(setup.in_process.client(&shown).unwrap_err(), TlsError::Pem { .. }));
}

#[tokio::test]
async fn requests_of_the_process_are_guarded_like_others() {
    let setup = setup(ListenerLimits::default());
    let client = setup.in_process.anonymous_client();
    for path in ["/panic", "/panic-at-once"] {
        let response = bounded(client.call(get(path))).await.unwrap();
        assert_eq!(response.status(), 500);
        assert_eq!(text(response).await, "by the hook");
    }
    let post = |body: &'static str| {
        http::Request::post("/body").body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
    };
    assert_eq!(text(client.call(post("abc")).await.unwrap()).await, "abc");
    // Closing the connection of one request closes that of no other.
    assert_eq!(answer(&client, "/close").await, "bye");
    assert_eq!(answer(&client, "/").await, "HTTP/2.0");
    assert_eq!(answer(&client, "/large").await.len(), 64 << 20);
    let frames: Vec<u8> = (0..support::LENT_FRAMES)
        .flat_map(|at| [10, 3000, 20_000].map(|length| support::lent(at, length)))
        .flatten()
        .collect();
    let lent = client.call(get("/lent")).await.unwrap().into_body().collect().await.unwrap();
    assert!(lent.to_bytes() == frames);
    assert_eq!(setup.stats.held.bytes(), 0);
}

#[tokio::test]
async fn a_dropped_request_ends() {
    let setup = setup(ListenerLimits::default());
    let client = setup.in_process.anonymous_client();
    let hung = tokio::spawn(client.call(get("/hang")));
    let _ = bounded(setup.handler.hung.acquire()).await.unwrap();
    hung.abort();
    setup.trigger.begin();
    assert_eq!(bounded(setup.serving).await.unwrap(), 0, "nothing is left to wait for");
}

#[tokio::test]
async fn a_shutdown_waits_for_answers_and_accepts_no_more_requests() {
    let setup = setup(ListenerLimits::default());
    let client = setup.in_process.anonymous_client();
    let watch = bounded(client.call(get("/watch"))).await.unwrap();
    let hung = tokio::spawn(client.call(get("/hang")));
    let _ = bounded(setup.handler.hung.acquire()).await.unwrap();
    setup.trigger.begin();
    assert_eq!(refusal(client.call(get("/")).await), io::ErrorKind::ConnectionRefused);
    assert!(!setup.serving.is_finished());
    setup.handler.release.add_permits(1);
    assert_eq!(text(bounded(hung).await.unwrap().unwrap()).await, "released");
    assert_eq!(bounded(setup.serving).await.unwrap(), 0);
    assert_eq!(text(watch).await, "begin end");
    // Also a client that is made now.
    let late = setup.in_process.anonymous_client();
    assert_eq!(refusal(late.call(get("/")).await), io::ErrorKind::ConnectionRefused);
    assert_eq!(Arc::strong_count(&setup.handler), 1, "clients keep nothing");
}

/// Not shut down: as with connections, nothing of a request or stream stays.
#[tokio::test]
async fn a_listener_that_is_dropped_cuts_off_what_is_open() {
    let setup = setup(ListenerLimits::default());
    let client = setup.in_process.anonymous_client();
    let mut watch = bounded(client.call(get("/watch"))).await.unwrap().into_body();
    assert!(bounded(watch.frame()).await.unwrap().is_ok());
    let watch = tokio::spawn(async move {
        let last = watch.frame().await.unwrap().map(|_| ());
        (last, watch.frame().await.is_none())
    });
    let complete = bounded(client.call(get("/large"))).await.unwrap();
    let hung = tokio::spawn(client.call(get("/hang")));
    let _ = bounded(setup.handler.hung.acquire()).await.unwrap();
    setup.serving.abort();
    let (last, is_over) = bounded(watch).await.unwrap();
    assert_eq!(last.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert!(is_over);
    assert_eq!(refusal(bounded(hung).await.unwrap()), io::ErrorKind::ConnectionRefused);
    assert_eq!(refusal(client.call(get("/")).await), io::ErrorKind::ConnectionRefused);
    assert_eq!(text(complete).await.len(), 64 << 20, "it is the client's");
    assert_eq!(Arc::strong_count(&setup.handler), 1);
}

#[tokio::test]
async fn a_drain_does_not_wait_for_ever() {
    let drain = Duration::from_millis(50);
    let setup = setup(ListenerLimits { drain, ..ListenerLimits::default() });
    let client = setup.in_process.anonymous_client();
    let _hung = tokio::spawn(client.call(get("/hang")));
    let _ = bounded(setup.handler.hung.acquire()).await.unwrap();
    setup.trigger.begin();
    assert_eq!(bounded(setup.serving).await.unwrap(), 1);
}

#[tokio::test]
async fn requests_wait_until_the_listener_serves() {
    let pair = ferrokube_pki::self_signed(&["localhost".to_owned()]).unwrap();
    let tls = Tls::new(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(any, tls, ListenerLimits::default()).unwrap();
    let early = tokio::spawn(server.in_process().anonymous_client().call(get("/")));
    let (trigger, shutdown) = ShutdownTrigger::new();
    let handler = Arc::new(TestHandler {
        shutdown: shutdown.clone(),
        hung: Semaphore::new(0),
        release: Semaphore::new(0),
    });
    tokio::task::yield_now().await;
    assert!(!early.is_finished());
    let serving = tokio::spawn(server.serve(handler, shutdown));
    assert_eq!(text(bounded(early).await.unwrap().unwrap()).await, "HTTP/2.0");
    trigger.begin();
    bounded(serving).await.unwrap();
}
