//! The Node object: registration, and its status.

use super::NodeIdentity;
use super::facts::{quantities, system_info};
use super::node_events;
use crate::background::in_background;
use crate::eviction::pressure::NodePressure;
use crate::node::PodNode;
use ferrokube_client::Outage;
use ferrokube_cri::RuntimeStatusRequest;
use ferrokube_images::go_duration;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    Taint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time in which a runtime that is up reports its status, as in kubelet. The node's waits for it.
const RUNTIME_ANSWER: Duration = Duration::from_secs(30);
/// Age of the last list of the runtime's pods from which the node is not ready, as in kubelet.
const MAX_LIST_AGE: Duration = Duration::from_secs(180);

/// Registers the node and keeps its status until dropped; shares its UID.
pub(crate) async fn run(
    client: &Client,
    identity: &NodeIdentity,
    node: &PodNode,
    uid: &watch::Sender<Option<String>>,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut outage = Outage::new("report the status of this node");
    let mut last: Option<(NodeStatus, Instant)> = None;
    let mut is_starting = true;
    let mut in_use = node.csi.in_use.changes();
    node.csi.in_use.written(BTreeSet::new());
    loop {
        let volumes = in_use.borrow_and_update().clone();
        let mut new = status(identity, node).await;
        new.volumes_in_use = Some(volumes.iter().cloned().collect());
        let after = new.conditions.clone().unwrap_or_default();
        match report(&nodes, identity, new, &mut last, uid).await {
            Ok(before) => {
                outage.works();
                node.csi.in_use.written(volumes);
                // Pressure is reported as an event at every start, readiness only when it changes.
                if let (Some(before), true) = (&before, is_starting) {
                    let ready: Vec<_> =
                        before.iter().filter(|it| it.type_ == "Ready").cloned().collect();
                    let mut reasons = vec![node_events::STARTING];
                    reasons.extend(node_events::changes(&ready, &after));
                    node_events::write(client, identity, &reasons).await;
                    is_starting = false;
                } else if let Some(before) = before {
                    let reasons = node_events::changes(&before, &after);
                    node_events::write(client, identity, &reasons).await;
                }
            }
            Err(error) => {
                last = None;
                outage.failed(&error);
            }
        }
        // A pod waits for the report of its volume.
        tokio::select! {
            () = tokio::time::sleep(identity.status_interval) => {}
            _ = in_use.changed() => {}
        }
    }
}

/// Returns the previous conditions; `None` if the node does not exist.
async fn report(
    nodes: &Api<Node>,
    identity: &NodeIdentity,
    mut new: NodeStatus,
    last: &mut Option<(NodeStatus, Instant)>,
    uid: &watch::Sender<Option<String>>,
) -> Result<Option<Vec<NodeCondition>>, kube::Error> {
    let mut old = match last {
        Some((status, _)) => Some(status.clone()),
        None => {
            let node = match nodes.get_opt(&identity.name).await? {
                Some(node) => node,
                // As in kubelet, a node deleted later is not registered again before the next
                // start.
                None if !identity.is_registered || uid.borrow().is_some() => return Ok(None),
                None => register(nodes, identity, &new).await?,
            };
            uid.send_replace(node.metadata.uid);
            node.status
        }
    };
    let had_volumes =
        |status: &NodeStatus| status.volumes_in_use.as_ref().is_some_and(|it| !it.is_empty());
    // An empty list is written only to clear one.
    let clears = old.as_ref().is_some_and(had_volumes);
    new.volumes_in_use = new.volumes_in_use.filter(|names| clears || !names.is_empty());
    let before = old.take().and_then(|status| status.conditions).unwrap_or_default();
    for condition in new.conditions.iter_mut().flatten() {
        let same =
            before.iter().find(|it| it.type_ == condition.type_ && it.status == condition.status);
        if let Some(same) = same {
            condition.last_transition_time.clone_from(&same.last_transition_time);
        }
    }
    if let Some((sent, at)) = last
        && without_heartbeat(sent) == without_heartbeat(&new)
        && at.elapsed() < identity.report_interval
    {
        return Ok(Some(before));
    }
    // Merged by type, which keeps conditions of other writers.
    let patch = Patch::Strategic(json!({"status": new}));
    nodes.patch_status(&identity.name, &PatchParams::default(), &patch).await?;
    *last = Some((new, Instant::now()));
    Ok(Some(before))
}

fn without_heartbeat(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status
}

async fn register(
    nodes: &Api<Node>,
    identity: &NodeIdentity,
    status: &NodeStatus,
) -> Result<Node, kube::Error> {
    let info = status.node_info.clone().unwrap_or_default();
    let mut labels: BTreeMap<String, String> = [
        ("beta.kubernetes.io/arch", &info.architecture),
        ("beta.kubernetes.io/os", &info.operating_system),
        ("kubernetes.io/arch", &info.architecture),
        ("kubernetes.io/hostname", &identity.host_name),
        ("kubernetes.io/os", &info.operating_system),
    ]
    .map(|(name, value)| (name.to_owned(), value.clone()))
    .into();
    labels.extend(identity.labels.clone());
    let taints = identity.taints.iter().map(|taint| Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: taint.effect.clone(),
        ..Taint::default()
    });
    let taints = Some(taints.collect::<Vec<_>>()).filter(|taints| !taints.is_empty());
    let node = Node {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: taints.map(|taints| NodeSpec { taints: Some(taints), ..NodeSpec::default() }),
        status: Some(status.clone()),
    };
    tracing::info!(node = identity.name, "registering the node");
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => nodes.get(&identity.name).await,
        other => other,
    }
}

/// The node as it is now.
async fn status(identity: &NodeIdentity, node: &PodNode) -> NodeStatus {
    let root = node.paths.root.clone();
    let (version, figures) = (identity.version.clone(), Arc::clone(&node.figures));
    let read = in_background(move || Ok((figures.read(&root, None), system_info(&version))));
    let (figures, mut info) = read.await.unwrap_or_default();
    let [capacity, allocatable] =
        quantities(&figures, &node.thresholds.thresholds, identity.max_pods);
    let mut addresses: Vec<_> = identity
        .addresses
        .iter()
        .map(|address| ("InternalIP", address.to_string()))
        .chain([("Hostname", identity.host_name.clone())])
        .map(|(type_, address)| NodeAddress { type_: type_.to_owned(), address })
        .collect();
    addresses.dedup();
    let unready = unready(node).await;
    // Unknown while the runtime is down; the Ready condition reports that.
    if unready.is_none() {
        let _ = node.learn_version().await;
    }
    info.container_runtime_version = node.runtime_version();
    NodeStatus {
        addresses: Some(addresses),
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions(*node.pressure.lock(), unready)),
        daemon_endpoints: identity.server_port.map(|port| NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: port.into() }),
        }),
        node_info: Some(info),
        ..NodeStatus::default()
    }
}

/// Why the node cannot run pods; `None` if it can.
async fn unready(node: &PodNode) -> Option<String> {
    let runtime = node.runtime.within(Some(RUNTIME_ANSWER));
    let status = match runtime.status(RuntimeStatusRequest::default()).await {
        Ok(response) => response.status.unwrap_or_default(),
        Err(error) => return Some(format!("container runtime is down: {error}")),
    };
    let age = node.listed_at.lock().elapsed();
    let is_stuck = age >= MAX_LIST_AGE;
    let stuck = is_stuck.then(|| {
        format!(
            "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
            go_duration(age),
            go_duration(MAX_LIST_AGE)
        )
    });
    let faults = status.conditions.iter().filter(|condition| !condition.status).map(|condition| {
        format!(
            "container runtime {}: {}=false reason:{} message:{}",
            if condition.r#type == "NetworkReady" { "network not ready" } else { "not ready" },
            condition.r#type,
            condition.reason,
            condition.message
        )
    });
    let faults: Vec<String> = faults.chain(stuck).collect();
    (!faults.is_empty()).then(|| faults.join(", "))
}

fn conditions(short: NodePressure, unready: Option<String>) -> Vec<NodeCondition> {
    let now = Some(Time(Timestamp::now()));
    let condition = |type_: &str, status: bool, reason: &str, message: String| NodeCondition {
        type_: type_.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: now.clone(),
        last_transition_time: now.clone(),
    };
    let pressure = |type_: &str, is_short: bool, what: &str, reasons: [&str; 2]| {
        let has = if is_short { "has insufficient" } else { "has sufficient" };
        let reason = reasons[usize::from(is_short)];
        condition(type_, is_short, reason, format!("kubelet {has} {what} available"))
    };
    let memory = ["KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"];
    let processes = ["KubeletHasSufficientPID", "KubeletHasInsufficientPID"];
    let mut disk = pressure(
        "DiskPressure",
        short.disk,
        "disk space",
        ["KubeletHasNoDiskPressure", "KubeletHasDiskPressure"],
    );
    let has = if short.disk { "has disk" } else { "has no disk" };
    disk.message = Some(format!("kubelet {has} pressure"));
    let ready = match unready {
        None => {
            let message = "kubelet is posting ready status".to_owned();
            condition("Ready", true, "KubeletReady", message)
        }
        Some(message) => condition("Ready", false, "KubeletNotReady", message),
    };
    vec![
        pressure("MemoryPressure", short.memory, "memory", memory),
        disk,
        pressure("PIDPressure", short.processes, "PID", processes),
        ready,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, RecordedEvents};
    use ferrokube_cri::testing::FakeRuntime;
    use ferrokube_cri::{Runtime, path};

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_hangs_makes_the_node_unready_in_time() {
        let (fake, folder) = (Arc::<FakeRuntime>::default(), tempfile::tempdir().unwrap());
        let runtime = Runtime::new(Arc::clone(&fake) as Arc<_>);
        let kubelet =
            fixture::kubelet(runtime, "", folder.path(), Arc::<RecordedEvents>::default());
        let (node, _, _) = kubelet.loops(None);
        assert_eq!(unready(&node).await, None);
        fake.hold(path::status, true);
        let begun = Instant::now();
        let down = unready(&node).await.unwrap();
        assert!(down.starts_with("container runtime is down: rpc error"), "{down}");
        assert_eq!(begun.elapsed(), RUNTIME_ANSWER);
        // Only its lists do.
        fake.hold(path::status, false);
        tokio::time::advance(MAX_LIST_AGE).await;
        let stuck = "PLEG is not healthy: pleg was last seen active 3m30s ago; threshold is 3m0s";
        assert_eq!(unready(&node).await.unwrap(), stuck);
        *node.listed_at.lock() = Instant::now();
        assert_eq!(unready(&node).await, None);
    }

    #[test]
    fn a_runtime_that_is_not_ready_makes_the_node_unready_with_kubelets_words() {
        let of =
            |unready: Option<&str>| conditions(NodePressure::default(), unready.map(str::to_owned));
        let ready = |all: &[NodeCondition]| {
            let found = all.iter().find(|it| it.type_ == "Ready").unwrap();
            (found.status.clone(), found.reason.clone().unwrap(), found.message.clone().unwrap())
        };
        let text = |words: [&str; 3]| (words[0].into(), words[1].into(), words[2].into());
        let good = ["True", "KubeletReady", "kubelet is posting ready status"];
        assert_eq!(ready(&of(None)), text(good));
        assert_eq!(ready(&of(Some("why"))), text(["False", "KubeletNotReady", "why"]));
        let types: Vec<String> = of(None).into_iter().map(|it| it.type_).collect();
        assert_eq!(types, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    }
}
