//! The next step of a pod: a pure function of the pod and of what the runtime has of it.

use crate::static_pods::StaticPod;
use ferrokube_cri::{ContainerPhase, ContainerReport};
use k8s_openapi::api::core::v1::Container;
use std::time::Duration;

/// First pause before a container is started again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What to do next. After it, look again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PodAction {
    /// Nothing runs: run a sandbox; the number of those before.
    RunSandbox(u32),
    /// Remove this sandbox, which is not ready, with its containers.
    RemoveSandbox(String),
    /// Start a container of this name, for the n-th time (from 0).
    Start(String, u32),
    /// Look again after this time, or when something changes.
    Wait(Duration),
    /// All containers have ended for good.
    Finished,
}

/// A sandbox of the pod.
#[derive(Clone, Debug)]
pub(crate) struct SeenSandbox {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) is_ready: bool,
}

/// What the runtime has of a pod. Sandboxes: newest first. Containers: those of the newest sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenPod {
    pub(crate) sandboxes: Vec<SeenSandbox>,
    pub(crate) containers: Vec<ContainerReport>,
}

impl SeenPod {
    /// The newest container of this name.
    pub(crate) fn latest(&self, name: &str) -> Option<&ContainerReport> {
        let own = self.containers.iter().filter(|report| name_of(report).0 == name);
        own.max_by_key(|report| (name_of(report).1, report.created_at))
    }
}

/// Name and attempt.
pub(crate) fn name_of(report: &ContainerReport) -> (&str, u32) {
    report.metadata.as_ref().map_or(("", 0), |metadata| (&metadata.name, metadata.attempt))
}

/// Nanoseconds since 1970.
pub(crate) type WallTime = i64;

/// Decides. `now` is compared with the runtime's times.
pub(crate) fn next(pod: &StaticPod, seen: &SeenPod, now: WallTime) -> PodAction {
    if let Some(old) = seen
        .sandboxes
        .iter()
        .skip(1)
        .chain(seen.sandboxes.first().filter(|sandbox| !sandbox.is_ready && !is_over(pod, seen)))
        .next()
    {
        return PodAction::RemoveSandbox(old.id.clone());
    }
    let Some(_sandbox) = seen.sandboxes.first() else { return PodAction::RunSandbox(0) };
    if is_over(pod, seen) {
        return PodAction::Finished;
    }
    let mut soonest = Duration::MAX;
    for container in pod.spec.init_containers.iter().flatten() {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        match step(pod, container, seen, now) {
            ContainerStep::Start(attempt) => {
                return PodAction::Start(container.name.clone(), attempt);
            }
            // Later ones start while a sidecar runs, not while an init container does.
            ContainerStep::Runs if is_sidecar => {}
            ContainerStep::Ended(0) => {}
            ContainerStep::Pause(pause) => return PodAction::Wait(pause),
            ContainerStep::Runs | ContainerStep::Ended(_) => {
                return PodAction::Wait(Duration::MAX);
            }
        }
    }
    for container in &pod.spec.containers {
        match step(pod, container, seen, now) {
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

fn step(pod: &StaticPod, container: &Container, seen: &SeenPod, now: WallTime) -> ContainerStep {
    let Some(report) = seen.latest(&container.name) else { return ContainerStep::Start(0) };
    let attempt = name_of(report).1;
    match report.state() {
        ContainerPhase::Running => ContainerStep::Runs,
        // Created but never started: the kubelet ended between the two calls.
        ContainerPhase::Created | ContainerPhase::Unknown => ContainerStep::Start(attempt),
        ContainerPhase::Exited if !is_restarted(pod, container, report.exit_code) => {
            ContainerStep::Ended(report.exit_code)
        }
        ContainerPhase::Exited => {
            let pause = LONGEST_PAUSE.min(FIRST_PAUSE * 2u32.pow(attempt.min(5)));
            let since = now.saturating_sub(report.finished_at).max(0);
            let since = Duration::from_nanos(since.unsigned_abs());
            // The first restart is at once, as kubelet's.
            if attempt == 0 || since >= pause {
                ContainerStep::Start(attempt + 1)
            } else {
                ContainerStep::Pause(pause - since)
            }
        }
    }
}

/// Whether a container that ended with this code is started again.
fn is_restarted(pod: &StaticPod, container: &Container, code: i32) -> bool {
    if container.restart_policy.as_deref() == Some("Always") {
        return true;
    }
    let is_init = pod.spec.init_containers.iter().flatten().any(|it| it.name == container.name);
    match pod.spec.restart_policy.as_deref().unwrap_or("Always") {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => !is_init || code != 0,
    }
}

/// Whether nothing of the pod will run again: its containers have ended, or an init container has
/// failed for good.
fn is_over(pod: &StaticPod, seen: &SeenPod) -> bool {
    let ended = |container: &Container| {
        let report = seen.latest(&container.name)?;
        let is_exited = report.state() == ContainerPhase::Exited;
        (is_exited && !is_restarted(pod, container, report.exit_code)).then_some(report.exit_code)
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

    fn pod(spec: &str) -> StaticPod {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}");
        StaticPod::parse(text.as_bytes(), "n").unwrap()
    }

    fn ready() -> SeenPod {
        let sandbox = SeenSandbox { id: "s".to_owned(), attempt: 0, is_ready: true };
        SeenPod { sandboxes: vec![sandbox], containers: Vec::new() }
    }

    fn running(mut seen: SeenPod, name: &str) -> SeenPod {
        seen.containers.push(report(name, 0, ContainerPhase::Running, 0));
        seen
    }

    fn exited(mut seen: SeenPod, name: &str, attempt: u32, code: i32) -> SeenPod {
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

    const FOREVER: PodAction = PodAction::Wait(Duration::MAX);

    #[test]
    fn init_containers_run_in_turn_before_the_others_and_sidecars_along_with_them() {
        let pod = pod("{initContainers: [{name: a, image: i}, {name: s, image: i, restartPolicy: \
                       Always}, {name: b, image: i}], containers: [{name: c, image: i}]}");
        let step = |seen: &SeenPod| next(&pod, seen, 0);
        assert_eq!(step(&SeenPod::default()), PodAction::RunSandbox(0));
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
        // A sidecar that ended is started again, whatever it ended with.
        let mut seen = seen;
        seen.containers.retain(|report| name_of(report).0 != "s");
        assert_eq!(step(&exited(seen, "s", 0, 0)), start("s", 1));
    }

    #[test]
    fn restart_policies_decide_what_is_started_again() {
        for (policy, of_success, of_failure) in [
            ("Always", start("c", 1), start("c", 1)),
            ("OnFailure", PodAction::Finished, start("c", 1)),
            ("Never", PodAction::Finished, PodAction::Finished),
        ] {
            let text = format!("{{restartPolicy: {policy}, containers: [{{name: c, image: i}}]}}");
            let pod = pod(&text);
            assert_eq!(next(&pod, &exited(ready(), "c", 0, 0), 0), of_success, "{policy}");
            assert_eq!(next(&pod, &exited(ready(), "c", 0, 1), 0), of_failure, "{policy}");
        }
        let pod = pod("{restartPolicy: Never, initContainers: [{name: a, image: i}], containers: \
                       [{name: c, image: i}]}");
        assert_eq!(next(&pod, &exited(ready(), "a", 0, 1), 0), PodAction::Finished);
    }

    #[test]
    fn restarts_back_off_from_the_end_of_the_container() {
        let pod = pod("{containers: [{name: c, image: i}]}");
        let at =
            |attempt, seconds: i64| next(&pod, &exited(ready(), "c", attempt, 1), seconds * SECOND);
        assert_eq!(at(1, 0), PodAction::Wait(Duration::from_secs(20)));
        assert_eq!(at(1, 19), PodAction::Wait(Duration::from_secs(1)));
        assert_eq!(at(1, 20), start("c", 2));
        assert_eq!(at(9, 0), PodAction::Wait(LONGEST_PAUSE));
        // A clock that went back does not wait longer.
        assert_eq!(at(9, -1000), PodAction::Wait(LONGEST_PAUSE));
    }

    #[test]
    fn a_dead_sandbox_is_replaced_unless_the_pod_is_over() {
        let pod = pod("{restartPolicy: Never, containers: [{name: c, image: i}]}");
        let dead = |mut seen: SeenPod| {
            seen.sandboxes[0].is_ready = false;
            seen
        };
        let remove = PodAction::RemoveSandbox("s".to_owned());
        assert_eq!(next(&pod, &dead(ready()), 0), remove);
        let over = dead(exited(ready(), "c", 0, 0));
        assert_eq!(next(&pod, &over, 0), PodAction::Finished);
        // Two of them: the kubelet was killed between its calls.
        let mut two = ready();
        two.sandboxes.push(SeenSandbox { id: "old".to_owned(), attempt: 0, is_ready: true });
        assert_eq!(next(&pod, &two, 0), PodAction::RemoveSandbox("old".to_owned()));
    }

    #[test]
    fn a_container_that_was_never_started_is_made_again() {
        let pod = pod("{containers: [{name: c, image: i}]}");
        let mut seen = ready();
        seen.containers.push(report("c", 3, ContainerPhase::Created, 0));
        assert_eq!(next(&pod, &seen, 0), start("c", 3));
    }
}
