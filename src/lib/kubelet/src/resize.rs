//! Resizes in place (KEP-1287): CPU and memory of running containers that the API has changed.
//!
//! A container has what it was created with (an annotation) until it is resized. What it has then
//! is in the pod's status, where the next kubelet finds it.

use crate::assemble::{self, CREATED_WITH};
use crate::hooks;
use crate::next::{ObservedPod, name_of};
use crate::node::PodNode;
use crate::pod::NodePod;
use crate::room::{PodRoom, amount, of_pod, requested};
use crate::status::ResizeFault;
use ferrokube_cri::{
    ContainerPhase, ContainerReport, ContainerStatsFilter, CriError, ListContainerStatsRequest,
    UpdateContainerResourcesRequest,
};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Pause after a resize that is not possible now.
const RETRY: Duration = Duration::from_secs(10);

impl ResizeFault {
    /// It may become possible, or never.
    fn pending(reason: &'static str, message: String) -> Self {
        Self { condition: "PodResizePending", reason, message }
    }

    fn failed(message: String) -> Self {
        Self { condition: "PodResizeInProgress", reason: "Error", message }
    }

    fn event(&self) -> &'static str {
        match self.reason {
            "Deferred" => "ResizeDeferred",
            "Infeasible" => "ResizeInfeasible",
            _ => "ResizeError",
        }
    }
}

/// A worker's memory of the resources of its pod.
#[derive(Default)]
pub(crate) struct PodResizes {
    /// Resources of running containers, by id.
    held: BTreeMap<String, ResourceRequirements>,
    fault: Option<ResizeFault>,
    /// Ids of containers that are killed for a resize.
    restarting: Vec<String>,
    /// The resources that were last tried without success, and when to try again.
    tried: Option<(Vec<ResourceRequirements>, Instant)>,
}

/// A container that has other resources than its pod wants.
struct ResizedContainer<'a> {
    container: &'a Container,
    report: &'a ContainerReport,
    held: ResourceRequirements,
    wanted: ResourceRequirements,
}

impl PodResizes {
    /// Resources of running containers, by name.
    pub(crate) fn held(&self, seen: &ObservedPod) -> BTreeMap<String, ResourceRequirements> {
        let running = seen.containers.iter().filter_map(|report| {
            Some((name_of(report).0.to_owned(), self.held.get(&report.id)?.clone()))
        });
        running.collect()
    }

    pub(crate) fn fault(&self) -> Option<&ResizeFault> {
        self.fault.as_ref()
    }

    /// Time until the next attempt.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.tried.as_ref().map(|(_, at)| at.saturating_duration_since(Instant::now()))
    }

    /// Ids of containers to restart.
    pub(crate) fn restarting(&self) -> Vec<String> {
        self.restarting.clone()
    }

    /// Gives running containers the resources that the pod wants.
    pub(crate) async fn follow(&mut self, node: &PodNode, pod: &NodePod, seen: &ObservedPod) {
        let is_known = |id: &String| seen.containers.iter().any(|report| report.id == *id);
        self.held.retain(|id, _| is_known(id));
        self.restarting.retain(is_known);
        let changed = self.changed(pod, seen);
        if changed.is_empty() {
            self.fault = None;
            self.tried = None;
            return;
        }
        let wanted: Vec<_> = changed.iter().map(|it| it.wanted.clone()).collect();
        let is_late = |(tried, at): &(Vec<_>, Instant)| *tried != wanted || *at <= Instant::now();
        if !self.tried.as_ref().is_none_or(is_late) {
            return;
        }
        let resized = self.resize(node, pod, changed).await;
        self.tried = resized.is_err().then(|| (wanted, Instant::now() + RETRY));
        match resized {
            Ok(()) => {
                self.fault = None;
                node.report(pod, "ResizeCompleted", "Pod resize completed".to_owned());
            }
            Err(fault) if self.fault.as_ref() == Some(&fault) => {}
            Err(fault) => {
                let message = format!("Pod resize {}: {}", fault.reason, fault.message);
                node.warn(pod, fault.event(), message);
                self.fault = Some(fault);
            }
        }
    }

    fn changed<'a>(
        &mut self,
        pod: &'a NodePod,
        seen: &'a ObservedPod,
    ) -> Vec<ResizedContainer<'a>> {
        let mut changed = Vec::new();
        for container in pod.all_containers() {
            let running = seen
                .latest(&container.name)
                .filter(|report| report.state() == ContainerPhase::Running)
                .filter(|report| !self.restarting.contains(&report.id));
            let Some(report) = running else { continue };
            let wanted = container.resources.clone().unwrap_or_default();
            let held = self.held.entry(report.id.clone());
            let held = held.or_insert_with(|| {
                let reported = pod.reported.get(&report.id).cloned();
                reported.or_else(|| created_with(report)).unwrap_or_else(|| wanted.clone())
            });
            if amounts(held) != amounts(&wanted) {
                let held = held.clone();
                changed.push(ResizedContainer { container, report, held, wanted });
            }
        }
        changed
    }

    async fn resize(
        &mut self,
        node: &PodNode,
        pod: &NodePod,
        changed: Vec<ResizedContainer<'_>>,
    ) -> Result<(), ResizeFault> {
        fits(node, pod, &changed).await?;
        for one in changed {
            if needs_restart(&one) {
                self.restarting.push(one.report.id.clone());
                continue;
            }
            let memory = |all: &ResourceRequirements| {
                amount(&all.limits, "memory").map(|limit| limit.value())
            };
            let is_less = |limit: &i64| memory(&one.held).is_none_or(|held| held > *limit);
            if let Some(limit) = memory(&one.wanted).filter(is_less) {
                check_usage(node, &one, limit).await?;
            }
            let name = &one.container.name;
            let failed = |error: CriError| {
                ResizeFault::failed(format!("cannot resize the container {name}: {error}"))
            };
            let unified = node.process_limit().unified();
            let linux = assemble::resources(Some(&one.wanted));
            let request = UpdateContainerResourcesRequest {
                container_id: one.report.id.clone(),
                linux: Some(ferrokube_cri::LinuxContainerResources { unified, ..linux }),
                ..UpdateContainerResourcesRequest::default()
            };
            node.runtime.update_container_resources(request).await.map_err(failed)?;
            tracing::info!(namespace = pod.namespace, pod = pod.name, name, "container resized");
            self.held.insert(one.report.id.clone(), one.wanted);
        }
        Ok(())
    }
}

/// Reads the annotation; `None` for a container of an older kubelet.
fn created_with(report: &ContainerReport) -> Option<ResourceRequirements> {
    serde_json::from_str(report.annotations.get(CREATED_WITH)?).ok()
}

/// CPU (thousandths) and memory (bytes): limits and requests. Without a request it is the limit.
fn amounts(resources: &ResourceRequirements) -> [Option<i64>; 4] {
    let cpu = |list| amount(list, "cpu").map(|amount| amount.milli_value());
    let memory = |list| amount(list, "memory").map(|amount| amount.value());
    let of = [cpu(&resources.limits), memory(&resources.limits)];
    [of[0], of[1], cpu(&resources.requests).or(of[0]), memory(&resources.requests).or(of[1])]
}

/// Whether a change affects a resource whose policy is a restart.
fn needs_restart(one: &ResizedContainer<'_>) -> bool {
    let (old, new) = (amounts(&one.held), amounts(&one.wanted));
    let is_changed = |name: &str| match name {
        "cpu" => (old[0], old[2]) != (new[0], new[2]),
        _ => (old[1], old[3]) != (new[1], new[3]),
    };
    let policies = one.container.resize_policy.iter().flatten();
    policies
        .filter(|policy| policy.restart_policy == "RestartContainer")
        .any(|policy| is_changed(&policy.resource_name))
}

/// Checks that the node has what the pod wants more than before.
async fn fits(
    node: &PodNode,
    pod: &NodePod,
    changed: &[ResizedContainer<'_>],
) -> Result<(), ResizeFault> {
    let capacity = node.allocatable().await;
    let wanted = of_pod(pod);
    let used = {
        let active = node.active.lock();
        let others = active.values().filter(|other| other.uid != pod.uid);
        others.map(|other| of_pod(other)).fold(PodRoom::default(), PodRoom::plus)
    };
    for (name, of) in PodRoom::RESOURCES {
        let is_more =
            |it: &ResizedContainer<'_>| of(requested(&it.wanted)) > of(requested(&it.held));
        if !changed.iter().any(is_more) {
            continue;
        }
        let (requested, used, capacity) = (of(wanted), of(used), of(capacity));
        if requested > capacity {
            let what = format!("{name}, requested: {requested}, capacity: {capacity}");
            let message = format!("Node didn't have enough capacity: {what}");
            return Err(ResizeFault::pending("Infeasible", message));
        }
        if used.saturating_add(requested) > capacity {
            let what =
                format!("{name}, requested: {requested}, used: {used}, capacity: {capacity}");
            let message = format!("Node didn't have enough resource: {what}");
            return Err(ResizeFault::pending("Deferred", message));
        }
    }
    Ok(())
}

/// A limit below what a container uses would end it, or be refused.
async fn check_usage(
    node: &PodNode,
    one: &ResizedContainer<'_>,
    limit: i64,
) -> Result<(), ResizeFault> {
    let filter =
        ContainerStatsFilter { id: one.report.id.clone(), ..ContainerStatsFilter::default() };
    let request = ListContainerStatsRequest { filter: Some(filter) };
    let stats = node.runtime.list_container_stats(request).await;
    let stats = stats.map_err(|error| {
        ResizeFault::failed(format!("cannot read the container's usage of memory: {error}"))
    })?;
    let is_own = |id: &str| id == one.report.id;
    let own = stats
        .stats
        .into_iter()
        .find(|stats| stats.attributes.as_ref().is_some_and(|attributes| is_own(&attributes.id)));
    let used = own.and_then(|stats| stats.memory?.working_set_bytes).map_or(0, |used| used.value);
    if i64::try_from(used).unwrap_or(i64::MAX) >= limit {
        return Err(ResizeFault::failed(format!(
            "attempting to set the memory limit ({limit}) of container {} below its current usage \
             ({used})",
            one.container.name
        )));
    }
    Ok(())
}

/// Kills a container that has to be restarted with other resources.
pub(crate) async fn kill(
    node: &PodNode,
    pod: &NodePod,
    seen: &ObservedPod,
    report: &ContainerReport,
) -> Result<(), CriError> {
    let name = name_of(report).0;
    node.report_of(pod, name, "Killing", format!("Container {name} resize requires restart"));
    let (ip, grace) = (hooks::address(node, seen), assemble::grace(pod));
    hooks::stop(node, &hooks::StoppingContainer { pod: Some(pod), report, ip, grace }).await
}

#[cfg(test)]
mod tests;
