//! Rounds of calls for mounted volumes of CSI drivers: those that want it are called again
//! (`requiresRepublish`), such as to renew secrets and certificates in a volume with new tokens of
//! the pod; volumes whose storage has grown are expanded.
//!
//! Apart from the pods' workers: a driver that hangs holds up no restart of a container.

use super::{VolumeError, claim_of, claims};
use crate::csi::{self, CsiVolume};
use crate::node::PodNode;
use crate::pod::NodePod;
use futures::StreamExt as _;
use std::time::Duration;

/// Pause between two rounds, like that of kubelet, which publishes when it syncs a pod.
const INTERVAL: Duration = Duration::from_secs(60);
/// Pods whose drivers are called at a time.
const CONCURRENT: usize = 8;

/// Makes the calls. Runs until dropped.
pub(crate) async fn run(node: &PodNode) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        round(node).await;
    }
}

/// Makes the calls for all pods, once.
pub(crate) async fn round(node: &PodNode) {
    let pods = futures::stream::iter(super::with_driven_volumes(node));
    let called = pods.for_each_concurrent(CONCURRENT, |pod| async move {
        let work = all_of(node, &pod);
        ferrokube_trace::scoped(pod.context(), tracing::Span::none(), work).await;
    });
    called.await;
}

/// The volumes of a pod. Failures are reported.
async fn all_of(node: &PodNode, pod: &NodePod) {
    for volume in pod.spec.volumes.iter().flatten() {
        if let Some(source) = &volume.csi {
            let own = CsiVolume::inline(pod, &volume.name, source);
            report(node, pod, csi::republish(node, pod, &own).await.map_err(VolumeError::from));
        } else if claim_of(pod, volume).is_some() {
            match claims::driven(node, pod, volume).await {
                Ok(Some(driven)) => {
                    report(node, pod, driven.expand(node, pod).await);
                    report(node, pod, driven.republish(node, pod).await);
                }
                Ok(None) => {}
                // Its volume stays mounted, also if the claim is being deleted.
                Err(error) => {
                    let (namespace, name) = (&pod.namespace, &pod.name);
                    tracing::debug!(namespace, pod = name, %error, "cannot read a claim");
                }
            }
        }
    }
}

fn report(node: &PodNode, pod: &NodePod, done: Result<(), VolumeError>) {
    let Err(error) = done else { return };
    tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "a mounted volume");
    node.warn(pod, error.reason(), error.to_string());
}
