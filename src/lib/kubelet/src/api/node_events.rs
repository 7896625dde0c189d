//! Events about the node itself: startup and condition changes, with kubelet's messages.

use super::NodeIdentity;
use k8s_openapi::api::core::v1::{Event, EventSource, NodeCondition, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

/// Reason of a start.
pub(super) const STARTING: &str = "Starting";
/// Per condition type: the reasons for status False and True.
const REASONS: [(&str, [&str; 2]); 4] = [
    ("MemoryPressure", ["NodeHasSufficientMemory", "NodeHasInsufficientMemory"]),
    ("DiskPressure", ["NodeHasNoDiskPressure", "NodeHasDiskPressure"]),
    ("PIDPressure", ["NodeHasSufficientPID", "NodeHasInsufficientPID"]),
    ("Ready", ["NodeNotReady", "NodeReady"]),
];

/// Reasons of the conditions that have changed.
pub(super) fn changes(before: &[NodeCondition], after: &[NodeCondition]) -> Vec<&'static str> {
    let reason = |new: &NodeCondition| {
        let (_, reasons) = REASONS.iter().find(|row| row.0 == new.type_)?;
        let old = before.iter().find(|old| old.type_ == new.type_);
        let is_same = old.is_some_and(|old| old.status == new.status);
        // The first status is no transition to ready.
        let is_first = old.is_none() && new.type_ == "Ready";
        (!is_same && !is_first).then(|| reasons[usize::from(new.status == "True")])
    };
    after.iter().filter_map(reason).collect()
}

/// Writes an event per reason. Failures are only logged: the status has the same information.
pub(super) async fn write(client: &Client, identity: &NodeIdentity, reasons: &[&str]) {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let at = Timestamp::now();
    for (index, reason) in reasons.iter().enumerate() {
        let event = event(identity, at, index, reason);
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(reason, %error, "cannot write an event of this node");
        }
    }
}

fn event(identity: &NodeIdentity, at: Timestamp, index: usize, reason: &str) -> Event {
    let node = identity.name.clone();
    let message = match reason {
        STARTING => "Starting kubelet.".to_owned(),
        _ => format!("Node {node} status is now: {reason}"),
    };
    let time = Some(Time(at));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{node}.{:x}{index}", at.as_nanosecond())),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.clone()),
            // The node's name instead of its UID: `kubectl describe` queries both.
            uid: Some(node.clone()),
            ..ObjectReference::default()
        },
        type_: Some("Normal".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: time.clone(),
        last_timestamp: time,
        source: Some(EventSource {
            component: Some("kubelet".to_owned()),
            host: Some(node.clone()),
        }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(type_: &str, status: &str) -> NodeCondition {
        NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            ..NodeCondition::default()
        }
    }

    #[test]
    fn a_condition_that_changes_has_an_event() {
        let all = |memory: &str, ready: &str| {
            vec![
                condition("MemoryPressure", memory),
                condition("DiskPressure", "False"),
                condition("PIDPressure", "False"),
                condition("Ready", ready),
            ]
        };
        let first = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
        assert_eq!(changes(&[], &all("False", "False")), first);
        assert_eq!(changes(&all("False", "False"), &all("False", "True")), ["NodeReady"]);
        let both = ["NodeHasInsufficientMemory", "NodeNotReady"];
        assert_eq!(changes(&all("False", "True"), &all("True", "False")), both);
        let unknown = changes(&all("Unknown", "Unknown"), &all("False", "True"));
        assert_eq!(unknown, ["NodeHasSufficientMemory", "NodeReady"]);
        assert!(changes(&all("True", "True"), &all("True", "True")).is_empty());
    }
}
