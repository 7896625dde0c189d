//! The requests of an object's life (a user's create, label, scale and delete; children created by
//! a controller), sent to `ferrokube trace-webhook` over TLS as kube-apiserver would: its patches
//! set the same ids as the built-in step.

use crate::trace_webhook::{ask, patched, start};
use crate::trails::{ADMIN, Fleets, ROBOT, audited, id};
use ferrokube_testkit::{BOUND, Client, json_lines, newest_kubectl, wait_until};
use serde_json::{Map, Value, json};
use std::fs;

const FLEET: &str = "/apis/example.com/v1/namespaces/default/fleets/alpha";
const IDS: [&str; 3] = ["trace-id", "span-id", "initial-trace-id"];

/// A request: its audit event, the object before and after.
struct ReviewCall<'a> {
    event: Value,
    operation: &'a str,
    old: &'a Value,
    object: Value,
    /// The initial id in its header.
    initial: Option<&'a str>,
}

impl ReviewCall<'_> {
    /// A create, without an initial id.
    fn create(event: Value, object: Value) -> Self {
        static NOTHING: Value = Value::Null;
        Self { event, operation: "CREATE", old: &NOTHING, object, initial: None }
    }
}

fn audit(fleets: &Fleets, user: &str, [verb, resource, name, subresource]: [&str; 4]) -> Value {
    let events = json_lines(&fleets.cluster.data_dir().join("audit.log"));
    let is_it = |event: &Value| {
        let object = &event["objectRef"];
        let sub = object["subresource"].as_str().unwrap_or_default();
        let about = object["resource"] == resource && object["name"] == name && sub == subresource;
        about
            && event["verb"] == verb
            && event["user"]["username"] == user
            && event["responseStatus"]["code"].as_u64() < Some(300)
    };
    events
        .iter()
        .find(|event| is_it(event))
        .cloned()
        .unwrap_or_else(|| panic!("no {verb} of {resource} {name} {subresource} in {events:?}"))
}

/// An object as admission sees it: with another object's ids, or none.
fn with_ids_of(object: &Value, old: &Value) -> Value {
    let mut object = object.clone();
    let mut annotations: Map<String, Value> =
        object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    for name in IDS.map(|id| format!("trace.kubernetes.io/{id}")) {
        match &old["metadata"]["annotations"][&name] {
            Value::Null => _ = annotations.remove(&name),
            value => _ = annotations.insert(name, value.clone()),
        }
    }
    object["metadata"]["annotations"] = Value::Object(annotations);
    object
}

/// Sends a review as kube-apiserver with tracing does; returns what the patch sets.
async fn reviewed(client: &Client, call: &ReviewCall<'_>) -> Value {
    let reference = &call.event["objectRef"];
    let group = reference["apiGroup"].as_str().unwrap_or_default();
    let resource = json!({"group": group, "version": reference["apiVersion"], "resource": reference["resource"]});
    let kind = if call.object.is_object() { &call.object } else { call.old };
    let kind = json!({"group": group, "version": reference["apiVersion"], "kind": kind["kind"]});
    let mut request = json!({"uid": "u-1", "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource, "name": reference["name"],
        "namespace": "default", "operation": call.operation, "userInfo": call.event["user"], "object": call.object, "oldObject": call.old, "dryRun": false,
        "options": {"kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1"}});
    if let Some(subresource) = reference["subresource"].as_str() {
        request["subResource"] = json!(subresource);
        request["requestSubResource"] = json!(subresource);
    }
    let parent =
        format!("00-{}-{}-00", audited(&call.event, "trace-id"), audited(&call.event, "span-id"));
    let headers: Vec<(&str, &str)> = [("traceparent", parent.as_str())]
        .into_iter()
        .chain(call.initial.map(|initial| ("initial-trace-id", initial)))
        .collect();
    let review =
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request});
    patched(&ask(client, &review, &headers).await)
}

/// The ids that the built-in step set.
fn stamped(object: &Value, ids: &[&str]) -> Value {
    ids.iter().map(|name| ((*name).to_owned(), json!(id(object, name)))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn l01_l33_l38_reviews_of_a_fleets_life_get_the_ids_that_the_built_in_step_gave() {
    let fleets = Fleets::start(newest_kubectl()).await;
    let admin = fleets.cluster.admin().unwrap();
    let webhook = start(&[]);
    let client = webhook.client();

    // B: a user's create, whose trace becomes the family.
    let manifest = fleets.log("fleet").with_extension("yaml");
    fs::write(
        &manifest,
        "apiVersion: example.com/v1\nkind: Fleet\nmetadata: {name: alpha}\nspec: {replicas: 2}\n",
    )
    .unwrap();
    let created = fleets.kubectl(&["create", "-o", "json", "-f", &manifest.display().to_string()]);
    let created: Value = serde_json::from_str(&created).unwrap();
    let event = audit(&fleets, ADMIN, ["create", "fleets", "alpha", ""]);
    let call = ReviewCall::create(event, with_ids_of(&created, &Value::Null));
    assert_eq!(reviewed(&client, &call).await, stamped(&created, &IDS));
    let family = id(&created, "initial-trace-id").to_owned();

    // A: the controller's creates. Current kube-apiservers do not forward the second header: then a
    // new family begins in the same trace.
    for ship in fleets.ships(&admin, 2).await {
        let event = audit(
            &fleets,
            ROBOT,
            ["create", "configmaps", ship["metadata"]["name"].as_str().unwrap(), ""],
        );
        let mut object = with_ids_of(&ship, &Value::Null);
        // Omitted from list items.
        (object["kind"], object["apiVersion"]) = (json!("ConfigMap"), json!("v1"));
        let mut call = ReviewCall {
            event,
            operation: "CREATE",
            old: &Value::Null,
            object,
            initial: Some(&family),
        };
        assert_eq!(reviewed(&client, &call).await, stamped(&ship, &IDS));
        call.initial = None;
        let without = reviewed(&client, &call).await;
        assert_eq!(
            (&without["trace-id"], &without["initial-trace-id"]),
            (&json!(id(&ship, "trace-id")), &json!(id(&ship, "trace-id")))
        );
    }

    // C: a user's update keeps the family; setting an existing label is no update.
    let before = admin.get(FLEET).await.unwrap().body;
    fleets.kubectl(&["label", "fleet", "alpha", "crew=seven"]);
    let labeled = admin.get(FLEET).await.unwrap().body;
    let event = audit(&fleets, ADMIN, ["patch", "fleets", "alpha", ""]);
    let mut call = ReviewCall {
        event,
        operation: "UPDATE",
        old: &before,
        object: with_ids_of(&labeled, &before),
        initial: None,
    };
    assert_eq!(reviewed(&client, &call).await, stamped(&labeled, &IDS[..2]));
    assert_eq!(id(&labeled, "initial-trace-id"), family);
    (call.old, call.object) = (&labeled, labeled.clone());
    assert_eq!(reviewed(&client, &call).await, Value::Null, "D5");

    // A scale: the built-in step stamps the fleet; the review is of a Scale, which keeps no
    // annotations.
    fleets.kubectl(&["scale", "fleet/alpha", "--replicas=3"]);
    let event = audit(&fleets, ADMIN, ["patch", "fleets", "alpha", "scale"]);
    let scaled = admin.get(FLEET).await.unwrap().body;
    assert_eq!(
        stamped(&scaled, &IDS),
        json!({"trace-id": audited(&event, "trace-id"), "span-id": audited(&event, "span-id"), "initial-trace-id": family})
    );
    let scale = |replicas: u64| {
        let metadata =
            json!({"name": "alpha", "namespace": "default", "uid": scaled["metadata"]["uid"]});
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {"replicas": replicas}})
    };
    let call =
        ReviewCall { event, operation: "UPDATE", old: &scale(2), object: scale(3), initial: None };
    assert_eq!(reviewed(&client, &call).await, Value::Null);

    // A deletion cannot be patched: its ids are only logged.
    fleets.ships(&admin, 3).await;
    fleets.kubectl(&["delete", "fleet", "alpha"]);
    let event = audit(&fleets, ADMIN, ["delete", "fleets", "alpha", ""]);
    let deletion = audited(&event, "trace-id");
    let call =
        ReviewCall { event, operation: "DELETE", old: &scaled, object: Value::Null, initial: None };
    assert_eq!(reviewed(&client, &call).await, Value::Null);
    let logged = || async {
        let log = webhook.log();
        let found = log.lines().any(|line| {
            line.contains("operation=DELETE") && line.contains(&format!("trace_id={deletion}"))
        });
        if found { Ok(()) } else { Err(log) }
    };
    wait_until("the deletion is in the log", BOUND, logged).await;
}
