//! A pod's status: a pure function of the pod, its state in the runtime, and its worker's memory.

use crate::next::{ObservedPod, WallTime, name_of};
use crate::pod::NodePod;
use ferrokube_cri::{ContainerPhase, ContainerReport};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, PodCondition, PodIP, PodStatus,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;

/// Conditions written by the kubelet; all others are preserved.
pub(crate) const OWNED: [&str; 7] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
];

/// kubelet's message of an init container without a report.
const LOST: &str = "Unable to get init container status from container runtime and pod has been \
                    initialized, treat it as exited normally";

/// Why a container is waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitNote {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Why a resize is not in effect: a condition of the pod, with kubelet's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeFault {
    pub(crate) condition: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Inputs of the status besides the pod and the runtime's report.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusInputs {
    /// Containers that cannot start now, by name.
    pub(crate) waiting: BTreeMap<String, WaitNote>,
    /// Termination messages, by container id.
    pub(crate) messages: BTreeMap<String, String>,
    /// Ids of containers whose readiness probe has not succeeded.
    pub(crate) unready: Vec<String>,
    /// Ids of containers whose startup probe has not succeeded.
    pub(crate) starting: Vec<String>,
    /// Addresses of the node.
    pub(crate) host_ips: Vec<String>,
    /// Scheme of container ids: the runtime's name.
    pub(crate) runtime: String,
    pub(crate) started_at: WallTime,
    /// Resources of running containers, by name.
    pub(crate) resources: BTreeMap<String, ResourceRequirements>,
    /// Why the last resize is not in effect.
    pub(crate) resize: Option<ResizeFault>,
}

/// Truncates to seconds, the precision of the API.
pub(crate) fn time(nanoseconds: WallTime) -> Time {
    let second = nanoseconds.div_euclid(1_000_000_000);
    Time(Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Computes the status, with `now` as transition times; [`merged`] restores older ones.
pub(crate) fn status(
    pod: &NodePod,
    seen: &ObservedPod,
    inputs: &StatusInputs,
    now: WallTime,
) -> PodStatus {
    let view = StatusView { pod, seen, inputs };
    let inits: Vec<_> = pod.spec.init_containers.iter().flatten().collect();
    let is_initialized = inits.iter().all(|container| view.is_past(container));
    let of_inits: Vec<_> =
        inits.iter().map(|container| view.container(container, true, true)).collect();
    let of_mains: Vec<_> = pod
        .spec
        .containers
        .iter()
        .map(|container| view.container(container, is_initialized, false))
        .collect();
    let of_ephemeral = pod.ephemeral.iter().map(|one| {
        let status = view.container(&one.container, true, false);
        ContainerStatus { ready: false, started: None, ..status }
    });
    let of_ephemeral = list(of_ephemeral);
    let phase = phase(pod, &of_inits, &of_mains);
    let pod_ips = view.pod_ips();
    let host_ips = &inputs.host_ips;
    PodStatus {
        conditions: Some(view.conditions(phase, is_initialized, &of_inits, &of_mains, now)),
        container_statuses: Some(of_mains),
        ephemeral_container_statuses: of_ephemeral,
        init_container_statuses: (!of_inits.is_empty()).then_some(of_inits),
        host_ip: host_ips.first().cloned(),
        host_ips: list(host_ips.iter().map(|ip| HostIP { ip: ip.clone() })),
        phase: Some(phase.to_owned()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: list(pod_ips.into_iter().map(|ip| PodIP { ip })),
        start_time: Some(time(inputs.started_at)),
        ..PodStatus::default()
    }
}

fn list<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    Some(items.collect::<Vec<_>>()).filter(|items| !items.is_empty())
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

struct StatusView<'a> {
    pod: &'a NodePod,
    seen: &'a ObservedPod,
    inputs: &'a StatusInputs,
}

impl StatusView<'_> {
    /// Whether an init container no longer blocks later containers.
    fn is_past(&self, container: &Container) -> bool {
        let report = self.seen.latest(&container.name);
        report.map_or_else(
            || self.is_lost(container),
            |report| match report.state() {
                ContainerPhase::Exited if !is_sidecar(container) => report.exit_code == 0,
                ContainerPhase::Exited => report.started_at > 0,
                ContainerPhase::Running if is_sidecar(container) => self.is_started(report),
                _ => false,
            },
        )
    }

    /// Whether the runtime has lost an init container, which has succeeded.
    fn is_lost(&self, container: &Container) -> bool {
        let mut inits = self.pod.spec.init_containers.iter().flatten();
        let is_init = inits.any(|it| it.name == container.name);
        is_init && !is_sidecar(container) && self.seen.has_initialized(self.pod)
    }

    fn is_started(&self, report: &ContainerReport) -> bool {
        report.state() == ContainerPhase::Running && !self.inputs.starting.contains(&report.id)
    }

    fn pod_ips(&self) -> Vec<String> {
        if self.pod.spec.host_network == Some(true) {
            return self.inputs.host_ips.clone();
        }
        self.seen.ips.clone()
    }

    fn container(&self, container: &Container, may_run: bool, is_init: bool) -> ContainerStatus {
        let mut out = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            started: Some(false),
            ..ContainerStatus::default()
        };
        let note = self.inputs.waiting.get(&container.name);
        let Some(report) = self.seen.latest(&container.name) else {
            if self.is_lost(container) {
                out.ready = true;
                let terminated = Some(ContainerStateTerminated {
                    reason: Some("Completed".to_owned()),
                    message: Some(LOST.to_owned()),
                    ..ContainerStateTerminated::default()
                });
                out.state = Some(ContainerState { terminated, ..ContainerState::default() });
                return out;
            }
            let has_inits = self.pod.spec.init_containers.iter().flatten().next().is_some();
            let is_held = !may_run || (is_init && has_inits && note.is_none());
            let default = if is_held { "PodInitializing" } else { "ContainerCreating" };
            out.state = Some(waiting(note, default));
            return out;
        };
        out.container_id = Some(self.container_id(report));
        out.image_id = report.image_ref.clone();
        out.restart_count = i32::try_from(name_of(report).1).unwrap_or(i32::MAX);
        let terminated = |report: &ContainerReport| ContainerState {
            terminated: Some(self.terminated(report)),
            ..ContainerState::default()
        };
        let earlier = self.seen.before(report).map(&terminated);
        match report.state() {
            ContainerPhase::Running => {
                out.started = Some(self.is_started(report));
                out.ready = !self.inputs.unready.contains(&report.id)
                    && !self.inputs.starting.contains(&report.id);
                let started_at = Some(time(report.started_at));
                let running = Some(ContainerStateRunning { started_at });
                out.state = Some(ContainerState { running, ..ContainerState::default() });
                out.last_state = earlier;
                out.resources = self.inputs.resources.get(&container.name).cloned();
                out.allocated_resources =
                    out.resources.as_ref().and_then(|resources| resources.requests.clone());
            }
            ContainerPhase::Exited if note.is_some() => {
                out.state = Some(waiting(note, ""));
                out.last_state = Some(terminated(report));
            }
            ContainerPhase::Exited => {
                // As in kubelet, an init container that succeeded is ready.
                out.ready = is_init && !is_sidecar(container) && report.exit_code == 0;
                out.state = Some(terminated(report));
                out.last_state = earlier;
            }
            ContainerPhase::Created | ContainerPhase::Unknown => {
                out.state = Some(waiting(note, "ContainerCreating"));
                out.last_state = earlier;
            }
        }
        out
    }

    fn container_id(&self, report: &ContainerReport) -> String {
        format!("{}://{}", self.inputs.runtime, report.id)
    }

    fn terminated(&self, report: &ContainerReport) -> ContainerStateTerminated {
        let fallback = if report.exit_code == 0 { "Completed" } else { "Error" };
        let given = Some(report.reason.clone()).filter(|reason| !reason.is_empty());
        let of_file = self.inputs.messages.get(&report.id).filter(|text| !text.is_empty());
        let message = of_file.unwrap_or(&report.message);
        ContainerStateTerminated {
            container_id: Some(self.container_id(report)),
            exit_code: report.exit_code,
            reason: Some(given.unwrap_or_else(|| fallback.to_owned())),
            message: Some(message.clone()).filter(|message| !message.is_empty()),
            started_at: Some(time(report.started_at)),
            finished_at: Some(time(report.finished_at)),
            signal: None,
        }
    }

    fn conditions(
        &self,
        phase: &str,
        is_initialized: bool,
        inits: &[ContainerStatus],
        mains: &[ContainerStatus],
        now: WallTime,
    ) -> Vec<PodCondition> {
        let condition = |type_: &str, fault: Option<(&str, String)>| PodCondition {
            type_: type_.to_owned(),
            status: if fault.is_none() { "True" } else { "False" }.to_owned(),
            reason: fault.as_ref().map(|(reason, _)| (*reason).to_owned()),
            message: fault.map(|(_, message)| message).filter(|message| !message.is_empty()),
            last_transition_time: Some(time(now)),
            ..PodCondition::default()
        };
        let is_over = match phase {
            "Succeeded" => Some("PodCompleted"),
            "Failed" => Some("PodFailed"),
            _ => None,
        };
        let has_network = self.seen.sandboxes.first().is_some_and(|sandbox| sandbox.is_ready)
            && (self.pod.spec.host_network == Some(true) || !self.seen.ips.is_empty());
        let specs = self.pod.spec.init_containers.iter().flatten();
        let sidecars = specs.zip(inits).filter(|(spec, _)| is_sidecar(spec)).map(|(_, it)| it);
        let unready: Vec<&str> = sidecars
            .chain(mains)
            .filter(|container| !container.ready)
            .map(|it| &*it.name)
            .collect();
        let uninitialized: Vec<&str> = self
            .pod
            .spec
            .init_containers
            .iter()
            .flatten()
            .filter(|container| !self.is_past(container))
            .map(|container| &*container.name)
            .collect();
        let names = |what: &str, names: &[&str]| format!("{what}: [{}]", names.join(" "));
        let closed = closed_gates(self.pod);
        let ready = |type_: &str| match is_over {
            None if type_ == "Ready" && unready.is_empty() && !closed.is_empty() => {
                condition(type_, Some(("ReadinessGatesNotReady", closed.join(", "))))
            }
            Some(reason) => condition(type_, Some((reason, String::new()))),
            None if unready.is_empty() => condition(type_, None),
            None => {
                let message = names("containers with unready status", &unready);
                condition(type_, Some(("ContainersNotReady", message)))
            }
        };
        let mut initialized = match is_initialized || is_over == Some("PodCompleted") {
            true => condition("Initialized", None),
            false => {
                let message = names("containers with incomplete status", &uninitialized);
                condition("Initialized", Some(("ContainersNotInitialized", message)))
            }
        };
        if is_over == Some("PodCompleted") {
            initialized.reason = Some("PodCompleted".to_owned());
        }
        let started = (!has_network).then(|| ("", String::new()));
        let mut sandbox = condition("PodReadyToStartContainers", started);
        sandbox.reason = None;
        let resize = self.inputs.resize.as_ref().map(|fault| PodCondition {
            reason: Some(fault.reason.to_owned()),
            message: Some(fault.message.clone()),
            ..condition(fault.condition, None)
        });
        let always = [
            sandbox,
            initialized,
            ready("Ready"),
            ready("ContainersReady"),
            condition("PodScheduled", None),
        ];
        always.into_iter().chain(resize).collect()
    }
}

/// Why the pod's readiness gates do not let it be ready, with kubelet's messages.
fn closed_gates(pod: &NodePod) -> Vec<String> {
    let closed = |(kind, status): &(String, Option<String>)| match status.as_deref() {
        Some("True") => None,
        Some(other) => {
            Some(format!("the status of pod readiness gate {kind:?} is not \"True\", but {other}"))
        }
        None => {
            Some(format!("corresponding condition of pod readiness gate {kind:?} does not exist."))
        }
    };
    pod.gates.iter().filter_map(closed).collect()
}

fn waiting(note: Option<&WaitNote>, default: &str) -> ContainerState {
    let reason = note.map_or(default, |note| &note.reason).to_owned();
    let message = note.map(|note| note.message.clone()).filter(|message| !message.is_empty());
    let waiting = Some(ContainerStateWaiting { reason: Some(reason), message });
    ContainerState { waiting, ..ContainerState::default() }
}

/// The phase, by kubelet's rules.
fn phase(pod: &NodePod, inits: &[ContainerStatus], mains: &[ContainerStatus]) -> &'static str {
    let policy = pod.spec.restart_policy.as_deref().unwrap_or("Always");
    let ended = |status: &ContainerStatus| {
        let of = |state: &Option<ContainerState>| state.as_ref()?.terminated.as_ref().cloned();
        of(&status.state).map(|it| it.exit_code)
    };
    let had_run = |status: &ContainerStatus| {
        status.last_state.as_ref().is_some_and(|state| state.terminated.is_some())
    };
    let is_running = |status: &ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let specs = pod.spec.init_containers.iter().flatten();
    for (spec, status) in specs.zip(inits) {
        let is_past = if is_sidecar(spec) {
            status.started == Some(true) || had_run(status) || ended(status).is_some()
        } else {
            ended(status) == Some(0)
        };
        if !is_past {
            let has_failed = ended(status).is_some_and(|code| code != 0);
            let is_final = policy == "Never" && !is_sidecar(spec);
            return if has_failed && is_final { "Failed" } else { "Pending" };
        }
    }
    let waits = |status: &&ContainerStatus| {
        !is_running(status) && ended(status).is_none() && !had_run(status)
    };
    if mains.iter().any(|status| waits(&status)) {
        return "Pending";
    }
    if mains.iter().any(is_running) || policy == "Always" {
        return "Running";
    }
    if mains.iter().all(|status| ended(status) == Some(0)) {
        return "Succeeded";
    }
    let all_ended = mains.iter().all(|status| ended(status).is_some());
    if policy == "Never" && all_ended { "Failed" } else { "Running" }
}

/// Reason of evicted pods.
pub(crate) const EVICTED: &str = "Evicted";

/// Sets the fields of a pod that the kubelet has ended.
pub(crate) fn set_failed(status: &mut PodStatus, reason: &str, message: &str) {
    status.phase = Some("Failed".to_owned());
    status.reason = Some(reason.to_owned());
    status.message = Some(message.to_owned());
    if reason != EVICTED {
        return;
    }
    let condition = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(Timestamp::now())),
        ..PodCondition::default()
    };
    status.conditions.get_or_insert_default().push(condition);
}

/// Merges `status` into `old`: keeps transition times of unchanged conditions and fields of other
/// writers.
pub(crate) fn merged(old: &PodStatus, mut status: PodStatus) -> PodStatus {
    let before = old.conditions.as_deref().unwrap_or_default();
    let conditions = status.conditions.get_or_insert_default();
    for condition in conditions.iter_mut() {
        let same = before
            .iter()
            .find(|other| other.type_ == condition.type_ && other.status == condition.status);
        if let Some(time) = same.and_then(|other| other.last_transition_time.clone()) {
            condition.last_transition_time = Some(time);
        }
    }
    let own: Vec<String> = conditions.iter().map(|own| own.type_.clone()).collect();
    let is_others =
        |other: &&PodCondition| !OWNED.contains(&&*other.type_) && !own.contains(&other.type_);
    conditions.extend(before.iter().filter(is_others).cloned());
    if old.start_time.is_some() {
        status.start_time.clone_from(&old.start_time);
    }
    status.qos_class.clone_from(&old.qos_class);
    status.nominated_node_name.clone_from(&old.nominated_node_name);
    if status.ephemeral_container_statuses.is_none() {
        status.ephemeral_container_statuses.clone_from(&old.ephemeral_container_statuses);
    }
    status.resize.clone_from(&old.resize);
    status.observed_generation = old.observed_generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::next::ObservedSandbox;
    use ferrokube_cri::ContainerMetadata;

    fn pod(spec: &str) -> NodePod {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}");
        NodePod::from_file(text.as_bytes(), "n").unwrap()
    }

    fn report(name: &str, attempt: u32, phase: ContainerPhase, code: i32) -> ContainerReport {
        ContainerReport {
            id: format!("{name}{attempt}"),
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt }),
            state: phase as i32,
            exit_code: code,
            started_at: 1,
            ..ContainerReport::default()
        }
    }

    fn seen(containers: Vec<ContainerReport>) -> ObservedPod {
        let sandbox = ObservedSandbox { id: "s".to_owned(), attempt: 0, is_ready: true };
        ObservedPod { sandboxes: vec![sandbox], containers, ips: vec!["10.0.0.2".to_owned()] }
    }

    fn inputs() -> StatusInputs {
        StatusInputs { runtime: "containerd".to_owned(), ..StatusInputs::default() }
    }

    fn of(spec: &str, containers: Vec<ContainerReport>) -> PodStatus {
        status(&pod(spec), &seen(containers), &inputs(), 0)
    }

    fn condition(status: &PodStatus, type_: &str) -> (String, String) {
        let all = status.conditions.as_deref().unwrap();
        let found = all.iter().find(|it| it.type_ == type_).unwrap();
        (found.status.clone(), found.reason.clone().unwrap_or_default())
    }

    use ContainerPhase::{Exited, Running};

    #[test]
    fn phases_are_kubelets() {
        let two = "containers: [{name: a, image: i}, {name: b, image: i}]";
        for (policy, a, b, expected) in [
            ("Always", (Running, 0), (Running, 0), "Running"),
            ("Always", (Exited, 0), (Exited, 1), "Running"),
            ("Never", (Exited, 0), (Running, 0), "Running"),
            ("Never", (Exited, 0), (Exited, 0), "Succeeded"),
            ("Never", (Exited, 0), (Exited, 1), "Failed"),
            ("OnFailure", (Exited, 0), (Exited, 0), "Succeeded"),
            ("OnFailure", (Exited, 0), (Exited, 1), "Running"),
        ] {
            let containers = vec![report("a", 0, a.0, a.1), report("b", 0, b.0, b.1)];
            let status = of(&format!("{{restartPolicy: {policy}, {two}}}"), containers);
            assert_eq!(status.phase.as_deref(), Some(expected), "{policy} {a:?} {b:?}");
        }
        let one = of(&format!("{{{two}}}"), vec![report("a", 0, Running, 0)]);
        assert_eq!(one.phase.as_deref(), Some("Pending"));
        assert_eq!(condition(&one, "Ready"), ("False".into(), "ContainersNotReady".into()));
    }

    #[test]
    fn init_containers_hold_the_others_back() {
        let spec = "{restartPolicy: Never, initContainers: [{name: i, image: i}], containers: \
                    [{name: a, image: i}]}";
        let running = of(spec, vec![report("i", 0, Running, 0)]);
        assert_eq!(running.phase.as_deref(), Some("Pending"));
        let state = running.container_statuses.unwrap().remove(0).state.unwrap();
        assert_eq!(state.waiting.unwrap().reason.as_deref(), Some("PodInitializing"));
        let failed = of(spec, vec![report("i", 0, Exited, 1)]);
        assert_eq!(failed.phase.as_deref(), Some("Failed"));
        assert_eq!(condition(&failed, "Initialized").0, "False");
        let done = of(spec, vec![report("i", 0, Exited, 0), report("a", 0, Running, 0)]);
        assert_eq!(done.phase.as_deref(), Some("Running"));
        assert_eq!(condition(&done, "Ready").0, "True");
        assert_eq!(done.pod_ip.as_deref(), Some("10.0.0.2"));
    }

    #[test]
    fn an_init_container_that_the_runtime_has_lost_has_succeeded() {
        let spec = "{initContainers: [{name: i, image: i}], containers: [{name: a, image: i}]}";
        let status = of(spec, vec![report("a", 0, Running, 0)]);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(condition(&status, "Initialized").0, "True");
        let lost = status.init_container_statuses.unwrap().remove(0);
        let state = lost.state.unwrap().terminated.unwrap();
        assert_eq!(
            (lost.ready, state.exit_code, state.reason.as_deref()),
            (true, 0, Some("Completed"))
        );
        let none = of(spec, Vec::new());
        assert_eq!(none.phase.as_deref(), Some("Pending"));
        assert_eq!(condition(&none, "Initialized").0, "False");
    }

    #[test]
    fn a_pod_is_ready_when_its_readiness_gates_are_true() {
        let of = |status: Option<&str>| {
            let mut pod = pod("{containers: [{name: a, image: i}], readinessGates: \
                               [{conditionType: x.io/a}]}");
            assert_eq!(pod.gates, [("x.io/a".to_owned(), None)]);
            pod.gates[0].1 = status.map(str::to_owned);
            let status = super::status(&pod, &seen(vec![report("a", 0, Running, 0)]), &inputs(), 0);
            assert_eq!(condition(&status, "ContainersReady").0, "True");
            condition(&status, "Ready")
        };
        let closed = ("False".to_owned(), "ReadinessGatesNotReady".to_owned());
        assert_eq!((of(None), of(Some("False"))), (closed.clone(), closed));
        assert_eq!(of(Some("True")), ("True".to_owned(), String::new()));
    }

    #[test]
    fn a_container_in_back_off_waits_and_shows_its_end() {
        let pod = pod("{containers: [{name: a, image: i}]}");
        let mut inputs = inputs();
        let note = WaitNote { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
        inputs.waiting.insert("a".to_owned(), note);
        let status = status(&pod, &seen(vec![report("a", 2, Exited, 3)]), &inputs, 0);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let container = status.container_statuses.unwrap().remove(0);
        assert_eq!(container.restart_count, 2);
        assert_eq!(container.container_id.as_deref(), Some("containerd://a2"));
        let ended = container.last_state.unwrap().terminated.unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (3, Some("Error")));
        let waiting = container.state.unwrap().waiting.unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    }

    #[test]
    fn transition_times_stay_until_the_condition_changes_and_others_conditions_stay() {
        let spec = "{containers: [{name: a, image: i}]}";
        let old = PodStatus {
            conditions: Some(vec![PodCondition {
                type_: "example.com/gate".to_owned(),
                status: "True".to_owned(),
                ..PodCondition::default()
            }]),
            ..of(spec, vec![report("a", 0, Running, 0)])
        };
        let day = 86_400_000_000_000;
        let new = status(&pod(spec), &seen(vec![report("a", 0, Exited, 1)]), &inputs(), day);
        let first = merged(&PodStatus::default(), of(spec, vec![report("a", 0, Running, 0)]));
        let next = merged(&first, new.clone());
        let at = |status: &PodStatus, type_: &str| {
            let all = status.conditions.clone().unwrap();
            all.into_iter().find(|it| it.type_ == type_).unwrap().last_transition_time
        };
        assert_eq!(at(&next, "Initialized"), Some(time(0)));
        assert_eq!(at(&next, "Ready"), Some(time(day)));
        let kept = merged(&old, new).conditions.unwrap();
        assert!(kept.iter().any(|it| it.type_ == "example.com/gate"));
    }
}
