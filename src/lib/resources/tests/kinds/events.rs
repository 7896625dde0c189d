//! Events of both groups.

use crate::{WriteCase, cells, definition, document};
use ferrokube_apimachinery::document::{Value, json};

const GROUP: &str = "events.k8s.io";

fn core() -> Value {
    json!({"metadata": {"name": "e", "namespace": "n"}, "involvedObject": {"kind": "ConfigMap", "namespace": "n", "name": "a"}, "reason": "R", "type": "Normal"})
}

fn newer() -> Value {
    json!({
        "metadata": {"name": "e", "namespace": "n"}, "eventTime": "2024-01-02T03:04:05.000000Z", "reportingController": "example.com/x",
        "reportingInstance": "i-1", "action": "Act", "reason": "R", "type": "Normal", "regarding": {"kind": "ConfigMap", "namespace": "n", "name": "a"}
    })
}

fn with(mut object: Value, field: &str, value: Value) -> Value {
    object[field] = value;
    object
}

#[test]
fn updates_of_core_events_may_change_everything() {
    let mut expected = core();
    for (field, value) in
        [("source", json!({})), ("reportingComponent", json!("")), ("reportingInstance", json!(""))]
    {
        expected[field] = value;
    }
    for field in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        expected[field] = Value::Null;
    }
    WriteCase::create("", "events").gives(core(), &expected);
}

#[test]
fn an_event_is_in_the_namespace_of_its_object() {
    let create = WriteCase::create("", "events");
    let elsewhere = json!({"kind": "ConfigMap", "namespace": "elsewhere", "name": "a"});
    create.refused(
        with(core(), "involvedObject", elsewhere),
        &[("Invalid", "involvedObject.namespace")],
    );
    create.refused(
        with(core(), "involvedObject", json!({"kind": "Namespace", "name": "a"})),
        &[("Invalid", "involvedObject.namespace")],
    );
    let cluster = json!({"metadata": {"namespace": "default"}, "involvedObject": {"kind": "Node", "name": "n1"}});
    create.refused(cluster, &[]);
}

#[test]
fn events_with_an_event_time_need_reporter_action_and_reason() {
    let create = WriteCase::create("", "events");
    let timed = with(core(), "eventTime", json!("2024-01-02T03:04:05.000000Z"));
    create.refused(
        timed,
        &[
            ("Required", "reportingComponent"),
            ("Invalid", "reportingComponent"),
            ("Required", "reportingInstance"),
            ("Required", "action"),
        ],
    );
}

#[test]
fn events_k8s_io_has_more_rules() {
    let create = WriteCase::create(GROUP, "events");
    create.refused(newer(), &[]);
    let bad = json!({"metadata": {"name": "bad", "namespace": "n"}, "regarding": {"namespace": "n"}, "type": "Strange"});
    create.refused(bad, &[("Required", "eventTime"), ("Invalid", "type")]);
    create.refused(with(newer(), "deprecatedCount", json!(2)), &[("Invalid", "count")]);
    create.refused(
        with(newer(), "deprecatedSource", json!({"component": "c"})),
        &[("Invalid", "source")],
    );
    create.refused(with(newer(), "action", json!("a".repeat(129))), &[("Invalid", "action")]);
    create.refused(
        with(newer(), "series", json!({"count": 1})),
        &[("Invalid", "series.count"), ("Required", "series.lastObservedTime")],
    );
}

#[test]
fn only_the_series_changes_through_the_newer_api() {
    let mut stored = newer();
    for (field, value) in [
        ("deprecatedSource", json!({})),
        ("deprecatedFirstTimestamp", Value::Null),
        ("deprecatedLastTimestamp", Value::Null),
    ] {
        stored[field] = value;
    }
    let update = WriteCase::update(GROUP, "events", stored);
    update.refused(
        with(
            newer(),
            "series",
            json!({"count": 3, "lastObservedTime": "2024-01-02T03:04:06.000000Z"}),
        ),
        &[],
    );
    update.refused(with(newer(), "reason", json!("Other")), &[("Invalid", "reason")]);
    update.refused(with(newer(), "note", json!("new")), &[("Invalid", "message")]);
    WriteCase::update("", "events", core()).refused(with(core(), "reason", json!("Other")), &[]);
}

#[test]
fn both_event_groups_share_a_store() {
    let newer_definition = definition(GROUP, "events");
    let outcome = WriteCase::create(GROUP, "events").run(newer());
    let mut stored = outcome.object.clone();
    stored.set(&["apiVersion"], "events.k8s.io/v1");
    newer_definition.hooks.to_storage("v1", &mut stored);
    assert_eq!(stored.api_version(), "v1");
    assert_eq!(stored.str(&["involvedObject", "name"]), Some("a"));
    assert_eq!(stored.get(&["firstTimestamp"]), Some(&Value::Null));
    let fields = definition("", "events").hooks.selectable(&[], &stored);
    assert_eq!(
        fields,
        ["ConfigMap", "n", "a", "", "", "", "", "R", "example.com/x", "Normal", "example.com/x"]
    );
    newer_definition.hooks.from_storage("v1", &mut stored);
    stored.remove(&["apiVersion"]);
    assert_eq!(stored, outcome.object);
}

#[test]
fn event_cells() {
    let object = json!({
        "apiVersion": "v1", "metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "name": "a"}, "reason": "R", "type": "Normal", "message": " m\n",
        "firstTimestamp": "2024-01-02T02:04:05Z", "lastTimestamp": "2024-01-02T03:04:00Z", "count": 4, "source": {"component": "c", "host": "h"}
    });
    let expected = json!(["5s", "Normal", "R", "configmap/a", "", "c, h", "m", "60m", 4, "e"]);
    assert_eq!(Value::from(cells("", "events", object)), expected);
    let mut object = newer();
    object["apiVersion"] = json!("events.k8s.io/v1");
    object["series"] = json!({"count": 7, "lastObservedTime": "2024-01-02T03:04:00.000000Z"});
    let expected =
        json!(["5s", "Normal", "R", "configmap/a", "", "example.com/x, i-1", "", "0s", 7, "e"]);
    assert_eq!(Value::from(cells(GROUP, "events", object)), expected);
    assert_eq!(
        definition(GROUP, "events").hooks.ttl(&document(json!({}))),
        Some(ferrokube_resources::EVENT_TTL)
    );
}
