//! Probes of a pod's containers: one task per running container. The worker reads the results when
//! it observes the pod; changes wake it.
//!
//! The startup probe runs first, alone; then liveness and readiness probes. A container that fails
//! its startup or liveness probe is no longer probed, since the worker kills it.

mod action;

pub(crate) use action::{ActedContainer, ActionError, ContainerAction};

use crate::hooks;
use crate::next::{ObservedPod, WallTime, name_of};
use crate::node::{PodNode, now};
use crate::pod::NodePod;
use ferrokube_cri::{ContainerPhase, ContainerReport};
use k8s_openapi::api::core::v1::{Container, Probe};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Defaults of the API, for static pods; seconds and counts.
const PERIOD: i32 = 10;
const TIMEOUT: i32 = 1;
const SUCCESSES: i32 = 1;
const FAILURES: i32 = 3;

/// The probes of a pod, which stop when dropped. Bounded by the number of containers.
#[derive(Default)]
pub(crate) struct PodProbes {
    /// By container id, including terminated containers.
    containers: BTreeMap<String, ProbedContainer>,
    changed: Arc<Notify>,
}

struct ProbedContainer {
    health: Arc<Mutex<ContainerHealth>>,
    task: JoinHandle<()>,
}

impl Drop for ProbedContainer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ProbedContainer {
    fn has_failed(&self) -> bool {
        self.health.lock().failed.is_some()
    }
}

#[derive(Clone, Default, PartialEq, Eq)]
struct ContainerHealth {
    is_started: bool,
    is_ready: bool,
    failed: Option<FailedProbe>,
}

/// A failed probe that kills its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedProbe {
    /// `liveness` or `startup`.
    pub(crate) kind: &'static str,
    /// Grace period of the probe, in seconds.
    pub(crate) grace: Option<i64>,
}

impl PodProbes {
    /// Probes exactly the running containers.
    pub(crate) fn follow(&mut self, node: &Arc<PodNode>, pod: &NodePod, seen: &ObservedPod) {
        let is_known = |id: &String| seen.containers.iter().any(|report| report.id == *id);
        // Probes end with a failure of the container; any other end was a panic.
        let is_whole = |it: &ProbedContainer| !it.task.is_finished() || it.has_failed();
        self.containers.retain(|id, probed| is_known(id) && is_whole(probed));
        for report in &seen.containers {
            if report.state() != ContainerPhase::Running {
                // A recorded failure still counts.
                if let Some(probed) = self.containers.get(&report.id) {
                    probed.task.abort();
                }
                continue;
            }
            let Some(container) = probed(pod, report) else { continue };
            if self.containers.contains_key(&report.id) {
                continue;
            }
            let ip = hooks::address(node, seen);
            let health = Arc::<Mutex<ContainerHealth>>::default();
            let prober = Prober {
                node: Arc::clone(node),
                pod: pod.clone(),
                target: ActedContainer { id: report.id.clone(), container: container.clone(), ip },
                started_at: report.started_at,
                health: Arc::clone(&health),
                changed: Arc::clone(&self.changed),
            };
            let task = tokio::spawn(node.in_context_of_caller(prober.run()));
            self.containers.insert(report.id.clone(), ProbedContainer { health, task });
        }
    }

    /// Waits until a result changes.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Ids of running containers whose startup probe has not succeeded.
    pub(crate) fn starting(&self, pod: &NodePod, seen: &ObservedPod) -> Vec<String> {
        let is_it = |container: &Container, health: ContainerHealth| {
            container.startup_probe.is_some() && !health.is_started
        };
        self.running(pod, seen, is_it)
    }

    /// Ids of running containers whose readiness probe has not succeeded.
    pub(crate) fn unready(&self, pod: &NodePod, seen: &ObservedPod) -> Vec<String> {
        let is_it = |container: &Container, health: ContainerHealth| {
            container.readiness_probe.is_some() && !health.is_ready
        };
        self.running(pod, seen, is_it)
    }

    fn running(
        &self,
        pod: &NodePod,
        seen: &ObservedPod,
        is_it: impl Fn(&Container, ContainerHealth) -> bool,
    ) -> Vec<String> {
        let running = seen.containers.iter().filter(|it| it.state() == ContainerPhase::Running);
        let found = running.filter(|report| {
            let health = self.containers.get(&report.id).map(|it| it.health.lock().clone());
            // Not probed yet.
            probed(pod, report).is_some_and(|own| is_it(own, health.unwrap_or_default()))
        });
        found.map(|report| report.id.clone()).collect()
    }

    /// Containers to kill, or already killed, by id, and why.
    pub(crate) fn failed(&self) -> BTreeMap<String, FailedProbe> {
        let failed = |(id, probed): (&String, &ProbedContainer)| {
            Some((id.clone(), probed.health.lock().failed.clone()?))
        };
        self.containers.iter().filter_map(failed).collect()
    }
}

/// The container of a report, if it has probes. Of init containers only sidecars have probes.
fn probed<'a>(pod: &'a NodePod, report: &ContainerReport) -> Option<&'a Container> {
    let name = name_of(report).0;
    let container = pod.all_containers().find(|container| container.name == name)?;
    let is_init = pod.spec.init_containers.iter().flatten().any(|it| it.name == name);
    let stays = !is_init || container.restart_policy.as_deref() == Some("Always");
    let probes = [&container.startup_probe, &container.liveness_probe, &container.readiness_probe];
    (stays && probes.into_iter().any(Option::is_some)).then_some(container)
}

/// The probes of a running container.
struct Prober {
    node: Arc<PodNode>,
    pod: NodePod,
    target: ActedContainer,
    started_at: WallTime,
    health: Arc<Mutex<ContainerHealth>>,
    changed: Arc<Notify>,
}

impl Prober {
    async fn run(self) {
        let container = &self.target.container;
        if let Some(probe) = &container.startup_probe {
            let mut series = self.series("Startup", probe);
            if !series.verdict().await {
                return self.fail("startup", probe);
            }
        }
        self.update(|health| health.is_started = true);
        let liveness = async {
            let Some(probe) = &container.liveness_probe else { return pending().await };
            let mut series = self.series("Liveness", probe);
            while series.verdict().await {}
            self.fail("liveness", probe);
        };
        let readiness = async {
            let Some(probe) = &container.readiness_probe else { return pending().await };
            let mut series = self.series("Readiness", probe);
            loop {
                let is_ready = series.verdict().await;
                self.update(|health| health.is_ready = is_ready);
            }
        };
        tokio::select! {
            // It is to be killed.
            () = liveness => {}
            () = readiness => {}
        }
    }

    fn fail(&self, kind: &'static str, probe: &Probe) {
        let grace = probe.termination_grace_period_seconds;
        self.update(|health| health.failed = Some(FailedProbe { kind, grace }));
    }

    fn update(&self, change: impl FnOnce(&mut ContainerHealth)) {
        let mut health = self.health.lock();
        let before = health.clone();
        change(&mut health);
        if *health != before {
            drop(health);
            self.changed.notify_one();
        }
    }

    fn series<'a>(&'a self, name: &'static str, probe: &'a Probe) -> ProbeSeries<'a> {
        let initial = seconds(probe.initial_delay_seconds.unwrap_or(0));
        let age = now().saturating_sub(self.started_at).max(0);
        let age = Duration::from_nanos(age.unsigned_abs());
        let period = seconds(probe.period_seconds.filter(|it| *it > 0).unwrap_or(PERIOD));
        let mut ticks = interval_at(Instant::now() + initial.saturating_sub(age), period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ProbeSeries { prober: self, name, probe, ticks, last: None, length: 0 }
    }
}

fn seconds(count: i32) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// Consecutive identical results of a probe, and their count.
struct ProbeSeries<'a> {
    prober: &'a Prober,
    name: &'static str,
    probe: &'a Probe,
    ticks: tokio::time::Interval,
    last: Option<bool>,
    length: i32,
}

impl ProbeSeries<'_> {
    /// Probes until a threshold of consecutive identical results is reached, then after each
    /// further one.
    async fn verdict(&mut self) -> bool {
        let positive = |given: Option<i32>, default| given.filter(|it| *it > 0).unwrap_or(default);
        let limit = seconds(positive(self.probe.timeout_seconds, TIMEOUT));
        let successes = positive(self.probe.success_threshold, SUCCESSES);
        let failures = positive(self.probe.failure_threshold, FAILURES);
        loop {
            self.ticks.tick().await;
            let Prober { node, pod, target, .. } = self.prober;
            let outcome = match ContainerAction::of_probe(self.probe) {
                Some(action) => action.run(node, target, Some(limit)).await,
                None => Ok(()),
            };
            let is_passed = outcome.is_ok();
            if let Err(error) = outcome {
                let is_untried = matches!(error, ActionError::Untried(_));
                let what =
                    if is_untried { "errored and resulted in unknown state" } else { "failed" };
                let message = format!("{} probe {what}: {error}", self.name);
                node.warn_of(pod, &target.container.name, "Unhealthy", message);
                if is_untried {
                    continue;
                }
            }
            self.length =
                if self.last == Some(is_passed) { self.length.saturating_add(1) } else { 1 };
            self.last = Some(is_passed);
            if self.length >= if is_passed { successes } else { failures } {
                return is_passed;
            }
        }
    }
}
