//! APIService.

use crate::WriteCase;
use ferrokube_apimachinery::document::{Value, json};

fn service(metadata: Value, change: Value) -> Value {
    let mut spec = json!({"group": "ex.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1});
    for (name, value) in change.as_object().expect("an object") {
        spec[name.as_str()] = value.clone();
    }
    json!({"metadata": metadata, "spec": spec})
}

fn create() -> WriteCase {
    WriteCase::create("apiregistration.k8s.io", "apiservices")
}

#[test]
fn the_name_is_version_and_group_and_cannot_be_generated() {
    let named = |metadata: Value| service(metadata, json!({}));
    create().refused(named(json!({"name": "v1.ex.com"})), &[]);
    let wrong = ("Invalid", "metadata.name");
    create().refused(named(json!({"name": "v2.ex.com"})), &[wrong]);
    let generated = ("Invalid", "metadata.generateName");
    let both = json!({"name": "v1.ex.com", "generateName": "gen-"});
    create().refused(named(both), &[generated]);
    let same = json!({"name": "v1.ex.com", "generateName": "v1.ex.com"});
    create().refused(named(same), &[]);
}
