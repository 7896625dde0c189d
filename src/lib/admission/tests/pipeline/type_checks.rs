//! The status of ValidatingAdmissionPolicies.

use super::policies::GROUP;
use super::{TestPipeline, document};
use ferrokube_admission::PolicyStatus;
use ferrokube_apimachinery::document::{Document, Value, json};

/// A policy for these resources of the version v1.
fn policy(name: &str, groups: Value, resources: Value, validations: Value) -> Document {
    document(json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": groups, "apiVersions": ["v1"],
            "operations": ["*"], "resources": resources}]},
        "variables": [{"name": "keys", "expression": "object.data.size()"}],
        "validations": validations,
    }}))
}

/// Waits until the policy has a status.
async fn status(server: &TestPipeline, name: &str) -> Value {
    let policies = server.kind(GROUP, "validatingadmissionpolicies");
    loop {
        let policy = policies.get("", name).await.unwrap().unwrap();
        let status = policy.get(&["status"]).cloned().unwrap_or_default();
        if status.get("observedGeneration").is_some() {
            let managers = policy.list(&["metadata", "managedFields"]);
            let manager = managers.iter().find(|entry| entry.get("subresource").is_some());
            let manager = manager.and_then(|entry| entry.get("manager"));
            assert_eq!(manager, Some(&json!("validatingadmissionpolicy-status")));
            return status;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_controller_manager_leaves_the_status() {
    let server = TestPipeline::new("LogTracking=false");
    for name in ["kube-system", "n"] {
        let namespace = document(json!({"metadata": {"name": name}}));
        server.core("namespaces").create("", namespace).await.unwrap();
    }
    let policies = server.kind(GROUP, "validatingadmissionpolicies");
    let running = tokio::spawn(PolicyStatus::new(&server.registry, false).unwrap().run());
    let check = json!([{"expression": "true"}]);
    policies.create("", policy("p", json!([""]), json!(["configmaps"]), check)).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let left = policies.get("", "p").await.unwrap().unwrap();
    assert_eq!(left.get(&["status", "observedGeneration"]), None);
    let lease = json!({"metadata": {"name": "kube-controller-manager"},
        "spec": {"holderIdentity": "a"}});
    let leases = server.kind("coordination.k8s.io", "leases");
    leases.create("kube-system", document(lease)).await.unwrap();
    let is_written = async || {
        let policy = policies.get("", "p").await.unwrap().unwrap();
        policy.get(&["status", "observedGeneration"]) == Some(&json!(1))
    };
    while !is_written().await {
        // The check itself may run on another thread, whose time is not paused.
        std::thread::yield_now();
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    running.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_are_checked_against_the_kinds_of_the_rules() {
    let server = TestPipeline::new("LogTracking=false");
    let policies = server.kind(GROUP, "validatingadmissionpolicies");
    let running = tokio::spawn(PolicyStatus::new(&server.registry, true).unwrap().run());
    let good = json!([{"expression": "variables.keys < 3 && has(object.metadata.labels)"}]);
    policies.create("", policy("good", json!([""]), json!(["configmaps"]), good)).await.unwrap();
    let fine = json!({"observedGeneration": 1, "typeChecking": {}});
    assert_eq!(status(&server, "good").await, fine);
    let bad = json!([
        {"expression": "object.dta.size() < 3", "messageExpression": "string(object.metadata.nam)"},
        {"expression": "object.data.size() < 3"},
    ]);
    let resources = json!(["secrets", "configmaps", "*/status"]);
    policies.create("", policy("bad", json!([""]), resources, bad)).await.unwrap();
    let found = status(&server, "bad").await;
    let about = |kind: &str, column: usize, field: &str, source: &str| {
        let dots = ".".repeat(column - 1);
        format!(
            "/v1, Kind={kind}: ERROR: <input>:1:{column}: undefined field '{field}'\n | {source}\n | {dots}^\n"
        )
    };
    let warning = |column, field, source| {
        ["ConfigMap", "Secret"].map(|kind| about(kind, column, field, source)).join("\n")
    };
    let want = json!([
        {"fieldRef": "spec.validations[0].expression",
            "warning": warning(7, "dta", "object.dta.size() < 3")},
        {"fieldRef": "spec.validations[0].messageExpression",
            "warning": warning(23, "nam", "string(object.metadata.nam)")},
    ]);
    assert_eq!(
        found,
        json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": want}})
    );
    let unknown = json!([{"expression": "object.any.thing == 1"}]);
    let wild = policy("wild", json!(["*"]), json!(["*"]), unknown);
    policies.create("", wild).await.unwrap();
    assert_eq!(status(&server, "wild").await, fine);
    running.abort();
}
