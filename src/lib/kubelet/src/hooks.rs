//! Lifecycle hooks: postStart and preStop.
//!
//! The preStop hook is stored as an annotation of the container, so that it also runs for pods that
//! only the runtime knows.

use crate::next::{ObservedPod, name_of};
use crate::node::PodNode;
use crate::pod::NodePod;
use crate::probes::{ActedContainer, ContainerAction};
use ferrokube_cri::{ContainerReport, CriError, StopContainerRequest};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// kubelet's annotations of containers.
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";
/// Minimum grace period left after the hook, in seconds, as in kubelet.
pub(crate) const LEAST_GRACE: i64 = 2;
/// Time beyond the grace period in which the runtime must stop a container.
const STOP_SLACK: Duration = Duration::from_secs(120);

/// Annotations with the hook, read when the container is stopped.
pub(crate) fn annotations(container: &Container) -> BTreeMap<String, String> {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let Some(hook) = hook else { return BTreeMap::new() };
    let texts = (serde_json::to_string(hook), serde_json::to_string(&container.ports));
    let (Ok(hook), Ok(ports)) = texts else { return BTreeMap::new() };
    BTreeMap::from([(PRE_STOP.to_owned(), hook), (PORTS.to_owned(), ports)])
}

/// Runs the postStart hook of a container that has just been started.
///
/// # Errors
/// The failure.
pub(crate) async fn post_start(node: &PodNode, target: &ActedContainer) -> Result<(), String> {
    let lifecycle = target.container.lifecycle.as_ref();
    let hook = lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref());
    match hook.and_then(ContainerAction::of_hook) {
        // No timeout, as in kubelet: it ends with the container, or when the pod is deleted.
        Some(action) => action.run(node, target, None).await.map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// A container to stop.
pub(crate) struct StoppingContainer<'a> {
    /// `None` if only the runtime knows the pod.
    pub(crate) pod: Option<&'a NodePod>,
    pub(crate) report: &'a ContainerReport,
    /// The pod's address.
    pub(crate) ip: String,
    /// Seconds, for the hook and the stop together.
    pub(crate) grace: i64,
}

/// The address for HTTP hooks and probes of a pod.
pub(crate) fn address(node: &PodNode, seen: &ObservedPod) -> String {
    seen.ips.first().or(node.host_ips.first()).cloned().unwrap_or_default()
}

/// Runs the preStop hook, then stops the container. A missing container counts as stopped.
///
/// # Errors
/// The runtime's. A failed hook is reported as an event, and the container is stopped anyway.
pub(crate) async fn stop(node: &PodNode, stopping: &StoppingContainer<'_>) -> Result<(), CriError> {
    let StoppingContainer { pod, report, ip, grace } = stopping;
    let begun = Instant::now();
    if let Some((hook, container)) = pre_stop(report).filter(|_| *grace > 0) {
        let target = ActedContainer { id: report.id.clone(), container, ip: ip.clone() };
        let limit = Some(Duration::from_secs(grace.unsigned_abs()));
        let ran = match ContainerAction::of_hook(&hook) {
            Some(action) => action.run(node, &target, limit).await,
            None => Ok(()),
        };
        if let Err(why) = ran {
            let container = name_of(report).0;
            tracing::warn!(container, %why, "preStop hook failed");
            if let Some(pod) = pod {
                let message = "PreStopHook failed".to_owned();
                node.warn_of(pod, container, "FailedPreStopHook", message);
            }
        }
    }
    let used = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
    let timeout = grace.saturating_sub(used).max(LEAST_GRACE.min(*grace));
    let limit = Duration::from_secs(timeout.unsigned_abs()).saturating_add(STOP_SLACK);
    let request = StopContainerRequest { container_id: report.id.clone(), timeout };
    match node.runtime.within(Some(limit)).stop_container(request).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// The hook, and the fields of its container that it needs.
fn pre_stop(report: &ContainerReport) -> Option<(LifecycleHandler, Container)> {
    let hook = serde_json::from_str(report.annotations.get(PRE_STOP)?).ok()?;
    let ports = report.annotations.get(PORTS).and_then(|text| serde_json::from_str(text).ok());
    let name = name_of(report).0.to_owned();
    Some((hook, Container { name, ports: ports.flatten(), ..Container::default() }))
}
