//! Resource pressure of a node, and which pods are not admitted under it.

use super::ranking::is_critical;
use crate::pod::NodePod;
use std::collections::BTreeMap;

/// Resources under pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodePressure {
    pub(crate) memory: bool,
    pub(crate) disk: bool,
    pub(crate) processes: bool,
}

/// Why a pod is not admitted, with kubelet's message; `None` if it is.
pub(crate) fn refusal(pod: &NodePod, pressure: NodePressure) -> Option<String> {
    if is_critical(pod) {
        return None;
    }
    let tolerates = || {
        pod.spec.tolerations.iter().flatten().any(|one| {
            let key = one.key.as_deref().unwrap_or_default();
            let is_any = one.operator.as_deref() == Some("Exists") && key.is_empty();
            is_any || key == "node.kubernetes.io/memory-pressure"
        })
    };
    let is_best_effort = || {
        pod.all_containers().all(|container| {
            let resources = container.resources.clone().unwrap_or_default();
            let is_none = |list: Option<BTreeMap<_, _>>| list.is_none_or(|list| list.is_empty());
            is_none(resources.requests) && is_none(resources.limits)
        })
    };
    let mut conditions = Vec::new();
    if pressure.memory && is_best_effort() && !tolerates() {
        conditions.push("MemoryPressure");
    }
    if pressure.disk {
        conditions.push("DiskPressure");
    }
    let shown = || format!("The node had condition: [{}]. ", conditions.join(" "));
    (!conditions.is_empty()).then(shown)
}
