//! A pod's own limits on disk usage: `sizeLimit` of its emptyDirs, and `limits.ephemeral-storage`
//! of its containers. A pod that exceeds one is evicted, however much space is left.

use super::sizes::size;
use super::{EvictionLoop, disk_volumes};
use crate::assemble::{self, empty_directory};
use crate::background::in_background;
use crate::names;
use crate::pod::NodePod;
use crate::volumes;
use ferrokube_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Volume};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Pods that are measured at a time.
const COUNTERS: usize = 2;
/// Longest wait of the eviction loop for measurements, which continue meanwhile.
const COUNT_WAIT: Duration = Duration::from_secs(1);
/// Pause after the measurement of a pod, in durations of the measurement.
const REST: u32 = 10;

/// Measurements of pods with limits, by UID. Each is a task of its own: one with millions of files
/// delays neither others nor the loop.
pub(super) struct RoomCounts {
    by_pod: BTreeMap<String, RoomCount>,
    counters: Arc<Semaphore>,
}

enum RoomCount {
    Running(RunningCount),
    Resting { until: Instant },
}

/// Stops when dropped.
struct RunningCount {
    task: JoinHandle<io::Result<(PodDiskUsage, Duration)>>,
    is_stopped: Arc<AtomicBool>,
}

impl Drop for RunningCount {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

impl Default for RoomCounts {
    fn default() -> Self {
        Self { by_pod: BTreeMap::new(), counters: Arc::new(Semaphore::new(COUNTERS)) }
    }
}

impl RoomCounts {
    fn is_due(&self, uid: &str) -> bool {
        match self.by_pod.get(uid) {
            Some(RoomCount::Running(_)) => false,
            Some(RoomCount::Resting { until }) => *until <= Instant::now(),
            None => true,
        }
    }

    fn begin(&mut self, pod: RoomOfPod) {
        let (uid, counters) = (pod.pod.uid.clone(), Arc::clone(&self.counters));
        let is_stopped = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&is_stopped);
        let count = async move {
            // Never closed.
            let _counter = counters.acquire().await;
            let count = move || {
                let begun = std::time::Instant::now();
                let taken = taken(pod, &mut || !stopped.load(Ordering::Relaxed));
                Ok((taken, begun.elapsed()))
            };
            in_background(count).await
        };
        let task = tokio::spawn(count);
        self.by_pod.insert(uid, RoomCount::Running(RunningCount { task, is_stopped }));
    }

    /// A measurement that is complete now or at `until`.
    async fn counted(&mut self, uid: &str, until: Instant) -> Option<PodDiskUsage> {
        let RoomCount::Running(running) = self.by_pod.get_mut(uid)? else { return None };
        let counted = timeout_at(until, &mut running.task).await.ok()?;
        let counted = counted.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (taken, time) = counted
            .inspect_err(|error| tracing::warn!(uid, %error, "cannot measure a pod"))
            .map_or((None, Duration::ZERO), |(taken, time)| (Some(taken), time));
        let until = Instant::now() + time.saturating_mul(REST);
        self.by_pod.insert(uid.to_owned(), RoomCount::Resting { until });
        taken
    }
}

/// A pod to measure.
struct RoomOfPod {
    pod: NodePod,
    /// The kubelet's directory.
    root: PathBuf,
    /// The pod's logs.
    logs: PathBuf,
    /// Bytes of writable layers by container.
    layers: BTreeMap<String, u64>,
}

/// Bytes used by a pod, where they are limited.
#[derive(Debug, Default)]
struct PodDiskUsage {
    /// Keyed by the volume's name in the pod.
    volumes: BTreeMap<String, u64>,
    /// Writable layers and logs by container.
    containers: BTreeMap<String, u64>,
    /// Bytes of `/etc/hosts`, which containers may write.
    hosts: u64,
}

impl EvictionLoop<'_> {
    /// Evicts pods that exceed a limit.
    pub(super) async fn evict_over_limits(&mut self) {
        let limited: Vec<NodePod> = {
            let active = self.node.active.lock();
            let limited = active.values().filter(|pod| is_limited(pod));
            limited.map(|pod| NodePod::clone(pod)).collect()
        };
        let is_there = |uid: &str| limited.iter().any(|pod| pod.uid == uid);
        self.counts.by_pod.retain(|uid, _| is_there(uid));
        let due = limited.iter().filter(|pod| self.counts.is_due(&pod.uid));
        let due: Vec<NodePod> = due.cloned().collect();
        // If the runtime does not respond, logs and volumes still count.
        let mut layers = if due.iter().any(has_limited_container) {
            self.usage.consumption(false).await.unwrap_or_default()
        } else {
            BTreeMap::new()
        };
        for pod in due {
            let root = self.node.paths.root.clone();
            let logs = assemble::log_directory(&self.node.paths.logs, &pod);
            let layers = layers.remove(&pod.uid).unwrap_or_default();
            self.counts.begin(RoomOfPod { pod, root, logs, layers });
        }
        let until = Instant::now() + COUNT_WAIT;
        for pod in limited {
            let taken = self.counts.counted(&pod.uid, until).await;
            if let Some(message) = taken.and_then(|taken| exceeded(&pod, &taken)) {
                self.end(&pod, message, 0);
            }
        }
    }
}

fn storage_limit(container: &Container) -> Option<u64> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let limit = Quantity::parse(&limits.get("ephemeral-storage")?.0).ok()?.value();
    u64::try_from(limit).ok()
}

/// Those of the pod, init containers included.
fn containers(pod: &NodePod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().flatten().chain(&pod.spec.containers)
}

fn has_limited_container(pod: &NodePod) -> bool {
    containers(pod).any(|container| storage_limit(container).is_some())
}

/// Static pods have no limits, as kubelet evicts no critical ones.
fn is_limited(pod: &NodePod) -> bool {
    let has_limit = |volume: &Volume| volume.empty_dir.as_ref().and_then(volumes::limit).is_some();
    let mut volumes = pod.spec.volumes.iter().flatten();
    let is_any = has_limited_container(pod) || volumes.any(has_limit);
    is_any && !super::ranking::is_critical(pod)
}

/// Measures the disk usage; may take long.
fn taken(of: RoomOfPod, may_continue: &mut dyn FnMut() -> bool) -> PodDiskUsage {
    let RoomOfPod { pod, root, logs, layers } = of;
    let mut below = |folder: PathBuf| size(&folder, may_continue);
    let counts_all = has_limited_container(&pod);
    let mut taken = PodDiskUsage::default();
    for volume in pod.spec.volumes.iter().flatten() {
        let Some(source) = &volume.empty_dir else { continue };
        if counts_all || volumes::limit(source).is_some() {
            let used = below(empty_directory(&root, &pod.uid, &volume.name));
            taken.volumes.insert(volume.name.clone(), used);
        }
    }
    if counts_all {
        let hosts = fs::symlink_metadata(names::hosts_file(&root, &pod.uid));
        taken.hosts = hosts.map_or(0, |meta| meta.blocks().saturating_mul(512));
        for container in containers(&pod) {
            let layer = layers.get(&container.name).copied().unwrap_or(0);
            let used = layer.saturating_add(below(logs.join(&container.name)));
            taken.containers.insert(container.name.clone(), used);
        }
    }
    taken
}

/// The first limit that is exceeded, with kubelet's message.
fn exceeded(pod: &NodePod, taken: &PodDiskUsage) -> Option<String> {
    let used = |name: &str| taken.volumes.get(name).copied().unwrap_or(0);
    for volume in pod.spec.volumes.iter().flatten() {
        let Some(source) = &volume.empty_dir else { continue };
        if let (Some(limit), Some(shown)) = (volumes::limit(source), &source.size_limit)
            && used(&volume.name) > limit
        {
            let (name, shown) = (&volume.name, &shown.0);
            return Some(format!(
                "Usage of EmptyDir volume {name:?} exceeds the limit {shown:?}. "
            ));
        }
    }
    let inits = || pod.spec.init_containers.iter().flatten();
    let is_sidecar = |one: &&Container| one.restart_policy.as_deref() == Some("Always");
    let together = pod.spec.containers.iter().chain(inits().filter(is_sidecar));
    let sum = together.filter_map(storage_limit).reduce(u64::saturating_add);
    let peak = inits().filter(|one| !is_sidecar(one)).filter_map(storage_limit).max();
    let total = sum.into_iter().chain(peak).max()?;
    let volumes = disk_volumes(pod).map(|volume| used(&volume.name));
    let all = volumes.chain(taken.containers.values().copied());
    let all = all.fold(taken.hosts, u64::saturating_add);
    if all > total {
        let total = super::threshold::amount(super::EvictionSignal::NodeDisk, total);
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
        ));
    }
    pod.spec.containers.iter().find_map(|container| {
        let limit = storage_limit(container).filter(|limit| *limit > 0)?;
        let name = &container.name;
        let is_over = taken.containers.get(name).is_some_and(|used| *used > limit);
        let shown = super::threshold::amount(super::EvictionSignal::NodeDisk, limit);
        let message =
            format!("Container {name} exceeded its local ephemeral storage limit {shown:?}. ");
        is_over.then_some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(volumes: Value, limits: &[&str]) -> NodePod {
        let container = |(index, limit): (usize, &&str)| {
            let limits =
                if limit.is_empty() { json!({}) } else { json!({"ephemeral-storage": limit}) };
            json!({"name": format!("c{index}"), "image": "i", "resources": {"limits": limits}})
        };
        let containers: Vec<Value> = limits.iter().enumerate().map(container).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": containers, "volumes": volumes}});
        let mut pod = NodePod::from_file(pod.to_string().as_bytes(), "n").unwrap();
        pod.is_static = false;
        pod
    }

    fn room(volumes: &[(&str, u64)], containers: &[(&str, u64)]) -> PodDiskUsage {
        let map = |list: &[(&str, u64)]| {
            list.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect()
        };
        PodDiskUsage { volumes: map(volumes), containers: map(containers), hosts: 0 }
    }

    #[test]
    fn the_first_limit_that_is_exceeded_is_named() {
        let empty = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]);
        let volume = pod(empty, &[""]);
        assert!(is_limited(&volume));
        assert_eq!(exceeded(&volume, &room(&[("v", 1 << 20)], &[])), None);
        assert_eq!(
            exceeded(&volume, &room(&[("v", (1 << 20) + 1)], &[])).as_deref(),
            Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ")
        );
        let two = pod(json!([{"name": "v", "emptyDir": {}}]), &["2Mi", "1Mi"]);
        assert!(is_limited(&two));
        assert_eq!(exceeded(&two, &room(&[("v", 1 << 20)], &[("c0", 1 << 20), ("c1", 9)])), None);
        assert_eq!(
            exceeded(&two, &room(&[("v", 2 << 20)], &[("c0", 1 << 20), ("c1", 9)])).as_deref(),
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ")
        );
        assert_eq!(
            exceeded(&two, &room(&[], &[("c0", 9), ("c1", 2 << 20)])).as_deref(),
            Some("Container c1 exceeded its local ephemeral storage limit \"1Mi\". ")
        );
        let memory = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);
        let memory = pod(memory, &["1Mi"]);
        assert_eq!(exceeded(&memory, &room(&[("v", 5 << 20)], &[])), None, "it is not on the disk");
        assert!(!is_limited(&pod(json!([{"name": "v", "emptyDir": {}}]), &[""])));
    }
}
