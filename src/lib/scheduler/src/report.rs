//! Reports of a decision: the pod's condition, and events. Messages are kube-scheduler's.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

const COMPONENT: &str = "default-scheduler";

/// Sets the pod's PodScheduled condition to False with a reason, unless it has it already.
pub(crate) async fn unschedulable(
    client: &Client,
    pod: &Pod,
    why: &str,
) -> Result<(), kube::Error> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let old = conditions.find(|condition| condition.type_ == "PodScheduled");
    if old.is_some_and(|old| old.message.as_deref() == Some(why)) {
        return Ok(());
    }
    let since =
        old.filter(|old| old.status == "False").and_then(|it| it.last_transition_time.clone());
    let since = since.unwrap_or_else(|| Time(Timestamp::now()));
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": why, "lastTransitionTime": since});
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    match pods.patch_status(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        other => other?,
    };
    tracing::info!(reason = why, "pod cannot be scheduled");
    write(client, pod, "Warning", "FailedScheduling", why.to_owned()).await;
    Ok(())
}

pub(crate) async fn scheduled(client: &Client, pod: &Pod, node: &str) {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let message = format!("Successfully assigned {namespace}/{name} to {node}");
    write(client, pod, "Normal", "Scheduled", message).await;
}

/// An event that cannot be written is not worth a retry: the pod's condition says the same.
async fn write(client: &Client, pod: &Pod, type_: &str, reason: &str, message: String) {
    let at = Timestamp::now();
    let time = Some(Time(at));
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", at.as_nanosecond())),
            namespace: namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: namespace.clone(),
            name: Some(name),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some(type_.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: time.clone(),
        last_timestamp: time,
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
        reporting_component: Some(COMPONENT.to_owned()),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace.unwrap_or_default());
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        tracing::debug!(reason, %error, "cannot write an event of a pod");
    }
}
