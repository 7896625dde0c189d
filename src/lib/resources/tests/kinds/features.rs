//! Feature: users set dynamic ones, components add uses, and the server writes the rest.

use crate::{WriteCase, cells};
use ferrokube_apimachinery::document::{Value, json};

const KIND: (&str, &str) = ("features.k8s.io", "features");

fn feature(spec: &Value, status: &Value) -> Value {
    let metadata = json!({"name": "LogTracking", "namespace": "kube-system"});
    json!({"metadata": metadata, "spec": spec.clone(), "status": status.clone()})
}

fn update(spec: &Value, status: &Value) -> WriteCase {
    WriteCase::update(KIND.0, KIND.1, feature(spec, status))
}

#[test]
fn f27_no_client_writes_the_state() {
    let create = WriteCase::create(KIND.0, KIND.1);
    let made = create.run(feature(&json!({}), &json!({"state": "Off"})));
    assert_eq!(made.object.get(&["status"]), Some(&json!({})));
    let stored = json!({"state": "On"});
    let changed = feature(&json!({}), &json!({"state": "Off"}));
    let main = update(&json!({}), &stored).run(changed.clone());
    assert_eq!(main.object.str(&["status", "state"]), Some("On"));
    update(&json!({}), &stored).of("status").refused(changed.clone(), &[("Forbidden", "status")]);
    let uses = update(&json!({}), &stored).of("uses").run(changed);
    assert_eq!(uses.object.str(&["status", "state"]), Some("On"));
}

#[test]
fn components_add_uses_and_remove_none() {
    let known = json!({"version": "1.35", "enabled": true, "reporter": "eve"});
    let case = update(&json!({}), &json!({"state": "On", "uses": [known.clone()]})).of("uses");
    let report = |uses: Value| case.run(feature(&json!({}), &json!({ "uses": uses })));
    let same = json!([{"version": "1.35", "enabled": true, "reporter": "mallory"}]);
    assert_eq!(report(same).object.list(&["status", "uses"]), std::slice::from_ref(&known));
    let added = report(json!([{"version": "1.36", "enabled": true, "reporter": "mallory"}]));
    let time = "2024-01-02T03:04:05Z";
    let own = json!({"version": "1.36", "enabled": true, "reportTime": time, "reporter": "bob"});
    assert_eq!(added.object.list(&["status", "uses"]), [known.clone(), own]);
    assert_eq!(report(json!([])).object.list(&["status", "uses"]), [known]);
    for version in ["", "1", "one.two", "1.36.0", "1.99999"] {
        let uses = json!({"uses": [{"version": version, "enabled": true}]});
        case.refused(feature(&json!({}), &uses), &[("Invalid", "status.uses[1].version")]);
    }
    let many: Vec<Value> =
        (0..60).map(|minor| json!({"version": format!("1.{minor}"), "enabled": true})).collect();
    case.refused(feature(&json!({}), &json!({ "uses": many })), &[("TooMany", "status.uses")]);
}

#[test]
fn f38_only_dynamic_features_are_set_in_the_api() {
    let desired = |value: &str| feature(&json!({ "desired": value }), &json!({}));
    let fixed = update(&json!({}), &json!({"state": "On"}));
    fixed.refused(desired("Disabled"), &[("Forbidden", "spec.desired")]);
    fixed.refused(desired("off"), &[("NotSupported", "spec.desired")]);
    fixed.refused(desired(""), &[]);
    let dynamic = update(&json!({}), &json!({"state": "On", "dynamic": true}));
    dynamic.refused(desired("Disabled"), &[]);
    WriteCase::create(KIND.0, KIND.1).refused(desired("Enabled"), &[("Forbidden", "spec.desired")]);
}

#[test]
fn feature_cells() {
    let uses = json!([{"version": "1.36", "enabled": true}, {"version": "1.35", "enabled": false}]);
    let status = json!({
        "state": "TurningOff",
        "default": "Enabled",
        "source": "CommandLine",
        "stability": "Beta",
        "uses": uses,
        "transitionTasks": ["WaitForUses"],
    });
    let row = cells(KIND.0, KIND.1, feature(&json!({}), &status));
    let want = [
        "LogTracking",
        "TurningOff",
        "Enabled",
        "CommandLine",
        "Beta",
        "1.36=on,1.35=off",
        "5m",
        "WaitForUses",
    ];
    assert_eq!(row, want.map(Value::from));
}
