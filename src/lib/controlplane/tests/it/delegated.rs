//! Requests for aggregated group versions, and flow control.

use crate::priority::{REQUESTS, begin, has_level, level, read, schema, until};
use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::json;
use ferrokube_controlplane::Limits;
use ferrokube_controlplane::aggregator::{Aggregator, ListedServices, ProxyIdentity};
use ferrokube_pki::Pki;
use ferrokube_serve::{
    Body, Handler, ListenerLimits, Request, Response, Server, Shutdown, ShutdownTrigger, Tls,
};
use http::StatusCode;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinSet;

const THINGS: &str = "/apis/ex.com/v1/namespaces/default/things";

/// Answers discovery and nothing else.
#[derive(Default)]
struct HungHandler {
    calls: AtomicUsize,
}

impl Handler for HungHandler {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let path = request.uri().path();
            if path.contains("/things") {
                self.calls.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            let is_list = path == "/apis/ex.com/v1";
            let list = br#"{"resources": [{"name": "things", "namespaced": true, "kind": "Thing", "verbs": ["get"]}]}"#;
            let mut response = Response::new(ferrokube_serve::full(&list[..]));
            if !is_list {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            response
        })
    }
}

/// A server whose user `reader` has a level with two seats, in front of one that hangs.
struct Fronted {
    server: TestServer,
    hung: Arc<HungHandler>,
    _directory: tempfile::TempDir,
    _trigger: ShutdownTrigger,
}

impl Fronted {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki")).unwrap();
        let pair = pki.serving(&["hung.backs.svc".to_owned()]).unwrap();
        let tls = Tls::new(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Server::bind(any, tls, ListenerLimits::default()).unwrap();
        let entry = format!("hung.backs={}", listener.local_address()).parse().unwrap();
        let (trigger, shutdown): (ShutdownTrigger, Shutdown) = ShutdownTrigger::new();
        let hung = Arc::new(HungHandler::default());
        tokio::spawn(listener.serve(Arc::clone(&hung) as _, shutdown));
        let services = Arc::new(ListedServices::new([entry]));
        let aggregator = Aggregator::new(services, ProxyIdentity::default());
        let limits = Limits { readonly_inflight: 200, mutating_inflight: 92, ..Limits::default() };
        let server =
            TestServer::with(|builder| builder.limits(limits).aggregator(aggregator)).await;
        let service = json!({"metadata": {"name": "v1.ex.com"}, "spec": {
            "group": "ex.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true, "service": {"namespace": "backs", "name": "hung"}}});
        let services = "/apis/apiregistration.k8s.io/v1/apiservices";
        assert_eq!(server.post(services, &service).await.code, 201);
        until(&server, &format!("{services}/v1.ex.com"), |response| {
            response.text().contains(r#""reason":"Passed""#)
        })
        .await;
        let levels = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
        let small = level("small", json!({"type": "Reject"}));
        assert_eq!(server.post(levels, &small).await.code, 201);
        let schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
        assert_eq!(server.post(schemas, &schema("s", "small", "reader")).await.code, 201);
        until(&server, &format!("{schemas}/s"), has_level).await;
        Self { server, hung, _directory: directory, _trigger: trigger }
    }

    /// Requests of `reader` that the other server has got.
    async fn hang(&self, path: &'static str, count: usize) -> JoinSet<u16> {
        let mut set = JoinSet::new();
        let before = self.hung.calls.load(Ordering::Relaxed);
        for _ in 0..count {
            let plane = self.server.plane.clone();
            let request =
                http::Request::builder().uri(path).header("authorization", "Bearer reader");
            let request: http::Request<Body> = request.body(ferrokube_serve::empty()).unwrap();
            set.spawn(async move { plane.call(request).await.status().as_u16() });
        }
        while self.hung.calls.load(Ordering::Relaxed) < before + count {
            tokio::task::yield_now().await;
        }
        set
    }
}

#[tokio::test]
async fn a_hung_server_does_not_keep_the_seats_of_a_level() {
    let front = Fronted::new().await;
    let mut hung = front.hang(THINGS, 2).await;
    // Their seats are free again before they are answered.
    until(&front.server, REQUESTS, |response| !response.text().contains("things")).await;
    assert_eq!(read(&front.server, "reader", CONFIGMAPS).await.code, 200);
    assert!(hung.try_join_next().is_none(), "they still wait");
}

#[tokio::test]
async fn a_delegated_request_needs_a_seat_of_its_level() {
    let front = Fronted::new().await;
    let mut held = begin(&front.server, "reader", 2).await;
    let rejected = read(&front.server, "reader", THINGS).await;
    assert_eq!((rejected.code, rejected.header("retry-after")), (429, "1"));
    assert_eq!(front.hung.calls.load(Ordering::Relaxed), 0);
    held.codes.shutdown().await;
    let _hung = front.hang(THINGS, 1).await;
    let metrics = front.server.get("/metrics").await.text();
    let line = "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"small\",flow_schema=\"s\"} 3";
    assert!(metrics.lines().any(|known| known == line), "{metrics}");
}

#[tokio::test]
async fn a_delegated_watch_needs_a_seat_only_to_begin() {
    let front = Fronted::new().await;
    const WATCH: &str = "/apis/ex.com/v1/namespaces/default/things?watch=1";
    let _hung = front.hang(WATCH, 1).await;
    let _others = front.hang(WATCH, 2).await;
    let dump = front.server.get(REQUESTS).await.text();
    assert!(!dump.contains("things"), "{dump}");
}
