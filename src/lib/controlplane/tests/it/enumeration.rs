//! Every path shape x method x query: the authorized attributes against what ran. The first are
//! recorded by an authorizer, the second by admission, computed resources, mounted routes and the
//! responses of reads.

use crate::priority::until;
use crate::support::{StoppedClock, TestResponse, TestServer, subject};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_auth::{Access, Authorizer, Decision};
use ferrokube_connect::{ConnectSettings, Connections};
use ferrokube_controlplane::{Route, RouteFuture, RouteRequest};
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::{ComputedResource, Operation};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"];

/// What the authorizer allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedVerbs {
    Everything,
    Reads,
    Nothing,
}

/// A recorded question: verb, and attributes or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AuthorizationQuestion {
    verb: String,
    subject: Option<String>,
    path: String,
}

/// Records questions, and what ran.
struct AccessRecorder {
    mode: Mutex<AllowedVerbs>,
    asked: Mutex<Vec<AuthorizationQuestion>>,
    computed: Mutex<Vec<String>>,
    routed: Mutex<Vec<String>>,
}

impl Authorizer for AccessRecorder {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        let asked = AuthorizationQuestion {
            verb: access.verb.to_owned(),
            subject: access.resource.as_ref().map(subject),
            path: access.path.to_owned(),
        };
        self.asked.lock().unwrap().push(asked);
        let is_allowed = match *self.mode.lock().unwrap() {
            AllowedVerbs::Everything => true,
            AllowedVerbs::Reads => matches!(access.verb, "get" | "list" | "watch"),
            AllowedVerbs::Nothing => false,
        };
        if is_allowed { Decision::Allow("test".into()) } else { Decision::NoOpinion(String::new()) }
    }
}

struct Computed(Arc<AccessRecorder>);

impl ComputedResource for Computed {
    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        let target = call.target;
        self.0
            .computed
            .lock()
            .unwrap()
            .push(format!("{}/{}", target.served.definition.plural, target.subresource));
        Box::pin(std::future::ready(Ok(object)))
    }
}

struct RecordingRoute(Arc<AccessRecorder>);

impl Route for RecordingRoute {
    fn answer<'a>(&'a self, request: RouteRequest) -> RouteFuture<'a> {
        self.0.routed.lock().unwrap().push(request.path);
        Box::pin(std::future::ready(Ok(http::Response::new(ferrokube_serve::empty()))))
    }
}

/// A resource to build paths from, and bodies for its writes.
struct ResourceRoot {
    base: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
}

const ROOTS: [ResourceRoot; 10] = [
    ResourceRoot { base: "/api/v1", plural: "pods", kind: "Pod", namespaced: true },
    ResourceRoot { base: "/api/v1", plural: "configmaps", kind: "ConfigMap", namespaced: true },
    ResourceRoot {
        base: "/api/v1",
        plural: "serviceaccounts",
        kind: "ServiceAccount",
        namespaced: true,
    },
    ResourceRoot {
        base: "/api/v1",
        plural: "resourcequotas",
        kind: "ResourceQuota",
        namespaced: true,
    },
    ResourceRoot { base: "/api/v1", plural: "namespaces", kind: "Namespace", namespaced: false },
    ResourceRoot {
        base: "/apis/rbac.authorization.k8s.io/v1",
        plural: "clusterroles",
        kind: "ClusterRole",
        namespaced: false,
    },
    ResourceRoot {
        base: "/apis/authorization.k8s.io/v1",
        plural: "selfsubjectaccessreviews",
        kind: "SelfSubjectAccessReview",
        namespaced: false,
    },
    ResourceRoot {
        base: "/apis/example.com/v1",
        plural: "widgets",
        kind: "Widget",
        namespaced: true,
    },
    ResourceRoot {
        base: "/apis/example.com/v1",
        plural: "namespaces",
        kind: "Gadget",
        namespaced: false,
    },
    ResourceRoot {
        base: "/apis/none.example.com/v1",
        plural: "things",
        kind: "Thing",
        namespaced: true,
    },
];

impl ResourceRoot {
    fn api_version(&self) -> String {
        self.base.trim_start_matches("/apis/").trim_start_matches("/api/").to_owned()
    }

    fn collection(&self, namespace: &str) -> String {
        let Self { base, plural, namespaced, .. } = self;
        if *namespaced {
            format!("{base}/namespaces/{namespace}/{plural}")
        } else {
            format!("{base}/{plural}")
        }
    }

    fn object(&self, name: &str) -> Value {
        let spec = match self.kind {
            "Pod" => json!({"containers": [{"name": "c", "image": "i"}]}),
            _ => json!({}),
        };
        json!({"apiVersion": self.api_version(), "kind": self.kind, "metadata": {"name": name}, "spec": spec})
    }

    fn tails(&self) -> &'static [&'static str] {
        if self.plural == "pods" { &POD_TAILS } else { &TAILS }
    }
}

fn definition(root: &ResourceRoot) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let subresources = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema, "subresources": subresources});
    let scope = if root.namespaced { "Namespaced" } else { "Cluster" };
    let singular = root.kind.to_lowercase();
    let names = json!({"plural": root.plural, "singular": singular, "kind": root.kind, "listKind": format!("{}List", root.kind)});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.example.com", root.plural)},
        "spec": {"group": "example.com", "scope": scope, "names": names, "versions": [version]},
    })
}

struct EnumeratedRequest<'a> {
    method: &'static str,
    path: String,
    query: &'static str,
    body: &'a Value,
}

/// The server, its objects, and what happened.
struct World {
    server: TestServer,
    recorder: Arc<AccessRecorder>,
    /// Responses seen by `verb depth`: proves that the enumeration reaches them.
    reached: BTreeMap<String, u32>,
}

impl World {
    async fn new() -> Self {
        let recorder = Arc::new(AccessRecorder {
            mode: Mutex::new(AllowedVerbs::Everything),
            asked: Mutex::default(),
            computed: Mutex::default(),
            routed: Mutex::default(),
        });
        let server = TestServer::with(|builder| {
            builder
                .authorizer(recorder.clone())
                .connections(Connections::new(&ConnectSettings::default()))
                .route("/mounted/", false, Arc::new(RecordingRoute(recorder.clone())))
        })
        .await;
        let catalog = server.registry.catalog();
        let pods = ferrokube_workloads::bundle().only(["pods"]);
        let kinds = ferrokube_resources::compose(&[ferrokube_resources::bundle(), pods]).unwrap();
        catalog.put(kinds.definitions.into_iter().find(|kind| kind.plural == "pods").unwrap());
        catalog.put_computed("", "serviceaccounts", "token", Arc::new(Computed(recorder.clone())));
        catalog.put_computed(
            "authorization.k8s.io",
            "selfsubjectaccessreviews",
            "",
            Arc::new(Computed(recorder.clone())),
        );
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for root in ROOTS.iter().filter(|root| root.base.contains("/example.com")) {
            assert_eq!(server.post(definitions, &definition(root)).await.code, 201);
            // Registered in the background.
            let (group, version) = root.base["/apis/".len()..].split_once('/').unwrap();
            let service = format!("/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}");
            until(&server, &service, |response| response.text().contains("Available")).await;
            // Written after it is served.
            let stored = format!("{definitions}/{}.{group}", root.plural);
            until(&server, &stored, |response| response.text().contains("Established")).await;
        }
        let stored =
            |root: &&ResourceRoot| !matches!(root.plural, "things" | "selfsubjectaccessreviews");
        for root in ROOTS.iter().filter(stored) {
            for name in ["alpha", "beta"] {
                let made = server.post(&root.collection("default"), &root.object(name)).await;
                assert_eq!(made.code, 201, "{}: {}", root.plural, made.text());
            }
        }
        Self { server, recorder, reached: BTreeMap::new() }
    }

    fn clear(&self) {
        self.recorder.asked.lock().unwrap().clear();
        self.recorder.computed.lock().unwrap().clear();
        self.recorder.routed.lock().unwrap().clear();
        self.server.admission.writes.lock().unwrap().clear();
    }

    /// Sends a request. Of a watch only the first event is read.
    async fn send(&self, request: &EnumeratedRequest<'_>) -> TestResponse {
        self.clear();
        let kind = if request.method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let body = if matches!(request.method, "POST" | "PUT" | "PATCH") {
            request.body.to_string()
        } else {
            String::new()
        };
        let question = if request.query.is_empty() { "" } else { "?" };
        let sent = http::Request::builder()
            .method(request.method)
            .uri(format!("{}{question}{}", request.path, request.query))
            .header("authorization", "Bearer anybody")
            .header("content-type", kind)
            .body(ferrokube_serve::full(body))
            .unwrap();
        let clock = StoppedClock::held();
        let (head, mut body) = self.server.plane.call(sent).await.into_parts();
        drop(clock);
        let is_watch =
            self.recorder.asked.lock().unwrap().first().is_some_and(|asked| asked.verb == "watch");
        let bytes = if is_watch && head.status.is_success() {
            // Time is paused: this returns when nothing is in flight.
            match tokio::time::timeout(Duration::from_secs(1), body.frame()).await {
                Ok(Some(frame)) => frame.unwrap().into_data().unwrap().into_bytes(),
                _ => bytes::Bytes::new(),
            }
        } else {
            body.collect().await.unwrap().to_bytes()
        };
        TestResponse { code: head.status.as_u16(), headers: head.headers, bytes }
    }

    /// Checks that what ran is what was authorized.
    fn check(
        &mut self,
        request: &EnumeratedRequest<'_>,
        answer: &TestResponse,
        mode: AllowedVerbs,
    ) {
        let what = format!(
            "{} {}?{} ({mode:?}): {} {}",
            request.method,
            request.path,
            request.query,
            answer.code,
            answer.text()
        );
        let asked = self.recorder.asked.lock().unwrap().clone();
        let writes = self.server.admission.writes.lock().unwrap().clone();
        let (computed, routed) = (
            self.recorder.computed.lock().unwrap().clone(),
            self.recorder.routed.lock().unwrap().clone(),
        );
        let is_success = (200..300).contains(&answer.code);
        let Some(first) = asked.first() else {
            let is_open = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
                .contains(&request.path.as_str());
            assert!(is_open || !is_success, "nothing was asked: {what}");
            assert!(writes.is_empty() && computed.is_empty() && routed.is_empty(), "{what}");
            return;
        };
        assert!(mode != AllowedVerbs::Nothing || !is_success, "{what}");
        assert!(
            mode != AllowedVerbs::Nothing
                || (writes.is_empty() && computed.is_empty() && routed.is_empty()),
            "{what}"
        );
        // A connection stores nothing; a read may open one.
        let is_write = |operation: Operation| operation != Operation::Connect;
        let has_written = writes.iter().any(|(operation, _)| is_write(*operation));
        assert!(mode != AllowedVerbs::Reads || !has_written && computed.is_empty(), "{what}");
        for (operation, subject) in &writes {
            if !is_write(*operation) {
                *self.reached.entry(format!("{} connection", first.verb)).or_default() += 1;
                assert!(mode != AllowedVerbs::Reads || first.verb == "get", "{what}");
            }
            assert!(
                asked.iter().any(|asked| allows(asked, *operation, subject)),
                "{operation:?} {subject} was not asked about, but {asked:?}: {what}"
            );
        }
        for computed in &computed {
            let ends = first.subject.as_ref().is_some_and(|subject| {
                let (plural, subresource) = computed.split_once('/').unwrap();
                subject.contains(&format!("/{plural}/"))
                    && subject.ends_with(&format!("/{subresource}"))
            });
            assert!(first.verb == "create" && ends, "{computed} ran for {first:?}: {what}");
        }
        for path in &routed {
            assert_eq!((path, first.subject.is_none()), (&first.path, true), "{what}");
        }
        if is_success && request.method != "HEAD" {
            self.check_answer(first, answer, &what);
        }
    }

    /// Checks that a response is about the authorized object.
    fn check_answer(&mut self, asked: &AuthorizationQuestion, answer: &TestResponse, what: &str) {
        let Some(subject) = &asked.subject else { return };
        let (group_version, rest) = subject.split_once(' ').unwrap();
        let [namespace, plural, name, subresource] = rest.split('/').collect::<Vec<_>>()[..] else {
            panic!("{rest}")
        };
        let depth = ["collection", "object", "subresource"]
            [usize::from(!name.is_empty()) + usize::from(!subresource.is_empty())];
        *self.reached.entry(format!("{} {depth}", asked.verb)).or_default() += 1;
        let root = ROOTS
            .iter()
            .find(|root| {
                root.plural == plural && format!("/{}", root.api_version()).ends_with(group_version)
            })
            .expect(what);
        let read = |one: &serde_json::value::RawValue| {
            ferrokube_apimachinery::json::read_value(one.get().as_bytes()).expect(what)
        };
        let answered: Vec<Value> = serde_json::Deserializer::from_slice(&answer.bytes)
            .into_iter()
            .map(|one| read(one.expect(what)))
            .collect();
        let object = |object: &Value, typed: bool| {
            assert!(
                !typed
                    || object["kind"] == root.kind
                    || object["kind"] == "Scale"
                    || !subresource.is_empty(),
                "{what}"
            );
            if root.namespaced && !namespace.is_empty() {
                assert_eq!(object["metadata"]["namespace"], namespace, "{what}");
            }
            if !name.is_empty() {
                assert_eq!(object["metadata"]["name"], name, "{what}");
            }
        };
        for answered in &answered {
            match asked.verb.as_str() {
                "get" | "update" | "patch" => object(answered, true),
                "list" | "deletecollection" => {
                    assert_eq!(answered["kind"], format!("{}List", root.kind), "{what}");
                    answered["items"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .for_each(|item| object(item, false));
                }
                "watch" => {
                    assert_eq!(answered["type"], "ADDED", "{what}");
                    object(&answered["object"], true);
                }
                "create" => {
                    assert!(answered["kind"] == root.kind || !subresource.is_empty(), "{what}")
                }
                "delete" => {
                    assert!(answered["kind"] == "Status" || answered["kind"] == root.kind, "{what}")
                }
                verb => panic!("{verb} ran: {what}"),
            }
        }
    }
}

/// Whether the question covers a write that admission saw.
fn allows(asked: &AuthorizationQuestion, operation: Operation, wrote: &str) -> bool {
    let Some(subject) = &asked.subject else { return false };
    let parts = |text: &str| text.split([' ', '/']).map(str::to_owned).collect::<Vec<_>>();
    let (asked_parts, wrote_parts) = (parts(subject), parts(wrote));
    // Group, version, namespace, plural, name, subresource.
    let is_same = |at: usize| asked_parts[at] == wrote_parts[at];
    let is_namespace_itself = asked_parts[3] == "namespaces"
        && asked_parts[0].is_empty()
        && asked_parts[2] == asked_parts[4]
        && wrote_parts[2].is_empty();
    let is_place =
        is_same(0) && is_same(1) && (is_same(2) || is_namespace_itself) && is_same(3) && is_same(5);
    let is_named = is_same(4) && !asked_parts[4].is_empty();
    let is_collection = asked_parts[4].is_empty();
    is_place
        && match operation {
            Operation::Create => asked.verb == "create" && (is_named || is_collection),
            Operation::Update => matches!(asked.verb.as_str(), "update" | "patch") && is_named,
            Operation::Delete => {
                (asked.verb == "delete" && is_named)
                    || (asked.verb == "deletecollection" && is_collection)
            }
            // By any verb of one object, never as one of a list or watch.
            Operation::Connect => {
                matches!(asked.verb.as_str(), "get" | "create" | "update" | "patch" | "delete")
                    && is_named
            }
        }
}

const TAILS: [&str; 9] = [
    "",
    "/alpha",
    "/alpha/status",
    "/alpha/scale",
    "/alpha/token",
    "/alpha/finalize",
    "/alpha/nothing",
    "/alpha/status/more",
    "/fresh",
];

const POD_TAILS: [&str; 7] = [
    "",
    "/alpha",
    "/alpha/exec",
    "/alpha/log",
    "/alpha/proxy",
    "/alpha/proxy/exec",
    "/alpha/exec/more",
];

/// Unusual spellings of a path.
fn variants(base: &str, middle: &str, tail: &str) -> [String; 7] {
    [
        format!("{base}{middle}{tail}/"),
        format!("{base}/{middle}{tail}"),
        format!("/{base}{middle}{tail}"),
        format!("{base}{middle}{}", tail.replacen('/', "%2f", 1)),
        format!("{base}{}{tail}", middle.replacen('/', "%2F", 1)),
        format!("{base}{middle}{}", tail.replacen('/', "/./", 1)),
        format!("{base}{middle}{}", tail.replacen('/', "//", 1)),
    ]
}

/// A path, and its index into the tails of its root.
type Tailed = (String, usize);

/// Regular and unusual paths of a root.
fn paths(root: &ResourceRoot) -> (Vec<Tailed>, Vec<Tailed>) {
    let (mut plain, mut odd) = (Vec::new(), Vec::new());
    for prefix in ["", "/watch", "/proxy"] {
        for namespace in ["", "/namespaces/default"] {
            for (at, tail) in root.tails().iter().enumerate() {
                let middle = format!("{prefix}{namespace}/{}", root.plural);
                plain.push((format!("{}{middle}{tail}", root.base), at));
                odd.extend(variants(root.base, &middle, tail).map(|path| (path, at)));
            }
        }
    }
    (plain, odd)
}

const QUERIES: [&str; 7] = [
    "dryRun=All",
    "dryRun=All&watch=1",
    "dryRun=All&watch=false",
    "dryRun=All&fieldSelector=metadata.name%3Dbeta",
    "dryRun=All&watch=&fieldSelector=metadata.name%3Dbeta,metadata.name%3Dalpha",
    "dryRun=All&limit=x&fieldSelector=metadata.name%3Dbeta",
    "dryRun=All&fieldManager=m&labelSelector=a%20in",
];

/// Bodies for a path's tail.
async fn bodies(world: &World, root: &ResourceRoot) -> Vec<Value> {
    let stored = world.server.get(&format!("{}/alpha", root.collection("default"))).await;
    let object = if stored.code == 200 { stored.json() } else { root.object("alpha") };
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "alpha"}, "spec": {"replicas": 2}});
    let tail = |tail: &&str| match *tail {
        "" | "/fresh" => root.object("fresh"),
        "/alpha/scale" => scale.clone(),
        "/alpha/token" => json!({}),
        _ => object.clone(),
    };
    root.tails().iter().map(tail).collect()
}

#[tokio::test]
async fn fault_50_the_authorized_request_is_the_one_that_runs() {
    let mut world = World::new().await;
    let before = world.server.written().await;
    // Nothing waits for the disk from here on.
    tokio::time::pause();
    let (mut sent, started) = (0, Instant::now());
    for root in &ROOTS {
        *world.recorder.mode.lock().unwrap() = AllowedVerbs::Everything;
        let bodies = bodies(&world, root).await;
        let (plain, odd) = paths(root);
        let all = plain
            .iter()
            .map(|path| (path, &QUERIES[..]))
            .chain(odd.iter().map(|path| (path, &QUERIES[..1])));
        for ((path, tail), queries) in all {
            for (method, query) in
                METHODS.iter().flat_map(|method| queries.iter().map(move |query| (*method, *query)))
            {
                if queries.len() == 1 && matches!(method, "HEAD" | "TRACE" | "OPTIONS") {
                    continue;
                }
                let request =
                    EnumeratedRequest { method, path: path.clone(), query, body: &bodies[*tail] };
                // A caller with only read rights separates reads from writes.
                for mode in [AllowedVerbs::Everything, AllowedVerbs::Reads, AllowedVerbs::Nothing] {
                    let repeats = mode == AllowedVerbs::Everything || query == QUERIES[0];
                    if !repeats {
                        continue;
                    }
                    *world.recorder.mode.lock().unwrap() = mode;
                    let request = EnumeratedRequest {
                        query: if mode == AllowedVerbs::Everything { query } else { "" },
                        path: request.path.clone(),
                        ..request
                    };
                    let answer = world.send(&request).await;
                    world.check(&request, &answer, mode);
                    sent += 1;
                }
            }
        }
    }
    assert_eq!(world.server.written().await, before, "dry runs and refusals write nothing");
    eprintln!("{sent} requests in {:?}: {:?}", started.elapsed(), world.reached);
    for reached in [
        "get object",
        "get subresource",
        "list collection",
        "list object",
        "watch collection",
        "watch object",
        "create collection",
    ] {
        assert!(world.reached.contains_key(reached), "{reached}: {:?}", world.reached);
    }
    for reached in [
        "create subresource",
        "update object",
        "update subresource",
        "patch object",
        "patch subresource",
        "delete object",
        "get connection",
        "create connection",
        "delete connection",
    ] {
        assert!(world.reached.contains_key(reached), "{reached}: {:?}", world.reached);
    }
    assert!(world.reached.contains_key("deletecollection collection"));
}

#[tokio::test]
async fn fault_50_paths_that_are_no_resources_run_as_authorized() {
    let mut world = World::new().await;
    let paths = [
        "/",
        "//",
        "/api",
        "/api/",
        "/api//",
        "//api",
        "/apis",
        "/apis/",
        "/apis/example.com",
        "/apis%2fexample.com",
        "/apis/example.com/v1",
        "/api/v1",
        "/api/v1/",
        "/api/v1//",
        "/version",
        "/version/",
        "/version/x",
        "/healthz",
        "/healthz/",
        "/healthz/ping",
        "/livez",
        "/readyz",
        "/metrics",
        "/metrics/",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi//v3",
        "/mounted",
        "/mounted/",
        "/mounted/a",
        "/mounted//a",
        "/mounted/%2e%2e/api",
        "/mounted%2fa",
        "/index.html",
        "/nope",
    ];
    for mode in [AllowedVerbs::Everything, AllowedVerbs::Reads, AllowedVerbs::Nothing] {
        *world.recorder.mode.lock().unwrap() = mode;
        for path in paths {
            for (method, query) in
                METHODS.iter().flat_map(|method| ["", "watch=1"].map(|query| (*method, query)))
            {
                let request =
                    EnumeratedRequest { method, path: path.to_owned(), query, body: &json!({}) };
                let answer = world.send(&request).await;
                world.check(&request, &answer, mode);
                let decoded = path.replace("%2f", "/").replace("%2e", ".");
                let asked = world.recorder.asked.lock().unwrap().clone();
                for asked in asked {
                    assert_eq!(
                        asked,
                        AuthorizationQuestion {
                            verb: method.to_lowercase(),
                            subject: None,
                            path: decoded.clone()
                        },
                        "{method} {path}"
                    );
                }
            }
        }
    }
}
