//! LeaseCandidate.

use crate::{WriteCase, cells};
use ferrokube_apimachinery::document::{Value, json};

fn spec(change: &Value) -> Value {
    let mut spec = json!({"leaseName": "l", "binaryVersion": "1.36.0", "emulationVersion": "1.35.0", "strategy": "OldestEmulationVersion"});
    for (name, value) in change.as_object().expect("an object") {
        spec[name.as_str()] = value.clone();
    }
    json!({ "spec": spec })
}

#[test]
fn leasecandidates() {
    let create = WriteCase::create("coordination.k8s.io", "leasecandidates");
    create.refused(spec(&json!({})), &[]);
    create.refused(
        json!({"spec": {}}),
        &[
            ("Required", "spec.binaryVersion"),
            ("Required", "spec.leaseName"),
            ("Required", "spec.strategy"),
        ],
    );
    create.refused(spec(&json!({"binaryVersion": "1.36"})), &[("Invalid", "spec.binaryVersion")]);
    create.refused(spec(&json!({"binaryVersion": "1.34.9"})), &[("Invalid", "spec.binaryVersion")]);
    create
        .refused(spec(&json!({"emulationVersion": ""})), &[("Required", "spec.emulationVersion")]);
    create.refused(
        spec(&json!({"strategy": "Newest"})),
        &[("NotSupported", "spec.strategy.strategy")],
    );
    create.refused(spec(&json!({"strategy": "example.com/Newest", "emulationVersion": ""})), &[]);
    create.refused(
        spec(&json!({"strategy": "example.com/-"})),
        &[("Invalid", "spec.strategy.strategy")],
    );
    let update = WriteCase::update("coordination.k8s.io", "leasecandidates", spec(&json!({})));
    update.refused(spec(&json!({"leaseName": "m"})), &[("Invalid", "spec.leaseName")]);
    let mut object = spec(&json!({}));
    object["metadata"] = json!({"name": "c"});
    assert_eq!(
        cells("coordination.k8s.io", "leasecandidates", object)[..4],
        [json!("c"), json!("l"), json!("1.36.0"), json!("1.35.0")]
    );
}
