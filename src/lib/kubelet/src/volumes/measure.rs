//! Rounds of questions to CSI drivers about how full the pods' volumes are.

use super::{claim_of, claims, path};
use crate::csi;
use crate::node::{PodNode, now};
use crate::pod::NodePod;
use crate::usage::volumes::{ClaimRef, VolumeSample};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Volume;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Pause between two rounds, kubelet's `volumeStatsAggPeriod`.
const INTERVAL: Duration = Duration::from_secs(60);
/// Pods whose drivers are asked at a time.
const CONCURRENT: usize = 8;

/// Measures volumes. Runs until dropped.
pub(crate) async fn run(node: &PodNode) {
    loop {
        round(node).await;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Measures the volumes of all pods.
pub(crate) async fn round(node: &PodNode) {
    let pods = futures::stream::iter(super::with_driven_volumes(node));
    let measured = pods.map(|pod| async move {
        let samples = all_of(node, &pod).await;
        (pod.uid, samples)
    });
    let measured: BTreeMap<_, _> = measured.buffer_unordered(CONCURRENT).collect().await;
    node.volumes.replace(measured);
}

async fn all_of(node: &PodNode, pod: &NodePod) -> Vec<VolumeSample> {
    let mut samples = Vec::new();
    for volume in pod.spec.volumes.iter().flatten() {
        let Some(target) = target(node, pod, volume).await else { continue };
        let Some(stats) = csi::stats(node, &target).await else { continue };
        let claim = claim_of(pod, volume)
            .map(|source| ClaimRef { name: source.claim_name, namespace: pod.namespace.clone() });
        samples.push(VolumeSample::new(&volume.name, claim, &stats, now()));
    }
    samples
}

/// Where a driver's volume is mounted; `None` for others.
async fn target(node: &PodNode, pod: &NodePod, volume: &Volume) -> Option<PathBuf> {
    let target = match claim_of(pod, volume) {
        Some(_) => claims::kept(node, pod, volume).await.ok()?,
        None => path(&node.paths.root, &pod.uid, volume),
    };
    csi::is_target(&target).then_some(target)
}
