//! Flow control: no caller takes every seat or byte, and idle requests hold none.

use crate::priority::with_a_small_level;
use crate::support::{CONFIGMAPS, StoppedClock, TestResponse, TestServer};
use bytes::Bytes;
use ferrokube_apimachinery::document::json;
use ferrokube_controlplane::{Limits, Route, RouteFuture, RouteRequest};
use ferrokube_registry::offload::has_slot;
use ferrokube_serve::{Body, Chunk, Peer};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::JoinSet;

const FUTURE: &str =
    "/api/v1/namespaces/default/configmaps/none?resourceVersion=9000000000000000000";

fn silent() -> Body {
    ferrokube_serve::stream(futures::stream::pending())
}

async fn limited(change: impl FnOnce(&mut Limits)) -> TestServer {
    let mut limits = Limits::default();
    change(&mut limits);
    TestServer::with(|builder| builder.limits(limits)).await
}

/// Without priority levels, and with paused time.
async fn in_pools(change: impl FnOnce(&mut Limits)) -> TestServer {
    paused(|limits| {
        limits.priority_and_fairness = false;
        change(limits);
    })
    .await
}

/// The same as [`limited`], with paused time.
async fn paused(change: impl FnOnce(&mut Limits)) -> TestServer {
    let mut limits = Limits::default();
    change(&mut limits);
    TestServer::paused(|builder| builder.limits(limits)).await
}

/// Pending requests.
struct PendingRequests(JoinSet<u16>);

impl PendingRequests {
    async fn of(
        server: &TestServer,
        count: usize,
        request: impl Fn(usize) -> http::Request<Body>,
    ) -> Self {
        let mut set = JoinSet::new();
        for number in 0..count {
            let (plane, request) = (server.plane.clone(), request(number));
            set.spawn(async move { plane.call(request).await.status().as_u16() });
        }
        // Each was polled and has got as far as it can: it may wait for a slot that another test
        // has, on another thread.
        let _clock = StoppedClock::held();
        for _ in 0..50 {
            for _ in 0..4 * count {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Self(set)
    }

    /// Codes of the requests that have ended.
    fn ended(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.0.try_join_next()).map(Result::unwrap).collect()
    }
}

fn request(method: &str, path: &str, user: &str, body: Body) -> http::Request<Body> {
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    if !user.is_empty() {
        request = request.header("authorization", format!("Bearer {user}"));
    }
    request.body(body).unwrap()
}

/// A request without credentials from an address.
fn anonymous(method: &str, path: &str, address: &str, body: Body) -> http::Request<Body> {
    let mut request = request(method, path, "", body);
    let address = SocketAddr::new(address.parse().unwrap(), 1);
    let peer =
        Peer { address, certificate: None, proxy_certificate: None, unverified_certificate: false };
    request.extensions_mut().insert(Arc::new(peer));
    request
}

async fn create(server: &TestServer, user: &str, name: &str) -> TestResponse {
    server
        .send(
            "POST",
            CONFIGMAPS,
            &[("authorization", &format!("Bearer {user}"))],
            json!({"metadata": {"name": name}}).to_string(),
        )
        .await
}

/// A request that is answered without a wait: paused time does not pass meanwhile.
async fn call(server: &TestServer, request: http::Request<Body>) -> ferrokube_serve::Response {
    let _clock = StoppedClock::held();
    server.plane.call(request).await
}

/// A read for which time has to pass.
async fn read_in_time(server: &TestServer, user: &str, path: &str) -> TestResponse {
    let request = request("GET", path, user, ferrokube_serve::empty());
    TestResponse::read(server.plane.call(request).await).await
}

async fn read(server: &TestServer, user: &str, path: &str) -> TestResponse {
    server.send("GET", path, &[("authorization", &format!("Bearer {user}"))], "").await
}

/// Servers with few seats: one in pools, and one whose level of these users has two.
async fn with_few_seats(users: &[&str]) -> [TestServer; 2] {
    let pools = limited(|limits| {
        limits.priority_and_fairness = false;
        (limits.mutating_inflight, limits.readonly_inflight) = (4, 4);
    })
    .await;
    [pools, with_a_small_level(users, json!({"type": "Reject"})).await]
}

#[tokio::test]
async fn stalled_bodies_hold_no_seat() {
    for server in with_few_seats(&["writer"]).await {
        let mut begun =
            PendingRequests::of(&server, 20, |_| request("POST", CONFIGMAPS, "writer", silent()))
                .await;
        assert_eq!(begun.ended(), [0_u16; 0], "none was refused, and none is answered");
        for user in ["writer", "writer-two"] {
            assert_eq!(create(&server, user, user).await.code, 201, "{user}");
        }
        assert_eq!(begun.ended(), [0_u16; 0]);
    }
}

#[tokio::test]
async fn rejected_requests_hold_no_seat_while_their_body_is_dropped() {
    for server in with_few_seats(&["reader", "system:anonymous"]).await {
        let _unknown = PendingRequests::of(&server, 20, |number| {
            anonymous("POST", CONFIGMAPS, &format!("10.0.0.{number}"), silent())
        })
        .await;
        let _forbidden =
            PendingRequests::of(&server, 20, |_| request("POST", CONFIGMAPS, "reader", silent()))
                .await;
        let _wrong =
            PendingRequests::of(&server, 20, |_| request("POST", CONFIGMAPS, "bad", silent()))
                .await;
        assert_eq!(create(&server, "writer", "a").await.code, 201);
        // Of the level of those that were refused.
        assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 200);
    }
}

#[tokio::test]
async fn no_caller_takes_more_than_it_leaves() {
    let server = in_pools(|limits| limits.readonly_inflight = 8).await;
    let _greedy = PendingRequests::of(&server, 100, |_| {
        request("GET", FUTURE, "reader", ferrokube_serve::empty())
    })
    .await;
    let started = tokio::time::Instant::now();
    for user in ["reader-two", "reader-three"] {
        assert_eq!(read(&server, user, CONFIGMAPS).await.code, 200, "{user}");
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "they did not wait");
    let places = server.get("/metrics").await.text();
    assert!(
        places.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 4"),
        "{places}"
    );
}

#[tokio::test]
async fn waiters_get_a_seat_or_a_retry_after() {
    let server = in_pools(|limits| limits.readonly_inflight = 1).await;
    let mut first = PendingRequests::of(&server, 1, |_| {
        request("GET", FUTURE, "reader", ferrokube_serve::empty())
    })
    .await;
    // The seat is free again after three seconds.
    assert_eq!(read_in_time(&server, "reader-two", CONFIGMAPS).await.code, 200, "it waited");
    tokio::task::yield_now().await;
    assert_eq!(first.ended(), [504]);

    let mut many = PendingRequests::of(&server, 60, |_| {
        request("GET", FUTURE, "reader", ferrokube_serve::empty())
    })
    .await;
    let answer = read_in_time(&server, "reader", CONFIGMAPS).await;
    assert_eq!(
        (answer.code, answer.text().as_str(), answer.header("retry-after")),
        (429, "Too many requests, please try again later.\n", "1")
    );
    many.0.shutdown().await;
    assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 200, "nothing is left behind");
}

#[tokio::test]
async fn probes_and_masters_need_no_seat() {
    let server = in_pools(|limits| limits.readonly_inflight = 1).await;
    let _taken = PendingRequests::of(&server, 1, |_| {
        request("GET", FUTURE, "reader", ferrokube_serve::empty())
    })
    .await;
    let started = tokio::time::Instant::now();
    assert_eq!(read(&server, "admin", CONFIGMAPS).await.code, 200);
    for path in ["/healthz", "/livez", "/readyz", "/livez/ping"] {
        assert_eq!(
            call(&server, request("GET", path, "admin", ferrokube_serve::empty())).await.status(),
            200,
            "{path}"
        );
    }
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(
            call(&server, anonymous("GET", path, "10.0.0.1", ferrokube_serve::empty()))
                .await
                .status(),
            200,
            "{path}"
        );
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn slow_bodies_are_shared_among_callers() {
    let server = paused(|limits| limits.slow_bodies = 8).await;
    let mut begun =
        PendingRequests::of(&server, 20, |_| request("POST", CONFIGMAPS, "writer", silent())).await;
    let mut other =
        PendingRequests::of(&server, 1, |_| request("POST", CONFIGMAPS, "writer-two", silent()))
            .await;
    assert_eq!(read_large(&server, "writer").await, 400, "a body that is there is not slow");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(begun.ended(), [429; 16], "requests without room are rejected in time");
    assert_eq!(other.ended(), [0_u16; 0]);
}

#[tokio::test]
async fn stalled_bodies_yield_to_those_of_others() {
    let server = paused(|limits| limits.slow_bodies = 16).await;
    let mut begun = PendingRequests::of(&server, 64, |number| {
        request("POST", CONFIGMAPS, &format!("writer-{}", number % 8), silent())
    })
    .await;
    let started = tokio::time::Instant::now();
    let mut newcomers = PendingRequests::of(&server, 4, |number| {
        request("POST", CONFIGMAPS, &format!("writer-new-{number}"), silent())
    })
    .await;
    let mut master =
        PendingRequests::of(&server, 1, |_| request("POST", CONFIGMAPS, "admin", silent())).await;
    assert_eq!((newcomers.ended(), master.ended()), (Vec::new(), Vec::new()));
    assert!(begun.ended().len() >= 2, "of those that hold most");
    let (sender, body) = futures::channel::mpsc::unbounded();
    let plane = server.plane.clone();
    let mut late = Box::pin(async move {
        plane
            .call(request("POST", CONFIGMAPS, "writer-late", ferrokube_serve::stream(body)))
            .await
            .status()
    });
    assert!(futures::poll!(late.as_mut()).is_pending());
    sender.unbounded_send(Ok(Bytes::from_static(b"[]"))).unwrap();
    drop(sender);
    let _clock = StoppedClock::held();
    assert_eq!(late.await, 400, "a slow one is read to its end");
    assert_eq!(started.elapsed(), Duration::ZERO, "nobody waited for those that stopped");
    begun.0.shutdown().await;
}

#[tokio::test]
async fn large_heads_of_requests_are_shared() {
    let server = paused(|limits| limits.heads_bytes = 64 << 10).await;
    let with_head = |user: &str, bytes: usize| {
        let mut request = request("GET", FUTURE, user, ferrokube_serve::empty());
        request.headers_mut().insert("cookie", "x".repeat(bytes).parse().unwrap());
        request
    };
    let mut greedy = PendingRequests::of(&server, 10, |_| with_head("reader", 20_000)).await;
    assert_eq!(greedy.ended(), [429; 9], "one caller takes as much as it leaves");
    let [.., heads] = held_by_all(&server).await;
    assert!((20_000..22_000).contains(&heads), "{heads}");
    let mut others =
        PendingRequests::of(&server, 2, |number| with_head(&format!("reader-{number}"), 20_000))
            .await;
    let mut short = PendingRequests::of(&server, 10, |_| with_head("reader", 2_000)).await;
    assert_eq!((others.ended(), short.ended()), (Vec::new(), Vec::new()));
    // Many short fields take more memory than their text.
    let mut many = request("GET", FUTURE, "reader-three", ferrokube_serve::empty());
    for number in 0..500 {
        many.headers_mut().insert(
            http::HeaderName::try_from(format!("x-{number}")).unwrap(),
            http::HeaderValue::from_static(""),
        );
    }
    assert_eq!(call(&server, many).await.status(), 429);
    for mut begun in [greedy, others, short] {
        begun.0.shutdown().await;
    }
    assert_eq!(held_by_all(&server).await, [0; 5]);
}

/// Bytes whose clones are counted.
struct CountedBytes(Arc<[u8]>);

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[tokio::test]
async fn the_head_of_a_rejected_request_is_freed_before_its_body() {
    let server = limited(|_| {}).await;
    let kept: Arc<[u8]> = Arc::from(*b"kept");
    let mut refused = request("POST", CONFIGMAPS, "bad", silent());
    let value =
        http::HeaderValue::from_maybe_shared(Bytes::from_owner(CountedBytes(Arc::clone(&kept))))
            .unwrap();
    refused.headers_mut().insert("cookie", value);
    let plane = server.plane.clone();
    let mut refusing = Box::pin(async move { plane.call(refused).await.status() });
    assert!(futures::poll!(refusing.as_mut()).is_pending());
    assert_eq!(Arc::strong_count(&kept), 1);
}

/// A body that decodes to far more than its length.
fn inflating(bytes: usize) -> Bytes {
    let mut body = b"[".to_vec();
    while body.len() < bytes {
        body.extend_from_slice(b"{\"\":0},");
    }
    body.extend_from_slice(b"0]");
    body.into()
}

/// Bytes held by requests: bodies, trees, waiting for webhooks.
async fn held(server: &TestServer) -> [usize; 3] {
    let [held @ .., _, _] = held_by_all(server).await;
    held
}

/// The same, then lists and heads.
async fn held_by_all(server: &TestServer) -> [usize; 5] {
    let metrics = server.get("/metrics").await.text();
    ["bodies", "trees", "webhooks", "lists", "heads"].map(|of| {
        let name = format!("ferrokube_request_bytes{{of=\"{of}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("a gauge");
        line.parse().unwrap()
    })
}

/// A body that is shorter than announced.
struct Stopping {
    sent: Option<Bytes>,
    announced: u64,
}

impl http_body::Body for Stopping {
    type Data = Chunk;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, io::Error>>> {
        self.sent
            .take()
            .map_or(Poll::Pending, |sent| Poll::Ready(Some(Ok(Frame::data(sent.into())))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.announced)
    }
}

fn stopping(sent: usize, announced: u64) -> Body {
    Stopping { sent: Some(vec![b' '; sent].into()), announced }.boxed_unsync()
}

/// A body of 20 KB that is read and then rejected: with paused time, a request that waits for the
/// disk or another thread would time out.
async fn read_large(server: &TestServer, user: &str) -> u16 {
    call(server, request("POST", CONFIGMAPS, user, ferrokube_serve::full(inflating(20_000))))
        .await
        .status()
        .as_u16()
}

const MIB: usize = 1 << 20;

#[tokio::test]
async fn bytes_of_bodies_are_shared() {
    let server = paused(|limits| limits.bodies_bytes = 12 * MIB).await;
    let mut greedy = PendingRequests::of(&server, 20, |_| {
        request("POST", CONFIGMAPS, "writer", stopping(1_000_000, 3_000_000))
    })
    .await;
    assert_eq!(held(&server).await, [6 * MIB, 0, 0], "one caller takes as much as it leaves");
    assert_eq!(read_large(&server, "writer-two").await, 400, "another has room at once");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(greedy.ended(), [429; 14], "requests without room are rejected in time");
    greedy.0.shutdown().await;
    assert_eq!(held(&server).await, [0, 0, 0]);
}

#[tokio::test]
async fn a_body_takes_what_has_arrived_of_it() {
    let server = paused(|limits| limits.bodies_bytes = 12 * MIB).await;
    let _begun = PendingRequests::of(&server, 32, |number| {
        request("POST", CONFIGMAPS, &format!("writer-{}", number % 4), stopping(9_000, 3_000_000))
    })
    .await;
    assert_eq!(held(&server).await, [2 * MIB, 0, 0], "two steps of 64 KiB have not even begun");
    let started = tokio::time::Instant::now();
    for user in ["admin", "writer-five"] {
        assert_eq!(read_large(&server, user).await, 400, "{user}");
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn stopped_bodies_are_dropped_for_those_of_others() {
    let server = paused(|limits| limits.bodies_bytes = 4 * MIB).await;
    let mut begun = PendingRequests::of(&server, 64, |number| {
        request("POST", CONFIGMAPS, &format!("writer-{}", number % 8), stopping(500_000, 3_000_000))
    })
    .await;
    let [bodies, ..] = held(&server).await;
    assert!(bodies > 3 * MIB, "{bodies}");
    let started = tokio::time::Instant::now();
    for number in 0..20 {
        assert_eq!(read_large(&server, &format!("writer-new-{number}")).await, 400);
    }
    assert_eq!(read_large(&server, "admin").await, 400);
    assert_eq!(started.elapsed(), Duration::ZERO);
    begun.0.shutdown().await;
    assert_eq!(held(&server).await, [0, 0, 0]);
}

#[tokio::test]
async fn masters_have_a_reserve_of_bytes() {
    let without_trees = limited(|limits| limits.trees_bytes = 1).await;
    let server = paused(|limits| limits.bodies_bytes = 1 << 16).await;
    assert_eq!(read_large(&without_trees, "writer").await, 413, "for others there is nothing here");
    let mut all = PendingRequests::of(&server, 1, |_| {
        request("POST", CONFIGMAPS, "writer", stopping(60_000, 3_000_000))
    })
    .await;
    assert_eq!(held(&server).await, [1 << 16, 0, 0]);
    assert_eq!(read_large(&server, "admin").await, 400);
    assert_eq!(all.ended(), [0_u16; 0]);
}

#[tokio::test]
async fn bodies_are_decoded_as_far_as_there_is_room() {
    let server = limited(|limits| limits.trees_bytes = 64 << 20).await;
    let body = inflating(300_000);
    let mut begun = PendingRequests::of(&server, 10, |_| {
        request("POST", CONFIGMAPS, "writer", ferrokube_serve::full(body.clone()))
    })
    .await;
    let mut codes = begun.ended();
    while codes.len() < 10 {
        tokio::task::yield_now().await;
        codes.extend(begun.ended());
    }
    assert_eq!(codes, [400; 10], "those who waited had their turn");
    assert_eq!(held(&server).await, [0, 0, 0]);
    let announced = http::Request::builder()
        .method("POST")
        .uri(CONFIGMAPS)
        .header("authorization", "Bearer writer");
    let answer =
        call(&server, announced.body(ferrokube_serve::full(vec![b' '; 3_200_000])).unwrap()).await;
    assert_eq!(answer.status(), 413);
}

#[tokio::test]
async fn fault_38_a_read_that_waits_holds_nothing_of_a_body() {
    let server = limited(|_| {}).await;
    let (sender, body) = futures::channel::mpsc::unbounded();
    let body = ferrokube_serve::stream(body);
    let mut read = request("GET", FUTURE, "reader", body);
    *read.version_mut() = http::Version::HTTP_2;
    sender.unbounded_send(Ok(Bytes::from_static(b"unread"))).unwrap();
    let plane = server.plane.clone();
    let mut waiting = Box::pin(async move { plane.call(read).await.status() });
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert!(sender.is_closed(), "dropped before the answer");
}

#[tokio::test]
async fn a_tree_above_the_budget_is_rejected_at_once() {
    let server = paused(|_| ()).await;
    let started = tokio::time::Instant::now();
    let send = |content_type: &str, body: Vec<u8>| {
        let mut request = request("POST", CONFIGMAPS, "writer", ferrokube_serve::full(body));
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        call(&server, request)
    };
    assert_eq!(send("application/json", inflating(2_800_000).to_vec()).await.status(), 413);
    let flow = format!("# x\n[{}]", "a,".repeat(1_000_000)).into_bytes();
    assert_eq!(send("application/yaml", flow).await.status(), 413);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(held(&server).await, [0, 0, 0]);
}

#[tokio::test]
async fn a_body_is_charged_in_the_form_in_which_it_is_read() {
    let server = limited(|limits| limits.trees_bytes = 8 << 20).await;
    let text = "- a\n".repeat(25_000);
    for (content_type, code) in [("application/yaml", 400), ("application/YAML", 400)] {
        let mut request =
            request("POST", CONFIGMAPS, "writer", ferrokube_serve::full(text.clone()));
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        assert_eq!(call(&server, request).await.status(), code, "{content_type}");
    }
    // 14 MB, where plain JSON of this length takes next to nothing.
    let text = "- a\n".repeat(90_000);
    for content_type in ["application/yaml", "application/YAML", "Application/Yaml;x=y"] {
        let mut request =
            request("POST", CONFIGMAPS, "writer", ferrokube_serve::full(text.clone()));
        request.headers_mut().insert("content-type", content_type.parse().unwrap());
        assert_eq!(call(&server, request).await.status(), 413, "{content_type}");
    }
}

/// 200 objects, and room for lists of about a thousand. Nothing waits for the committer any more.
async fn with_short_lists() -> TestServer {
    let server = limited(|limits| {
        limits.lists_bytes = 8 << 10;
        // Seats for all, whatever the machine has.
        (limits.readonly_inflight, limits.mutating_inflight) = (400, 200);
    })
    .await;
    for number in 0..200 {
        assert_eq!(create(&server, "writer", &format!("c{number:03}")).await.code, 201);
    }
    tokio::time::pause();
    server
}

#[tokio::test]
async fn a_list_holds_room_for_its_page_and_not_for_its_kind() {
    let server = with_short_lists().await;
    let first = read(&server, "reader", &format!("{CONFIGMAPS}?limit=150")).await.json();
    let next = format!("limit=150&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let state = format!(
        "limit=2&resourceVersion={}",
        first["metadata"]["resourceVersion"].as_str().unwrap()
    );
    let mut untaken = Vec::new();
    for (query, items, held) in [
        ("labelSelector=is%3Dthere", 0, 0),
        ("fieldSelector=metadata.name%3Dc001", 1, 0),
        ("limit=7", 7, 0),
        (&next, 50, 0),
        (&state, 2, 0),
        ("limit=100", 100, 800),
        ("limit=100&resourceVersion=0", 200, 2400),
    ] {
        let list =
            request("GET", &format!("{CONFIGMAPS}?{query}"), "reader", ferrokube_serve::empty());
        let answer = call(&server, list).await;
        assert_eq!(answer.status(), 200, "{query}");
        let (head, mut body) = answer.into_parts();
        assert_eq!(held_by_all(&server).await[3], held, "{query}");
        let taken = read(&server, "admin", &format!("{CONFIGMAPS}?{query}")).await.json();
        assert_eq!(taken["items"].as_array().unwrap().len(), items, "{query}");
        // Not read beyond the first chunk.
        assert!(
            http_body::Body::is_end_stream(&body) || futures::poll!(body.frame()).is_ready(),
            "{query}"
        );
        untaken.push((head, body));
    }
    drop(untaken);
    assert_eq!(held_by_all(&server).await[3], 0);
}

#[tokio::test]
async fn an_object_written_for_one_answer_holds_room_until_it_is_taken() {
    let server = with_short_lists().await;
    let path = format!("{CONFIGMAPS}/large");
    let body =
        json!({"metadata": {"name": "large"}, "data": {"text": "x".repeat(20_000)}}).to_string();
    // The write waits for another thread.
    tokio::time::resume();
    assert_eq!(
        server.send("POST", CONFIGMAPS, &[("authorization", "Bearer admin")], body).await.code,
        201
    );
    tokio::time::pause();
    for (query, accept, holds) in [
        ("", "application/yaml", true),
        // Made of the stored bytes, a piece at a time.
        ("?pretty=1", "application/json", false),
        ("", "application/json", false),
    ] {
        let mut get = request("GET", &format!("{path}{query}"), "reader", ferrokube_serve::empty());
        get.headers_mut().insert("accept", accept.parse().unwrap());
        let answer = call(&server, get).await;
        assert_eq!(answer.status(), 200, "{accept}");
        assert_eq!(held_by_all(&server).await[3] > 0, holds, "{accept}");
        drop(answer);
        assert_eq!(held_by_all(&server).await[3], 0, "{accept}");
    }
}

/// 2,000 bytes, made off the workers.
struct LongPage;

impl Route for LongPage {
    fn room(&self) -> usize {
        100_000
    }

    fn answer<'a>(&'a self, _request: RouteRequest) -> RouteFuture<'a> {
        Box::pin(async {
            assert!(has_slot());
            Ok(http::Response::new(ferrokube_serve::full("x".repeat(2000))))
        })
    }
}

#[tokio::test]
async fn fault_34_a_page_is_made_in_a_slot_and_holds_room_until_it_is_read() {
    let server = TestServer::with(|it| it.route("/page", true, Arc::new(LongPage))).await;
    let page = || request("GET", "/page", "reader", ferrokube_serve::empty());
    let answers = [call(&server, page()).await, call(&server, page()).await];
    assert!(answers.iter().all(|answer| answer.status() == 200));
    assert_eq!(held_by_all(&server).await[3], 4000);
    drop(answers);
    assert_eq!(held_by_all(&server).await[3], 0);
}

#[tokio::test]
async fn a_list_that_waits_for_a_version_holds_no_room() {
    let server = with_short_lists().await;
    let future = format!("{CONFIGMAPS}?resourceVersion=9000000000000000000");
    let mut waiting = PendingRequests::of(&server, 20, |_| {
        request("GET", &future, "reader", ferrokube_serve::empty())
    })
    .await;
    assert_eq!((waiting.ended(), held_by_all(&server).await[3]), (Vec::new(), 0));
    let started = tokio::time::Instant::now();
    assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 200);
    assert_eq!(started.elapsed(), Duration::ZERO, "it did not wait either");
}

#[tokio::test]
async fn unread_lists_are_shared_among_callers() {
    let server = with_short_lists().await;
    // Its time passes: the last list waits for room before it is refused.
    let list = async |user: &str| {
        server.plane.call(request("GET", CONFIGMAPS, user, ferrokube_serve::empty())).await
    };
    let mut untaken = Vec::new();
    let refused = loop {
        let answer = list("reader").await;
        if answer.status() != 200 {
            break answer.status();
        }
        untaken.push(answer);
        assert!(untaken.len() < 10, "they have no bound");
    };
    assert_eq!((refused.as_u16(), untaken.len()), (429, 2));
    assert_eq!(list("reader-two").await.status(), 200, "there is room for others");
    drop(untaken);
    assert_eq!(list("reader").await.status(), 200, "nothing is left behind");
}
