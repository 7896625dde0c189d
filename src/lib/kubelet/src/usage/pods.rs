//! Resource usage of pods, from the runtime's lists.

use super::summary::{
    ContainerUsage, CpuSample, FsSample, MemorySample, NetworkSample, PodRef, PodUsage,
    ProcessCount, number,
};
use crate::assemble::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use crate::next::WallTime;
use ferrokube_cri::{
    ContainerPhase, ContainerStats, ContainerSummary, FilesystemUsage, LinuxPodSandboxStats,
    PodSandbox, PodSandboxStats,
};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Lists of the runtime, taken at about the same time.
#[derive(Default)]
pub(super) struct RuntimeLists {
    pub(super) sandboxes: Vec<PodSandbox>,
    pub(super) containers: Vec<ContainerSummary>,
    pub(super) container_stats: Vec<ContainerStats>,
    /// Empty for runtimes without them.
    pub(super) sandbox_stats: Vec<PodSandboxStats>,
}

impl RuntimeLists {
    /// Pods with a running container, by name. Figures of a pod are the runtime's, which include
    /// the sandbox, or else the sums over its containers.
    pub(super) fn pods(self, disks: &mut DiskSamples) -> Vec<PodUsage> {
        let mut newest: BTreeMap<String, PodSandbox> = BTreeMap::new();
        for sandbox in self.sandboxes {
            let Some(uid) = sandbox.labels.get(POD_UID).cloned() else { continue };
            if newest.get(&uid).is_none_or(|other| other.created_at < sandbox.created_at) {
                newest.insert(uid, sandbox);
            }
        }
        let stats = self.container_stats.into_iter();
        let stats = stats.filter_map(|one| Some((one.attributes.as_ref()?.id.clone(), one)));
        let stats: HashMap<String, ContainerStats> = stats.collect();
        let mut containers: HashMap<String, Vec<ContainerUsage>> = HashMap::new();
        for container in self.containers {
            let is_running = container.state == ContainerPhase::Running as i32;
            if let Some(stats) = stats.get(&container.id).filter(|_| is_running) {
                let usage = container_usage(&container, stats, disks);
                containers.entry(container.pod_sandbox_id).or_default().push(usage);
            }
        }
        let own =
            self.sandbox_stats.into_iter().filter_map(|one| Some((one.attributes?.id, one.linux?)));
        let own: HashMap<String, LinuxPodSandboxStats> = own.collect();
        let pods = newest.into_iter().filter_map(|(uid, sandbox)| {
            let containers = containers.remove(&sandbox.id)?;
            Some(pod_usage(uid, &sandbox, containers, own.get(&sandbox.id)))
        });
        let mut pods: Vec<PodUsage> = pods.collect();
        pods.sort_by(|one, other| {
            let (one, other) = (&one.pod_ref, &other.pod_ref);
            (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name))
        });
        pods
    }
}

fn pod_usage(
    uid: String,
    sandbox: &PodSandbox,
    mut containers: Vec<ContainerUsage>,
    own: Option<&LinuxPodSandboxStats>,
) -> PodUsage {
    let label = |key: &str| sandbox.labels.get(key).cloned().unwrap_or_default();
    containers.sort_by(|one, other| one.name.cmp(&other.name));
    let cpu = own.and_then(|own| own.cpu.as_ref()).map(CpuSample::from);
    let memory = own.and_then(|own| own.memory.as_ref()).map(MemorySample::from);
    let count = own.and_then(|own| number(own.process.as_ref()?.process_count.as_ref()));
    PodUsage {
        pod_ref: PodRef { name: label(POD_NAME), namespace: label(POD_NAMESPACE), uid },
        start_time: sandbox.created_at,
        cpu: cpu.or_else(|| sum_of_cpu(&containers)),
        memory: memory.or_else(|| sum_of_memory(&containers)),
        network: own.and_then(|own| own.network.as_ref()).map(NetworkSample::from),
        volumes: Vec::new(),
        processes: count.map(|process_count| ProcessCount { process_count }),
        containers,
    }
}

fn container_usage(
    container: &ContainerSummary,
    stats: &ContainerStats,
    disks: &mut DiskSamples,
) -> ContainerUsage {
    ContainerUsage {
        id: container.id.clone(),
        name: container.labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
        start_time: container.created_at,
        cpu: stats.cpu.as_ref().map(CpuSample::from),
        memory: stats.memory.as_ref().map(MemorySample::from),
        rootfs: stats.writable_layer.as_ref().map(|usage| disks.with(usage)),
    }
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.saturating_add(other?))
}

/// `None` if any container's value is missing: a partial sum would be wrong.
fn sum_of_cpu(containers: &[ContainerUsage]) -> Option<CpuSample> {
    let samples: Option<Vec<&CpuSample>> = containers.iter().map(|one| one.cpu.as_ref()).collect();
    samples?.into_iter().cloned().reduce(|one, other| CpuSample {
        time: one.time.max(other.time),
        usage_nano_cores: None,
        usage_core_nano_seconds: sum(one.usage_core_nano_seconds, other.usage_core_nano_seconds),
    })
}

fn sum_of_memory(containers: &[ContainerUsage]) -> Option<MemorySample> {
    let samples: Option<Vec<&MemorySample>> =
        containers.iter().map(|one| one.memory.as_ref()).collect();
    let sum = samples?.into_iter().cloned().reduce(|one, other| MemorySample {
        time: one.time.max(other.time),
        available_bytes: None,
        usage_bytes: sum(one.usage_bytes, other.usage_bytes),
        working_set_bytes: sum(one.working_set_bytes, other.working_set_bytes),
        rss_bytes: sum(one.rss_bytes, other.rss_bytes),
        page_faults: sum(one.page_faults, other.page_faults),
        major_page_faults: sum(one.major_page_faults, other.major_page_faults),
    });
    // The limit of a pod is not that of one of its containers.
    sum.map(|sum| MemorySample { available_bytes: None, ..sum })
}

/// File systems by mount point, each read once.
pub(super) struct DiskSamples {
    time: WallTime,
    by_path: HashMap<String, FsSample>,
}

impl DiskSamples {
    pub(super) fn new(time: WallTime) -> Self {
        Self { time, by_path: HashMap::new() }
    }

    /// Usage of a file system, with its capacity and available bytes.
    pub(super) fn with(&mut self, usage: &FilesystemUsage) -> FsSample {
        let path = usage.fs_id.as_ref().map_or("", |id| id.mountpoint.as_str());
        let time = self.time;
        let read = || FsSample::of(Path::new(path), time).unwrap_or_default();
        let disk = self.by_path.entry(path.to_owned()).or_insert_with(read).clone();
        FsSample {
            time: usage.timestamp,
            used_bytes: number(usage.used_bytes.as_ref()),
            inodes_used: number(usage.inodes_used.as_ref()),
            ..disk
        }
    }
}
