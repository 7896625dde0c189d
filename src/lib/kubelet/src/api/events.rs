//! Events of pods: what happened, for `kubectl describe`.

use ferrokube_client::{Outage, traced};
use ferrokube_images::{PodIdentity, PullEvent, PullEvents};
use ferrokube_trace::TraceContext;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use std::collections::HashMap;
use tokio::sync::mpsc;

/// Capacity of the queue of unwritten events; further events are dropped.
const MAX_WAITING: usize = 1000;
/// Number of recent events whose repetitions increment a count instead of creating a new event.
const MAX_REMEMBERED: usize = 512;

/// Queues events without blocking.
pub struct EventSink {
    sender: mpsc::Sender<WaitingEvent>,
}

/// The other end of an [`EventSink`].
pub struct WaitingEvents {
    receiver: mpsc::Receiver<WaitingEvent>,
}

struct WaitingEvent {
    pod: PodIdentity,
    event: PullEvent,
    context: Option<TraceContext>,
    at: Timestamp,
}

impl EventSink {
    /// A sink, and the queue that a [`super::NodeApi`] writes from.
    pub fn new() -> (Self, WaitingEvents) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender }, WaitingEvents { receiver })
    }
}

impl PullEvents for EventSink {
    fn report(&self, pod: &PodIdentity, event: PullEvent) {
        let (context, at) = (ferrokube_trace::current(), Timestamp::now());
        let waiting = WaitingEvent { pod: pod.clone(), event, context, at };
        if self.sender.try_send(waiting).is_err() {
            tracing::debug!(namespace = pod.namespace, pod = pod.name, "event dropped");
        }
    }
}

/// Name and count of a written event, by its object, reason and message.
type WrittenEvents = HashMap<(String, &'static str, String), (String, i32)>;

impl WaitingEvents {
    /// Writes until dropped.
    pub(crate) async fn run(mut self, client: &Client, node: &str) {
        let mut outage = Outage::new("write an event");
        let mut remembered = WrittenEvents::new();
        while let Some(waiting) = self.receiver.recv().await {
            match write(client, node, &waiting, &mut remembered).await {
                Ok(()) => _ = outage.works(),
                // Not retried: the event itself may be the cause of the failure.
                Err(error) => _ = outage.failed(&error),
            }
        }
    }
}

async fn write(
    client: &Client,
    node: &str,
    waiting: &WaitingEvent,
    remembered: &mut WrittenEvents,
) -> Result<(), kube::Error> {
    let WaitingEvent { pod, event, context, at } = waiting;
    let client = context.map_or_else(|| client.clone(), |context| traced(client, &context));
    let events: Api<Event> = Api::namespaced(client, &pod.namespace);
    let whose = format!("{} {}", pod.uid, event.field);
    let key = (whose, event.reason, event.message.clone());
    let time = Some(Time(*at));
    if let Some((name, count)) = remembered.get_mut(&key) {
        *count += 1;
        let patch = serde_json::json!({"count": *count, "lastTimestamp": time});
        match events.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            // Expired: create it again.
            Err(kube::Error::Api(status)) if status.code == 404 => _ = remembered.remove(&key),
            other => return other.map(drop),
        }
    }
    let name = format!("{}.{:x}", pod.name, at.as_nanosecond());
    let object = object(node, waiting, &name);
    events.create(&PostParams::default(), &object).await?;
    if remembered.len() >= MAX_REMEMBERED {
        remembered.clear();
    }
    remembered.insert(key, (name, 1));
    Ok(())
}

fn object(node: &str, waiting: &WaitingEvent, name: &str) -> Event {
    let WaitingEvent { pod, event, at, .. } = waiting;
    let time = Some(Time(*at));
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            field_path: Some(event.field.clone()).filter(|field| !field.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some(if event.is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(event.reason.to_owned()),
        // The API's limit.
        message: Some(event.message.chars().take(1024).collect()),
        count: Some(1),
        first_timestamp: time.clone(),
        last_timestamp: time,
        source: Some(EventSource {
            component: Some("kubelet".to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_container_names_its_field() {
        let pod = PodIdentity { namespace: "ns".into(), name: "p".into(), uid: "u".into() };
        let of = |field: &str| {
            let (message, field) = ("Container created".to_owned(), field.to_owned());
            let event = PullEvent { is_warning: false, reason: "Created", message, field };
            let at = Timestamp::UNIX_EPOCH;
            let waiting = WaitingEvent { pod: pod.clone(), event, context: None, at };
            object("n", &waiting, "e").involved_object
        };
        let container = of("spec.containers{main}");
        assert_eq!(container.field_path.as_deref(), Some("spec.containers{main}"));
        assert_eq!((container.name.as_deref(), container.uid.as_deref()), (Some("p"), Some("u")));
        assert_eq!(of("").field_path, None, "the pod itself");
    }
}
