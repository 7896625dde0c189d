//! The next step of a pod: a pure function of the pod and its state in the runtime.

use crate::pod::{DEFINITION, NodePod, definition};
use ferrokube_cri::{ContainerPhase, ContainerReport};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;
use std::time::Duration;

/// Back-off before the second restart of a container; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// After running for longer than this, a container is restarted at once, as the first time.
const LASTING: i64 = 600 * 1_000_000_000;
/// Annotation of containers: restarts in a row, none of which lasted. Without it all of them count.
pub(crate) const RESTARTS: &str = "ferrokube.dev/restarts-in-a-row";
/// Exit code of a container that was killed.
const KILLED: i32 = 137;

/// The next action, after which the pod is observed again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PodAction {
    /// Run a sandbox, with the number of previous ones.
    RunSandbox(u32),
    /// Remove this sandbox, which is not ready, with its containers.
    RemoveSandbox(String),
    /// Kill the container with this id, which failed a probe, or whose definition or resources have
    /// changed.
    Kill(String),
    /// Start the container with this name; the attempt counts from 0.
    Start(String, u32),
    /// Observe again after this time, or after a change.
    Wait(Duration),
    /// All containers have terminated for good: stop the sandbox, which occupies addresses.
    StopSandbox(String),
    /// Nothing is left to do.
    Finished,
}

/// A sandbox of the pod.
#[derive(Clone, Debug)]
pub(crate) struct ObservedSandbox {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) is_ready: bool,
}

/// A pod's state in the runtime: sandboxes, newest first, and the containers of the newest one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedPod {
    pub(crate) sandboxes: Vec<ObservedSandbox>,
    pub(crate) containers: Vec<ContainerReport>,
    /// Addresses of the newest sandbox.
    pub(crate) ips: Vec<String>,
}

/// Reasons for containers to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodHolds {
    /// Containers that failed to start, by name, with the time until the next attempt.
    pub(crate) paused: BTreeMap<String, Duration>,
    /// Ids of containers whose startup probe has not succeeded.
    pub(crate) starting: Vec<String>,
    /// Ids of containers that failed a probe. They are killed, and count as failed regardless of
    /// the exit code.
    pub(crate) unhealthy: Vec<String>,
    /// Ids of containers that are killed and started again with other resources.
    pub(crate) restarting: Vec<String>,
}

impl PodHolds {
    fn exit_code(&self, report: &ContainerReport) -> i32 {
        let is_failed = report.exit_code == 0 && self.unhealthy.contains(&report.id);
        if is_failed { KILLED } else { report.exit_code }
    }
}

impl ObservedPod {
    /// The newest container with this name.
    pub(crate) fn latest(&self, name: &str) -> Option<&ContainerReport> {
        let own = self.containers.iter().filter(|report| name_of(report).0 == name);
        own.max_by_key(|report| (name_of(report).1, report.created_at))
    }

    /// Whether a container has run after the init containers, which have succeeded then: the
    /// runtime may have lost them.
    pub(crate) fn has_initialized(&self, pod: &NodePod) -> bool {
        let has_run = |phase| matches!(phase, ContainerPhase::Running | ContainerPhase::Exited);
        let own = pod.spec.containers.iter().filter_map(|container| self.latest(&container.name));
        own.map(ContainerReport::state).any(has_run)
    }

    /// The previous attempt of the same container.
    pub(crate) fn before(&self, report: &ContainerReport) -> Option<&ContainerReport> {
        let (name, attempt) = name_of(report);
        let earlier = self.containers.iter().filter(|it| {
            name_of(it).0 == name && name_of(it).1 < attempt && it.state() == ContainerPhase::Exited
        });
        earlier.max_by_key(|it| name_of(it).1)
    }
}

/// Name and attempt.
pub(crate) fn name_of(report: &ContainerReport) -> (&str, u32) {
    report.metadata.as_ref().map_or(("", 0), |metadata| (&metadata.name, metadata.attempt))
}

/// Nanoseconds since 1970.
pub(crate) type WallTime = i64;

/// Computes the next action. `now` is compared with the runtime's timestamps.
pub(crate) fn next(
    pod: &NodePod,
    seen: &ObservedPod,
    holds: &PodHolds,
    now: WallTime,
) -> PodAction {
    if let Some(old) = seen
        .sandboxes
        .iter()
        .skip(1)
        .chain(
            seen.sandboxes
                .first()
                .filter(|sandbox| !sandbox.is_ready && !is_over(pod, seen, holds)),
        )
        .next()
    {
        return PodAction::RemoveSandbox(old.id.clone());
    }
    let Some(sandbox) = seen.sandboxes.first() else { return PodAction::RunSandbox(0) };
    if is_over(pod, seen, holds) {
        let id = sandbox.id.clone();
        return if sandbox.is_ready { PodAction::StopSandbox(id) } else { PodAction::Finished };
    }
    let is_killed = |report: &&ContainerReport| {
        let is_named =
            holds.unhealthy.contains(&report.id) || holds.restarting.contains(&report.id);
        report.state() == ContainerPhase::Running && (is_named || has_changed(pod, report))
    };
    if let Some(report) = seen.containers.iter().find(is_killed) {
        return PodAction::Kill(report.id.clone());
    }
    let mut soonest = Duration::MAX;
    for container in pod.ephemeral.iter().map(|one| &one.container) {
        match seen.latest(&container.name).map(ContainerReport::state) {
            // Once only, whatever becomes of them.
            Some(ContainerPhase::Running | ContainerPhase::Exited) => {}
            _ => match holds.paused.get(&container.name) {
                Some(pause) => soonest = soonest.min(*pause),
                None => return PodAction::Start(container.name.clone(), 0),
            },
        }
    }
    for container in pod.spec.init_containers.iter().flatten() {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let is_starting = |report: &ContainerReport| holds.starting.contains(&report.id);
        if !is_sidecar && seen.latest(&container.name).is_none() && seen.has_initialized(pod) {
            continue;
        }
        match step(pod, container, seen, holds, now) {
            ContainerStep::Start(attempt) => {
                return PodAction::Start(container.name.clone(), attempt);
            }
            ContainerStep::Runs if seen.latest(&container.name).is_some_and(is_starting) => {
                return PodAction::Wait(Duration::MAX);
            }
            // A running sidecar does not block later containers; a running init container does.
            ContainerStep::Runs if is_sidecar => {}
            ContainerStep::Ended(0) => {}
            ContainerStep::Pause(pause) => return PodAction::Wait(pause),
            ContainerStep::Runs | ContainerStep::Ended(_) => {
                return PodAction::Wait(Duration::MAX);
            }
        }
    }
    for container in &pod.spec.containers {
        match step(pod, container, seen, holds, now) {
            ContainerStep::Start(attempt) => {
                return PodAction::Start(container.name.clone(), attempt);
            }
            ContainerStep::Pause(pause) => soonest = soonest.min(pause),
            ContainerStep::Runs | ContainerStep::Ended(_) => {}
        }
    }
    PodAction::Wait(soonest)
}

enum ContainerStep {
    Start(u32),
    Pause(Duration),
    Runs,
    Ended(i32),
}

fn step(
    pod: &NodePod,
    container: &Container,
    seen: &ObservedPod,
    holds: &PodHolds,
    now: WallTime,
) -> ContainerStep {
    if let Some(pause) = holds.paused.get(&container.name) {
        return ContainerStep::Pause(*pause);
    }
    let Some(report) = seen.latest(&container.name) else { return ContainerStep::Start(0) };
    let attempt = name_of(report).1;
    match report.state() {
        ContainerPhase::Running => ContainerStep::Runs,
        // Created but never started: a previous kubelet was killed in between.
        ContainerPhase::Created | ContainerPhase::Unknown => ContainerStep::Start(attempt),
        ContainerPhase::Exited if !is_restarted(pod, container, report, holds) => {
            ContainerStep::Ended(holds.exit_code(report))
        }
        ContainerPhase::Exited => {
            let pause = pause_after(report);
            let since = now.saturating_sub(report.finished_at).max(0);
            let since = Duration::from_nanos(since.unsigned_abs());
            let is_at_once = has_changed(pod, report) || holds.restarting.contains(&report.id);
            if since >= pause || is_at_once {
                ContainerStep::Start(attempt.saturating_add(1))
            } else {
                ContainerStep::Pause(pause - since)
            }
        }
    }
}

/// Restarts in a row that led to a container, as it records them.
fn restarts(report: &ContainerReport) -> u32 {
    let recorded = report.annotations.get(RESTARTS).and_then(|text| text.parse().ok());
    recorded.unwrap_or_else(|| name_of(report).1)
}

fn has_lasted(report: &ContainerReport) -> bool {
    report.started_at > 0 && report.finished_at.saturating_sub(report.started_at) > LASTING
}

/// Restarts in a row including that of the next container, after `latest`.
pub(crate) fn restarts_after(latest: Option<&ContainerReport>) -> u32 {
    match latest {
        None => 0,
        Some(report) if report.state() != ContainerPhase::Exited => restarts(report),
        Some(report) if has_lasted(report) => 1,
        Some(report) => restarts(report).saturating_add(1),
    }
}

/// The first restart is immediate, as in kubelet.
fn pause_after(report: &ContainerReport) -> Duration {
    match restarts(report) {
        0 => Duration::ZERO,
        _ if has_lasted(report) => Duration::ZERO,
        count => LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.pow((count - 1).min(5))),
    }
}

/// Terminated containers in restart back-off: name and full duration.
pub(crate) fn backing_off(
    pod: &NodePod,
    seen: &ObservedPod,
    holds: &PodHolds,
    now: WallTime,
) -> Vec<(String, Duration)> {
    let (unhealthy, restarting) = (holds.unhealthy.clone(), holds.restarting.clone());
    let holds = PodHolds { unhealthy, restarting, ..PodHolds::default() };
    let waits = |container: &&Container| {
        matches!(step(pod, container, seen, &holds, now), ContainerStep::Pause(_))
    };
    let pause = |container: &Container| {
        let pause = seen.latest(&container.name).map(pause_after);
        (container.name.clone(), pause.unwrap_or_default())
    };
    pod.all_containers().filter(waits).map(pause).collect()
}

/// Whether a container was created with another definition than the pod has now. Init containers
/// that have run are not run again.
pub(crate) fn has_changed(pod: &NodePod, report: &ContainerReport) -> bool {
    let is_sidecar = |it: &&Container| it.restart_policy.as_deref() == Some("Always");
    let sidecars = pod.spec.init_containers.iter().flatten().filter(is_sidecar);
    let own = sidecars.chain(&pod.spec.containers).find(|it| it.name == name_of(report).0);
    let created = report.annotations.get(DEFINITION);
    own.zip(created).is_some_and(|(container, created)| definition(container) != *created)
}

/// Whether an exited container is restarted.
fn is_restarted(
    pod: &NodePod,
    container: &Container,
    report: &ContainerReport,
    holds: &PodHolds,
) -> bool {
    let is_replaced = has_changed(pod, report) || holds.restarting.contains(&report.id);
    if container.restart_policy.as_deref() == Some("Always") || is_replaced {
        return true;
    }
    let code = holds.exit_code(report);
    let is_init = pod.spec.init_containers.iter().flatten().any(|it| it.name == container.name);
    match pod.spec.restart_policy.as_deref().unwrap_or("Always") {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => !is_init || code != 0,
    }
}

/// Whether the pod is finished: its containers have terminated for good, or an init container has
/// failed for good.
fn is_over(pod: &NodePod, seen: &ObservedPod, holds: &PodHolds) -> bool {
    let ended = |container: &Container| {
        let report = seen.latest(&container.name)?;
        let is_exited = report.state() == ContainerPhase::Exited;
        let is_ended = is_exited && !is_restarted(pod, container, report, holds);
        is_ended.then(|| holds.exit_code(report))
    };
    let mut inits = pod.spec.init_containers.iter().flatten();
    inits.any(|container| ended(container).is_some_and(|code| code != 0))
        || pod.spec.containers.iter().all(|container| ended(container).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_cri::ContainerMetadata;

    const SECOND: i64 = 1_000_000_000;

    fn pod(spec: &str) -> NodePod {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}");
        NodePod::from_file(text.as_bytes(), "n").unwrap()
    }

    fn ready() -> ObservedPod {
        let sandbox = ObservedSandbox { id: "s".to_owned(), attempt: 0, is_ready: true };
        ObservedPod { sandboxes: vec![sandbox], ..ObservedPod::default() }
    }

    fn running(mut seen: ObservedPod, name: &str) -> ObservedPod {
        seen.containers.push(report(name, 0, ContainerPhase::Running, 0));
        seen
    }

    fn exited(mut seen: ObservedPod, name: &str, attempt: u32, code: i32) -> ObservedPod {
        seen.containers.push(report(name, attempt, ContainerPhase::Exited, code));
        seen
    }

    fn report(name: &str, attempt: u32, phase: ContainerPhase, code: i32) -> ContainerReport {
        ContainerReport {
            id: format!("{name}{attempt}"),
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt }),
            state: phase as i32,
            exit_code: code,
            ..ContainerReport::default()
        }
    }

    fn start(name: &str, attempt: u32) -> PodAction {
        PodAction::Start(name.to_owned(), attempt)
    }

    fn at(pod: &NodePod, seen: &ObservedPod, time: WallTime) -> PodAction {
        next(pod, seen, &PodHolds::default(), time)
    }

    fn now(pod: &NodePod, seen: &ObservedPod) -> PodAction {
        at(pod, seen, 0)
    }

    fn stop() -> PodAction {
        PodAction::StopSandbox("s".to_owned())
    }

    const FOREVER: PodAction = PodAction::Wait(Duration::MAX);

    #[test]
    fn init_containers_run_in_turn_before_the_others_and_sidecars_along_with_them() {
        let pod = pod("{initContainers: [{name: a, image: i}, {name: s, image: i, restartPolicy: \
                       Always}, {name: b, image: i}], containers: [{name: c, image: i}]}");
        let step = |seen: &ObservedPod| next(&pod, seen, &PodHolds::default(), 0);
        assert_eq!(step(&ObservedPod::default()), PodAction::RunSandbox(0));
        let seen = ready();
        assert_eq!(step(&seen), start("a", 0));
        assert_eq!(step(&running(seen.clone(), "a")), FOREVER);
        let seen = exited(seen, "a", 0, 0);
        assert_eq!(step(&seen), start("s", 0));
        let seen = running(seen, "s");
        assert_eq!(step(&seen), start("b", 0));
        let seen = exited(seen, "b", 0, 0);
        assert_eq!(step(&seen), start("c", 0));
        let seen = running(seen, "c");
        assert_eq!(step(&seen), FOREVER);
        // Sidecars are always restarted.
        let mut seen = seen;
        seen.containers.retain(|report| name_of(report).0 != "s");
        assert_eq!(step(&exited(seen, "s", 0, 0)), start("s", 1));
    }

    #[test]
    fn an_init_container_that_the_runtime_has_lost_is_not_run_again() {
        let pod = pod("{initContainers: [{name: a, image: i}, {name: s, image: i, restartPolicy: \
                       Always}], containers: [{name: c, image: i}, {name: d, image: i}]}");
        let mut seen = running(running(ready(), "s"), "c");
        assert_eq!(now(&pod, &seen), start("d", 0));
        seen.containers.remove(0);
        assert_eq!(now(&pod, &seen), start("s", 0), "a sidecar is");
        seen.containers[0].state = ContainerPhase::Created as i32;
        assert_eq!(now(&pod, &seen), start("a", 0), "nothing has run yet");
    }

    #[test]
    fn restart_policies_decide_what_is_started_again() {
        for (policy, of_success, of_failure) in [
            ("Always", start("c", 1), start("c", 1)),
            ("OnFailure", stop(), start("c", 1)),
            ("Never", stop(), stop()),
        ] {
            let text = format!("{{restartPolicy: {policy}, containers: [{{name: c, image: i}}]}}");
            let pod = pod(&text);
            assert_eq!(now(&pod, &exited(ready(), "c", 0, 0)), of_success, "{policy}");
            assert_eq!(now(&pod, &exited(ready(), "c", 0, 1)), of_failure, "{policy}");
        }
        let pod = pod("{restartPolicy: Never, initContainers: [{name: a, image: i}], containers: \
                       [{name: c, image: i}]}");
        assert_eq!(now(&pod, &exited(ready(), "a", 0, 1)), stop());
    }

    #[test]
    fn restarts_back_off_from_the_end_of_the_container() {
        let pod = pod("{containers: [{name: c, image: i}]}");
        let after =
            |attempt, seconds: i64| at(&pod, &exited(ready(), "c", attempt, 1), seconds * SECOND);
        assert_eq!(after(0, 0), start("c", 1));
        assert_eq!(after(1, 0), PodAction::Wait(Duration::from_secs(10)));
        assert_eq!(after(1, 9), PodAction::Wait(Duration::from_secs(1)));
        assert_eq!(after(1, 10), start("c", 2));
        assert_eq!(after(2, 0), PodAction::Wait(Duration::from_secs(20)));
        assert_eq!(after(9, 0), PodAction::Wait(LONGEST_PAUSE));
        // Do not wait longer if the clock was set back.
        assert_eq!(after(9, -1000), PodAction::Wait(LONGEST_PAUSE));
    }

    #[test]
    fn a_container_that_has_lasted_backs_off_from_the_beginning() {
        let pod = pod("{containers: [{name: c, image: i}]}");
        let mut seen = exited(ready(), "c", 7, 1);
        let ran = |report: &mut ContainerReport, seconds: i64| {
            (report.started_at, report.finished_at) = (SECOND, (1 + seconds) * SECOND);
        };
        ran(&mut seen.containers[0], 600);
        assert_eq!(at(&pod, &seen, 601 * SECOND), PodAction::Wait(LONGEST_PAUSE));
        assert_eq!(restarts_after(seen.containers.first()), 8);
        ran(&mut seen.containers[0], 601);
        assert_eq!(at(&pod, &seen, 602 * SECOND), start("c", 8));
        let restarts = restarts_after(seen.containers.first());
        assert_eq!((restarts, restarts_after(None)), (1, 0));
        let mut next = exited(ready(), "c", 8, 1);
        next.containers[0].annotations.insert(RESTARTS.to_owned(), restarts.to_string());
        assert_eq!(at(&pod, &next, 0), PodAction::Wait(FIRST_PAUSE));
        next.containers[0].state = ContainerPhase::Created as i32;
        assert_eq!(restarts_after(next.containers.first()), 1, "it is made again");
    }

    #[test]
    fn a_dead_sandbox_is_replaced_unless_the_pod_is_over() {
        let pod = pod("{restartPolicy: Never, containers: [{name: c, image: i}]}");
        let dead = |mut seen: ObservedPod| {
            seen.sandboxes[0].is_ready = false;
            seen
        };
        let remove = PodAction::RemoveSandbox("s".to_owned());
        assert_eq!(now(&pod, &dead(ready())), remove);
        let over = dead(exited(ready(), "c", 0, 0));
        assert_eq!(now(&pod, &over), PodAction::Finished);
        // Two of them: the kubelet was killed between its calls.
        let mut two = ready();
        two.sandboxes.push(ObservedSandbox { id: "old".to_owned(), attempt: 0, is_ready: true });
        assert_eq!(now(&pod, &two), PodAction::RemoveSandbox("old".to_owned()));
    }

    #[test]
    fn a_container_that_was_never_started_is_made_again() {
        let pod = pod("{containers: [{name: c, image: i}]}");
        let mut seen = ready();
        seen.containers.push(report("c", 3, ContainerPhase::Created, 0));
        assert_eq!(now(&pod, &seen), start("c", 3));
    }

    #[test]
    fn a_container_that_cannot_start_holds_no_other() {
        let pod = pod("{containers: [{name: a, image: i}, {name: b, image: i}]}");
        let pause = Duration::from_secs(7);
        let mut holds = PodHolds::default();
        holds.paused.insert("a".to_owned(), pause);
        assert_eq!(next(&pod, &ready(), &holds, 0), start("b", 0));
        let seen = running(ready(), "b");
        assert_eq!(next(&pod, &seen, &holds, 0), PodAction::Wait(pause));
    }

    #[test]
    fn a_container_that_fails_a_probe_is_killed_and_has_failed() {
        let pod = pod("{restartPolicy: OnFailure, containers: [{name: c, image: i}]}");
        let holds = PodHolds { unhealthy: vec!["c0".to_owned()], ..PodHolds::default() };
        let kill = PodAction::Kill("c0".to_owned());
        assert_eq!(next(&pod, &running(ready(), "c"), &holds, 0), kill);
        let ended = exited(ready(), "c", 0, 0);
        assert_eq!(next(&pod, &ended, &holds, 0), start("c", 1), "although it ended with 0");
        assert_eq!(now(&pod, &ended), stop());
    }

    #[test]
    fn a_container_whose_definition_changes_is_killed_and_started_whatever_the_policy() {
        let with = |image: &str| {
            pod(&format!(
                "{{restartPolicy: Never, initContainers: [{{name: i, image: {image}}}], \
                 containers: [{{name: c, image: {image}}}]}}"
            ))
        };
        let (old, new) = (with("one"), with("two"));
        let mut seen = running(exited(ready(), "i", 0, 0), "c");
        for (report, container) in seen.containers.iter_mut().zip(old.all_containers()) {
            report.annotations.insert(DEFINITION.to_owned(), definition(container));
        }
        assert_eq!(now(&old, &seen), FOREVER);
        assert_eq!(now(&new, &seen), PodAction::Kill("c0".to_owned()), "init containers stay");
        seen.containers[1].state = ContainerPhase::Exited as i32;
        assert_eq!(now(&new, &seen), start("c", 1));
        assert_eq!(now(&old, &seen), stop());
        seen.containers[1].annotations.clear();
        assert_eq!(now(&new, &seen), stop(), "made by a kubelet without the annotation");
    }

    #[test]
    fn a_sidecar_holds_the_next_back_until_its_startup_probe_passes() {
        let pod = pod("{initContainers: [{name: s, image: i, restartPolicy: Always}], \
                       containers: [{name: c, image: i}]}");
        let seen = running(ready(), "s");
        let holds = PodHolds { starting: vec!["s0".to_owned()], ..PodHolds::default() };
        assert_eq!(next(&pod, &seen, &holds, 0), FOREVER);
        assert_eq!(now(&pod, &seen), start("c", 0));
    }
}
