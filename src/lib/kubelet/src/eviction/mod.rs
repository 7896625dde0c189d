//! Reacts to memory, disk and PID pressure: sets node conditions, removes unused images, and
//! finally evicts pods one at a time.

pub(crate) mod figures;
mod limits;
pub(crate) mod pressure;
mod ranking;
mod sandbox_image;
mod sizes;
pub(crate) mod threshold;

use crate::assemble::{self, empty_directory};
use crate::background::in_background;
use crate::ends::PodEnd;
use crate::node::PodNode;
use crate::pod::NodePod;
use crate::status::EVICTED;
use crate::usage::UsageCollector;
use crate::volumes::is_in_memory;
use ferrokube_cri::{CriError, ImageFsInfoRequest, ListContainersRequest};
use ferrokube_images::{ImageCollection, ImageCollector};
use figures::{NodeFigures, ResourceFigure};
use k8s_openapi::api::core::v1::Volume;
use limits::RoomCounts;
use pressure::NodePressure;
use ranking::PodConsumption;
pub(crate) use ranking::is_critical;
use sandbox_image::sandbox_images;
use sizes::size;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use threshold::{EvictionSignal, EvictionThreshold};
use tokio::time::Instant;

/// Interval between measurements, as in kubelet.
const LOOK: Duration = Duration::from_secs(10);
/// Interval between scans of the images, and thus the precision of an image's age.
const COLLECT: Duration = Duration::from_secs(60);
/// Max time to wait for an evicted pod to terminate before measuring again.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const END_POLL: Duration = Duration::from_millis(500);
/// Max files of a pod that are counted; with more it is the first one to be evicted.
const MAX_FILES: usize = 1_000_000;

/// Measures, collects images and evicts pods until dropped.
pub(crate) async fn run(node: &PodNode, images: ImageCollection) {
    let mut eviction = EvictionLoop {
        usage: UsageCollector::new(&node.runtime, &node.name, node.paths.root.clone()),
        collector: ImageCollector::new(node.images.clone(), images),
        node,
        collection: images,
        image_root: None,
        collected: None,
        crossed: BTreeMap::new(),
        since: vec![None; node.thresholds.thresholds.len()],
        counts: RoomCounts::default(),
    };
    loop {
        eviction.check().await;
        tokio::time::sleep(LOOK).await;
    }
}

/// State of the eviction loop.
struct EvictionLoop<'a> {
    node: &'a PodNode,
    collection: ImageCollection,
    usage: UsageCollector,
    collector: ImageCollector,
    /// A directory on the file system of images.
    image_root: Option<PathBuf>,
    /// When images were last scanned.
    collected: Option<Instant>,
    /// When a threshold of each signal was last crossed.
    crossed: BTreeMap<EvictionSignal, Instant>,
    /// Since when each threshold, in the order of the policy, has been crossed without
    /// interruption.
    since: Vec<Option<Instant>>,
    /// Pods with limits of their own.
    counts: RoomCounts,
}

impl EvictionLoop<'_> {
    async fn check(&mut self) {
        self.find_images().await;
        self.evict_over_limits().await;
        let mut figures = self.figures().await;
        self.show(&figures);
        if self.collected.is_none_or(|at| at.elapsed() >= COLLECT) {
            self.collected = Some(Instant::now());
            if let Err(error) = self.collect(&figures).await {
                tracing::warn!(%error, "cannot list unused images");
            }
            figures = self.figures().await;
        }
        let Some((threshold, _)) = self.first_crossed(&figures) else { return };
        if threshold.signal.is_of_disk() {
            // An unresponsive runtime must not prevent evictions.
            if let Err(error) = self.free(u64::MAX).await {
                tracing::warn!(%error, "cannot remove unused images");
            }
            figures = self.figures().await;
        }
        if let Some((threshold, figure)) = self.first_crossed(&figures) {
            self.evict(threshold, figure).await;
        }
    }

    /// Removes unused images. Returns the bytes freed.
    async fn free(&mut self, bytes: u64) -> Result<u64, CriError> {
        let in_use = self.in_use().await?;
        self.collector.free(&in_use, bytes).await
    }

    async fn figures(&self) -> NodeFigures {
        let (source, root) = (Arc::clone(&self.node.figures), self.node.paths.root.clone());
        let images = self.image_root.clone();
        in_background(move || Ok(source.read(&root, images.as_deref()))).await.unwrap_or_default()
    }

    /// Finds the runtime's image directory, once.
    async fn find_images(&mut self) {
        if self.image_root.is_some() {
            return;
        }
        let found = self.node.images.runtime().image_fs_info(ImageFsInfoRequest {}).await;
        let found = found.ok().and_then(|found| found.image_filesystems.into_iter().next());
        let path = found.and_then(|usage| Some(usage.fs_id?.mountpoint));
        self.image_root = path.filter(|path| !path.is_empty()).map(PathBuf::from);
    }

    fn first_crossed(&self, figures: &NodeFigures) -> Option<(EvictionThreshold, ResourceFigure)> {
        let is_due = |threshold: &EvictionThreshold, since: &Option<Instant>| {
            since.is_some_and(|since| since.elapsed() >= threshold.grace.unwrap_or_default())
        };
        let all = self.node.thresholds.thresholds.iter().zip(&self.since);
        let crossed = all
            .filter(|(threshold, since)| is_due(threshold, since))
            .filter_map(|(threshold, _)| Some((*threshold, threshold.crossed(figures, true)?)));
        // A hard threshold before one with a grace period.
        crossed.min_by_key(|(threshold, _)| (threshold.signal, threshold.grace.is_some()))
    }

    /// Sets the conditions for thresholds crossed now or within the transition period.
    fn show(&mut self, figures: &NodeFigures) {
        let now = Instant::now();
        for (threshold, since) in self.node.thresholds.thresholds.iter().zip(&mut self.since) {
            // A minimum is reclaimed once the threshold was crossed throughout its grace period.
            let grace = threshold.grace.unwrap_or_default();
            let was_met = since.is_some_and(|since| since.elapsed() >= grace);
            let is_crossed = threshold.crossed(figures, was_met).is_some();
            *since = is_crossed.then(|| since.unwrap_or(now));
            if is_crossed {
                self.crossed.insert(threshold.signal, now);
            }
        }
        self.crossed.retain(|_, at| at.elapsed() < self.node.thresholds.transition);
        let is_short = |is_it: fn(&EvictionSignal) -> bool| self.crossed.keys().any(is_it);
        let pressure = NodePressure {
            memory: is_short(|signal| *signal == EvictionSignal::Memory),
            disk: is_short(|signal| signal.is_of_disk()),
            processes: is_short(|signal| *signal == EvictionSignal::Processes),
        };
        let before = std::mem::replace(&mut *self.node.pressure.lock(), pressure);
        if before != pressure {
            let NodePressure { memory, disk, processes } = pressure;
            tracing::warn!(memory, disk, processes, "node pressure has changed");
        }
    }

    async fn collect(&mut self, figures: &NodeFigures) -> Result<(), CriError> {
        let in_use = self.in_use().await?;
        self.collector.remove_old(&in_use).await?;
        let disk = figures.image_disk.or(figures.node_disk).unwrap_or_default();
        let Some(excess) = self.collection.excess(disk.capacity, disk.available) else {
            return Ok(());
        };
        let freed = self.free(excess).await?;
        if freed < excess {
            tracing::warn!(
                wanted = excess,
                freed,
                "cannot free as much of the images as configured"
            );
        }
        Ok(())
    }

    /// Image references of all containers and sandboxes.
    async fn in_use(&self) -> Result<BTreeSet<String>, CriError> {
        let all = self.node.runtime.list_containers(ListContainersRequest::default()).await?;
        let names = all.containers.into_iter().flat_map(|container| {
            let spec = container.image.unwrap_or_default();
            [container.image_ref, container.image_id, spec.image, spec.user_specified_image]
        });
        let mut in_use: BTreeSet<String> = names.filter(|name| !name.is_empty()).collect();
        in_use.extend(sandbox_images(&self.node.runtime).await?);
        Ok(in_use)
    }

    /// Evicts one pod, and waits up to [`END_TIMEOUT`] for its termination.
    async fn evict(&self, threshold: EvictionThreshold, figure: ResourceFigure) {
        let pods: Vec<NodePod> = {
            let active = self.node.active.lock();
            active.values().map(|pod| NodePod::clone(pod)).collect()
        };
        let consumption = self.consumption(&pods, threshold.signal).await;
        let Some(pod) = ranking::ranked(pods, threshold.signal, &consumption).into_iter().next()
        else {
            tracing::warn!("no pod of this node can be evicted");
            return;
        };
        let mut message = threshold.message(figure);
        let empty = PodConsumption::default();
        let used = consumption.get(&pod.uid).unwrap_or(&empty);
        for container in &pod.spec.containers {
            let used = used.by_container.get(&container.name).copied().unwrap_or(0);
            let requested = ranking::request(container, threshold.signal);
            if used > requested {
                let resource = threshold.signal.resource();
                let shown = |bytes| threshold::amount(EvictionSignal::Memory, bytes);
                message.push_str(&format!(
                    "Container {} was using {}, request is {}, has larger consumption of \
                     {resource}. ",
                    container.name,
                    shown(used),
                    shown(requested),
                ));
            }
        }
        let own = assemble::grace(&pod);
        let most = i64::try_from(self.node.thresholds.max_pod_grace.as_secs()).unwrap_or(i64::MAX);
        let grace = threshold.grace.map_or(0, |_| own.min(most));
        self.end(&pod, message, grace);
        let ended = async {
            while !self.node.ends.is_over(&pod.uid) {
                tokio::time::sleep(END_POLL).await;
            }
        };
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let limit = END_TIMEOUT.saturating_add(grace.saturating_mul(3) / 2);
        let _ = tokio::time::timeout(limit, ended).await;
    }

    fn end(&self, pod: &NodePod, message: String, grace: i64) {
        if self.node.ends.get(&pod.uid).is_some() {
            return;
        }
        tracing::warn!(namespace = pod.namespace, pod = pod.name, message, "evicting a pod");
        self.node.warn(pod, EVICTED, message.clone());
        self.node.ends.want(&pod.uid, PodEnd::Failed { reason: EVICTED, message, grace });
    }

    async fn consumption(
        &self,
        pods: &[NodePod],
        signal: EvictionSignal,
    ) -> BTreeMap<String, PodConsumption> {
        let used = self.usage.consumption(signal == EvictionSignal::Memory).await;
        let used = used.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the usage of pods");
            BTreeMap::new()
        });
        let used = used
            .into_iter()
            .map(|(uid, by_container)| (uid, PodConsumption { by_container, other: 0 }));
        let mut all: BTreeMap<String, PodConsumption> = used.collect();
        if signal.is_of_disk() {
            for pod in pods {
                let mut folders = vec![assemble::log_directory(&self.node.paths.logs, pod)];
                folders.extend(
                    disk_volumes(pod).map(|volume| {
                        empty_directory(&self.node.paths.root, &pod.uid, &volume.name)
                    }),
                );
                let size = move || {
                    let mut left = MAX_FILES;
                    let mut may_continue = || {
                        left = left.saturating_sub(1);
                        left > 0
                    };
                    let sizes = folders.iter().map(|folder| size(folder, &mut may_continue));
                    Ok(sizes.fold(0, u64::saturating_add))
                };
                let used = in_background(size).await.unwrap_or(0);
                all.entry(pod.uid.clone()).or_default().other = used;
            }
        }
        all
    }
}

/// Volumes of a pod that may take room on the disk.
fn disk_volumes(pod: &NodePod) -> impl Iterator<Item = &Volume> {
    let is_in_memory = |volume: &&Volume| volume.empty_dir.as_ref().is_some_and(is_in_memory);
    pod.spec.volumes.iter().flatten().filter(move |volume| !is_in_memory(volume))
}

#[cfg(test)]
mod tests;
