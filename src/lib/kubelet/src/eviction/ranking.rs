//! Eviction order, as in kubelet: pods that exceed their requests first, then by lowest priority,
//! then by largest excess.

use super::threshold::EvictionSignal;
use crate::pod::NodePod;
use ferrokube_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::Container;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Minimum priority of critical pods, which are never evicted.
const CRITICAL: i32 = 2_000_000_000;

/// A pod's usage of the resource under pressure, in bytes per container.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodConsumption {
    pub(crate) by_container: BTreeMap<String, u64>,
    /// Bytes of the pod's volumes and logs.
    pub(crate) other: u64,
}

impl PodConsumption {
    fn total(&self) -> u64 {
        self.by_container.values().fold(self.other, |sum, one| sum.saturating_add(*one))
    }
}

pub(crate) fn is_critical(pod: &NodePod) -> bool {
    pod.is_static || pod.spec.priority.is_some_and(|priority| priority >= CRITICAL)
}

/// A container's request for the resource, in bytes.
pub(crate) fn request(container: &Container, signal: EvictionSignal) -> u64 {
    let name = match signal {
        EvictionSignal::Memory => "memory",
        _ => "ephemeral-storage",
    };
    let requests = container.resources.as_ref().and_then(|it| it.requests.as_ref());
    let amount = requests.and_then(|all| Quantity::parse(&all.get(name)?.0).ok());
    amount.map_or(0, |amount| u64::try_from(amount.value()).unwrap_or(0))
}

/// The pods that may be evicted, in eviction order.
pub(crate) fn ranked(
    pods: Vec<NodePod>,
    signal: EvictionSignal,
    consumption: &BTreeMap<String, PodConsumption>,
) -> Vec<NodePod> {
    let key = |pod: &NodePod| {
        let used = consumption.get(&pod.uid).map_or(0, PodConsumption::total);
        let requests = pod.spec.containers.iter().map(|container| request(container, signal));
        let requested = requests.fold(0, u64::saturating_add);
        let priority = pod.spec.priority.unwrap_or(0);
        (Reverse(used > requested), priority, Reverse(used.saturating_sub(requested)))
    };
    let mut pods: Vec<NodePod> = pods.into_iter().filter(|pod| !is_critical(pod)).collect();
    pods.sort_by_cached_key(key);
    pods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, priority: i32, request: &str) -> NodePod {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{priority: {priority}, \
             containers: [{{name: c, image: i, resources: {{requests: {{memory: {request}}}}}}}]}}}}"
        );
        let mut pod = NodePod::from_file(text.as_bytes(), "n").unwrap();
        (pod.is_static, pod.uid) = (false, name.to_owned());
        pod
    }

    #[test]
    fn pods_over_their_request_go_first_then_by_priority_then_by_the_excess() {
        let pods = vec![
            pod("modest", -5, "1Gi"),
            pod("critical", CRITICAL, "0"),
            pod("greedy-important", 7, "1Mi"),
            pod("greedy", 0, "1Mi"),
            pod("greediest", 0, "2Mi"),
        ];
        let of = |mebibytes: u64| PodConsumption {
            by_container: BTreeMap::from([("c".to_owned(), mebibytes << 20)]),
            other: 0,
        };
        let used = [("modest", 900), ("critical", 999), ("greedy-important", 500), ("greedy", 10)];
        let mut used: BTreeMap<String, PodConsumption> =
            used.into_iter().map(|(name, used)| (name.to_owned(), of(used))).collect();
        used.insert("greediest".to_owned(), of(20));
        let ranked = ranked(pods, EvictionSignal::Memory, &used);
        let names: Vec<&str> = ranked.iter().map(|pod| &*pod.uid).collect();
        assert_eq!(names, ["greediest", "greedy", "greedy-important", "modest"]);
    }
}
