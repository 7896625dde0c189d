//! CPU time per request in process, without sockets and TLS: `cargo run --release -p
//! ferrokube-controlplane --example request_cost`.
//!
//! Budgets of the whole server (with TLS): a get 40 us, a create 100 us, a list of 10,000 objects
//! of 1.4 KiB 9 ms.

use bytes::Buf;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::{Authenticator, Credentials, Identity, Unauthenticated};
use ferrokube_controlplane::ApiServer;
use ferrokube_registry::admission::AllowAll;
use ferrokube_registry::{Catalog, Registry};
use ferrokube_serve::Chunk;
use ferrokube_storage::{Config, Store};
use http::Request;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OBJECTS: usize = 10_000;

struct Master;

impl Authenticator for Master {
    fn authenticate(
        &self,
        _credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        let user = UserInfo {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        Ok(Some(Identity::new(user, "test")))
    }
}

/// User and system time of all threads.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("there is a /proc");
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

async fn measure(what: &str, rounds: usize, mut run: impl AsyncFnMut(usize)) {
    let (before, started) = (cpu(), Instant::now());
    for round in 0..rounds {
        run(round).await;
    }
    let each = |total: Duration| total.as_secs_f64() * 1e6 / rounds as f64;
    println!(
        "{what:<40} {:>9.1} us CPU  {:>9.1} us wall",
        each(cpu() - before),
        each(started.elapsed())
    );
}

async fn send(plane: &ApiServer, method: &str, path: String, accept: &str, body: String) -> usize {
    let (path, encoding) =
        path.strip_suffix("#gzip").map_or((path.as_str(), "identity"), |path| (path, "gzip"));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("accept-encoding", encoding)
        .header("accept", accept)
        .header("content-type", "application/json")
        .header("user-agent", "cost/1.0")
        .body(ferrokube_serve::full(body))
        .expect("a request");
    let response = plane.call(request).await;
    let ok = response.status().is_success();
    let mut body = response.into_body();
    let mut bytes = 0;
    let mut first = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.expect("whole").into_data() else { continue };
        bytes += data.remaining();
        first.get_or_insert(data);
    }
    assert!(ok, "{:?}", first.map(Chunk::into_bytes));
    bytes
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    let registry = Registry::new(
        Store::open(Config::memory()).expect("memory opens"),
        catalog,
        Arc::new(AllowAll),
    );
    let plane = ApiServer::builder(registry)
        .authenticator(Arc::new(Master))
        .messages(ferrokube_resources::messages())
        .schemas(Arc::new(|name| ferrokube_resources::tables().get(name)))
        .build();
    plane.start().await.expect("started");
    let all = "/api/v1/namespaces/default/configmaps";
    let value = "x".repeat(1024);
    let json = "application/json";
    measure("create 1 KiB", OBJECTS, async |n| {
        let body = format!("{{\"metadata\":{{\"name\":\"n{n}\"}},\"data\":{{\"k\":\"{value}\"}}}}");
        send(&plane, "POST", all.to_owned(), json, body).await;
    })
    .await;
    measure("get", OBJECTS * 5, async |n| {
        send(&plane, "GET", format!("{all}/n{}", n % OBJECTS), json, String::new()).await;
    })
    .await;
    measure("get metadata", OBJECTS, async |n| {
        send(
            &plane,
            "GET",
            format!("{all}/n{n}"),
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            String::new(),
        )
        .await;
    })
    .await;
    measure("get protobuf", OBJECTS, async |n| {
        send(
            &plane,
            "GET",
            format!("{all}/n{n}"),
            "application/vnd.kubernetes.protobuf",
            String::new(),
        )
        .await;
    })
    .await;
    measure("list 10,000", 50, async |_| {
        assert!(send(&plane, "GET", all.to_owned(), json, String::new()).await > OBJECTS * 1024);
    })
    .await;
    measure("list 10,000 gzip, first", 1, async |_| {
        send(&plane, "GET", format!("{all}#gzip"), json, String::new()).await;
    })
    .await;
    measure("list 10,000 gzip", 50, async |_| {
        send(&plane, "GET", format!("{all}#gzip"), json, String::new()).await;
    })
    .await;
    measure("list 10,000 metadata", 50, async |_| {
        send(
            &plane,
            "GET",
            all.to_owned(),
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            String::new(),
        )
        .await;
    })
    .await;
    measure("list 10,000 table", 5, async |_| {
        send(
            &plane,
            "GET",
            all.to_owned(),
            "application/json;as=Table;v=v1;g=meta.k8s.io",
            String::new(),
        )
        .await;
    })
    .await;
    measure("list 10,000 protobuf", 5, async |_| {
        send(&plane, "GET", all.to_owned(), "application/vnd.kubernetes.protobuf", String::new())
            .await;
    })
    .await;
    measure("version", OBJECTS, async |_| {
        send(&plane, "GET", "/version".to_owned(), json, String::new()).await;
    })
    .await;
}
