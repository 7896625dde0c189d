//! Priority and fairness over HTTP: objects, their upkeep, classification, queues.

use crate::features::wait_for;
use crate::support::{BOUND, CONFIGMAPS, StoppedClock, TestResponse, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_controlplane::Limits;
use ferrokube_serve::Body;
use std::time::Instant;
use tokio::task::JoinSet;

pub(crate) const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
pub(crate) const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
/// Requests that wait or hold a seat, but exempt ones.
pub(crate) const REQUESTS: &str =
    "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1";
/// Holds its seat for three seconds, or as long as the clock is stopped.
const FUTURE: &str =
    "/api/v1/namespaces/default/configmaps/none?resourceVersion=9000000000000000000";

pub(crate) fn level(name: &str, response: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": response,
    }}})
}

/// All requests of a user.
pub(crate) fn schema(name: &str, level: &str, user: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": 50,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "User", "user": {"name": user}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }],
    }})
}

fn uid(object: &TestResponse) -> String {
    object.json()["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

pub(crate) async fn read(server: &TestServer, user: &str, path: &str) -> TestResponse {
    server.send("GET", path, &[("authorization", &format!("Bearer {user}"))], "").await
}

/// Uids in the headers of a response: of the schema and the level.
fn matched(response: &TestResponse) -> [&str; 2] {
    ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"]
        .map(|name| response.header(name))
}

/// Whether a schema is in use with its level.
pub(crate) fn has_level(schema: &TestResponse) -> bool {
    schema.json()["status"]["conditions"][0]["status"] == "False"
}

/// Polls until a response is as it should be.
pub(crate) async fn until(
    server: &TestServer,
    path: &str,
    is_so: impl Fn(&TestResponse) -> bool,
) -> TestResponse {
    let start = Instant::now();
    loop {
        let response = server.get(path).await;
        if is_so(&response) {
            return response;
        }
        assert!(start.elapsed() < BOUND, "{}", response.text());
        tokio::task::yield_now().await;
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn responses_show_which_schema_and_level_matched() {
    let server = TestServer::new().await;
    let object = async |path: &str, name: &str| uid(&server.get(&format!("{path}/{name}")).await);
    for (user, path, schema_name, level_name, code) in [
        ("admin", CONFIGMAPS, "exempt", "exempt", 200),
        ("reader", CONFIGMAPS, "global-default", "global-default", 200),
        ("reader", "/healthz", "probes", "exempt", 200),
        ("nobody-knows", "/api/v1/secrets", "global-default", "global-default", 403),
    ] {
        let response = read(&server, user, path).await;
        let want = [object(SCHEMAS, schema_name).await, object(LEVELS, level_name).await];
        assert_eq!(
            (response.code, matched(&response)),
            (code, [&*want[0], &*want[1]]),
            "{user} {path}"
        );
        assert!(!want[0].is_empty() && !want[1].is_empty());
    }
    let rejected = read(&server, "bad", CONFIGMAPS).await;
    assert_eq!(
        (rejected.code, matched(&rejected)),
        (401, ["", ""]),
        "before it is known whose it is"
    );
}

#[tokio::test]
async fn default_objects_exist_and_say_that_their_level_does() {
    let server = TestServer::new().await;
    let names = async |path: &str| -> Vec<String> {
        let list = server.get(path).await.json();
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(
        names(LEVELS).await,
        [
            "catch-all",
            "exempt",
            "global-default",
            "leader-election",
            "node-high",
            "system",
            "workload-high",
            "workload-low"
        ]
    );
    assert_eq!(names(SCHEMAS).await.len(), 11);
    let has_status = |schema: &Value| schema["status"]["conditions"] != Value::Null;
    let schema = wait_for(&server, &format!("{SCHEMAS}/global-default"), has_status).await;
    assert_eq!(
        schema["metadata"]["annotations"],
        json!({"apf.kubernetes.io/autoupdate-spec": "true"})
    );
    let condition = &schema["status"]["conditions"][0];
    assert_eq!(
        [&condition["type"], &condition["status"], &condition["reason"]],
        ["Dangling", "False", "Found"]
    );
    let managers = schema["metadata"]["managedFields"].as_array().unwrap();
    let of_status = managers.iter().find(|entry| entry["subresource"] == "status").unwrap();
    assert_eq!(
        [&of_status["manager"], &of_status["operation"]],
        ["api-priority-and-fairness-config-consumer-v1", "Apply"]
    );
}

#[tokio::test]
async fn a_schema_without_its_level_dangles_until_it_comes() {
    let server = TestServer::new().await;
    assert_eq!(server.post(SCHEMAS, &schema("s", "late", "reader")).await.code, 201);
    let path = format!("{SCHEMAS}/s");
    let dangling = |response: &TestResponse| {
        response.json()["status"]["conditions"][0]["status"].as_str().unwrap_or_default().to_owned()
    };
    let found = until(&server, &path, |response| dangling(response) == "True").await.json();
    assert_eq!(
        found["status"]["conditions"][0]["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"late\" but there is no such object"
    );
    let default = read(&server, "reader", CONFIGMAPS).await;
    assert_ne!(matched(&default)[0], found["metadata"]["uid"].as_str().unwrap());
    assert_eq!(server.post(LEVELS, &level("late", json!({"type": "Reject"}))).await.code, 201);
    let found = until(&server, &path, |response| dangling(response) == "False").await;
    assert_eq!(matched(&read(&server, "reader", CONFIGMAPS).await)[0], uid(&found));
}

#[tokio::test]
async fn default_objects_come_back() {
    let server = TestServer::new().await;
    for path in
        [format!("{SCHEMAS}/catch-all"), format!("{LEVELS}/exempt"), format!("{SCHEMAS}/probes")]
    {
        let before = uid(&server.get(&path).await);
        assert_eq!(server.send("DELETE", &path, &[], "").await.code, 200, "{path}");
        let is_back = |response: &TestResponse| response.code == 200 && uid(response) != before;
        until(&server, &path, is_back).await;
    }
    assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 200);
}

#[tokio::test]
async fn mandatory_objects_cannot_be_changed() {
    let server = TestServer::new().await;
    let patch = async |path: &str, body: &str| {
        let headers = [("content-type", "application/merge-patch+json")];
        server.send("PATCH", path, &headers, body.to_owned()).await
    };
    let refused = patch(&format!("{LEVELS}/exempt"), r#"{"spec": {"type": "Limited"}}"#).await;
    assert_eq!((refused.code, refused.reason().as_str()), (422, "Invalid"));
    let refused =
        patch(&format!("{SCHEMAS}/catch-all"), r#"{"spec": {"matchingPrecedence": 9}}"#).await;
    assert_eq!(refused.code, 422);
    let free = r#"{"spec": {"exempt": {"nominalConcurrencyShares": 3}}}"#;
    assert_eq!(patch(&format!("{LEVELS}/exempt"), free).await.code, 200);
    let suggested =
        patch(&format!("{SCHEMAS}/probes"), r#"{"spec": {"matchingPrecedence": 9}}"#).await;
    assert_eq!((suggested.code, &suggested.json()["metadata"]["generation"]), (200, &json!(2)));
}

/// A server where these users have a level with two seats.
pub(crate) async fn with_a_small_level(users: &[&str], response: Value) -> TestServer {
    let limits = Limits { readonly_inflight: 200, mutating_inflight: 92, ..Limits::default() };
    let server = TestServer::with(|builder| builder.limits(limits)).await;
    assert_eq!(server.post(LEVELS, &level("small", response)).await.code, 201);
    for (number, user) in users.iter().enumerate() {
        let name = if number == 0 { "s".to_owned() } else { format!("s{number}") };
        assert_eq!(server.post(SCHEMAS, &schema(&name, "small", user)).await.code, 201);
        until(&server, &format!("{SCHEMAS}/{name}"), has_level).await;
    }
    server
}

/// Requests that hold their seats, or wait for one, until the clock is released.
pub(crate) struct HeldRequests {
    pub(crate) codes: JoinSet<u16>,
    clock: StoppedClock,
}

impl HeldRequests {
    /// Lets them end. Status codes.
    async fn released(mut self) -> Vec<u16> {
        drop(self.clock);
        let mut codes = Vec::new();
        while let Some(code) = self.codes.join_next().await {
            codes.push(code.unwrap());
        }
        codes
    }
}

/// Begins requests and stops the clock.
pub(crate) async fn begin(server: &TestServer, user: &'static str, count: usize) -> HeldRequests {
    let (mut codes, clock) = (JoinSet::new(), StoppedClock::new());
    for _ in 0..count {
        let plane = server.plane.clone();
        let request = http::Request::builder().uri(FUTURE);
        let request = request.header("authorization", format!("Bearer {user}"));
        let request: http::Request<Body> = request.body(ferrokube_serve::empty()).unwrap();
        codes.spawn(async move { plane.call(request).await.status().as_u16() });
    }
    until(server, REQUESTS, |response| held_requests(response) == count).await;
    HeldRequests { codes, clock }
}

/// Requests of [`begin`] in the dump of all requests.
fn held_requests(dump: &TestResponse) -> usize {
    dump.text().lines().filter(|line| line.contains("configmaps/none")).count()
}

#[tokio::test]
async fn a_level_rejects_what_has_no_seat() {
    let server = with_a_small_level(&["reader"], json!({"type": "Reject"})).await;
    let mut held = begin(&server, "reader", 2).await;
    let rejected = read(&server, "reader", CONFIGMAPS).await;
    assert_eq!(
        (rejected.code, rejected.text().as_str(), rejected.header("retry-after")),
        (429, "Too many requests, please try again later.\n", "1")
    );
    assert_eq!(rejected.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(matched(&rejected)[0], uid(&server.get(&format!("{SCHEMAS}/s")).await));
    assert_eq!(read(&server, "reader-two", CONFIGMAPS).await.code, 200, "of another level");
    assert_eq!(read(&server, "admin", CONFIGMAPS).await.code, 200, "exempt");
    let metrics = server.get("/metrics").await.text();
    for line in [
        "apiserver_flowcontrol_rejected_requests_total{priority_level=\"small\",flow_schema=\"s\",reason=\"concurrency-limit\"} 1",
        "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"small\",flow_schema=\"s\"} 2",
        "apiserver_flowcontrol_current_executing_requests{priority_level=\"small\",flow_schema=\"s\"} 2",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"small\"} 2",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"exempt\"} 0",
        "# TYPE apiserver_flowcontrol_rejected_requests_total counter",
        "apiserver_flowcontrol_work_estimated_seats_count{priority_level=\"small\",flow_schema=\"s\"} 3",
        "apiserver_flowcontrol_next_s_bounds{priority_level=\"small\",bound=\"min\"} 0",
        "# TYPE apiserver_flowcontrol_priority_level_seat_utilization histogram",
        "# TYPE apiserver_flowcontrol_request_dispatch_no_accommodation_total counter",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line} in {metrics}");
    }
    held.codes.shutdown().await;
    assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 200);
}

#[tokio::test]
async fn waiting_requests_are_shown_and_served() {
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 1});
    let server =
        with_a_small_level(&["reader"], json!({"type": "Queue", "queuing": queuing})).await;
    let held = begin(&server, "reader", 3).await;
    assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 429, "its queue is full");
    let dump = server.get("/debug/api_priority_and_fairness/dump_priority_levels").await;
    let row = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("small,")).unwrap_or_default();
        line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(row(&dump.text())[1..6], ["1", "false", "false", "1", "2"]);
    let dump = server.get("/debug/api_priority_and_fairness/dump_queues").await;
    assert_eq!(row(&dump.text())[1..5], ["0", "1", "2", "2"]);
    assert_eq!(
        read(&server, "reader-two", "/debug/api_priority_and_fairness/dump_queues").await.code,
        200
    );
    assert_eq!(server.get("/debug/api_priority_and_fairness/other").await.code, 404);
    let metrics = server.get("/metrics").await.text();
    let line = "apiserver_flowcontrol_request_queue_length_after_enqueue_sum{priority_level=\"small\",flow_schema=\"s\"} 1";
    assert!(metrics.lines().any(|known| known == line), "{metrics}");
    assert!(metrics.contains("priority_level_request_utilization_count{phase=\"waiting\""));
    assert_eq!(held.released().await, [504; 3], "the third got a seat from one of the others");
}

#[tokio::test]
async fn without_priority_and_fairness_its_objects_do_nothing() {
    let limits = Limits { priority_and_fairness: false, ..Limits::default() };
    let server = TestServer::with(|builder| builder.limits(limits)).await;
    let response = read(&server, "reader", CONFIGMAPS).await;
    assert_eq!((response.code, matched(&response)), (200, ["", ""]));
    assert_eq!(server.get(&format!("{LEVELS}/exempt")).await.code, 200, "they are maintained");
    assert_eq!(server.get("/debug/api_priority_and_fairness/dump_queues").await.code, 404);
    assert!(!server.get("/metrics").await.text().contains("apiserver_flowcontrol"));
}

#[tokio::test]
async fn a_watch_holds_a_seat_until_it_begins() {
    let server = with_a_small_level(&["reader"], json!({"type": "Reject"})).await;
    let mut watches = Vec::new();
    for _ in 0..5 {
        let request = http::Request::builder().uri(format!("{CONFIGMAPS}?watch=1"));
        let request = request.header("authorization", "Bearer reader");
        let watch = server.plane.call(request.body(ferrokube_serve::empty()).unwrap()).await;
        assert_eq!(watch.status(), 200);
        assert!(watch.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
        watches.push(watch);
    }
    let _held = begin(&server, "reader", 2).await;
    let request = http::Request::builder().uri(format!("{CONFIGMAPS}?watch=1"));
    let request = request.header("authorization", "Bearer reader");
    let watch = server.plane.call(request.body(ferrokube_serve::empty()).unwrap()).await;
    assert_eq!(watch.status(), 429);
}

#[tokio::test]
async fn lists_and_initial_states_need_seats_by_the_size_of_their_objects() {
    const SUM: &str = "apiserver_flowcontrol_work_estimated_seats_sum{priority_level=\"global-default\",flow_schema=\"global-default\"} ";
    let limits = Limits { readonly_inflight: 400, mutating_inflight: 200, ..Limits::default() };
    let server = TestServer::with(|builder| builder.limits(limits)).await;
    for name in ["a", "b", "c"] {
        let object = json!({"metadata": {"name": name}, "data": {"k": "v".repeat(150_000)}});
        assert_eq!(server.post(CONFIGMAPS, &object).await.code, 201);
    }
    let seats = async || {
        let metrics = server.get("/metrics").await.text();
        let sum = metrics.lines().find_map(|line| line.strip_prefix(SUM));
        sum.map_or(0.0, |sum| sum.parse::<f64>().unwrap())
    };
    let version = server.get(CONFIGMAPS).await.json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap();
    for (path, needed) in [
        ("/a".to_owned(), 1.0),
        (String::new(), 5.0),
        ("?limit=1".to_owned(), 2.0),
        ("?watch=1&resourceVersion=0".to_owned(), 5.0),
        ("?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(), 5.0),
        (format!("?watch=1&resourceVersion={version}"), 1.0),
    ] {
        let before = seats().await;
        let request = http::Request::builder().uri(format!("{CONFIGMAPS}{path}"));
        let request = request.header("authorization", "Bearer reader");
        let response = server.plane.call(request.body(ferrokube_serve::empty()).unwrap()).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(seats().await - before, needed, "{path}");
    }
}

#[tokio::test]
async fn a_table_of_schemas_is_in_order_of_precedence() {
    let server = TestServer::new().await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = server.get_as(SCHEMAS, table).await.json();
    let row = |row: &Value| {
        let cells = &row["cells"];
        (cells[2].as_i64().unwrap(), cells[0].as_str().unwrap().to_owned())
    };
    let rows: Vec<_> = table["rows"].as_array().unwrap().iter().map(row).collect();
    assert_eq!(rows.first().map(|(_, name)| name.as_str()), Some("exempt"));
    assert!(rows.len() > 10 && rows.is_sorted(), "{rows:?}");
}
