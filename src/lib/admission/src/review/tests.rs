//! Reviews as API servers send them, and malformed ones.

use super::*;
use ferrokube_apimachinery::patch::json_patch;
use ferrokube_trace::TraceId;
use ferrokube_trace::annotation::{INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};

fn review(operation: &str, object: Value, old: Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
        "uid": "u-1", "operation": operation, "name": "a", "namespace": "n",
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "userInfo": {"username": "jane"}, "object": object, "oldObject": old,
    }})
}

fn answered(review: &Value, trace: &TraceContext) -> (Value, Option<Value>) {
    let answered = answer(&codec::to_vec(review), trace, true).unwrap();
    let body = codec::read_value(&answered.body).unwrap();
    assert_eq!(
        (&body["apiVersion"], &body["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    assert_eq!(
        (&body["response"]["uid"], &body["response"]["allowed"]),
        (&json!("u-1"), &json!(true))
    );
    let patch = body["response"]["patch"]
        .as_str()
        .map(|text| codec::read_value(&STANDARD.decode(text).unwrap()).unwrap());
    assert_eq!(patch.is_some(), answered.stamped);
    assert_eq!(patch.is_some(), body["response"]["patchType"] == "JSONPatch");
    (body, patch)
}

/// The object after the response's patch.
fn patched(review: &Value, trace: &TraceContext) -> Document {
    let mut object = review["request"]["object"].clone();
    let patch = answered(review, trace).1.expect("a patch");
    json_patch(&mut object, &patch).unwrap();
    Document::from_value(object).unwrap()
}

fn ids(object: &Document) -> [Option<&str>; 3] {
    ALL.map(|key| object.annotation(key))
}

#[test]
fn l33_l36_the_three_cases() {
    let trace = TraceContext::root();
    let [own, span] = [trace.trace_id.to_string(), trace.span_id.to_string()];
    let family = TraceId::random();
    for annotations in [
        json!({"metadata": {"name": "a"}}),
        json!({"metadata": {"annotations": null}}),
        json!({"metadata": {"annotations": {"b": "c"}}}),
    ] {
        // B: kubectl create.
        let object = patched(&review("CREATE", annotations.clone(), Value::Null), &trace);
        assert_eq!(ids(&object), [Some(own.as_str()), Some(&span), Some(&own)]);
        // A: a controller's request.
        let object =
            patched(&review("CREATE", annotations, Value::Null), &trace.with_initial(Some(family)));
        assert_eq!(ids(&object), [Some(own.as_str()), Some(&span), Some(&family.to_string())]);
    }
    // C: other writes keep the stored initial id, whatever the client sent.
    let first = family.to_string();
    let old = json!({"metadata": {"annotations": {TRACE_ID: "t", SPAN_ID: "s", INITIAL_TRACE_ID: first}}, "data": {"k": "1"}});
    for sent in [
        json!({}),
        json!({TRACE_ID: "t", SPAN_ID: "s", INITIAL_TRACE_ID: first}),
        json!({INITIAL_TRACE_ID: "forged", "mine": "1"}),
    ] {
        let object = patched(
            &review(
                "UPDATE",
                json!({"metadata": {"annotations": sent}, "data": {"k": "2"}}),
                old.clone(),
            ),
            &trace,
        );
        assert_eq!(ids(&object), [Some(own.as_str()), Some(&span), Some(first.as_str())]);
    }
    // A stored id that was edited into an invalid one is dropped.
    let old = json!({"metadata": {"annotations": {INITIAL_TRACE_ID: "garbage"}}});
    let object =
        patched(&review("UPDATE", json!({"metadata": {}, "data": {"k": "2"}}), old), &trace);
    assert_eq!(ids(&object), [Some(own.as_str()), Some(&span), None]);
}

#[test]
fn d5_noops_keep_their_ids() {
    let old = json!({"metadata": {"resourceVersion": "4", "generation": 1, "managedFields": [{"manager": "a"}],
        "annotations": {TRACE_ID: "t", SPAN_ID: "s", INITIAL_TRACE_ID: "i"}}, "data": {"k": "1"}});
    assert_eq!(
        answered(&review("UPDATE", old.clone(), old.clone()), &TraceContext::root()).1,
        None
    );
    let mut owned = old.clone();
    owned["metadata"]["managedFields"] = json!([{"manager": "b"}]);
    assert_eq!(answered(&review("UPDATE", owned, old.clone()), &TraceContext::root()).1, None);
    // A PUT without the ids restores them.
    let mut without = old.clone();
    without["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(
        ids(&patched(&review("UPDATE", without, old), &TraceContext::root())),
        [Some("t"), Some("s"), Some("i")]
    );
}

#[test]
fn d4_status_leases_events_and_deletions_keep_stored_ids() {
    let trace = TraceContext::root();
    let changed = |mut review: Value, resource: Value, subresource: &str| {
        review["request"]["resource"] = resource;
        review["request"]["subResource"] = json!(subresource);
        review
    };
    let update = || review("UPDATE", json!({"metadata": {}, "x": 1}), json!({"metadata": {}}));
    for (resource, subresource) in [
        (json!({"group": "apps", "resource": "deployments"}), "status"),
        (json!({"group": "coordination.k8s.io", "resource": "leases"}), ""),
        (json!({"group": "", "resource": "events"}), ""),
        (json!({"group": "events.k8s.io", "resource": "events"}), ""),
    ] {
        assert_eq!(answered(&changed(update(), resource, subresource), &trace).1, None);
    }
    // A Scale does not store annotations; those of a Binding would be set on another object.
    let pods = || json!({"group": "", "resource": "pods"});
    assert_eq!(answered(&changed(update(), pods(), "scale"), &trace).1, None);
    for subresource in ["binding", "eviction", "token"] {
        assert_eq!(
            answered(
                &changed(
                    review("CREATE", json!({"metadata": {}}), Value::Null),
                    pods(),
                    subresource
                ),
                &trace
            )
            .1,
            None
        );
    }
    assert!(answered(&changed(update(), pods(), "resize"), &trace).1.is_some());
    assert_eq!(answered(&review("DELETE", Value::Null, json!({"metadata": {}})), &trace).1, None);
    assert_eq!(answered(&review("CONNECT", json!({"metadata": {}}), Value::Null), &trace).1, None);
}

#[test]
fn unknown_reviews_are_allowed_and_those_without_a_uid_fail() {
    let trace = TraceContext::root();
    for object in [
        json!("text"),
        json!({}),
        json!({"metadata": []}),
        json!({"metadata": {"annotations": "text"}}),
        json!(7),
    ] {
        assert_eq!(answered(&review("CREATE", object, Value::Null), &trace).1, None);
    }
    let forged = json!({"metadata": {"annotations": {TRACE_ID: {"a": [1]}, SPAN_ID: 5}}});
    assert_eq!(
        ids(&patched(&review("CREATE", forged, Value::Null), &trace))[0],
        Some(trace.trace_id.to_string().as_str())
    );
    let deep = format!(
        "{{\"apiVersion\":\"admission.k8s.io/v1\",\"request\":{}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for body in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"apiVersion":"admission.k8s.io/v1"}"#,
        r#"{"apiVersion":"v1","request":{"uid":"u"}}"#,
        &deep,
    ] {
        assert_eq!(answer(body.as_bytes(), &trace, true), Err(ReviewError));
    }
    let off = answer(
        &codec::to_vec(&review("CREATE", json!({"metadata": {}}), Value::Null)),
        &trace,
        false,
    )
    .unwrap();
    assert!(!off.stamped);
}
