//! Whether a pod fits on the node, alongside those bound to it.

use crate::requests::{Amounts, add, amounts, of_pod};
use crate::{neighbors, selection};
use k8s_openapi::api::core::v1::{Container, Node, Pod, PodSpec};
use std::collections::BTreeMap;

/// The node, with the pods that are bound to it or about to be.
pub(crate) struct OccupiedNode<'a> {
    node: &'a Node,
    pods: Vec<&'a Pod>,
    used: Amounts,
    free: Amounts,
}

impl<'a> OccupiedNode<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        let status = node.status.as_ref();
        let free = amounts(status.and_then(|status| status.allocatable.as_ref()));
        Self { node, pods: Vec::new(), used: Amounts::new(), free }
    }

    /// Counts a pod that is bound to the node. One that has ended takes nothing.
    pub(crate) fn take(&mut self, pod: &'a Pod) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return;
        }
        if let Some(spec) = &pod.spec {
            add(&mut self.used, &of_pod(spec));
        }
        self.pods.push(pod);
    }

    /// Why a pod does not fit, with kube-scheduler's messages, in its order: those of the first
    /// filter that rejects the pod. Empty: it fits.
    pub(crate) fn refusals(&self, pod: &Pod) -> Vec<String> {
        let Some(spec) = &pod.spec else { return Vec::new() };
        let is_cordoned = self.node.spec.as_ref().is_some_and(|it| it.unschedulable == Some(true));
        if is_cordoned && !tolerates_cordon(spec) {
            return vec!["node(s) were unschedulable".to_owned()];
        }
        if let Some(taint) = selection::untolerated(spec, self.node) {
            let value = taint.value.unwrap_or_default();
            return vec![format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)];
        }
        if !selection::is_selected(spec, self.node) {
            return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
        }
        if self.has_port_conflict(spec) {
            let why = "node(s) didn't have free ports for the requested pod ports";
            return vec![why.to_owned()];
        }
        let lacking = self.lacking(spec);
        if !lacking.is_empty() {
            return lacking;
        }
        neighbors::refusal(pod, self.node, &self.pods).map(str::to_owned).into_iter().collect()
    }

    fn lacking(&self, spec: &PodSpec) -> Vec<String> {
        let mut lacking = Vec::new();
        let limit = self.free.get("pods").copied().unwrap_or_default();
        if i64::try_from(self.pods.len()).unwrap_or(i64::MAX) >= limit {
            lacking.push("Too many pods".to_owned());
        }
        let amount = |all: &Amounts, name: &str| all.get(name).copied().unwrap_or_default();
        for (name, wanted) in of_pod(spec) {
            let left = amount(&self.free, &name).saturating_sub(amount(&self.used, &name));
            if wanted > 0 && wanted > left {
                lacking.push(format!("Insufficient {name}"));
            }
        }
        lacking
    }

    fn has_port_conflict(&self, spec: &PodSpec) -> bool {
        let wanted = host_ports(spec);
        let others = self.pods.iter().filter_map(|pod| pod.spec.as_ref());
        let taken: Vec<HostPort> =
            if wanted.is_empty() { Vec::new() } else { others.flat_map(host_ports).collect() };
        let mut by_number = BTreeMap::<i32, Vec<&HostPort>>::new();
        for other in &taken {
            by_number.entry(other.number).or_default().push(other);
        }
        wanted.iter().any(|port| {
            let same = by_number.get(&port.number);
            same.into_iter().flatten().any(|other| port.conflicts(other))
        })
    }
}

fn tolerates_cordon(spec: &PodSpec) -> bool {
    let mut tolerations = spec.tolerations.iter().flatten();
    tolerations.any(|one| {
        let key = one.key.as_deref().unwrap_or_default();
        let is_same = matches!(key, "" | "node.kubernetes.io/unschedulable");
        let effect = one.effect.as_deref().unwrap_or_default();
        let has_effect = matches!(effect, "" | "NoSchedule");
        is_same && has_effect && (!key.is_empty() || one.operator.as_deref() == Some("Exists"))
    })
}

struct HostPort {
    address: String,
    protocol: String,
    number: i32,
}

impl HostPort {
    fn conflicts(&self, other: &Self) -> bool {
        let is_same_address = self.is_everywhere() || other.is_everywhere();
        self.number == other.number
            && self.protocol == other.protocol
            && (is_same_address || self.address == other.address)
    }

    fn is_everywhere(&self) -> bool {
        matches!(self.address.as_str(), "" | "0.0.0.0")
    }
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let is_sidecar = |one: &&Container| one.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|one| one.ports.iter().flatten());
    let taken = ports.filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let address = port.host_ip.clone().unwrap_or_default();
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        Some(HostPort { address, protocol, number })
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(unschedulable: bool) -> Node {
        let allocatable = json!({"cpu": "2", "memory": "1Gi", "pods": "3"});
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        serde_json::from_value(json!({"metadata": {"name": "n"},
            "spec": {"unschedulable": unschedulable},
            "status": {"allocatable": allocatable, "conditions": conditions}}))
        .unwrap()
    }

    fn pod(container: Value, spec: Value) -> Pod {
        let mut one = json!({"name": "c"});
        one.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let mut all = json!({"containers": [one]});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "x"}, "spec": all}))
            .unwrap()
    }

    fn asking(requests: Value) -> Pod {
        pod(json!({"resources": {"requests": requests}}), json!({}))
    }

    #[test]
    fn a_pod_fits_as_long_as_there_is_room() {
        let node = node(false);
        let big = asking(json!({"cpu": "1500m", "memory": "512Mi"}));
        let mut occupied = OccupiedNode::new(&node);
        assert!(occupied.refusals(&big).is_empty());
        occupied.take(&big);
        assert_eq!(occupied.refusals(&big), ["Insufficient cpu"]);
        assert!(occupied.refusals(&asking(json!({"cpu": "500m", "memory": "512Mi"}))).is_empty());
        let both = occupied.refusals(&asking(json!({"cpu": "1", "memory": "513Mi"})));
        assert_eq!(both, ["Insufficient cpu", "Insufficient memory"]);
        let gpu = occupied.refusals(&asking(json!({"example.com/gpu": "1"})));
        assert_eq!(gpu, ["Insufficient example.com/gpu"]);
        let small = asking(json!({}));
        occupied.take(&small);
        assert!(occupied.refusals(&small).is_empty());
        occupied.take(&small);
        assert_eq!(occupied.refusals(&small), ["Too many pods"]);
    }

    #[test]
    fn a_pod_that_has_ended_takes_no_room() {
        let node = node(false);
        let mut ended = asking(json!({"cpu": "2"}));
        ended.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
        let mut occupied = OccupiedNode::new(&node);
        occupied.take(&ended);
        assert!(occupied.refusals(&asking(json!({"cpu": "2"}))).is_empty());
    }

    #[test]
    fn a_port_of_the_node_is_of_one_pod() {
        let node = node(false);
        let with = |port: Value| pod(json!({"ports": [port]}), json!({}));
        let web = with(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}));
        let mut occupied = OccupiedNode::new(&node);
        occupied.take(&web);
        let taken = ["node(s) didn't have free ports for the requested pod ports"];
        assert_eq!(occupied.refusals(&web), taken);
        let everywhere = with(json!({"containerPort": 80, "hostPort": 8080}));
        assert_eq!(occupied.refusals(&everywhere), taken);
        let other = json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.2"});
        assert!(occupied.refusals(&with(other)).is_empty());
        let udp = json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"});
        assert!(occupied.refusals(&with(udp)).is_empty());
        assert!(occupied.refusals(&with(json!({"containerPort": 8080}))).is_empty());
    }

    #[test]
    fn a_cordoned_node_takes_only_pods_that_tolerate_it() {
        let node = node(true);
        let occupied = OccupiedNode::new(&node);
        assert_eq!(occupied.refusals(&asking(json!({}))), ["node(s) were unschedulable"]);
        let tolerations = json!([{"operator": "Exists"}]);
        let tolerant = pod(json!({}), json!({"tolerations": tolerations}));
        assert!(occupied.refusals(&tolerant).is_empty());
        let apart = pod(json!({}), json!({"nodeSelector": {"a": "b"}, "tolerations": tolerations}));
        assert_eq!(
            occupied.refusals(&apart),
            ["node(s) didn't match Pod's node affinity/selector"]
        );
    }
}
