//! The Feature API over real stores: announcing, transitions, crashes between steps, servers that
//! disagree.

use crate::priority::until;
use crate::support::{BOUND, CONFIGMAPS, TestResponse, TestServer, TokenNames};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_controlplane::{ApiServer, FeatureSettings};
use ferrokube_features::{Gates, KubernetesVersion};
use ferrokube_registry::Local;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const FEATURES: &str = "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features";
const LOG_TRACKING: &str =
    "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/LogTracking";
const TRACE_ID: &str = "trace.kubernetes.io/trace-id";

fn gates(settings: &str) -> Gates {
    let settings = format!("FeatureAPI=true,{settings}");
    Gates::new(KubernetesVersion::CURRENT, &settings.parse().unwrap()).unwrap().0
}

fn settings(identity: &str, evaluation: Duration) -> FeatureSettings {
    FeatureSettings { identity: identity.to_owned(), evaluation, ..FeatureSettings::default() }
}

/// A server that serves Features.
pub(crate) async fn server(gates_of: &str) -> TestServer {
    let server = TestServer::stopped(|builder| {
        let gates = gates(gates_of);
        gates.enabled(&ferrokube_features::LOG_TRACKING);
        builder.gates(gates).features(settings("a", Duration::ZERO))
    });
    let tables = ferrokube_resources::tables();
    let row = ferrokube_resources::on_request().iter().find(|row| row.plural == "features");
    let definition = row.unwrap().definition(tables).unwrap();
    server.registry.catalog().put(Arc::new(definition));
    server.plane.start().await.unwrap();
    server
}

pub(crate) async fn merge_patch(server: &TestServer, path: &str, patch: &Value) -> TestResponse {
    let kind = [("content-type", "application/merge-patch+json")];
    server.send("PATCH", path, &kind, patch.to_string()).await
}

/// Another run over the same state.
async fn restarted(server: &TestServer, identity: &str, gates_of: &str) -> ApiServer {
    restarted_with(server, gates_of, |settings| settings.identity = identity.to_owned()).await
}

/// Another run of the first server.
pub(crate) async fn restarted_with(
    server: &TestServer,
    gates_of: &str,
    change: impl FnOnce(&mut FeatureSettings),
) -> ApiServer {
    let gates = gates(gates_of);
    gates.enabled(&ferrokube_features::LOG_TRACKING);
    let mut settings = settings("a", Duration::ZERO);
    change(&mut settings);
    *server.admission.gates.lock().unwrap() = Some(gates.clone());
    let plane = ApiServer::builder(server.registry.clone())
        .authenticator(Arc::new(TokenNames))
        .authorizer(server.rules.clone())
        .gates(gates)
        .features(settings)
        .build();
    plane.start().await.unwrap();
    plane
}

pub(crate) async fn stopped(plane: &ApiServer) {
    plane.begin_shutdown();
    plane.stopped().await;
}

/// Waits until the object is as wanted.
pub(crate) async fn wait_for(
    server: &TestServer,
    path: &str,
    is_wanted: impl Fn(&Value) -> bool,
) -> Value {
    let begun = Instant::now();
    loop {
        let last = server.get(path).await.json();
        if is_wanted(&last) {
            return last;
        }
        assert!(begun.elapsed() < BOUND, "not as wanted: {last}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls for what a step of time changes; most steps change nothing.
const POLLS: usize = 20;

/// Waits until LogTracking is as wanted, while time passes in such steps.
pub(crate) async fn wait_while_time_passes(
    server: &TestServer,
    step: Duration,
    is_wanted: impl Fn(&Value) -> bool,
) -> Value {
    let begun = Instant::now();
    loop {
        let last = server.get(LOG_TRACKING).await.json();
        if is_wanted(&last) {
            return last;
        }
        assert!(begun.elapsed() < BOUND, "not as wanted: {last}");
        tokio::time::pause();
        tokio::time::advance(step).await;
        tokio::time::resume();
        // The next step might end a state that lasts for one.
        for _ in 0..POLLS {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if server.get(LOG_TRACKING).await.json() != last {
                break;
            }
        }
    }
}

pub(crate) fn is_state(state: &'static str) -> impl Fn(&Value) -> bool {
    move |feature| feature["status"]["state"] == state
}

pub(crate) fn condition(feature: &Value, kind: &str) -> (String, String) {
    let conditions = feature["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|one| one["type"] == kind).unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (text("status"), text("message"))
}

/// Objects with an id, as a server with log tracking stores them.
pub(crate) async fn annotated(server: &TestServer, count: usize) {
    let gates = server.admission.gates.lock().unwrap().replace(gates("LogTracking=false"));
    for number in 0..count {
        let metadata =
            json!({"name": format!("m{number}"), "annotations": {TRACE_ID: "1", "own": "2"}});
        let answer = server.post(CONFIGMAPS, &json!({ "metadata": metadata })).await;
        assert_eq!(answer.code, 201, "{}", answer.text());
        assert!(answer.text().contains(TRACE_ID), "{}", answer.text());
    }
    *server.admission.gates.lock().unwrap() = gates;
}

pub(crate) async fn remaining(server: &TestServer) -> usize {
    server.get(CONFIGMAPS).await.text().matches(&format!("\"{TRACE_ID}\":\"")).count()
}

#[tokio::test]
async fn f29_the_server_announces_every_gate_and_reports_what_it_asked() {
    let server = server("Nothing=true").await;
    let is_reported = |one: &Value| one["status"]["uses"] != Value::Null && is_state("On")(one);
    let feature = wait_for(&server, LOG_TRACKING, is_reported).await;
    let status = &feature["status"];
    for (field, want) in [
        ("class", "kube-system"),
        ("name", "LogTracking"),
        ("stability", "Beta"),
        ("version", "1.36"),
        ("default", "Enabled"),
        ("configured", "Enabled"),
        ("source", "Default"),
        ("state", "On"),
    ] {
        assert_eq!(status[field], want, "{field}: {status}");
    }
    assert_eq!(status["uses"][0]["enabled"], Value::from(true));
    assert_eq!(status["uses"][0]["reporter"], "system:apiserver");
    assert_eq!(condition(&feature, "UpgradeSafe").0, "True");
    let path = format!("{FEATURES}/Nothing");
    let unknown = wait_for(&server, &path, is_state("Off")).await;
    assert_eq!(condition(&unknown, "Blocked").0, "False");
    assert_eq!(unknown["status"]["stability"], "Unavailable");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease = server.get(leases).await.json()["items"][0].clone();
    assert_eq!(lease["metadata"]["labels"]["apiserver.kubernetes.io/identity"], "kube-apiserver");
}

#[tokio::test]
async fn a_value_is_stored_once_however_often_it_is_reported() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let used = json!({"version": "1.35", "enabled": false});
    let patch = json!({"status": {"uses": [used.clone(), used]}});
    for _ in 0..3 {
        let answer = merge_patch(&server, &format!("{LOG_TRACKING}/uses"), &patch).await;
        assert_eq!(answer.code, 200, "{}", answer.text());
    }
    let feature = server.get(LOG_TRACKING).await;
    assert_eq!(feature.text().matches("\"1.35\"").count(), 1, "{}", feature.text());
}

#[tokio::test]
async fn f09_off_clears_what_is_stored_and_on_again_works() {
    let server = server("").await;
    annotated(&server, 60).await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let off = restarted(&server, "a", "LogTracking=false").await;
    let feature = wait_for(&server, LOG_TRACKING, is_state("Off")).await;
    assert_eq!(remaining(&server).await, 0);
    assert_eq!(server.get(CONFIGMAPS).await.text().matches("\"own\":\"2\"").count(), 60);
    assert_eq!(feature["status"]["source"], "CommandLine");
    assert!(feature["status"].get("transitionTasks").is_none(), "{feature}");
    assert_eq!(condition(&feature, "DowngradeSafe").0, "True");
    stopped(&off).await;
    let _on = restarted(&server, "a", "").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
}

pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
pub(crate) const ELECTION: &str =
    "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/CoordinatedLeaderElection";

pub(crate) fn lease(name: &str) -> Value {
    let spec = json!({
        "holderIdentity": "a",
        "strategy": "OldestEmulationVersion",
        "preferredHolder": "b",
    });
    json!({"metadata": {"name": name, "labels": {"kept": "yes"}}, "spec": spec})
}

/// Waits until the server keeps the field: it acts on a state some time after clients see it.
pub(crate) async fn keeps_strategy(server: &TestServer) {
    let begun = Instant::now();
    let path = format!("{LEASES}?dryRun=All");
    while server.post(&path, &lease("probe")).await.json()["spec"].get("strategy").is_none() {
        assert!(begun.elapsed() < BOUND, "the field is dropped");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn shows_strategy(server: &TestServer) -> bool {
    let path = "/openapi/v3/apis/coordination.k8s.io/v1";
    let schemas = server.get(path).await.json()["components"]["schemas"].clone();
    let fields = &schemas["io.k8s.api.coordination.v1.LeaseSpec"]["properties"];
    assert_ne!(fields["holderIdentity"], Value::Null);
    fields.get("strategy").is_some()
}

#[tokio::test]
async fn f36_the_fields_of_leases_come_and_go() {
    let server = server("CoordinatedLeaderElection=true").await;
    keeps_strategy(&server).await;
    wait_for(&server, ELECTION, is_state("On")).await;
    assert!(shows_strategy(&server).await);
    let mut unknown = lease("unknown");
    unknown["spec"]["strategy"] = json!("Newest");
    let refused = server.post(LEASES, &unknown).await.json();
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "Unsupported value: \"Newest\": supported values: \"OldestEmulationVersion\""
    );
    for number in 0..30 {
        let made = server.post(LEASES, &lease(&format!("l{number}"))).await.json();
        assert_eq!(made["spec"]["strategy"], "OldestEmulationVersion", "{made}");
    }
    stopped(&server.plane).await;
    let off = restarted(&server, "a", "").await;
    let feature = wait_for(&server, ELECTION, is_state("Off")).await;
    assert_eq!(condition(&feature, "DowngradeSafe").0, "True");
    let all = server.get(LEASES).await.text();
    assert!(!all.contains("\"strategy\"") && !all.contains("preferredHolder\":\"b"), "{all}");
    for other in ["\"holderIdentity\":\"a\"", "\"kept\":\"yes\""] {
        assert_eq!(all.matches(other).count(), 30, "{other} of {all}");
    }
    while shows_strategy(&server).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let made = server.post(LEASES, &lease("late")).await.json();
    assert!(made["spec"].get("strategy").is_none(), "{made}");
    stopped(&off).await;
    let _on = restarted(&server, "a", "CoordinatedLeaderElection=true").await;
    keeps_strategy(&server).await;
    wait_for(&server, ELECTION, is_state("On")).await;
    assert!(shows_strategy(&server).await);
}

/// Runs of a server, each ended after one step, until the feature is in this state.
async fn killed_after_each_step(server: &TestServer, gates_of: &str, end: &'static str) {
    let mut seen = server.get(LOG_TRACKING).await.json();
    let mut states = Vec::new();
    while !is_state(end)(&seen) {
        assert!(states.len() < 20, "not {end}: {states:?}");
        let run = restarted(server, "a", gates_of).await;
        let before = seen["metadata"]["resourceVersion"].clone();
        let is_next = |one: &Value| one["metadata"]["resourceVersion"] != before;
        wait_for(server, LOG_TRACKING, is_next).await;
        stopped(&run).await;
        seen = server.get(LOG_TRACKING).await.json();
        states.push(seen["status"]["state"].as_str().unwrap().to_owned());
    }
}

#[tokio::test]
async fn a_server_killed_after_any_step_loses_no_task() {
    let server = server("").await;
    annotated(&server, 40).await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    killed_after_each_step(&server, "LogTracking=false", "Off").await;
    assert_eq!(remaining(&server).await, 0);
    killed_after_each_step(&server, "", "On").await;
    killed_after_each_step(&server, "LogTracking=false", "Off").await;
}

#[tokio::test]
async fn two_servers_killed_in_turn_after_any_step_lose_no_task() {
    let server = server("").await;
    annotated(&server, 40).await;
    let mut seen = wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let off = "LogTracking=false";
    let mut runs = [restarted(&server, "a", off).await, restarted(&server, "b", off).await];
    for kills in 0..100 {
        let before = seen["metadata"]["resourceVersion"].clone();
        let is_next =
            |one: &Value| one["metadata"]["resourceVersion"] != before || is_state("Off")(one);
        seen = wait_for(&server, LOG_TRACKING, is_next).await;
        if is_state("Off")(&seen) {
            assert_eq!(remaining(&server).await, 0);
            assert!(kills > 2, "{kills}");
            return;
        }
        stopped(&runs[kills % 2]).await;
        runs[kills % 2] = restarted(&server, ["a", "b"][kills % 2], off).await;
    }
    panic!("not off: {seen}");
}

#[tokio::test]
async fn servers_that_disagree_hold_the_transition_and_are_named() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    let mut others = Vec::new();
    // Until one of them leads: by its hash.
    for identity in ["b", "c", "d", "e", "f", "g", "h"] {
        others.push(restarted(&server, identity, "LogTracking=false").await);
    }
    let turning =
        |one: &Value| is_state("TurningOff")(one) && condition(one, "Blocked").0 == "True";
    let feature = wait_for(&server, LOG_TRACKING, turning).await;
    let (_, why) = condition(&feature, "Blocked");
    assert!(why.ends_with("is configured with another value"), "{why}");
    stopped(&server.plane).await;
}

/// A silent server: its silence is no event.
#[tokio::test]
async fn a_server_that_ends_stops_counting() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let other = restarted(&server, "other", "").await;
    let run = restarted(&server, "a", "LogTracking=false").await;
    let blocks = |one: &Value| condition(one, "Consistent").0 == "False" || is_state("Off")(one);
    let feature = wait_for(&server, LOG_TRACKING, blocks).await;
    assert_ne!(feature["status"]["state"], "Off", "{feature}");
    stopped(&other).await;
    // In steps in which the other one has time to renew.
    wait_while_time_passes(&server, Duration::from_secs(1), is_state("Off")).await;
    stopped(&run).await;
}

#[tokio::test]
async fn the_feature_api_is_absent_while_it_is_off() {
    let server = TestServer::new().await;
    assert_eq!(server.get(FEATURES).await.code, 404);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    assert_eq!(server.get(leases).await.json()["items"], json!([]));
    let metrics = server.get("/metrics").await.text();
    let line = "kubernetes_feature_enabled{name=\"LogTracking\",stage=\"BETA\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

/// The API server's own client of Features.
fn own_features(server: &TestServer) -> Local {
    Local::new(&server.registry, "features.k8s.io", "v1alpha1", "features").unwrap()
}

#[tokio::test]
async fn f30_an_unknown_feature_is_left_as_it_is_for_three_versions() {
    let server = server("").await;
    let features = own_features(&server);
    for (name, version) in [("Ghost", "1.33"), ("Ghastly", "1.32")] {
        let object = json!({"apiVersion": "features.k8s.io/v1alpha1", "kind": "Feature",
            "metadata": {"name": name, "namespace": "kube-system"}});
        let object = Document::from_value(object).unwrap();
        let mut made = features.create("kube-system", object).await.unwrap();
        made.set(&["status"], json!({"state": "On", "version": version}));
        made.remove(&["metadata", "resourceVersion"]);
        features.update(made, "status").await.unwrap();
    }
    let path = format!("{FEATURES}/Ghost");
    let is_known = |one: &Value| one["status"]["stability"] == "Unavailable" && is_state("On")(one);
    let ghost = wait_for(&server, &path, is_known).await;
    assert_eq!(ghost["status"]["version"], "1.33");
    let (blocked, why) = condition(&ghost, "Blocked");
    assert_eq!(
        (blocked.as_str(), why.as_str()),
        ("True", "version 1.36 does not have the feature")
    );
    assert_eq!(condition(&ghost, "DowngradeSafe").0, "False");
    let path = format!("{FEATURES}/Ghastly");
    wait_for(&server, &path, |one| one["code"] == 404).await;
    stopped(&server.plane).await;
}

const IDENTITIES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const GATES_OF: &str = "features.k8s.io/gates";

#[tokio::test]
async fn a_forged_identity_can_neither_lead_nor_agree() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let own = server.get(IDENTITIES).await.json()["items"][0].clone();
    let gates = own["metadata"]["annotations"][GATES_OF].clone();
    assert!(gates.as_str().unwrap().contains("LogTracking=true"), "{own}");
    let name = own["metadata"]["name"].as_str().unwrap();
    let patch = json!({"metadata": {"annotations": {GATES_OF: "LogTracking=false", "x": "y"}}});
    let path = format!("{IDENTITIES}/{name}");
    let patched = merge_patch(&server, &path, &patch).await.json();
    assert_eq!(patched["metadata"]["annotations"][GATES_OF], gates);
    assert_eq!(patched["metadata"]["annotations"]["x"], "y");
    for number in 0..8 {
        let forged = json!({"metadata": {"name": format!("apiserver-{number}"),
            "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"},
            "annotations": {GATES_OF: "LogTracking=false", "features.k8s.io/observed": "9999999"}},
            "spec": {"renewTime": "2030-01-01T00:00:00.000000Z"}});
        let made = server.post(IDENTITIES, &forged).await.json();
        assert!(made["metadata"].get("annotations").is_none(), "{made}");
    }
    // The server still leads, and says what it waits for.
    let run = restarted(&server, "a", "LogTracking=false").await;
    let turning =
        |one: &Value| is_state("TurningOff")(one) && condition(one, "Blocked").0 == "True";
    let feature = wait_for(&server, LOG_TRACKING, turning).await;
    let (_, why) = condition(&feature, "Blocked");
    assert!(why.ends_with("does not say how it is configured"), "{why}");
    stopped(&run).await;
}

#[tokio::test]
async fn a_write_that_arrives_after_the_tasks_is_found() {
    // Ends only when the test lets it.
    const EVALUATION: Duration = Duration::from_secs(3600);
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let run = restarted_with(&server, "LogTracking=false", |settings| {
        settings.evaluation = EVALUATION;
        settings.renewal = EVALUATION;
    })
    .await;
    let waits = |one: &Value| {
        is_state("TurningOff")(one) && one["status"]["useEvaluationTime"] != Value::Null
    };
    wait_for(&server, LOG_TRACKING, waits).await;
    annotated(&server, 3).await;
    assert_eq!(remaining(&server).await, 3);
    let feature = wait_while_time_passes(&server, EVALUATION, is_state("Off")).await;
    assert_eq!(remaining(&server).await, 0);
    assert_eq!(feature["status"]["transition"], json!(3), "{feature}");
    stopped(&run).await;
}

async fn set_desired(server: &TestServer, spec: Value) {
    let answer = merge_patch(server, LOG_TRACKING, &json!({ "spec": spec })).await;
    assert_eq!(answer.code, 200, "{}", answer.text());
}

#[tokio::test]
async fn f06_f17_a_dynamic_feature_is_set_in_the_api() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    let fixed = json!({"spec": {"desired": "Disabled"}});
    assert_eq!(merge_patch(&server, LOG_TRACKING, &fixed).await.code, 422);
    stopped(&server.plane).await;
    let run = restarted_with(&server, "", |settings| {
        settings.dynamic.insert("LogTracking".to_owned());
    })
    .await;
    let is_dynamic = |one: &Value| one["status"]["dynamic"] == true;
    wait_for(&server, LOG_TRACKING, is_dynamic).await;
    for wrong in [json!({"desired": "Off"}), json!({"canaryPercent": 101})] {
        let patch = json!({ "spec": wrong });
        assert_eq!(merge_patch(&server, LOG_TRACKING, &patch).await.code, 422);
    }
    // Again after it was on: what an earlier transition has done means nothing.
    for _ in 0..2 {
        annotated(&server, 20).await;
        assert!(run.gates().enabled(&ferrokube_features::LOG_TRACKING));
        set_desired(&server, json!({"desired": "Disabled"})).await;
        let feature = wait_for(&server, LOG_TRACKING, is_state("Off")).await;
        assert_eq!(feature["status"]["source"], "Dynamic");
        assert_eq!(remaining(&server).await, 0);
        assert!(!run.gates().enabled(&ferrokube_features::LOG_TRACKING));
        server.send("DELETE", CONFIGMAPS, &[], "").await;
        set_desired(&server, json!({"desired": "Enabled", "canaryPercent": 10})).await;
        let held =
            |one: &Value| is_state("TurningOn")(one) && condition(one, "Blocked").0 == "True";
        let feature = wait_for(&server, LOG_TRACKING, held).await;
        let (_, why) = condition(&feature, "Blocked");
        assert_eq!(why, "10% of the components have it on first");
        set_desired(&server, json!({"canaryPercent": null})).await;
        wait_for(&server, LOG_TRACKING, is_state("On")).await;
    }
    stopped(&run).await;
}

/// A server that others do not count any more must not accept what they have cleared.
#[tokio::test]
async fn a_server_that_cannot_renew_its_lease_closes_its_fields() {
    let server = server("CoordinatedLeaderElection=true").await;
    wait_for(&server, ELECTION, is_state("On")).await;
    let guard = server.registry.catalog().definition("coordination.k8s.io", "leases").unwrap();
    let guard = guard.guards[0].clone();
    let left = guard.open_for();
    assert!(left <= Duration::from_secs(25) && left > Duration::from_secs(15), "{left:?}");
    stopped(&server.plane).await;
}

/// An older server, or a restored backup, may have stored fields of a feature that is off.
#[tokio::test]
async fn f10_stored_objects_of_a_feature_that_is_off_are_counted() {
    let server = server("").await;
    wait_for(&server, ELECTION, is_state("Off")).await;
    stopped(&server.plane).await;
    let leases = server.registry.catalog().find("coordination.k8s.io", "v1", "leases").unwrap();
    for guard in &leases.definition.guards {
        guard.set(Duration::MAX, false);
    }
    for number in 0..5 {
        let made = server.post(LEASES, &lease(&format!("l{number}"))).await.json();
        assert_eq!(made["spec"]["strategy"], "OldestEmulationVersion", "{made}");
    }
    let run = restarted(&server, "a", "").await;
    let is_counted =
        |one: &Value| is_state("Off")(one) && condition(one, "DanglingReferences").0 == "True";
    let feature = wait_for(&server, ELECTION, is_counted).await;
    let why = "5 objects use it: leases.coordination.k8s.io/l0 in default, \
               leases.coordination.k8s.io/l1 in default, leases.coordination.k8s.io/l2 in default";
    assert_eq!(condition(&feature, "DanglingReferences").1, why);
    assert_eq!(condition(&feature, "DowngradeSafe"), ("False".to_owned(), why.to_owned()));
    stopped(&run).await;
    // On and off again clears them.
    let on = restarted(&server, "a", "CoordinatedLeaderElection=true").await;
    let is_used = |one: &Value| {
        is_state("On")(one) && condition(one, "DowngradeSafe").1.starts_with("5 objects use it")
    };
    wait_for(&server, ELECTION, is_used).await;
    stopped(&on).await;
    let off = restarted(&server, "a", "").await;
    let is_clean =
        |one: &Value| is_state("Off")(one) && condition(one, "DanglingReferences").0 == "False";
    let feature = wait_for(&server, ELECTION, is_clean).await;
    assert_eq!(condition(&feature, "DowngradeSafe").0, "True");
    stopped(&off).await;
}

/// A component that was away during the transition.
#[tokio::test]
async fn f10_a_report_after_the_end_makes_the_feature_unsafe() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let run = restarted(&server, "a", "LogTracking=false").await;
    let off = wait_for(&server, LOG_TRACKING, is_state("Off")).await;
    assert_eq!(condition(&off, "DanglingReferences").0, "False");
    let late = json!({"status": {"uses": [{"version": "1.35", "enabled": true}]}});
    let reported = merge_patch(&server, &format!("{LOG_TRACKING}/uses"), &late).await;
    assert_eq!(reported.code, 200, "{}", reported.text());
    let is_seen = |one: &Value| condition(one, "DanglingReferences").0 == "True";
    let feature = wait_for(&server, LOG_TRACKING, is_seen).await;
    assert_eq!(feature["status"]["state"], "Off", "{feature}");
    let why = "a component of version 1.35 has it on";
    assert_eq!(condition(&feature, "DanglingReferences").1, why);
    assert_eq!(condition(&feature, "DowngradeSafe"), ("False".to_owned(), why.to_owned()));
    stopped(&run).await;
}

#[tokio::test]
async fn metrics_and_events_follow_a_transition() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    // Metrics follow what is stored.
    for line in [
        "feature_state{name=\"LogTracking\",state=\"On\"} 1",
        "feature_state{name=\"LogTracking\",state=\"Off\"} 0",
        "feature_tasks_remaining{name=\"LogTracking\"} 0",
        "feature_leader{name=\"LogTracking\"} 1",
        "feature_uses{name=\"LogTracking\",version=\"1.36\",enabled=\"true\"} 1",
    ] {
        until(&server, "/metrics", |metrics| metrics.text().contains(line)).await;
    }
    stopped(&server.plane).await;
    let off = restarted(&server, "a", "LogTracking=false").await;
    let seen = TestServer { plane: off.clone(), ..server.clone() };
    wait_for(&server, LOG_TRACKING, is_state("Off")).await;
    let events = "/api/v1/namespaces/kube-system/events";
    let reasons = |events: &Value| {
        let items = events["items"].as_array().unwrap().clone();
        let own =
            items.into_iter().filter(|event| event["involvedObject"]["name"] == "LogTracking");
        let text = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
        own.map(|event| (text(&event, "reason"), text(&event, "message"))).collect::<Vec<_>>()
    };
    let is_told = |events: &Value| {
        let wanted = ("TransitionCompleted".to_owned(), "LogTracking is Off".to_owned());
        reasons(events).contains(&wanted)
    };
    let all = reasons(&wait_for(&server, events, is_told).await);
    let started = ("TransitionStarted".to_owned(), "LogTracking is TurningOff".to_owned());
    assert!(all.contains(&started), "{all:?}");
    let line = "feature_transition_duration_seconds_count{name=\"LogTracking\",to=\"Off\"} 1";
    until(&seen, "/metrics", |metrics| metrics.text().contains(line)).await;
    stopped(&off).await;
}

/// Users may make any number of Features in kube-system if they have the right to.
#[tokio::test]
async fn many_features_of_others_cost_one_write_each_and_hold_nothing_up() {
    const MANY: usize = 1_000;
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    annotated(&server, 20).await;
    for number in 0..MANY {
        let made = json!({ "metadata": { "name": format!("Other{number}") } });
        assert_eq!(server.post(FEATURES, &made).await.code, 201);
    }
    let revisions = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        let others = items.filter(|one| one["status"]["stability"] == "Unavailable");
        let text = |one: &Value, field: &str| one["metadata"][field].as_str().unwrap().to_owned();
        others.map(|one| (text(one, "name"), text(one, "resourceVersion"))).collect::<Vec<_>>()
    };
    // They have their turns by name: after the last one, the list is worth its cost.
    let is_known = |one: &Value| one["status"]["stability"] == "Unavailable";
    wait_for(&server, &format!("{FEATURES}/Other999"), is_known).await;
    let before = revisions(&wait_for(&server, FEATURES, |all| revisions(all).len() == MANY).await);
    stopped(&server.plane).await;
    let off = restarted(&server, "a", "LogTracking=false").await;
    wait_for(&server, LOG_TRACKING, is_state("Off")).await;
    assert_eq!(remaining(&server).await, 0);
    assert_eq!(revisions(&server.get(FEATURES).await.json()), before, "written again");
    let seen = TestServer { plane: off.clone(), ..server.clone() };
    let metrics = seen.get("/metrics").await.text();
    assert!(!metrics.contains("Other"), "no metrics of features that anyone may invent");
    stopped(&off).await;
}

/// A component that lies holds a transition while it lies, and no longer.
#[tokio::test]
async fn reports_of_versions_that_do_not_exist_hold_a_transition_only_while_they_come() {
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    let uses = format!("{LOG_TRACKING}/uses");
    let lie = |count: usize| {
        let uses: Vec<Value> = (0..count)
            .map(|minor| json!({"version": format!("9.{minor}"), "enabled": true}))
            .collect();
        json!({ "status": { "uses": uses } })
    };
    let refused = merge_patch(&server, &uses, &lie(10_000)).await;
    assert_eq!(refused.code, 422, "{}", refused.text());
    let forged = json!({"status": {"state": "Off", "uses": [], "transitionTasks": []}});
    let kept = merge_patch(&server, &uses, &forged).await.json();
    assert_eq!(kept["status"]["state"], "On", "{kept}");
    for path in [LOG_TRACKING.to_owned(), format!("{LOG_TRACKING}/status")] {
        merge_patch(&server, &path, &forged).await;
        assert_eq!(server.get(LOG_TRACKING).await.json()["status"]["state"], "On", "{path}");
    }
    assert_eq!(merge_patch(&server, &uses, &lie(20)).await.code, 200);
    stopped(&server.plane).await;
    let off = restarted(&server, "a", "LogTracking=false").await;
    wait_for(&server, LOG_TRACKING, is_state("Off")).await;
    stopped(&off).await;
}

/// A webhook or validation refuses its write: never off, and the reason is in the object.
#[tokio::test]
async fn an_object_that_cannot_be_cleared_is_named_until_it_can() {
    let server = server("").await;
    annotated(&server, 20).await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    *server.admission.refused.lock().unwrap() = Some("m7".to_owned());
    let run = restarted(&server, "a", "LogTracking=false").await;
    let why = "1 object uses it: configmaps/m7 in default; the first cannot be written: denied by \
               a webhook";
    let is_held = |one: &Value| {
        is_state("TurningOff")(one)
            && condition(one, "Blocked") == ("True".to_owned(), why.to_owned())
    };
    let feature = wait_for(&server, LOG_TRACKING, is_held).await;
    assert_eq!(condition(&feature, "DanglingReferences"), ("True".to_owned(), why.to_owned()));
    assert_eq!(condition(&feature, "DowngradeSafe").0, "False");
    assert_eq!(remaining(&server).await, 1, "the others are cleared");
    *server.admission.refused.lock().unwrap() = None;
    wait_while_time_passes(&server, Duration::from_secs(1), is_state("Off")).await;
    assert_eq!(remaining(&server).await, 0);
    stopped(&run).await;
}

/// Deleting the object does not skip what it had to do.
#[tokio::test]
async fn a_feature_that_is_deleted_in_the_middle_begins_again() {
    const EVALUATION: Duration = Duration::from_secs(3600);
    let server = server("").await;
    wait_for(&server, LOG_TRACKING, is_state("On")).await;
    stopped(&server.plane).await;
    let run = restarted_with(&server, "LogTracking=false", |settings| {
        settings.evaluation = EVALUATION;
        settings.renewal = EVALUATION;
    })
    .await;
    let evaluates = |one: &Value| one["status"]["useEvaluationTime"] != Value::Null;
    let before = wait_for(&server, LOG_TRACKING, evaluates).await;
    annotated(&server, 3).await;
    assert_eq!(server.send("DELETE", LOG_TRACKING, &[], "").await.code, 200);
    let is_other =
        |one: &Value| one["metadata"]["uid"] != before["metadata"]["uid"] && evaluates(one);
    let again = wait_for(&server, LOG_TRACKING, is_other).await;
    assert_eq!(again["status"]["state"], "TurningOff", "{again}");
    assert_eq!(remaining(&server).await, 0, "its task ran again");
    wait_while_time_passes(&server, EVALUATION, is_state("Off")).await;
    stopped(&run).await;
}
