//! The generic kinds through the pipeline with the real steps, over an in-memory store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ferrokube_admission::{
    Chain, MutatingPolicies, PermitQuery, Permits, PolicyInputs, PolicyReaders, ValidatingPolicies,
};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_cel::{CheckDecision, Right};
use ferrokube_features::{GateSettings, Gates, KubernetesVersion};
use ferrokube_registry::offload::has_slot;
use ferrokube_registry::{
    Catalog, DeleteOptions, Local, Registry, RequestContext, Served, Target, WriteOptions,
};
use ferrokube_storage::{Config, Prefix, Store};
use ferrokube_trace::TraceContext;
use ferrokube_trace::annotation::{INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

#[path = "pipeline/costs.rs"]
mod costs;
#[path = "pipeline/mutated.rs"]
mod mutated;
#[path = "pipeline/policies.rs"]
mod policies;
#[path = "pipeline/type_checks.rs"]
mod type_checks;
#[path = "pipeline/versions.rs"]
mod versions;

#[derive(Default)]
struct PermitsAll {
    /// Checks of expressions on a worker, and off it.
    decided: [AtomicUsize; 2],
}

impl Permits for PermitsAll {
    fn decide(&self, _: &UserInfo, _: &Right) -> CheckDecision {
        self.decided[usize::from(has_slot())].fetch_add(1, Ordering::Relaxed);
        CheckDecision { allowed: true, ..CheckDecision::default() }
    }

    fn permits(&self, _user: &UserInfo, _question: &PermitQuery<'_>) -> bool {
        true
    }
}

struct TestPipeline {
    registry: Registry,
    permits: Arc<PermitsAll>,
}

impl TestPipeline {
    fn new(gates: &str) -> Self {
        Self::with_steps(gates, |chain| chain)
    }

    fn with_steps(gates: &str, add: impl FnOnce(Chain) -> Chain) -> Self {
        let store = Store::open(Config::memory()).unwrap();
        let catalog = Arc::new(Catalog::default());
        ferrokube_resources::definitions(ferrokube_resources::tables())
            .into_iter()
            .for_each(|definition| catalog.put(definition));
        let settings: GateSettings = gates.parse().unwrap();
        let gates = Gates::new(KubernetesVersion::new(1, 36), &settings).unwrap().0;
        let permits = Arc::new(PermitsAll::default());
        let inputs = PolicyInputs {
            store: store.clone(),
            catalog: Arc::clone(&catalog),
            permits: Arc::clone(&permits) as _,
            stats: Arc::default(),
        };
        let chain = Chain::new(&store, gates, Arc::clone(&permits) as _)
            .with(Arc::new(PolicyReaders::new(inputs.clone())))
            .with_remote(Arc::new(MutatingPolicies::new(inputs.clone())))
            .with_remote(Arc::new(ValidatingPolicies::new(inputs)));
        Self { registry: Registry::new(store, catalog, Arc::new(add(chain))), permits }
    }

    /// With a namespace `n`.
    async fn with_namespace() -> Self {
        Self::new("LogTracking=false").and_namespace().await
    }

    async fn and_namespace(self) -> Self {
        let server = self;
        server
            .core("namespaces")
            .create("", document(json!({"metadata": {"name": "n"}})))
            .await
            .unwrap();
        server
    }

    fn kind(&self, group: &str, plural: &str) -> Local {
        Local::new(&self.registry, group, "v1", plural).unwrap()
    }

    fn core(&self, plural: &str) -> Local {
        self.kind("", plural)
    }

    /// Webhooks and policies do not apply to what [`Self::kind`] writes.
    fn as_user(&self, group: &str, plural: &str) -> UserClient<'_> {
        let served = self.kind(group, plural).served().clone();
        UserClient { registry: &self.registry, served }
    }
}

/// Writes as a user.
struct UserClient<'a> {
    registry: &'a Registry,
    served: Served,
}

impl UserClient<'_> {
    fn target(&self, namespace: &str, name: &str) -> Target {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Target {
            served: self.served.clone(),
            namespace: some(namespace),
            name: some(name),
            subresource: String::new(),
        }
    }

    /// With the name and groups of the server, which do not help.
    fn context() -> RequestContext {
        let now = SystemTime::now();
        RequestContext::new(Local::user(), TraceContext::root(), "test".to_owned(), now)
    }

    async fn create(&self, namespace: &str, object: Document) -> Result<Document, Failure> {
        let (context, target) = (Self::context(), self.target(namespace, ""));
        let options = WriteOptions::default();
        let written = self.registry.create(&context, &target, object.into(), &options).await?;
        Ok(written.object.into_document(&self.served))
    }

    async fn update(&self, object: Document, subresource: &str) -> Result<Document, Failure> {
        let mut target = self.target(object.namespace(), object.name());
        subresource.clone_into(&mut target.subresource);
        let (context, options) = (Self::context(), WriteOptions::default());
        let written = self.registry.update(&context, &target, object.into(), &options).await?;
        Ok(written.object.into_document(&self.served))
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<(), Failure> {
        let (target, options) = (self.target(namespace, name), DeleteOptions::default());
        self.registry.delete(&Self::context(), &target, &options).await.map(drop)
    }
}

fn document(value: Value) -> Document {
    Document::from_value(value).unwrap()
}

/// Without the metadata that the server sets.
fn plain(object: Document) -> Value {
    let mut object = object;
    for field in
        ["uid", "resourceVersion", "creationTimestamp", "managedFields", "name", "namespace"]
    {
        object.remove(&["metadata", field]);
    }
    object.into_value()
}

#[tokio::test]
async fn a_namespace_terminates_and_is_finalized() {
    let server = TestPipeline::with_namespace().await;
    let namespaces = server.core("namespaces");
    let made = namespaces.get("", "n").await.unwrap().unwrap();
    let expected = json!({
        "kind": "Namespace", "apiVersion": "v1", "metadata": {"labels": {"kubernetes.io/metadata.name": "n"}},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}
    });
    assert_eq!(plain(made), expected);
    server
        .core("configmaps")
        .create("n", document(json!({"metadata": {"name": "a"}})))
        .await
        .unwrap();
    namespaces.delete("", "n", &DeleteOptions::default()).await.unwrap();
    let mut terminating = namespaces.get("", "n").await.unwrap().unwrap();
    assert_eq!(terminating.str(&["status", "phase"]), Some("Terminating"));
    assert!(
        terminating.is_terminating()
            && terminating.get(&["metadata", "deletionGracePeriodSeconds"]).is_none()
    );
    let failure = server
        .core("configmaps")
        .create("n", document(json!({"metadata": {"name": "b"}})))
        .await
        .unwrap_err();
    assert_eq!(
        (failure.code, failure.details.unwrap().causes[0].reason.as_str()),
        (403, "NamespaceTerminating")
    );
    let unnamed = document(json!({"metadata": {"generateName": "g-"}}));
    let failure = server.core("configmaps").create("n", unnamed).await.unwrap_err();
    let want = "configmaps \"g-\" is forbidden: unable to create new content in namespace n because it is being terminated";
    assert_eq!(failure.message, want);
    terminating.set(&["spec"], json!({}));
    namespaces.update(terminating, "finalize").await.unwrap();
    assert!(namespaces.get("", "n").await.unwrap().is_none());
}

#[tokio::test]
async fn a_create_in_a_missing_namespace_is_404_before_other_errors() {
    let server = TestPipeline::new("");
    let failure = server
        .core("configmaps")
        .create("nowhere", document(json!({"metadata": {"name": "a"}, "data": {"bad key": ""}})))
        .await
        .unwrap_err();
    assert_eq!((failure.code, failure.details.unwrap().kind.as_str()), (404, "namespaces"));
}

#[tokio::test]
async fn events_are_stored_once_and_served_in_two_forms() {
    let server = TestPipeline::with_namespace().await;
    let (core, newer) = (server.core("events"), server.kind("events.k8s.io", "events"));
    let event = json!({
        "metadata": {"name": "e"}, "eventTime": "2024-01-02T03:04:05.000000Z", "reportingController": "example.com/x", "reportingInstance": "i",
        "action": "Act", "reason": "R", "type": "Normal", "regarding": {"kind": "ConfigMap", "namespace": "n", "name": "a"}
    });
    let made = newer.create("n", document(event)).await.unwrap();
    let expected = json!({
        "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {}, "eventTime": "2024-01-02T03:04:05.000000Z",
        "reportingController": "example.com/x", "reportingInstance": "i", "action": "Act", "reason": "R", "type": "Normal",
        "regarding": {"kind": "ConfigMap", "namespace": "n", "name": "a"}, "deprecatedSource": {}, "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null
    });
    assert_eq!(plain(made.clone()), expected);
    assert_eq!(plain(newer.get("n", "e").await.unwrap().unwrap()), expected);
    let old_form = core.get("n", "e").await.unwrap().unwrap();
    assert_eq!(
        (old_form.api_version(), old_form.str(&["involvedObject", "name"]), old_form.uid()),
        ("v1", Some("a"), made.uid())
    );
    assert_eq!(core.list("n").await.unwrap().len(), 1);
    let failure = newer.create("n", document(json!({"metadata": {"name": "bad"}, "regarding": {"namespace": "n"}, "type": "Strange"}))).await.unwrap_err();
    let details = failure.details.unwrap();
    assert_eq!((failure.code, details.group.as_str(), details.kind.as_str()), (422, "", "Event"));
}

#[tokio::test]
async fn signing_requests_are_decided_and_signed() {
    let server = TestPipeline::new("LogTracking=false");
    let requests = server.kind("certificates.k8s.io", "certificatesigningrequests");
    let pem = include_str!("../../resources/tests/kinds/request.base64").trim();
    let spec = json!({"request": pem, "signerName": "example.com/signer", "usages": ["client auth"], "username": "mallory"});
    let made = requests
        .create("", document(json!({"metadata": {"name": "c"}, "spec": spec})))
        .await
        .unwrap();
    assert_eq!(made.str(&["spec", "username"]), Some("system:apiserver"));
    assert_eq!(made.get(&["status"]), Some(&json!({})));
    let approved = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "X"}]});
    let with = |status: Value| {
        let mut object = made.clone();
        object.remove(&["metadata", "resourceVersion"]);
        object.set(&["status"], status);
        object
    };
    assert_eq!(requests.update(with(approved.clone()), "status").await.unwrap_err().code, 422);
    let decided = requests.update(with(approved), "approval").await.unwrap();
    assert!(decided.list(&["status", "conditions"])[0].get("lastUpdateTime").is_some());
    let mut unchanged = decided.clone();
    unchanged.set(&["spec", "signerName"], "example.com/other");
    assert_eq!(requests.update(unchanged, "").await.unwrap(), decided);
}

#[tokio::test]
async fn role_rules_are_null_when_there_are_none() {
    let server = TestPipeline::with_namespace().await;
    let roles = server.kind("rbac.authorization.k8s.io", "roles");
    let put = document(json!({"metadata": {"name": "r", "namespace": "n"}, "rules": []}));
    let made = roles.update(put, "").await.unwrap();
    assert_eq!(made.get(&["rules"]), Some(&Value::Null));
    assert!(made.get(&["metadata", "managedFields"]).unwrap().to_string().contains("f:rules"));
}

#[tokio::test]
async fn secrets_take_string_data() {
    let server = TestPipeline::with_namespace().await;
    let secrets = server.core("secrets");
    let made = secrets
        .create("n", document(json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}})))
        .await
        .unwrap();
    let fields = made.get(&["metadata", "managedFields"]).unwrap().to_string();
    assert!(fields.contains("f:data") && !fields.contains("stringData"), "{fields}");
    assert_eq!(
        plain(made),
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": {}, "data": {"k": "dg=="}, "type": "Opaque"})
    );
}

#[tokio::test]
async fn quota_holds_under_parallel_creates() {
    let server = TestPipeline::with_namespace().await;
    let quotas = server.core("resourcequotas");
    let mut quota = quotas
        .create(
            "n",
            document(json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": 3}}})),
        )
        .await
        .unwrap();
    assert_eq!(
        (quota.get(&["status"]), quota.str(&["spec", "hard", "count/secrets"])),
        (Some(&json!({})), Some("3"))
    );
    quota.set(&["status"], json!({"hard": {"count/secrets": "3"}, "used": {"count/secrets": "0"}}));
    quotas.update(quota, "status").await.unwrap();
    let secrets = server.as_user("", "secrets");
    let creates = (0..12).map(|index| {
        secrets.create("n", document(json!({"metadata": {"name": format!("s{index}")}})))
    });
    let mut made = 0;
    for created in futures::future::join_all(creates).await {
        match created {
            Ok(_) => made += 1,
            Err(failure) => assert_eq!(failure.code, 403),
        }
    }
    assert_eq!(made, 3);
    let quota = quotas.get("n", "q").await.unwrap().unwrap();
    assert_eq!(quota.str(&["status", "used", "count/secrets"]), Some("3"));
    assert_eq!(
        server.registry.store().snapshot(&Prefix::new("secrets").unwrap()).count(Some("n"), None),
        3
    );
}

/// Writes a ConfigMap as some user.
struct ConfigMapWriter<'a>(&'a TestPipeline);

impl ConfigMapWriter<'_> {
    fn context() -> RequestContext {
        RequestContext::new(
            UserInfo { name: "alice".to_owned(), ..UserInfo::default() },
            TraceContext::root(),
            "test".to_owned(),
            SystemTime::now(),
        )
    }

    fn target(&self, name: Option<&str>) -> Target {
        let served = self.0.core("configmaps").served().clone();
        Target {
            served,
            namespace: Some("n".to_owned()),
            name: name.map(str::to_owned),
            subresource: String::new(),
        }
    }

    async fn create(&self, object: Value) -> Document {
        let target = self.target(None);
        let written = self
            .0
            .registry
            .create(&Self::context(), &target, document(object).into(), &WriteOptions::default())
            .await
            .unwrap();
        written.object.into_document(&target.served)
    }

    async fn update(&self, object: Document) -> Document {
        let target = self.target(Some(object.name()));
        let written = self
            .0
            .registry
            .update(&Self::context(), &target, object.into(), &WriteOptions::default())
            .await
            .unwrap();
        written.object.into_document(&target.served)
    }
}

#[tokio::test]
async fn ids_are_stamped_and_noops_stay_noops() {
    let server = TestPipeline::new("");
    server
        .core("namespaces")
        .create("", document(json!({"metadata": {"name": "n"}})))
        .await
        .unwrap();
    let alice = ConfigMapWriter(&server);
    let made = alice.create(json!({"metadata": {"name": "a", "annotations": {TRACE_ID: "x", "mine": "1"}}, "data": {"k": "1"}})).await;
    let initial = made.annotation(INITIAL_TRACE_ID).unwrap();
    assert_eq!(made.annotation(TRACE_ID), Some(initial));
    assert_eq!((initial.len(), made.annotation(SPAN_ID).unwrap().len()), (32, 16));
    assert!(
        !made
            .get(&["metadata", "managedFields"])
            .unwrap()
            .to_string()
            .contains("trace.kubernetes.io")
    );
    // The same write by a client that never saw the annotations is a no-op.
    let mut same = made.clone();
    same.set(&["metadata", "annotations"], json!({"mine": "1"}));
    assert_eq!(alice.update(same).await, made);
    // A change keeps the initial id and takes the ids of the new request.
    let mut changed = made.clone();
    changed.set(&["metadata", "annotations"], json!({"mine": "1", INITIAL_TRACE_ID: "forged"}));
    changed.set(&["data", "k"], "2");
    let changed = alice.update(changed).await;
    assert_eq!(changed.annotation(INITIAL_TRACE_ID), Some(initial));
    assert_ne!(changed.annotation(TRACE_ID), Some(initial));
}

#[tokio::test]
async fn leases_and_events_are_never_stamped() {
    let server = TestPipeline::new("");
    server
        .core("namespaces")
        .create("", document(json!({"metadata": {"name": "n"}})))
        .await
        .unwrap();
    let lease = server
        .kind("coordination.k8s.io", "leases")
        .create("n", document(json!({"metadata": {"name": "l"}})))
        .await
        .unwrap();
    assert_eq!(
        plain(lease),
        json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "spec": {}})
    );
}
