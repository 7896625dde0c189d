//! Observes pods in the runtime.

use crate::assemble::POD_UID;
use crate::next::{ObservedPod, ObservedSandbox};
use crate::node::PodNode;
use ferrokube_cri::{
    ContainerFilter, ContainerStatusRequest, CriError, ListContainersRequest,
    ListPodSandboxRequest, PodSandboxFilter, PodSandboxState, PodSandboxStatusRequest,
};
use std::collections::BTreeMap;

/// State of a pod in the runtime.
pub(crate) async fn observe(node: &PodNode, uid: &str) -> Result<ObservedPod, CriError> {
    let label_selector = BTreeMap::from([(POD_UID.to_owned(), uid.to_owned())]);
    let filter =
        PodSandboxFilter { label_selector: label_selector.clone(), ..PodSandboxFilter::default() };
    let request = ListPodSandboxRequest { filter: Some(filter) };
    let mut items = node.runtime.list_pod_sandbox(request).await?.items;
    // A runtime may ignore filters, so filter again.
    items.retain(|sandbox| sandbox.labels.get(POD_UID).is_some_and(|it| it == uid));
    items.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    let newest = items.first().map(|sandbox| sandbox.id.clone());
    let sandboxes = items.into_iter().map(|sandbox| ObservedSandbox {
        attempt: sandbox.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        is_ready: sandbox.state == PodSandboxState::Ready as i32,
        id: sandbox.id,
    });
    let sandboxes = sandboxes.collect();
    let filter = ContainerFilter { label_selector, ..ContainerFilter::default() };
    let request = ListContainersRequest { filter: Some(filter) };
    let mut containers = Vec::new();
    for summary in node.runtime.list_containers(request).await?.containers {
        if Some(&summary.pod_sandbox_id) != newest.as_ref() {
            continue;
        }
        let request = ContainerStatusRequest { container_id: summary.id, verbose: false };
        match node.runtime.container_status(request).await {
            Ok(response) => containers.extend(response.status),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let ips = match &newest {
        Some(id) => ips(node, id).await?,
        None => Vec::new(),
    };
    Ok(ObservedPod { sandboxes, containers, ips })
}

/// Addresses of a sandbox; empty if it is gone.
async fn ips(node: &PodNode, sandbox: &str) -> Result<Vec<String>, CriError> {
    let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: false };
    let network = match node.runtime.pod_sandbox_status(request).await {
        Ok(response) => response.status.and_then(|report| report.network),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let Some(network) = network else { return Ok(Vec::new()) };
    let all = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|it| it.ip));
    Ok(all.filter(|ip| !ip.is_empty()).collect())
}
