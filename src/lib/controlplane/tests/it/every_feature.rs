//! Every feature that there is: on, used, off, on again; and over an upgrade, a downgrade and
//! another upgrade. A feature without a run fails.

use crate::features::{FEATURES, condition, is_state, merge_patch, stopped, wait_for};
use crate::priority::until;
use crate::support::{BOUND, CONFIGMAPS, TestResponse, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_controlplane::{ApiServer, FeatureFunction, FeatureSettings, SchemaSource};
use ferrokube_features::transition::FeatureState;
use ferrokube_features::{
    Descriptor, FeatureSetting, FeatureTask, Gate, GateSpec, Gates, KubernetesVersion, PrrAnswer,
    Stage, known,
};
use ferrokube_resource::bundle::Composition;
use ferrokube_schema::tables::Tables;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const NOW: KubernetesVersion = KubernetesVersion::CURRENT;
const BEFORE: KubernetesVersion = KubernetesVersion::new(NOW.major, NOW.minor - 1);

/// How a feature is used.
enum FeatureRun {
    /// It is the API itself.
    Api,
    /// In memory only: a path that is there while it is on, or none.
    Stateless(Option<&'static str>),
    /// An object of a collection, and what is there only if it is used.
    Stored(Vec<StoredUse>),
    /// The same, and users remove it.
    Held(StoredUse),
}

struct StoredUse {
    collection: &'static str,
    object: Value,
    path: Vec<&'static str>,
}

impl StoredUse {
    fn new(collection: &'static str, object: Value, path: &[&'static str]) -> Self {
        Self { collection, object, path: path.to_vec() }
    }

    fn url(&self) -> String {
        format!("{}/{}", self.collection, self.object["metadata"]["name"].as_str().unwrap())
    }

    fn is_in(&self, object: &Value) -> bool {
        let found = self.path.iter().try_fold(object, |value, field| value.get(field));
        object["kind"] != "Status" && found.is_some()
    }

    /// Creates it, until the server keeps the use: it acts on a state after clients see it.
    async fn create(&self, server: &TestServer) {
        let begun = Instant::now();
        while begun.elapsed() < BOUND {
            let made = server.post(self.collection, &self.object).await.json();
            if self.is_in(&made) {
                return;
            }
            server.send("DELETE", &self.url(), &[], "").await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("not kept: {}", server.post(self.collection, &self.object).await.text());
    }

    async fn is_stored(&self, server: &TestServer) -> bool {
        self.is_in(&server.get(&self.url()).await.json())
    }
}

fn run_of(feature: &str) -> FeatureRun {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/default/leasecandidates";
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
    const STRATEGY: &str = "OldestEmulationVersion";
    match feature {
        "FeatureAPI" => FeatureRun::Api,
        "LogTrackingInterop" | "MaxParallelImagePulls" => FeatureRun::Stateless(None),
        "OpenAPIV3" => FeatureRun::Stateless(Some("/openapi/v3")),
        "LogTracking" => {
            let annotations = json!({"trace.kubernetes.io/trace-id": "1"});
            let object = json!({"metadata": {"name": "used", "annotations": annotations}});
            let path = ["metadata", "annotations", "trace.kubernetes.io/trace-id"];
            FeatureRun::Stored(vec![StoredUse::new(CONFIGMAPS, object, &path)])
        }
        "CoordinatedLeaderElection" => {
            let lease = json!({"metadata": {"name": "used"},
                "spec": {"strategy": STRATEGY, "preferredHolder": "b"}});
            let candidate = json!({"metadata": {"name": "used"}, "spec": {"leaseName": "l",
                "binaryVersion": "1.36.0", "emulationVersion": "1.36.0", "strategy": STRATEGY}});
            FeatureRun::Stored(vec![
                StoredUse::new(LEASES, lease, &["spec", "strategy"]),
                StoredUse::new(CANDIDATES, candidate, &["metadata"]),
            ])
        }
        "MaxUnavailableStatefulSet" => {
            let labels = json!({"app": "a"});
            let containers = json!([{"name": "c", "image": "i"}]);
            let object = json!({"metadata": {"name": "used"}, "spec": {
                "serviceName": "s",
                "selector": {"matchLabels": labels.clone()},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}});
            let path = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];
            FeatureRun::Stored(vec![StoredUse::new(SETS, object, &path)])
        }
        "CustomResourceWebhookConversion" => {
            let schema = json!({"openAPIV3Schema": {"type": "object"}});
            let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
            let webhook = json!({"conversionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://127.0.0.1:1/convert"}});
            let object = json!({"metadata": {"name": "things.ex.com"}, "spec": {
                "group": "ex.com", "scope": "Namespaced", "versions": [version],
                "names": {"plural": "things", "kind": "Thing"},
                "conversion": {"strategy": "Webhook", "webhook": webhook}}});
            let path = ["spec", "conversion", "webhook"];
            FeatureRun::Held(StoredUse::new(DEFINITIONS, object, &path))
        }
        other => panic!("the feature {other} has no run here"),
    }
}

/// All kinds that features are about.
fn kinds() -> Composition {
    let kinds = ["features.features.k8s.io", "leasecandidates.coordination.k8s.io"];
    let bundles = [
        ferrokube_resources::bundle().with(kinds),
        ferrokube_workloads::bundle().only(["statefulsets.apps"]),
    ];
    ferrokube_resources::compose(&bundles).unwrap()
}

fn schemas() -> SchemaSource {
    static TABLES: LazyLock<Tables> = LazyLock::new(|| kinds().tables);
    Arc::new(|name| TABLES.get(name))
}

/// A server of them; not started.
fn server() -> TestServer {
    let server = TestServer::stopped(|builder| builder.schemas(schemas()));
    for definition in kinds().definitions {
        server.registry.catalog().put(definition);
    }
    server
}

fn gates(features: &[&'static Descriptor], version: KubernetesVersion, settings: &str) -> Gates {
    let gates = Gates::of_features(features, version, &settings.parse().unwrap()).unwrap().0;
    for gate in gates.all() {
        gates.enabled(gate.gate);
    }
    gates
}

/// Ends the running server, and starts another one over the same state.
async fn restart(server: &mut TestServer, gates: Gates, settings: FeatureSettings) {
    stopped(&server.plane).await;
    *server.admission.gates.lock().unwrap() = Some(gates.clone());
    let evaluation = Duration::ZERO;
    let settings = FeatureSettings { identity: "a".to_owned(), evaluation, ..settings };
    server.plane = ApiServer::builder(server.registry.clone())
        .authenticator(Arc::new(crate::support::TokenNames))
        .authorizer(server.rules.clone())
        .schemas(schemas())
        .gates(gates)
        .features(settings)
        .build();
    server.plane.start().await.unwrap();
}

async fn restart_with(
    server: &mut TestServer,
    version: KubernetesVersion,
    feature: &str,
    value: bool,
) {
    let api = if feature == "FeatureAPI" { String::new() } else { "FeatureAPI=true,".to_owned() };
    let gates = gates(&known::ALL, version, &format!("{api}{feature}={value}"));
    restart(server, gates, FeatureSettings::default()).await;
}

async fn is_in_state(server: &TestServer, feature: &str, state: &'static str) -> Value {
    wait_for(server, &format!("{FEATURES}/{feature}"), is_state(state)).await
}

/// Uses the feature as clients of a server with it do.
async fn use_it(server: &TestServer, feature: &str, run: &FeatureRun) {
    // The ids are the server's own; the stub stores those of the test while they are not.
    let own = gates(&known::ALL, NOW, "LogTracking=false");
    let before = server.admission.gates.lock().unwrap().replace(own);
    match run {
        FeatureRun::Api => assert_eq!(server.get(FEATURES).await.code, 200),
        FeatureRun::Stateless(path) => {
            if let Some(path) = path {
                wait_for(server, path, |answer| answer["kind"] != "Status").await;
            }
        }
        FeatureRun::Stored(uses) => {
            for one in uses {
                one.create(server).await;
            }
        }
        FeatureRun::Held(held) => held.create(server).await,
    }
    *server.admission.gates.lock().unwrap() = before;
    let stage = server.plane.gates().get(feature).unwrap().spec.stage.as_str();
    let line = format!("kubernetes_feature_enabled{{name=\"{feature}\",stage=\"{stage}\"}} 1\n");
    until(server, "/metrics", |metrics| metrics.text().contains(&line)).await;
}

/// Waits until it is off, and nothing of it is left.
async fn ends_off(server: &TestServer, feature: &str, run: &FeatureRun) {
    if let FeatureRun::Held(held) = run {
        let is_held =
            |one: &Value| is_state("TurningOff")(one) && condition(one, "Blocked").0 == "True";
        let object = wait_for(server, &format!("{FEATURES}/{feature}"), is_held).await;
        let (_, why) = condition(&object, "Blocked");
        let name = held.object["metadata"]["name"].as_str().unwrap();
        assert!(why.contains(name), "{why}");
        assert!(held.is_stored(server).await, "a hold deletes nothing");
        let change = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
        let changed = merge_patch(server, &held.url(), &change).await;
        assert_eq!(changed.code, 200, "{}", changed.text());
    }
    let off = is_in_state(server, feature, "Off").await;
    assert_eq!(condition(&off, "DowngradeSafe").0, "True", "{off}");
    match run {
        FeatureRun::Api => {}
        FeatureRun::Stateless(path) => {
            if let Some(path) = path {
                assert_eq!(server.get(path).await.code, 404);
            }
        }
        FeatureRun::Stored(uses) => {
            for one in uses {
                assert!(!one.is_stored(server).await, "{feature}: {}", one.url());
            }
        }
        FeatureRun::Held(held) => {
            let again = server.post(&format!("{}?dryRun=All", held.collection), &held.object).await;
            assert_eq!(again.code, 422, "{}", again.text());
            assert!(again.text().contains(feature), "{}", again.text());
            server.send("DELETE", &held.url(), &[], "").await;
            wait_for(server, &held.url(), |answer| answer["code"] == 404).await;
        }
    }
}

/// Removes what [`use_it`] made.
async fn clean(server: &TestServer, run: &FeatureRun) {
    let FeatureRun::Stored(uses) = run else { return };
    for one in uses {
        server.send("DELETE", &one.url(), &[], "").await;
    }
}

#[tokio::test]
async fn f14_every_feature_goes_on_and_off_and_on() {
    for descriptor in known::ALL {
        let (feature, run) = (descriptor.gate.name, run_of(descriptor.gate.name));
        let mut server = server();
        for _ in 0..2 {
            restart_with(&mut server, NOW, feature, true).await;
            is_in_state(&server, feature, "On").await;
            use_it(&server, feature, &run).await;
            if matches!(run, FeatureRun::Api) {
                continue;
            }
            restart_with(&mut server, NOW, feature, false).await;
            ends_off(&server, feature, &run).await;
            clean(&server, &run).await;
        }
        stopped(&server.plane).await;
    }
}

#[tokio::test]
async fn f14_every_feature_survives_upgrade_downgrade_upgrade() {
    for descriptor in known::ALL {
        let (feature, run) = (descriptor.gate.name, run_of(descriptor.gate.name));
        let mut server = server();
        restart_with(&mut server, BEFORE, feature, false).await;
        restart_with(&mut server, NOW, feature, true).await;
        is_in_state(&server, feature, "On").await;
        use_it(&server, feature, &run).await;
        let has_before = descriptor.gate.at(BEFORE).is_some();
        let on = is_in_state(&server, feature, "On").await;
        let is_safe = has_before || descriptor.tasks.is_empty();
        assert_eq!(condition(&on, "DowngradeSafe").0 == "True", is_safe, "{on}");
        // Whether or not that was safe: nothing is lost, nor called off.
        if !matches!(run, FeatureRun::Api) {
            restart_with(&mut server, BEFORE, feature, true).await;
            let stability =
                |one: &Value| (one["status"]["stability"] == "Unavailable") != has_before;
            let kept = wait_for(&server, &format!("{FEATURES}/{feature}"), stability).await;
            assert_eq!(kept["status"]["state"], "On", "{kept}");
        }
        restart_with(&mut server, NOW, feature, true).await;
        is_in_state(&server, feature, "On").await;
        match &run {
            FeatureRun::Stored(uses) => {
                for one in uses {
                    assert!(one.is_stored(&server).await, "{feature}: {}", one.url());
                }
            }
            FeatureRun::Held(held) => assert!(held.is_stored(&server).await),
            FeatureRun::Api | FeatureRun::Stateless(_) => {}
        }
        if matches!(run, FeatureRun::Api) {
            stopped(&server.plane).await;
            continue;
        }
        // The safe way.
        restart_with(&mut server, NOW, feature, false).await;
        ends_off(&server, feature, &run).await;
        restart_with(&mut server, BEFORE, feature, false).await;
        is_in_state(&server, feature, "Off").await;
        clean(&server, &run).await;
        restart_with(&mut server, NOW, feature, true).await;
        is_in_state(&server, feature, "On").await;
        use_it(&server, feature, &run).await;
        stopped(&server.plane).await;
    }
}

/// The story of a kind of volume: objects that users have to remove.
#[tokio::test]
async fn f35_f39_a_hold_names_the_objects_and_waits_for_their_users() {
    const FEATURE: &str = "CustomResourceWebhookConversion";
    let run = run_of(FEATURE);
    let FeatureRun::Held(held) = &run else { panic!("it holds") };
    let mut server = server();
    restart_with(&mut server, NOW, FEATURE, true).await;
    is_in_state(&server, FEATURE, "On").await;
    use_it(&server, FEATURE, &run).await;
    // Also a server that starts meanwhile waits, and deletes nothing.
    for _ in 0..3 {
        restart_with(&mut server, NOW, FEATURE, false).await;
        let is_held = |one: &Value| {
            let (blocked, why) = condition(one, "Blocked");
            let tasks = &one["status"]["transitionTasks"];
            is_state("TurningOff")(one)
                && blocked == "True"
                && why.contains("things.ex.com")
                && tasks[0].as_str().is_some_and(|task| task.starts_with("HoldUntilUnused("))
                && tasks[1] == "WaitForUses"
        };
        wait_for(&server, &format!("{FEATURES}/{FEATURE}"), is_held).await;
        assert!(held.is_stored(&server).await, "a hold deletes nothing");
    }
    server.send("DELETE", &held.url(), &[], "").await;
    let off = is_in_state(&server, FEATURE, "Off").await;
    assert_eq!(condition(&off, "Blocked").0, "False");
    assert_eq!(condition(&off, "DanglingReferences").0, "False");
    stopped(&server.plane).await;
}

/// The story of the proposal's own example: a field of StatefulSets, which is set in one place.
#[tokio::test]
async fn f36_the_field_of_stateful_sets_comes_and_goes_with_its_schema() {
    const FEATURE: &str = "MaxUnavailableStatefulSet";
    const SCHEMAS: &str = "/openapi/v3/apis/apps/v1";
    let FeatureRun::Stored(uses) = run_of(FEATURE) else { panic!("it stores") };
    let used = &uses[0];
    let is_published = |page: &TestResponse| {
        let schemas = &page.json()["components"]["schemas"];
        let fields = &schemas["io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy"]["properties"];
        assert_ne!(fields["partition"], Value::Null, "{}", page.text());
        fields.get("maxUnavailable").is_some()
    };
    let mut server = server();
    for _ in 0..2 {
        restart_with(&mut server, NOW, FEATURE, true).await;
        is_in_state(&server, FEATURE, "On").await;
        used.create(&server).await;
        until(&server, SCHEMAS, is_published).await;
        restart_with(&mut server, NOW, FEATURE, false).await;
        is_in_state(&server, FEATURE, "Off").await;
        let cleared = server.get(&used.url()).await.json();
        assert!(!used.is_in(&cleared), "{cleared}");
        assert_eq!(cleared["spec"]["serviceName"], "s", "{cleared}");
        until(&server, SCHEMAS, |page| !is_published(page)).await;
        server.send("DELETE", &used.url(), &[], "").await;
        let dropped = server.post(used.collection, &used.object).await;
        assert_eq!(dropped.code, 201, "{}", dropped.text());
        assert!(!used.is_in(&dropped.json()), "{}", dropped.text());
        server.send("DELETE", &used.url(), &[], "").await;
    }
    stopped(&server.plane).await;
}

/// The story of a feature without state, in one binary.
#[tokio::test]
async fn f37_a_stateless_feature_is_switched_in_a_running_server() {
    const FEATURE: &str = "OpenAPIV3";
    let mut server = server();
    let settings =
        FeatureSettings { dynamic: [FEATURE.to_owned()].into(), ..FeatureSettings::default() };
    restart(&mut server, gates(&known::ALL, NOW, "FeatureAPI=true"), settings).await;
    is_in_state(&server, FEATURE, "On").await;
    let url = format!("{FEATURES}/{FEATURE}");
    for number in 1..=2_u64 {
        for (desired, state) in [("Disabled", "Off"), ("Enabled", "On")] {
            let patch = json!({"spec": {"desired": desired}});
            let set = merge_patch(&server, &url, &patch).await;
            assert_eq!(set.code, 200, "{}", set.text());
            let feature = is_in_state(&server, FEATURE, state).await;
            assert!(feature["status"].get("transitionTasks").is_none(), "{feature}");
            let transitions = feature["status"]["transition"].as_u64();
            assert!(transitions.is_some_and(|count| count >= number), "{feature}");
            let code = if state == "On" { 200 } else { 404 };
            until(&server, "/openapi/v3", |page| page.code == code).await;
        }
    }
    stopped(&server.plane).await;
}

const fn spec(minor: u16, stage: Stage, default: bool) -> [GateSpec; 1] {
    [GateSpec {
        since: KubernetesVersion::new(1, minor),
        stage,
        default,
        locked: false,
        min_compatibility: None,
    }]
}

static API: Gate =
    Gate { name: "FeatureAPI", specs: &spec(30, Stage::Alpha, true), dependencies: &[] };
static WORKING: Gate =
    Gate { name: "Working", specs: &spec(30, Stage::Beta, true), dependencies: &[] };
static CHANGING: Gate = Gate {
    name: "Changing",
    specs: &[spec(30, Stage::Alpha, false)[0], spec(36, Stage::Beta, true)[0]],
    dependencies: &[],
};

const fn descriptor(gate: &'static Gate, tasks: &'static [FeatureTask]) -> Descriptor {
    const ANSWERS: &[PrrAnswer] = &[];
    Descriptor {
        gate,
        summary: "",
        source: "",
        components: &["apiserver"],
        owner: "tests",
        metrics: &["kubernetes_feature_enabled"],
        setting: FeatureSetting::Local,
        tasks,
        answers: ANSWERS,
        sources: &[],
    }
}

/// A table of other programs' features.
static OTHERS: [&Descriptor; 3] = [
    &descriptor(&API, &[]),
    &descriptor(&WORKING, &[FeatureTask::Function { name: "work" }]),
    &descriptor(&CHANGING, &[]),
];

/// Also gates of another table, which no other code names.
#[tokio::test]
async fn f01_f07_every_gate_is_announced_and_reported() {
    let tables: [&[&'static Descriptor]; 2] = [&known::ALL, &OTHERS];
    for features in tables {
        let mut server = server();
        let gates = gates(features, NOW, "FeatureAPI=true");
        restart(&mut server, gates, FeatureSettings::default()).await;
        let mut count = 0;
        for gate in server.plane.gates().all() {
            let (name, configured) = (gate.gate.name, gate.configured);
            let is_reported = |one: &Value| {
                let uses = one["status"]["uses"].as_array();
                one["status"]["state"] == FeatureState::stable(configured).as_str()
                    && uses.into_iter().flatten().any(|used| {
                        used["version"] == NOW.to_string()
                            && used["enabled"] == configured
                            && used["reporter"] == "system:apiserver"
                    })
            };
            let feature = wait_for(&server, &format!("{FEATURES}/{name}"), is_reported).await;
            let value = |enabled: bool| if enabled { "Enabled" } else { "Disabled" };
            for (field, want) in [
                ("class", "kube-system"),
                ("name", name),
                ("stability", gate.spec.stability()),
                ("default", value(gate.spec.default)),
                ("configured", value(configured)),
                ("source", if gate.set { "CommandLine" } else { "Default" }),
            ] {
                assert_eq!(feature["status"][field], want, "{field}: {feature}");
            }
            let metrics = server.get("/metrics").await.text();
            let (stage, is_on) = (gate.spec.stage.as_str(), u8::from(configured));
            let line = format!(
                "kubernetes_feature_enabled{{name=\"{name}\",stage=\"{stage}\"}} {is_on}\n"
            );
            assert!(metrics.contains(&line), "{line} in {metrics}");
            count += 1;
        }
        assert_eq!(count, features.len());
        stopped(&server.plane).await;
    }
}

#[tokio::test]
async fn f11_a_function_of_the_author_runs_until_it_succeeds() {
    let mut server = server();
    restart(&mut server, gates(&OTHERS, NOW, ""), FeatureSettings::default()).await;
    is_in_state(&server, "Working", "On").await;
    let off = || gates(&OTHERS, NOW, "Working=false");
    // A server of another version may lack it.
    restart(&mut server, off(), FeatureSettings::default()).await;
    let says = |text: &'static str| {
        move |one: &Value| is_state("TurningOff")(one) && condition(one, "Blocked").1 == text
    };
    let path = format!("{FEATURES}/Working");
    wait_for(&server, &path, says("the server has no such function")).await;
    let (calls, is_ready) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, ready) = (Arc::clone(&calls), Arc::clone(&is_ready));
    let function = FeatureFunction::new(move |_registry| {
        counted.fetch_add(1, Ordering::SeqCst);
        let is_ready = ready.load(Ordering::SeqCst) == 1;
        async move { if is_ready { Ok(()) } else { Err("disks are attached".to_owned()) } }
    });
    let settings =
        || FeatureSettings { functions: [("work", function.clone())].into(), ..Default::default() };
    restart(&mut server, off(), settings()).await;
    wait_for(&server, &path, says("disks are attached")).await;
    is_ready.store(1, Ordering::SeqCst);
    // Tried again at once by the next run.
    restart(&mut server, off(), settings()).await;
    is_in_state(&server, "Working", "Off").await;
    assert!(calls.load(Ordering::SeqCst) >= 2);
    stopped(&server.plane).await;
}

/// A default that an upgrade changes is a transition like any other.
#[tokio::test]
async fn f04_a_default_that_changes_is_a_transition() {
    let mut server = server();
    for (version, state, stability) in
        [(BEFORE, "Off", "Alpha"), (NOW, "On", "Beta"), (BEFORE, "Off", "Alpha")]
    {
        restart(&mut server, gates(&OTHERS, version, ""), FeatureSettings::default()).await;
        let path = format!("{FEATURES}/Changing");
        let ends = |one: &Value| is_state(state)(one) && one["status"]["stability"] == stability;
        let feature = wait_for(&server, &path, ends).await;
        assert_eq!(feature["status"]["source"], "Default");
        assert_eq!(feature["status"]["version"], version.to_string());
    }
    stopped(&server.plane).await;
}

/// A collection is empty when its finalizers have run, not when it was deleted.
#[tokio::test]
async fn an_object_that_waits_for_its_finalizers_holds_the_transition() {
    const FEATURE: &str = "CoordinatedLeaderElection";
    let FeatureRun::Stored(mut uses) = run_of(FEATURE) else { panic!("it stores") };
    let candidate = uses.last_mut().unwrap();
    candidate.object["metadata"]["finalizers"] = json!(["example.com/held"]);
    let mut server = server();
    restart_with(&mut server, NOW, FEATURE, true).await;
    is_in_state(&server, FEATURE, "On").await;
    candidate.create(&server).await;
    restart_with(&mut server, NOW, FEATURE, false).await;
    let why = "1 object uses it: leasecandidates.coordination.k8s.io/used in default; they are \
               being deleted, and wait for their finalizers";
    let is_held = |one: &Value| {
        is_state("TurningOff")(one)
            && condition(one, "Blocked") == ("True".to_owned(), why.to_owned())
    };
    let held = wait_for(&server, &format!("{FEATURES}/{FEATURE}"), is_held).await;
    assert_eq!(condition(&held, "DowngradeSafe").0, "False", "{held}");
    let released = json!({"metadata": {"finalizers": null}});
    let patched = merge_patch(&server, &candidate.url(), &released).await;
    assert_eq!(patched.code, 200, "{}", patched.text());
    let off = is_in_state(&server, FEATURE, "Off").await;
    assert_eq!(condition(&off, "DowngradeSafe").0, "True", "{off}");
    assert!(!candidate.is_stored(&server).await);
    stopped(&server.plane).await;
}
