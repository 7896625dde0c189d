//! What clients may try with Features, and components that do not do their part.

use crate::features::{
    FEATURES, condition, is_state, merge_patch, restarted_with, server, stopped, wait_for,
    wait_while_time_passes,
};
use crate::support::TestServer;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_controlplane::ApiServer;
use std::time::Duration;

/// Ends only when a test lets it.
const EVALUATION: Duration = Duration::from_secs(3600);
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

fn log_tracking() -> String {
    format!("{FEATURES}/LogTracking")
}

/// A server that turns log tracking off, after one that had it on.
async fn turning_off(server: &TestServer) -> ApiServer {
    wait_for(server, &log_tracking(), is_state("On")).await;
    stopped(&server.plane).await;
    let run = restarted_with(server, "LogTracking=false", |settings| {
        settings.evaluation = EVALUATION;
        settings.renewal = EVALUATION;
    })
    .await;
    let evaluates = |one: &Value| one["status"]["useEvaluationTime"] != Value::Null;
    wait_for(server, &log_tracking(), evaluates).await;
    run
}

/// A user that may write Features of a namespace has no say in those of another.
#[tokio::test]
async fn a_feature_of_the_same_name_elsewhere_changes_nothing() {
    let server = server("").await;
    let run = turning_off(&server).await;
    let elsewhere = FEATURES.replace("kube-system", "default");
    let named = |name: &str| json!({ "metadata": { "name": name } });
    assert_eq!(server.post(&elsewhere, &named("LogTracking")).await.code, 201);
    let path = format!("{elsewhere}/LogTracking");
    let patch = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"desired": "Enabled"}});
    assert_eq!(merge_patch(&server, &path, &patch).await.code, 200);
    assert_eq!(server.send("DELETE", &path, &[], "").await.code, 200);
    // Written later, and seen by the server: so are those.
    assert_eq!(server.post(FEATURES, &named("Marker")).await.code, 201);
    wait_for(&server, &format!("{FEATURES}/Marker"), is_state("Off")).await;
    wait_while_time_passes(&server, EVALUATION, is_state("Off")).await;
    stopped(&run).await;
}

/// The server that leads cannot add its own value, which must not keep it from leading: only it
/// clears the list.
#[tokio::test]
async fn a_list_that_others_have_filled_does_not_stop_the_leader() {
    let server = server("").await;
    let is_reported = |one: &Value| one["status"]["uses"] != Value::Null && is_state("On")(one);
    wait_for(&server, &log_tracking(), is_reported).await;
    stopped(&server.plane).await;
    let lies: Vec<Value> =
        (0..31).map(|minor| json!({"version": format!("9.{minor}"), "enabled": true})).collect();
    let path = format!("{}/uses", log_tracking());
    let full = merge_patch(&server, &path, &json!({ "status": { "uses": lies } })).await;
    assert_eq!(full.json()["status"]["uses"].as_array().map(|all| all.len()), Some(32));
    let run = restarted_with(&server, "LogTracking=false", |_| {}).await;
    wait_for(&server, &log_tracking(), is_state("Off")).await;
    stopped(&run).await;
}

/// The role of components is for their values alone: not for labels, or for owners, with which an
/// object is collected as garbage.
#[tokio::test]
async fn a_report_changes_no_metadata() {
    let server = server("").await;
    wait_for(&server, &log_tracking(), is_state("On")).await;
    stopped(&server.plane).await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"});
    let patch = json!({
        "metadata": {
            "labels": {"a": "b"},
            "annotations": {"a": "b"},
            "finalizers": ["example.com/a"],
            "ownerReferences": [owner],
        },
        "status": {"uses": [{"version": "1.35", "enabled": false}]},
    });
    let path = format!("{}/uses", log_tracking());
    let written = merge_patch(&server, &path, &patch).await.json();
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        assert!(written["metadata"].get(field).is_none(), "{written}");
    }
    let uses = written["status"]["uses"].as_array().unwrap();
    assert!(uses.iter().any(|one| one["version"] == "1.35"), "{written}");
}

/// It lacks the right to report, and its Lease says that it has the old value: silence is not
/// agreement. Once it renews the Lease no more, it is gone.
#[tokio::test]
async fn a_live_component_without_a_report_holds_the_transition() {
    let server = server("").await;
    let run = turning_off(&server).await;
    for (name, uses) in [("a", "LogTracking=false"), ("b", "OpenAPIV3=false,LogTracking=true")] {
        let annotations = json!({"features.k8s.io/uses": uses});
        let lease = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"holderIdentity": name}});
        assert_eq!(server.post(LEASES, &lease).await.code, 201);
    }
    let why = "the component that renews Lease kube-system/b has it on";
    let is_held = |one: &Value| {
        is_state("TurningOff")(one) && condition(one, "Blocked") == ("True".into(), why.into())
    };
    wait_while_time_passes(&server, EVALUATION, is_held).await;
    let off = wait_while_time_passes(&server, EVALUATION, is_state("Off")).await;
    assert_eq!(condition(&off, "Blocked").0, "False");
    stopped(&run).await;
}

/// A standby renews no Lease. The one that it takes over after the end says that it has the old
/// value, until the next count finds that it is renewed no more.
#[tokio::test]
async fn f10_a_component_that_leads_after_the_end_makes_the_feature_unsafe() {
    let server = server("").await;
    let run = turning_off(&server).await;
    let off = wait_while_time_passes(&server, EVALUATION, is_state("Off")).await;
    assert_eq!(condition(&off, "DanglingReferences").0, "False");
    let annotations = json!({"features.k8s.io/uses": "LogTracking=true"});
    let lease = json!({"metadata": {"name": "a", "annotations": annotations},
        "spec": {"holderIdentity": "a"}});
    assert_eq!(server.post(LEASES, &lease).await.code, 201);
    let why = "the component that renews Lease kube-system/a has it on";
    let is_late = |one: &Value| condition(one, "DanglingReferences").1 == why;
    let late = wait_while_time_passes(&server, EVALUATION, is_late).await;
    assert_eq!(late["status"]["state"], "Off", "{late}");
    assert_eq!(condition(&late, "DowngradeSafe"), ("False".to_owned(), why.to_owned()));
    let is_safe = |one: &Value| condition(one, "DowngradeSafe").0 == "True";
    wait_while_time_passes(&server, EVALUATION, is_safe).await;
    stopped(&run).await;
}
