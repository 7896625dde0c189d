//! PodRoom of a node: the CPU and memory that its pods request, and their number.

use crate::pod::NodePod;
use ferrokube_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use std::collections::BTreeMap;

/// An amount of CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodRoom {
    /// Thousandths.
    pub(crate) cpu: i64,
    /// Bytes.
    pub(crate) memory: i64,
}

impl PodRoom {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
        }
    }

    fn or_more(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    /// Resources with their names and amounts of each.
    pub(crate) const RESOURCES: [NamedAmount; 2] =
        [("cpu", |room| room.cpu), ("memory", |room| room.memory)];
}

/// A resource's name, and how much of it a room has.
type NamedAmount = (&'static str, fn(PodRoom) -> i64);

/// An amount of a resource.
pub(crate) fn amount(list: &Option<BTreeMap<String, Amount>>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list.as_ref()?.get(name)?.0).ok()
}

/// A container's requests; without one its limit.
pub(crate) fn requested(resources: &ResourceRequirements) -> PodRoom {
    let lists = [&resources.requests, &resources.limits];
    let of = |name| lists.into_iter().find_map(|list| amount(list, name));
    PodRoom {
        cpu: of("cpu").map_or(0, |amount| amount.milli_value()),
        memory: of("memory").map_or(0, |amount| amount.value()),
    }
}

/// A pod's requests: those of its containers and sidecars together, or more if an init container
/// needs that.
pub(crate) fn of_pod(pod: &NodePod) -> PodRoom {
    let own =
        |container: &Container| container.resources.as_ref().map(requested).unwrap_or_default();
    let (mut sidecars, mut most) = (PodRoom::default(), PodRoom::default());
    for init in pod.spec.init_containers.iter().flatten() {
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.plus(own(init));
            most = most.or_more(sidecars);
        } else {
            most = most.or_more(sidecars.plus(own(init)));
        }
    }
    // What the sandbox itself takes, by its RuntimeClass.
    let requests = pod.spec.overhead.clone();
    let overhead = requested(&ResourceRequirements { requests, ..ResourceRequirements::default() });
    pod.spec.containers.iter().map(own).fold(sidecars, PodRoom::plus).or_more(most).plus(overhead)
}

/// The limits of all pods of a node together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRoom {
    pub(crate) room: PodRoom,
    pub(crate) pods: usize,
}

/// Why a node has no room for another pod, with kubelet's reason and message; `None` if it has.
pub(crate) fn lack<'a>(
    pod: &NodePod,
    others: impl Iterator<Item = &'a NodePod>,
    node: NodeRoom,
) -> Option<(&'static str, String)> {
    let message = |name: &str, requested: i64, used: i64, capacity: i64| {
        format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        )
    };
    let others: Vec<PodRoom> = others.map(of_pod).collect();
    if others.len() >= node.pods {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (used, capacity) = (number(others.len()), number(node.pods));
        return Some(("OutOfpods", message("pods", 1, used, capacity)));
    }
    let used = others.into_iter().fold(PodRoom::default(), PodRoom::plus);
    let wanted = of_pod(pod);
    let lacks = |(name, of): &NamedAmount| {
        let (requested, used, capacity) = (of(wanted), of(used), of(node.room));
        let is_short = requested > 0 && used.saturating_add(requested) > capacity;
        let reason = if *name == "cpu" { "OutOfcpu" } else { "OutOfmemory" };
        is_short.then(|| (reason, message(name, requested, used, capacity)))
    };
    PodRoom::RESOURCES.iter().find_map(lacks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> NodePod {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": spec});
        NodePod::from_file(pod.to_string().as_bytes(), "n").unwrap()
    }

    fn container(name: &str, cpu: &str, memory: &str) -> Value {
        json!({"name": name, "image": "i",
            "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "8", "memory": memory}}})
    }

    #[test]
    fn a_pod_requests_what_it_needs_at_its_largest() {
        let mut sidecar = container("side", "100m", "1Ki");
        sidecar["restartPolicy"] = json!("Always");
        let made = |init: &str| {
            of_pod(&pod(json!({
                "initContainers": [sidecar, container("init", init, "10Ki")],
                "containers": [container("a", "1", "1Ki"), container("b", "500m", "1Ki")],
            })))
        };
        assert_eq!(made("1"), PodRoom { cpu: 1600, memory: 11 << 10 });
        assert_eq!(made("2"), PodRoom { cpu: 2100, memory: 11 << 10 });
        let overhead = json!({"overhead": {"cpu": "10m", "memory": "1Ki"},
            "containers": [container("a", "1", "1Ki")]});
        assert_eq!(of_pod(&pod(overhead)), PodRoom { cpu: 1010, memory: 2 << 10 });
        let none = json!({"containers": [{"name": "c", "image": "i"}]});
        assert_eq!(of_pod(&pod(none)), PodRoom::default());
    }

    #[test]
    fn a_pod_that_does_not_fit_is_told_what_is_missing() {
        let of = |cpu, memory| pod(json!({"containers": [container("c", cpu, memory)]}));
        let node = NodeRoom { room: PodRoom { cpu: 2000, memory: 1 << 20 }, pods: 2 };
        let why = |wanted: &NodePod, others: &[NodePod]| lack(wanted, others.iter(), node);
        let (one, large) = (of("1", "512Ki"), of("1001m", "1Ki"));
        assert_eq!(why(&one, std::slice::from_ref(&one)), None);
        let (reason, message) = why(&large, std::slice::from_ref(&one)).unwrap();
        assert_eq!(reason, "OutOfcpu");
        let words = "requested: 1001, used: 1000, capacity: 2000";
        assert_eq!(message, format!("Node didn't have enough resource: cpu, {words}"));
        assert_eq!(why(&of("1m", "2Mi"), &[]).unwrap().0, "OutOfmemory");
        let none = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
        let (reason, message) = why(&none, &[one.clone(), one.clone()]).unwrap();
        assert_eq!(reason, "OutOfpods");
        assert!(message.ends_with("pods, requested: 1, used: 2, capacity: 2"), "{message}");
        // One that requests nothing runs on a node that has given away everything.
        let full = of("2", "1Mi");
        assert_eq!(why(&none, std::slice::from_ref(&full)), None);
    }
}
