//! Facts about this machine for the Node's status. Unreadable ones are empty.

use crate::eviction::figures::NodeFigures;
use crate::eviction::threshold::{EvictionSignal, EvictionThreshold, left};
use crate::node::cpus;
use k8s_openapi::api::core::v1::NodeSystemInfo;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::fs;

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Capacity, and the part allocatable to pods.
pub(super) fn quantities(
    figures: &NodeFigures,
    thresholds: &[EvictionThreshold],
    max_pods: u32,
) -> [BTreeMap<String, Quantity>; 2] {
    let all = |memory: u64, disk: u64| {
        let amounts = [
            ("cpu", cpus().to_string()),
            ("ephemeral-storage", format!("{}Ki", disk / 1024)),
            ("memory", format!("{}Ki", memory / 1024)),
            ("pods", max_pods.to_string()),
        ];
        amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount))).into()
    };
    let capacity = |signal: EvictionSignal| signal.figure(figures).map_or(0, |it| it.capacity);
    let left = |signal: EvictionSignal| left(thresholds, signal, figures);
    let (memory, disk) = (EvictionSignal::Memory, EvictionSignal::NodeDisk);
    [all(capacity(memory), capacity(disk)), all(left(memory), left(disk))]
}

/// Names and versions of the machine, without the runtime's.
pub(super) fn system_info(kubelet_version: &str) -> NodeSystemInfo {
    let release = text("/etc/os-release");
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let machine_id = text("/etc/machine-id");
    let uuid = text("/sys/class/dmi/id/product_uuid");
    NodeSystemInfo {
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: String::new(),
        kernel_version: text("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: kubelet_version.to_owned(),
        system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
        machine_id,
        operating_system: std::env::consts::OS.to_owned(),
        os_image: pretty.unwrap_or_default().trim_matches('"').to_owned(),
        swap: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::figures::ResourceFigure;

    #[test]
    fn pods_may_have_what_is_above_the_thresholds() {
        let figure = |capacity| Some(ResourceFigure { capacity, available: 0 });
        let figures = NodeFigures {
            memory: figure(1 << 30),
            node_disk: figure(1000 << 10),
            ..NodeFigures::default()
        };
        let [capacity, left] = quantities(&figures, &EvictionThreshold::defaults(), 110);
        assert_eq!((&*capacity["memory"].0, &*left["memory"].0), ("1048576Ki", "946176Ki"));
        let disk = |all: &BTreeMap<String, Quantity>| all["ephemeral-storage"].0.clone();
        assert_eq!((disk(&capacity), disk(&left)), ("1000Ki".to_owned(), "900Ki".to_owned()));
    }

    #[test]
    fn this_machine_has_a_kernel() {
        assert!(!system_info("v1").kernel_version.is_empty());
    }
}
