//! Resource usage of the node, its pods and containers: `/stats/summary` and `/metrics/resource`.
//!
//! Figures of pods come from the runtime, those of the machine from `/proc`. One collection runs at
//! a time, and concurrent readers share its result, so a slow runtime gets one set of calls.
//!
//! Figures of volumes are those of CSI drivers (`volumes.rs`), measured in rounds of their own.
//!
//! Not implemented: other volumes and logs of pods, and thus ephemeral storage; system containers;
//! the node's network.

mod machine;
mod metrics;
mod pods;
mod rates;
mod summary;
pub(crate) mod volumes;

use crate::background::in_background;
use crate::node::now;
use ferrokube_cri::{
    CriError, ImageFsInfoRequest, ListContainerStatsRequest, ListContainersRequest,
    ListPodSandboxRequest, ListPodSandboxStatsRequest, Runtime,
};
use pods::{DiskSamples, RuntimeLists};
use rates::CpuRates;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use summary::{RuntimeDisks, UsageSummary};
use tokio::sync::Mutex;
use tokio::time::Instant;
use volumes::MeasuredVolumes;

/// TTL of a result, including failures.
const FRESH: Duration = Duration::from_secs(2);
/// Timeout of a collection, whose calls run concurrently.
const COLLECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no summary, with kubelet's messages.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("failed to list pod stats: failed to get pod or container map: {0}")]
    Lists(CriError),
    #[error("failed to list pod stats: failed to list all container stats: {0}")]
    Stats(CriError),
    #[error("failed to get node info: {0}")]
    Machine(String),
    #[error("cannot write the summary")]
    Encoding,
}

type UsageOutcome = Result<Arc<UsageSummary>, UsageError>;

/// Collects resource usage.
pub(crate) struct UsageCollector {
    runtime: Runtime,
    node: String,
    root: PathBuf,
    volumes: MeasuredVolumes,
    /// Locked while collecting. If the reader is dropped, the next one starts over.
    last: Mutex<LastCollection>,
}

#[derive(Default)]
struct LastCollection {
    outcome: Option<(Instant, UsageOutcome)>,
    rates: CpuRates,
}

impl UsageCollector {
    /// `root` is a directory on the file system of pods.
    pub(crate) fn new(runtime: &Runtime, node: &str, root: PathBuf) -> Self {
        let runtime = runtime.within(Some(COLLECTION_TIMEOUT));
        let volumes = MeasuredVolumes::default();
        Self { runtime, node: node.to_owned(), root, volumes, last: Mutex::default() }
    }

    /// Adds these volumes to the summary.
    #[must_use]
    pub(crate) fn with_volumes(mut self, volumes: &MeasuredVolumes) -> Self {
        self.volumes = volumes.clone();
        self
    }

    /// The summary as JSON; all of it, or CPU and memory only.
    ///
    /// # Errors
    /// [`UsageError`].
    pub(crate) async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, UsageError> {
        let summary = self.collected().await?;
        let text = match only_cpu_and_memory {
            true => serde_json::to_string(&summary.without_disks()),
            false => serde_json::to_string(&*summary),
        };
        text.map_err(|_| UsageError::Encoding)
    }

    /// The metrics, which include whether collection failed.
    pub(crate) async fn metrics(&self) -> String {
        let summary = self.collected().await;
        let summary =
            summary.inspect_err(|error| tracing::warn!(%error, "cannot collect the usage of pods"));
        metrics::text(summary.as_deref().ok())
    }

    /// Bytes used by each pod's containers, by UID and name: memory, or writable layers.
    ///
    /// # Errors
    /// [`UsageError`].
    pub(crate) async fn consumption(
        &self,
        is_memory: bool,
    ) -> Result<BTreeMap<String, BTreeMap<String, u64>>, UsageError> {
        let summary = self.collected().await?;
        let pods = summary.pods.iter().map(|pod| {
            let containers = pod.containers.iter().map(|container| {
                let memory = || container.memory.as_ref()?.working_set_bytes;
                let layer = || container.rootfs.as_ref()?.used_bytes;
                let used = if is_memory { memory() } else { layer() };
                (container.name.clone(), used.unwrap_or(0))
            });
            (pod.pod_ref.uid.clone(), containers.collect())
        });
        Ok(pods.collect())
    }

    async fn collected(&self) -> UsageOutcome {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((at, outcome)) = &last.outcome
            && (*at >= asked || at.elapsed() < FRESH)
        {
            return outcome.clone();
        }
        let collected = self.collect().await;
        let outcome = collected.map(|mut summary| {
            last.rates.fill(&mut summary);
            Arc::new(summary)
        });
        last.outcome = Some((Instant::now(), outcome.clone()));
        outcome
    }

    async fn collect(&self) -> Result<UsageSummary, UsageError> {
        let runtime = &self.runtime;
        let (sandboxes, containers, container_stats, sandbox_stats, disks) = tokio::join!(
            runtime.list_pod_sandbox(ListPodSandboxRequest::default()),
            runtime.list_containers(ListContainersRequest::default()),
            runtime.list_container_stats(ListContainerStatsRequest::default()),
            runtime.list_pod_sandbox_stats(ListPodSandboxStatsRequest::default()),
            runtime.image_fs_info(ImageFsInfoRequest {}),
        );
        let lists = RuntimeLists {
            sandboxes: sandboxes.map_err(UsageError::Lists)?.items,
            containers: containers.map_err(UsageError::Lists)?.containers,
            container_stats: container_stats.map_err(UsageError::Stats)?.stats,
            // Many runtimes lack these, or fail for all pods when one has just terminated.
            sandbox_stats: sandbox_stats.map(|response| response.stats).unwrap_or_default(),
        };
        let now = now();
        let (name, root) = (self.node.clone(), self.root.clone());
        // A hanging file system must not block an async worker.
        let summary = in_background(move || {
            let mut samples = DiskSamples::new(now);
            let mut node = machine::read(&name, &root, now);
            node.runtime = disks.ok().map(|disks| {
                let image = disks.image_filesystems.first();
                let container = disks.container_filesystems.first().or(image);
                RuntimeDisks {
                    image_fs: image.map(|usage| samples.with(usage)),
                    container_fs: container.map(|usage| samples.with(usage)),
                }
            });
            Ok(UsageSummary { node, pods: lists.pods(&mut samples) })
        });
        let mut summary = summary.await.map_err(|error| UsageError::Machine(error.to_string()))?;
        for pod in &mut summary.pods {
            pod.volumes = self.volumes.of(&pod.pod_ref.uid);
        }
        Ok(summary)
    }
}

#[cfg(test)]
mod tests;
