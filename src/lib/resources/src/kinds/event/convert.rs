//! Converts between the two forms of an event, which differ in names and in the empty fields that
//! they encode.

use ferrokube_apimachinery::document::{Document, Value, json};

/// Names in the core form and in `events.k8s.io`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// From `events.k8s.io` to the core form.
pub(super) fn to_core(object: &mut Document) {
    rename(object, |(core, events)| (events, core));
    object.set(&["apiVersion"], "v1");
    for (field, empty) in [
        ("involvedObject", json!({})),
        ("source", json!({})),
        ("reportingComponent", json!("")),
        ("reportingInstance", json!("")),
    ] {
        fill(object, field, empty);
    }
    for field in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        fill(object, field, Value::Null);
    }
}

/// From the core form to `events.k8s.io`.
pub(super) fn from_core(object: &mut Document) {
    rename(object, |names| names);
    object.set(&["apiVersion"], "events.k8s.io/v1");
    for field in ["reportingController", "reportingInstance"] {
        if object.str(&[field]) == Some("") {
            object.remove(&[field]);
        }
    }
    for (field, empty) in [("regarding", json!({})), ("deprecatedSource", json!({}))] {
        fill(object, field, empty);
    }
    for field in ["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "eventTime"] {
        fill(object, field, Value::Null);
    }
}

fn rename(
    object: &mut Document,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    for (from, to) in NAMES.map(direction) {
        if let Some(value) = object.remove(&[from]) {
            object.set(&[to], value);
        }
    }
}

fn fill(object: &mut Document, field: &str, empty: Value) {
    object.fields_mut().entry(field).or_insert(empty);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_conversion_round_trips() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap"}, "reason": "R",
            "message": "m", "source": {"component": "c"}, "firstTimestamp": "2024-01-02T03:04:05Z", "lastTimestamp": null, "count": 2,
            "eventTime": null, "reportingComponent": "", "reportingInstance": "", "type": "Normal"
        });
        let mut object = Document::from_value(core.clone()).unwrap();
        from_core(&mut object);
        let events = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "regarding": {"kind": "ConfigMap"}, "reason": "R",
            "note": "m", "deprecatedSource": {"component": "c"}, "deprecatedFirstTimestamp": "2024-01-02T03:04:05Z",
            "deprecatedLastTimestamp": null, "deprecatedCount": 2, "eventTime": null, "type": "Normal"
        });
        assert_eq!(object.clone().into_value(), events);
        to_core(&mut object);
        assert_eq!(object.into_value(), core);
    }
}
