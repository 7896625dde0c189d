//! Namespace, ResourceQuota, Lease.

use crate::{WriteCase, cells, definition, document};
use ferrokube_apimachinery::document::json;

#[test]
fn a_new_namespace_is_active_labeled_and_held() {
    let create = WriteCase::create("", "namespaces");
    let expected = json!({
        "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}
    });
    create.gives(json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}}), &expected);
    let outcome = create.run(json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["example.com/extra", "kubernetes"]}}));
    assert_eq!(outcome.object.list(&["spec", "finalizers"]).len(), 2);
    create.refused(
        json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["Bad Name"]}}),
        &[("Invalid", "spec.finalizers")],
    );
    create.refused(
        json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["unqualified"]}}),
        &[("Invalid", "spec.finalizers")],
    );
}

#[test]
fn finalizers_and_phase_have_separate_endpoints() {
    let stored = json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
    let labels = json!({"kubernetes.io/metadata.name": "n"});
    let change = json!({"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "other"}}, "status": {"phase": "Strange"}});
    WriteCase::update("", "namespaces", stored.clone())
        .gives(change.clone(), &json!({"metadata": {"name": "n", "labels": labels}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}));
    WriteCase::update("", "namespaces", stored.clone())
        .of("status")
        .refused(change, &[("Invalid", "status.Phase")]);
    let terminating = json!({"metadata": {"name": "n", "deletionTimestamp": "2024-01-02T03:04:05Z"}, "status": {"phase": "Active"}});
    WriteCase::update("", "namespaces", stored.clone())
        .of("status")
        .refused(terminating, &[("Invalid", "status.Phase")]);
    let conditions = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "T", "status": "True"}]}});
    let outcome = WriteCase::update("", "namespaces", stored.clone()).of("status").run(conditions);
    let expected = json!({"phase": "Active", "conditions": [{"type": "T", "status": "True", "lastTransitionTime": null}]});
    assert_eq!(outcome.object.get(&["status"]), Some(&expected));
    WriteCase::update("", "namespaces", stored).of("finalize").gives(
        json!({"metadata": {"name": "n"}, "spec": {"finalizers": []}}),
        &json!({"metadata": {"name": "n", "labels": labels}, "spec": {}, "status": {"phase": "Active"}}),
    );
}

#[test]
fn a_namespace_waits_for_its_finalizers() {
    let hooks = &definition("", "namespaces").hooks;
    let mut held = document(
        json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
    );
    assert!(hooks.has_pending_finalizers(&held));
    hooks.deletion_begins(&mut held);
    assert_eq!(held.str(&["status", "phase"]), Some("Terminating"));
    // The first delete only marks.
    assert!(hooks.has_pending_finalizers(&document(json!({"spec": {}}))));
    assert!(!hooks.has_pending_finalizers(&document(
        json!({"metadata": {"deletionTimestamp": "2024-01-02T03:04:05Z"}, "spec": {}})
    )));
    assert!(!hooks.validate_name("a.b").unwrap().is_empty());
    assert_eq!(
        cells("", "namespaces", json!({"metadata": {"name": "n"}, "status": {"phase": "Active"}})),
        [json!("n"), json!("Active"), json!("5m")]
    );
}

#[test]
fn resource_quotas() {
    let create = WriteCase::create("", "resourcequotas");
    for whole in ["1.", "1e30", "12e1", "1000m"] {
        create.refused(json!({"spec": {"hard": {"pods": whole}}}), &[]);
    }
    let hard = json!({"secrets": "5", "count/leases.coordination.k8s.io": 2, "requests.cpu": "1500m", "example.com/gpu": "1"});
    let expected = json!({"secrets": "5", "count/leases.coordination.k8s.io": "2", "requests.cpu": "1500m", "example.com/gpu": "1"});
    create.gives(
        json!({"spec": {"hard": hard}, "status": {"used": {"pods": "1"}}}),
        &json!({"metadata": {}, "spec": {"hard": expected}, "status": {}}),
    );
    for (resource, amount) in [
        ("secrets", "-1"),
        ("secrets", "1.5"),
        ("secrets", "1500m"),
        ("bogus", "1"),
        ("count/secrets", "100m"),
        ("Bad Name", "1"),
    ] {
        create.refused(
            json!({"spec": {"hard": {resource: amount}}}),
            &[("Invalid", &format!("spec.hard[{resource}]"))],
        );
    }
    create.refused(
        json!({"spec": {"hard": {"pods": "1"}, "scopes": ["Nope"]}}),
        &[("Invalid", "spec.scopes")],
    );
    create.refused(
        json!({"spec": {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}}),
        &[("Invalid", "spec.scopes")],
    );
    create.refused(
        json!({"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}}),
        &[("Invalid", "spec.scopes")],
    );
    create.refused(
        json!({"spec": {"hard": {"ephemeral-storage": "1"}, "scopes": ["Terminating"]}}),
        &[("Invalid", "spec.scopes")],
    );
    create.refused(
        json!({"spec": {"hard": {"limits.cpu": "1", "pods": "1"}, "scopes": ["NotBestEffort"]}}),
        &[],
    );
    let selector = |expression| json!({"spec": {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [expression]}}});
    let path = "spec.scopeSelector.matchExpressions";
    create.refused(
        selector(json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]})),
        &[],
    );
    create.refused(
        selector(json!({"scopeName": "PriorityClass", "operator": "In"})),
        &[("Required", &format!("{path}.values"))],
    );
    create.refused(
        selector(json!({"scopeName": "BestEffort", "operator": "In", "values": ["x"]})),
        &[("Invalid", &format!("{path}.operator"))],
    );
    create.refused(
        selector(json!({"scopeName": "Terminating", "operator": "Exists", "values": ["x"]})),
        &[("Invalid", &format!("{path}.values"))],
    );
}

#[test]
fn a_quotas_usage_is_written_through_status_only() {
    let stored = json!({"spec": {"hard": {"pods": "1"}, "scopes": ["Terminating"]}, "status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}});
    let update = WriteCase::update("", "resourcequotas", stored.clone());
    update.refused(json!({"spec": {"hard": {"pods": "1"}}}), &[("Invalid", "spec.scopes")]);
    let outcome = update.run(json!({"spec": {"hard": {"pods": "2"}, "scopes": ["Terminating"]}, "status": {"used": {"pods": "9"}}}));
    assert_eq!(outcome.object.str(&["status", "used", "pods"]), Some("0"));
    let status = WriteCase::update("", "resourcequotas", stored).of("status");
    let outcome =
        status.run(json!({"spec": {}, "status": {"hard": {"pods": "1"}, "used": {"pods": 1}}}));
    assert_eq!(
        (
            outcome.object.str(&["spec", "hard", "pods"]),
            outcome.object.str(&["status", "used", "pods"])
        ),
        (Some("1"), Some("1"))
    );
    status
        .refused(json!({"status": {"used": {"pods": "-1"}}}), &[("Invalid", "status.used[pods]")]);
}

#[test]
fn quota_cells() {
    let status = json!({"hard": {"limits.cpu": "2", "pods": "3", "count/secrets": "4"}, "used": {"pods": "1", "limits.cpu": "500m"}});
    let row = cells("", "resourcequotas", json!({"metadata": {"name": "q"}, "status": status}));
    assert_eq!(
        row,
        [
            json!("q"),
            json!("count/secrets: 0/4, pods: 1/3"),
            json!("limits.cpu: 500m/2"),
            json!("5m")
        ]
    );
}

#[test]
fn leases() {
    let create = WriteCase::create("coordination.k8s.io", "leases");
    create.gives(
        json!({"spec": {"holderIdentity": "", "leaseTransitions": 0}}),
        &json!({"metadata": {}, "spec": {"holderIdentity": "", "leaseTransitions": 0}}),
    );
    create.gives(json!({}), &json!({"metadata": {}, "spec": {}}));
    create.gives(
        json!({"spec": {"strategy": "Bogus", "preferredHolder": "x"}}),
        &json!({"metadata": {}, "spec": {}}),
    );
    create.refused(
        json!({"spec": {"leaseDurationSeconds": 0}}),
        &[("Invalid", "spec.leaseDurationSeconds")],
    );
    create.refused(
        json!({"spec": {"leaseTransitions": -1}}),
        &[("Invalid", "spec.leaseTransitions")],
    );
    let policy = create.definition.policy;
    assert!(policy.create_on_update && !policy.unconditional_update);
    let row = cells(
        "coordination.k8s.io",
        "leases",
        json!({"metadata": {"name": "t"}, "spec": {"holderIdentity": "me"}}),
    );
    assert_eq!(row, [json!("t"), json!("me"), json!("5m")]);
}

#[test]
fn a_new_quota_warns_of_requests_above_limits() {
    let quota = |hard| json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let create = WriteCase::create("", "resourcequotas");
    let warnings = |hard| create.run(quota(hard)).warnings;
    let hard = json!({"cpu": "2", "limits.cpu": "1500m", "requests.memory": "2Gi", "limits.memory": "1Gi"});
    assert_eq!(
        warnings(hard.clone()),
        [
            "ResourceQuota cpu (2) should be less than limits.cpu (1500m)",
            "ResourceQuota requests.memory (2Gi) should be less than limits.memory (1Gi)",
        ]
    );
    assert!(warnings(json!({"cpu": "2", "limits.cpu": "2", "storage": "5"})).is_empty());
    let stored = quota(json!({"cpu": "1"}));
    let update = WriteCase::update("", "resourcequotas", stored);
    assert!(update.run(quota(hard)).warnings.is_empty());
}
