//! An in-memory server, and shorthands for the tests.

use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::{
    Access, Authenticator, Authorizer, Credentials, Decision, Identity, ResourceAccess,
    Unauthenticated,
};
use ferrokube_controlplane::{ApiServer, ApiServerBuilder};
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::{Admission, Attributes, Catalog, Effects, Local, Operation, Registry};
use ferrokube_serve::Response;
use ferrokube_storage::{Config, Entry, Prefix, Revision, Store};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Admits everything, and records the ids of each write.
#[derive(Default)]
pub(crate) struct Open {
    pub(crate) contexts: Mutex<Vec<(UserInfo, ferrokube_trace::TraceContext)>>,
    /// Writes by operation, such as `Create v1 default/configmaps/a/`.
    pub(crate) writes: Mutex<Vec<(Operation, String)>>,
    /// Whether trace annotations are the server's by a gate of these; default: they are.
    pub(crate) gates: Mutex<Option<Gates>>,
    /// Name of an object whose writes are refused, also those of the server's own loops.
    pub(crate) refused: Mutex<Option<String>>,
}

impl Open {
    fn saw(&self, attributes: &Attributes<'_>) {
        if is_own(attributes) {
            return;
        }
        let target = attributes.target;
        let definition = &target.served.definition;
        let resource = ResourceAccess {
            group: &definition.group,
            version: &target.served.version().name,
            resource: &definition.plural,
            subresource: &target.subresource,
            namespace: target.namespace.as_deref().unwrap_or_default(),
            name: target.name.as_deref().unwrap_or_default(),
        };
        self.writes.lock().unwrap().push((attributes.operation, subject(&resource)));
    }
}

impl Admission for Open {
    fn owns_ids(&self) -> bool {
        let gates = self.gates.lock().unwrap();
        gates.as_ref().is_none_or(|gates| gates.enabled(&LOG_TRACKING))
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        self.saw(attributes);
        if !is_own(attributes) {
            let context = attributes.context;
            let user = UserInfo::clone(&context.user);
            self.contexts.lock().unwrap().push((user, context.trace));
        }
        assert_ne!(object.name(), "panic", "a write that panics");
        Ok(())
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        self.saw(attributes);
        let refused = self.refused.lock().unwrap();
        if refused.is_some() && *refused == attributes.target.name {
            return Err(Failure::new(Reason::Forbidden, "denied by a webhook"));
        }
        Ok(())
    }
}

/// Whether a loop of the server writes, which it does whenever it likes.
fn is_own(attributes: &Attributes<'_>) -> bool {
    *attributes.context.user == Local::user()
}

/// A resource as `group/version namespace/plural/name/subresource`.
pub(crate) fn subject(resource: &ResourceAccess<'_>) -> String {
    let ResourceAccess { group, version, resource, subresource, namespace, name } = resource;
    format!("{group}/{version} {namespace}/{resource}/{name}/{subresource}")
}

/// A token is its user's name; `admin` is a master, `bad` is invalid.
pub(crate) struct TokenNames;

impl Authenticator for TokenNames {
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        let Some(name) = credentials.bearer else { return Ok(None) };
        if name == "bad" {
            return Err(Unauthenticated);
        }
        let groups = if name == "admin" { vec!["system:masters".to_owned()] } else { Vec::new() };
        let user = UserInfo { name: name.to_owned(), groups, ..UserInfo::default() };
        Ok(Some(Identity::new(user, "test")))
    }
}

/// Allows masters everything, names with `reader` reads, names with `writer` writes, and
/// `impersonator` to become `jane`; records the questions.
#[derive(Default)]
pub(crate) struct TestRules {
    pub(crate) asked: Mutex<Vec<String>>,
}

impl Authorizer for TestRules {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        let what = access.resource.map_or_else(
            || access.path.to_owned(),
            |r| format!("{}/{}/{}/{}", r.namespace, r.resource, r.name, r.subresource),
        );
        self.asked.lock().unwrap().push(format!("{} {} {what}", access.user.name, access.verb));
        let allowed = match access.user.name.as_str() {
            name if name.starts_with("reader") => matches!(access.verb, "get" | "list" | "watch"),
            name if name.starts_with("writer") => access.verb == "create",
            "impersonator" => {
                access.verb == "impersonate"
                    && access.resource.is_some_and(|resource| resource.name == "jane")
            }
            _ => access.user.groups.iter().any(|group| group == "system:masters"),
        };
        if allowed { Decision::Allow("test".into()) } else { Decision::NoOpinion(String::new()) }
    }
}

/// A server without a listener.
#[derive(Clone)]
pub(crate) struct TestServer {
    pub(crate) plane: ApiServer,
    pub(crate) registry: Registry,
    pub(crate) admission: Arc<Open>,
    pub(crate) rules: Arc<TestRules>,
}

/// Far beyond what anything takes on the slowest machine.
pub(crate) const BOUND: Duration = Duration::from_secs(180);

/// Stops tokio's clock until it is dropped, also while everything waits for another thread. From
/// then on time is paused.
pub(crate) struct StoppedClock {
    _blocking: Sender<()>,
    /// It was held for longer than [`BOUND`].
    is_late: Arc<AtomicBool>,
}

impl StoppedClock {
    pub(crate) fn new() -> Self {
        tokio::time::pause();
        Self::held()
    }

    /// The same for a clock that may run: that one goes on. A test fails that needs it for longer
    /// than [`BOUND`].
    pub(crate) fn held() -> Self {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let is_late = Arc::<AtomicBool>::default();
        let late = Arc::clone(&is_late);
        // A paused clock does not advance by itself while a blocking task runs.
        tokio::task::spawn_blocking(move || {
            let ended = receiver.recv_timeout(BOUND);
            late.store(ended == Err(RecvTimeoutError::Timeout), Ordering::Relaxed);
        });
        Self { _blocking: sender, is_late }
    }
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        let is_late = self.is_late.load(Ordering::Relaxed) && !std::thread::panicking();
        assert!(!is_late, "the clock was held for longer than {BOUND:?}");
    }
}

impl TestServer {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(change: impl FnOnce(ApiServerBuilder) -> ApiServerBuilder) -> Self {
        let server = Self::stopped(change);
        server.plane.start().await.unwrap();
        server
    }

    /// Revision of each resource's last change, without the resources that the server writes on its
    /// own at any time. Waits for what it writes once, after a definition is served.
    pub(crate) async fn written(&self) -> BTreeMap<String, Revision> {
        let kind =
            self.registry.catalog().find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let stored = kind.and_then(|kind| kind.definition.storage_prefix.clone());
        let stored = Prefix::new(&stored.unwrap()).unwrap();
        let is_settled =
            |one: &Entry| String::from_utf8_lossy(&one.bytes).contains("\"type\":\"Established\"");
        let begun = Instant::now();
        while !self.registry.store().snapshot(&stored).range(None, None).all(|one| is_settled(one))
        {
            assert!(begun.elapsed() < BOUND, "a definition is not established");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let own = ["apiregistration.k8s.io", "coordination.k8s.io", "flowcontrol.apiserver.k8s.io"];
        let (_, definitions) = self.registry.catalog().all();
        let stored = definitions.iter().filter(|definition| !own.contains(&&*definition.group));
        let prefixes = stored.filter_map(|definition| definition.storage_prefix.clone());
        prefixes
            .map(|prefix| {
                let latest = self.registry.store().latest(&Prefix::new(&prefix).unwrap());
                (prefix, latest)
            })
            .collect()
    }

    /// The same with paused time. While anything but a request of [`Self::send`] waits for another
    /// thread, time would jump to the next deadline: see [`StoppedClock::held`].
    pub(crate) async fn paused(change: impl FnOnce(ApiServerBuilder) -> ApiServerBuilder) -> Self {
        let server = Self::with(change).await;
        tokio::time::pause();
        server
    }

    /// Not started.
    pub(crate) fn stopped(change: impl FnOnce(ApiServerBuilder) -> ApiServerBuilder) -> Self {
        Self::over(Store::open(Config::memory()).unwrap(), change)
    }

    /// Not started, on a store of the test's.
    pub(crate) fn over(
        store: Store,
        change: impl FnOnce(ApiServerBuilder) -> ApiServerBuilder,
    ) -> Self {
        let catalog = Arc::new(Catalog::default());
        for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
            catalog.put(definition);
        }
        let admission = Arc::new(Open::default());
        let rules = Arc::new(TestRules::default());
        let registry = Registry::new(store, catalog, admission.clone());
        let builder = ApiServer::builder(registry.clone())
            .authenticator(Arc::new(TokenNames))
            .authorizer(rules.clone())
            .messages(ferrokube_resources::messages())
            .schemas(Arc::new(|name| ferrokube_resources::tables().get(name)));
        Self { plane: change(builder).build(), registry, admission, rules }
    }

    /// A request as admin. `headers` are `name: value`; an empty value removes the header.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> TestResponse {
        let mut request = Request::builder().method(method).uri(path);
        let given = |name: &str| headers.iter().any(|(other, _)| *other == name);
        for (name, value) in [
            ("authorization", "Bearer admin"),
            ("content-type", "application/json"),
            ("user-agent", "test/1.0"),
        ] {
            if !given(name) {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let request = request.body(ferrokube_serve::full(body)).unwrap();
        // It may wait for the committer or, on a busy machine, for a slot that another test has.
        let _clock = StoppedClock::held();
        TestResponse::read(self.plane.call(request).await).await
    }

    /// Sends a request whose response does not end.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = Request::builder().uri(path).header("authorization", "Bearer admin");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let _clock = StoppedClock::held();
        self.plane.call(request.body(ferrokube_serve::empty()).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> TestResponse {
        self.send("GET", path, &[("accept", accept)], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.send("POST", path, &[], body.to_string()).await
    }

    /// A config map in the namespace `default`.
    pub(crate) async fn configmap(&self, name: &str) -> TestResponse {
        self.post(CONFIGMAPS, &ferrokube_apimachinery::document::json!({"metadata": {"name": name, "labels": {"n": name}}, "data": {"k": "v"}})).await
    }
}

pub(crate) const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl TestResponse {
    pub(crate) async fn read(response: Response) -> Self {
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Self { code: head.status.as_u16(), headers: head.headers, bytes }
    }

    pub(crate) fn json(&self) -> Value {
        ferrokube_apimachinery::json::read_value(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn time_is_paused_only_after_the_server_has_started() {
    let early = concat!("start", "_paused");
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it")).unwrap() {
        let path = file.unwrap().path();
        assert!(!std::fs::read_to_string(&path).unwrap().contains(early), "{}", path.display());
    }
}
