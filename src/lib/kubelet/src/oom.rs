//! How readily the kernel kills the processes of a container when the node is out of memory:
//! kubelet's scores. Without them the runtime and the kubelet itself are as likely to be killed.

use crate::pod::NodePod;
use crate::room::{amount, requested};
use k8s_openapi::api::core::v1::Container;

/// Score of pods with guaranteed resources, and of those that are critical for the node.
const LEAST: i64 = -997;
/// The priority of pods that are critical for their node, and its class.
const CRITICAL: (i32, &str) = (2_000_001_000, "system-node-critical");
/// Score of pods without requests.
const MOST: i64 = 1000;

/// The score of a container on a node with this memory (bytes).
pub(crate) fn score(pod: &NodePod, container: &Container, memory: u64) -> i64 {
    // Classes of static pods are not resolved.
    let is_critical = pod.spec.priority.is_some_and(|priority| priority >= CRITICAL.0)
        || pod.spec.priority_class_name.as_deref() == Some(CRITICAL.1);
    if is_critical || is_guaranteed(pod) {
        return LEAST;
    }
    if pod.all_containers().all(is_bare) {
        return MOST;
    }
    let request = container.resources.as_ref().map_or(0, |resources| requested(resources).memory);
    let memory = i64::try_from(memory).unwrap_or(i64::MAX).max(1);
    // The part of the node's memory that it does not request; between the two above.
    let share = MOST.saturating_mul(request) / memory;
    (MOST - share).clamp(MOST + LEAST, MOST - 1)
}

/// Whether a container has neither requests nor limits of CPU and memory.
fn is_bare(container: &Container) -> bool {
    let resources = container.resources.clone().unwrap_or_default();
    let lists = [resources.requests, resources.limits];
    !lists.iter().any(|list| amount(list, "cpu").or(amount(list, "memory")).is_some())
}

/// Whether all containers have limits of CPU and memory, which they request, too.
fn is_guaranteed(pod: &NodePod) -> bool {
    pod.all_containers().all(|container| {
        let resources = container.resources.clone().unwrap_or_default();
        ["cpu", "memory"].into_iter().all(|name| {
            let limit = amount(&resources.limits, name);
            let request = amount(&resources.requests, name).or_else(|| limit.clone());
            limit.is_some() && limit == request
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn scores(containers: Value) -> Vec<i64> {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": containers}});
        let pod = NodePod::from_api(&serde_json::from_value(pod).unwrap()).unwrap();
        pod.spec.containers.iter().map(|container| score(&pod, container, 8 << 30)).collect()
    }

    fn container(name: &str, resources: Value) -> Value {
        json!({"name": name, "image": "i", "resources": resources})
    }

    #[test]
    fn who_requests_more_is_killed_later() {
        let all = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(scores(json!([container("a", all.clone())])), [-997]);
        assert_eq!(scores(json!([container("a", json!({}))])), [1000]);
        let request = |memory: &str| json!({"requests": {"memory": memory}});
        let burstable = json!([
            container("a", all),
            container("b", request("4Gi")),
            container("c", request("1Ki")),
            container("d", request("8Gi")),
            container("e", json!({})),
        ]);
        assert_eq!(scores(burstable), [875, 500, 999, 3, 999]);
        let file = b"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priorityClassName: \
                     system-node-critical, containers: [{name: c, image: i}]}}";
        let pod = NodePod::from_file(file, "n").unwrap();
        assert_eq!(score(&pod, &pod.spec.containers[0], 8 << 30), -997);
    }
}
