//! Resource usage in the JSON of kubelet's `stats/v1alpha1`. Unknown values are omitted.

use super::volumes::VolumeSample;
use crate::next::WallTime;
use crate::status;
use ferrokube_cri::{CpuUsage, MemoryUsage, NetworkInterfaceUsage, NetworkUsage, UInt64Value};
use serde::{Serialize, Serializer};
use std::path::Path;

/// The node and its pods.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UsageSummary {
    pub(super) node: NodeUsage,
    pub(super) pods: Vec<PodUsage>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeUsage {
    pub(super) node_name: String,
    /// Boot time of the machine.
    #[serde(serialize_with = "in_seconds")]
    pub(super) start_time: WallTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<CpuSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemorySample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fs: Option<FsSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<RuntimeDisks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rlimit: Option<ProcessSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<SwapSample>,
}

/// File systems of the runtime.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuntimeDisks {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_fs: Option<FsSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_fs: Option<FsSample>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ProcessSample {
    #[serde(serialize_with = "in_seconds")]
    pub(super) time: WallTime,
    pub(super) maxpid: u64,
    pub(super) curproc: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SwapSample {
    #[serde(serialize_with = "in_seconds")]
    pub(super) time: WallTime,
    pub(super) swap_available_bytes: u64,
    pub(super) swap_usage_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodUsage {
    pub(super) pod_ref: PodRef,
    #[serde(serialize_with = "in_seconds")]
    pub(super) start_time: WallTime,
    pub(super) containers: Vec<ContainerUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<CpuSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemorySample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkSample>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<VolumeSample>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<ProcessCount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PodRef {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ProcessCount {
    pub(super) process_count: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerUsage {
    /// The runtime's id; not serialized.
    #[serde(skip)]
    pub(super) id: String,
    pub(super) name: String,
    #[serde(serialize_with = "in_seconds")]
    pub(super) start_time: WallTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<CpuSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemorySample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs: Option<FsSample>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CpuSample {
    #[serde(serialize_with = "in_seconds")]
    pub(super) time: WallTime,
    /// Average since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_core_nano_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemorySample {
    #[serde(serialize_with = "in_seconds")]
    pub(super) time: WallTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) major_page_faults: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FsSample {
    #[serde(serialize_with = "in_seconds")]
    pub(super) time: WallTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_used: Option<u64>,
}

/// Network traffic of a pod; the fields of its default interface are repeated at the top level.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NetworkSample {
    #[serde(serialize_with = "in_seconds")]
    time: WallTime,
    #[serde(flatten)]
    default: InterfaceSample,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<InterfaceSample>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct InterfaceSample {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_errors: Option<u64>,
}

fn in_seconds<S: Serializer>(time: &WallTime, serializer: S) -> Result<S::Ok, S::Error> {
    status::time(*time).serialize(serializer)
}

pub(super) fn number(value: Option<&UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

impl From<&CpuUsage> for CpuSample {
    fn from(usage: &CpuUsage) -> Self {
        Self {
            time: usage.timestamp,
            usage_nano_cores: number(usage.usage_nano_cores.as_ref()),
            usage_core_nano_seconds: number(usage.usage_core_nano_seconds.as_ref()),
        }
    }
}

impl From<&MemoryUsage> for MemorySample {
    fn from(usage: &MemoryUsage) -> Self {
        Self {
            time: usage.timestamp,
            available_bytes: number(usage.available_bytes.as_ref()),
            usage_bytes: number(usage.usage_bytes.as_ref()),
            working_set_bytes: number(usage.working_set_bytes.as_ref()),
            rss_bytes: number(usage.rss_bytes.as_ref()),
            page_faults: number(usage.page_faults.as_ref()),
            major_page_faults: number(usage.major_page_faults.as_ref()),
        }
    }
}

impl From<&NetworkUsage> for NetworkSample {
    fn from(usage: &NetworkUsage) -> Self {
        Self {
            time: usage.timestamp,
            default: usage
                .default_interface
                .as_ref()
                .map(InterfaceSample::from)
                .unwrap_or_default(),
            interfaces: usage.interfaces.iter().map(InterfaceSample::from).collect(),
        }
    }
}

impl From<&NetworkInterfaceUsage> for InterfaceSample {
    fn from(usage: &NetworkInterfaceUsage) -> Self {
        Self {
            name: usage.name.clone(),
            rx_bytes: number(usage.rx_bytes.as_ref()),
            rx_errors: number(usage.rx_errors.as_ref()),
            tx_bytes: number(usage.tx_bytes.as_ref()),
            tx_errors: number(usage.tx_errors.as_ref()),
        }
    }
}

impl FsSample {
    /// Sample of the file system of a path; `None` if it cannot be read.
    pub(super) fn of(path: &Path, time: WallTime) -> Option<Self> {
        let disk = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| Some(blocks.saturating_mul(disk.f_frsize));
        Some(Self {
            time,
            available_bytes: bytes(disk.f_bavail),
            capacity_bytes: bytes(disk.f_blocks),
            used_bytes: bytes(disk.f_blocks.saturating_sub(disk.f_bfree)),
            inodes_free: Some(disk.f_ffree),
            inodes: Some(disk.f_files),
            inodes_used: Some(disk.f_files.saturating_sub(disk.f_ffree)),
        })
    }
}

impl UsageSummary {
    /// CPU and memory only.
    #[must_use]
    pub(super) fn without_disks(&self) -> Self {
        let mut summary = self.clone();
        let node = &mut summary.node;
        (node.fs, node.runtime, node.rlimit) = (None, None, None);
        for pod in &mut summary.pods {
            (pod.network, pod.processes) = (None, None);
            pod.volumes.clear();
            pod.containers.iter_mut().for_each(|container| container.rootfs = None);
        }
        summary
    }
}
