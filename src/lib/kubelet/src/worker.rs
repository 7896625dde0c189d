//! The worker of a pod: observe, perform the next step, repeat.

use crate::assemble::{self, ContainerStart};
use crate::background::in_background;
use crate::csi::{self, CsiUnmountError};
use crate::deadline;
use crate::dns;
use crate::ends::PodEnd;
use crate::environment;
use crate::hooks::{self, StoppingContainer};
use crate::log_files;
use crate::names;
use crate::next::{
    ObservedPod, PodAction, PodHolds, RESTARTS, WallTime, backing_off, has_changed, name_of, next,
    restarts_after,
};
use crate::node::{PodNode, now};
use crate::objects::PodObjectError;
use crate::observe::observe;
use crate::pod::NodePod;
use crate::probes::{ActedContainer, FailedProbe, PodProbes};
use crate::pull_secrets::{self, ImageCredentials};
use crate::resize::{self, PodResizes};
use crate::run_as;
use crate::runtime_class;
use crate::status::{StatusInputs, WaitNote, status};
use crate::termination;
use crate::volumes::{self, VolumeError};
use ferrokube_cri::{
    ContainerMetadata, ContainerPhase, ContainerReport, CreateContainerRequest, CriError,
    ImageSpec, ImageStatusRequest, PodSandboxConfig, RemoveContainerRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
};
use ferrokube_images::{PullError, PullPolicy, PullRequest};
use k8s_openapi::api::core::v1::Container;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::watch;
use tokio::time::Instant;

/// Pause after a failed step.
pub(crate) const RETRY: Duration = Duration::from_secs(10);
/// Max time between observations without a wake-up. The pod loop lists all pods every second, and
/// wakes the workers of those that have changed.
const RESYNC: Duration = Duration::from_secs(300);
/// Interval of updates of volumes.
const VOLUMES: Duration = Duration::from_secs(60);

/// A failed step; retried after a pause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("the runtime refused a step: {0}")]
    Runtime(#[from] CriError),
    #[error("cannot make a directory of the pod: {0}")]
    Directory(#[from] io::Error),
    #[error("no image: {0}")]
    Image(#[from] PullError),
    #[error("cannot create the container: {0}")]
    Create(#[source] CriError),
    #[error("cannot start the container: {0}")]
    Start(#[source] CriError),
    #[error("PostStartHook failed: {0}")]
    PostStart(String),
    #[error("cannot make the container's variables: {0}")]
    Variables(#[from] PodObjectError),
    #[error("cannot make the pod's volumes: {0}")]
    Volume(#[from] VolumeError),
    #[error("{0}")]
    User(String),
    #[error("cannot unmount the pod's volumes: {0}")]
    Unmount(#[from] CsiUnmountError),
    #[error("cannot limit the processes of the pod: {0}")]
    Processes(#[source] io::Error),
    #[error("cannot configure the pod's sandbox: {0}")]
    Sandbox(String),
    #[error("the kubelet panicked")]
    Panicked,
}

impl WorkerError {
    /// The reason and message of the waiting container.
    fn note(&self) -> WaitNote {
        let (reason, message) = match self {
            Self::Image(error) => (error.reason, error.message.clone()),
            Self::Create(error) => ("CreateContainerError", error.to_string()),
            Self::Start(error) => ("RunContainerError", error.to_string()),
            Self::Runtime(error) => ("CreateContainerError", error.to_string()),
            Self::PostStart(why) => ("PostStartHookError", why.clone()),
            Self::Variables(error) => ("CreateContainerConfigError", error.to_string()),
            Self::User(why) => ("CreateContainerConfigError", why.clone()),
            Self::Volume(error) => ("CreateContainerConfigError", error.to_string()),
            Self::Directory(error) => ("CreateContainerConfigError", error.to_string()),
            Self::Processes(_) | Self::Sandbox(_) | Self::Unmount(_) | Self::Panicked => {
                ("CreateContainerConfigError", self.to_string())
            }
        };
        WaitNote { reason: reason.to_owned(), message }
    }
}

/// A worker's own memory of its pod, lost on restart.
struct WorkerMemory {
    /// Containers that failed to start, by name, with the reason and the time of the next attempt.
    failed: BTreeMap<String, (WaitNote, Instant)>,
    /// Termination messages, by container id.
    messages: BTreeMap<String, String>,
    /// Ids of containers whose back-off was reported.
    reported: BTreeSet<String>,
    started_at: WallTime,
    /// When the volumes were last updated; `None`: the pod has changed since.
    volumes_at: Option<Instant>,
    /// Addresses to update the volumes with; `None`: they are not updated.
    ips: Option<Vec<String>>,
    probes: PodProbes,
    resizes: PodResizes,
}

impl WorkerMemory {
    /// When the volumes are to be updated; `None`: never.
    fn volumes_due(&self) -> Option<Instant> {
        self.ips.as_ref()?;
        Some(self.volumes_at.map_or_else(Instant::now, |at| at + VOLUMES))
    }
}

/// Runs a pod until it has finished; cancel safe. `changes` wakes the worker, and has the pod as it
/// is now.
pub(crate) async fn run(node: Arc<PodNode>, mut changes: watch::Receiver<Arc<NodePod>>) {
    let mut pod = Arc::clone(&changes.borrow());
    let mut memory = WorkerMemory {
        failed: BTreeMap::new(),
        messages: BTreeMap::new(),
        reported: BTreeSet::new(),
        started_at: pod.started_at.unwrap_or_else(now),
        volumes_at: Some(Instant::now()),
        ips: None,
        probes: PodProbes::default(),
        resizes: PodResizes::default(),
    };
    loop {
        let new = Arc::clone(&changes.borrow_and_update());
        if (&new.labels, &new.annotations) != (&pod.labels, &pod.annotations) {
            memory.volumes_at = None;
        }
        pod = new;
        match work(&node, &pod, &mut memory).await {
            Ok(Some(pause)) => {
                let until = Instant::now() + pause.min(RESYNC);
                loop {
                    let due = memory.volumes_due().map_or(until, |due| due.min(until));
                    if has_changed_until(due, &mut changes, &memory.probes).await || due == until {
                        break;
                    }
                    update_volumes(&node, &pod, &mut memory).await;
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "pod");
                // Wait in full: the failed step itself changed the runtime's state, which wakes the
                // worker.
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Waits for a change, but not longer than this. Returns whether there was one.
async fn has_changed_until(
    until: Instant,
    changes: &mut watch::Receiver<Arc<NodePod>>,
    probes: &PodProbes,
) -> bool {
    tokio::select! {
        _ = changes.changed() => true,
        () = probes.changed() => true,
        () = tokio::time::sleep_until(until) => false,
    }
}

/// Performs one step. Returns how long to wait for the next; `None`: observe immediately.
///
/// Rare steps are boxed: the task of a pod that waits is as large as its largest step.
async fn work(
    node: &Arc<PodNode>,
    pod: &NodePod,
    memory: &mut WorkerMemory,
) -> Result<Option<Duration>, WorkerError> {
    let seen = observe(node, &pod.uid).await?;
    let time = Instant::now();
    memory.failed.retain(|_, (_, until)| *until > time);
    let paused = memory.failed.iter().map(|(name, (_, until))| (name.clone(), *until - time));
    memory.probes.follow(node, pod, &seen);
    memory.resizes.follow(node, pod, &seen).await;
    let failed = memory.probes.failed();
    let holds = PodHolds {
        paused: paused.collect(),
        starting: memory.probes.starting(pod, &seen),
        unhealthy: failed.keys().cloned().collect(),
        restarting: memory.resizes.restarting(),
    };
    let known: Vec<&String> = seen.containers.iter().map(|report| &report.id).collect();
    memory.messages.retain(|id, _| known.contains(&id));
    memory.reported.retain(|id| known.contains(&id));
    let pauses = backing_off(pod, &seen, &holds, now());
    report_pauses(node, pod, &seen, &pauses, &mut memory.reported);
    termination::read(node, pod, &seen, &mut memory.messages).await;
    let status = status(pod, &seen, &inputs(node, pod, &seen, memory, &pauses), now());
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    node.statuses.post(pod, status);
    let left = deadline::time_left(pod, memory.started_at, now()).filter(|_| !is_over);
    if left == Some(Duration::ZERO) {
        end_after_deadline(node, pod);
        return Ok(Some(RESYNC));
    }
    // The volumes of a finished pod are unmounted.
    memory.ips = (volumes::has_updates(pod) && !is_over).then(|| seen.ips.clone());
    update_volumes(node, pod, memory).await;
    match next(pod, &seen, &holds, now()) {
        PodAction::RunSandbox(attempt) => Box::pin(run_sandbox(node, pod, attempt)).await?,
        PodAction::RemoveSandbox(id) => remove_sandbox(node, id).await?,
        PodAction::StopSandbox(id) => {
            let request = StopPodSandboxRequest { pod_sandbox_id: id };
            node.runtime.stop_pod_sandbox(request).await?;
        }
        PodAction::Kill(id) => {
            let is_resized = holds.restarting.contains(&id);
            match seen.containers.iter().find(|report| report.id == id && is_resized) {
                Some(report) => Box::pin(resize::kill(node, pod, &seen, report)).await?,
                None => Box::pin(kill(node, pod, &seen, &id, failed.get(&id))).await?,
            }
        }
        PodAction::Start(name, attempt) => {
            if let Err(error) = Box::pin(start(node, pod, &seen, &name, attempt)).await {
                let container = name.as_str();
                let (namespace, own) = (&pod.namespace, &pod.name);
                tracing::warn!(namespace, pod = own, container, %error, "cannot start");
                memory.failed.insert(name, (error.note(), Instant::now() + RETRY));
            }
        }
        PodAction::Wait(pause) => {
            let others = [left, memory.resizes.pause()];
            return Ok(Some(others.into_iter().flatten().fold(pause, Duration::min)));
        }
        PodAction::Finished => {
            // Others may wait for a volume of a pod that has terminated.
            Box::pin(release(node, &pod.uid)).await?;
            return Ok(Some(Duration::MAX));
        }
    }
    Ok(None)
}

/// Unmounts the volumes of a pod whose containers have terminated for good; idempotent.
async fn release(node: &PodNode, uid: &str) -> Result<(), WorkerError> {
    let directory = assemble::pod_directory(&node.paths.root, uid);
    in_background(move || volumes::release_parts(&directory)).await?;
    Ok(csi::tear_down(node, uid).await?)
}

/// Stops a pod that has finished for the API and has no worker. Its containers and their logs stay.
pub(crate) async fn stop_finished(
    node: &PodNode,
    uid: &str,
    grace: i64,
) -> Result<(), WorkerError> {
    let seen = observe(node, uid).await?;
    let ip = hooks::address(node, &seen);
    for report in seen.containers.iter().filter(|it| it.state() == ContainerPhase::Running) {
        let stopping = StoppingContainer { pod: None, report, ip: ip.clone(), grace };
        hooks::stop(node, &stopping).await?;
    }
    for sandbox in seen.sandboxes.into_iter().filter(|sandbox| sandbox.is_ready) {
        let request = StopPodSandboxRequest { pod_sandbox_id: sandbox.id };
        node.runtime.stop_pod_sandbox(request).await?;
    }
    release(node, uid).await
}

/// Has the pod loop terminate the pod, once.
fn end_after_deadline(node: &PodNode, pod: &NodePod) {
    if node.ends.get(&pod.uid).is_some() {
        return;
    }
    let (reason, message) = deadline::EXCEEDED;
    tracing::warn!(namespace = pod.namespace, pod = pod.name, "past its active deadline");
    node.report(pod, reason, message.to_owned());
    let (message, grace) = (message.to_owned(), assemble::grace(pod));
    node.ends.want(&pod.uid, PodEnd::Failed { reason, message, grace });
}

/// Kills a container that failed a probe; without one, its definition has changed.
async fn kill(
    node: &PodNode,
    pod: &NodePod,
    seen: &ObservedPod,
    id: &str,
    probe: Option<&FailedProbe>,
) -> Result<(), WorkerError> {
    let Some(report) = seen.containers.iter().find(|report| report.id == id) else {
        return Ok(());
    };
    let name = name_of(report).0;
    let has_changed = has_changed(pod, report);
    let why = match probe {
        Some(probe) if !has_changed => format!("failed {} probe", probe.kind),
        _ => "definition changed".to_owned(),
    };
    let is_last = pod.spec.restart_policy.as_deref() == Some("Never")
        && pod.spec.containers.iter().any(|container| container.name == name);
    let then = if is_last && !has_changed { "" } else { ", will be restarted" };
    node.report_of(pod, name, "Killing", format!("Container {name} {why}{then}"));
    let grace = probe.and_then(|probe| probe.grace).unwrap_or_else(|| assemble::grace(pod));
    let ip = hooks::address(node, seen);
    let stopping = StoppingContainer { pod: Some(pod), report, ip, grace };
    Ok(hooks::stop(node, &stopping).await?)
}

/// Reports containers in back-off, each once.
fn report_pauses(
    node: &PodNode,
    pod: &NodePod,
    seen: &ObservedPod,
    pauses: &[(String, Duration)],
    reported: &mut BTreeSet<String>,
) {
    for (name, _) in pauses {
        if seen.latest(name).is_some_and(|report| reported.insert(report.id.clone())) {
            let NodePod { namespace, name: own, uid, .. } = pod;
            let message = format!(
                "Back-off restarting failed container {name} in pod {own}_{namespace}({uid})"
            );
            node.warn_of(pod, name, "BackOff", message);
        }
    }
}

fn inputs(
    node: &PodNode,
    pod: &NodePod,
    seen: &ObservedPod,
    memory: &WorkerMemory,
    pauses: &[(String, Duration)],
) -> StatusInputs {
    let mut waiting: BTreeMap<String, WaitNote> =
        memory.failed.iter().map(|(name, (note, _))| (name.clone(), note.clone())).collect();
    for (name, pause) in pauses {
        let message = format!(
            "back-off {} restarting failed container={name} pod={}_{}({})",
            ferrokube_images::go_duration(*pause),
            pod.name,
            pod.namespace,
            pod.uid
        );
        let note = WaitNote { reason: "CrashLoopBackOff".to_owned(), message };
        waiting.entry(name.clone()).or_insert(note);
    }
    // A container killed because its definition changed has not ended.
    let changed = |report: &&ContainerReport| has_changed(pod, report);
    for report in pod.all_containers().filter_map(|it| seen.latest(&it.name)).filter(changed) {
        let reason = "ContainerCreating".to_owned();
        let note = WaitNote { reason, message: String::new() };
        waiting.entry(name_of(report).0.to_owned()).or_insert(note);
    }
    StatusInputs {
        waiting,
        messages: memory.messages.clone(),
        unready: memory.probes.unready(pod, seen),
        starting: memory.probes.starting(pod, seen),
        host_ips: node.host_ips.clone(),
        runtime: node.runtime_name(),
        started_at: memory.started_at,
        resources: memory.resizes.held(seen),
        resize: memory.resizes.fault().cloned(),
    }
}

/// Updates the pod's volumes if it is time.
async fn update_volumes(node: &PodNode, pod: &NodePod, memory: &mut WorkerMemory) {
    let Some(ips) = memory.ips.clone() else { return };
    if memory.volumes_due().is_none_or(|due| due > Instant::now()) {
        return;
    }
    memory.volumes_at = Some(Instant::now());
    // Keep the previous files: a deleted config map does not terminate a running pod.
    if let Err(error) = Box::pin(prepare(node, pod, ips)).await {
        tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "cannot update");
    }
}

/// Creates or updates the pod's volumes.
async fn prepare(node: &PodNode, pod: &NodePod, pod_ips: Vec<String>) -> Result<(), WorkerError> {
    let prepared = volumes::prepare(node, pod, &node.facts(pod_ips).await).await;
    Ok(prepared.inspect_err(|error| node.warn(pod, error.reason(), error.to_string()))?)
}

/// The configuration of a sandbox, with its host name, in the pod's control group.
async fn sandbox_config(
    node: &PodNode,
    pod: &NodePod,
    attempt: u32,
) -> Result<PodSandboxConfig, WorkerError> {
    let (limit, uid) = (node.process_limit(), pod.uid.clone());
    let parent = in_background(move || limit.parent(&uid)).await;
    let mut config = assemble::sandbox(pod, &node.paths.logs, attempt);
    if let Some(linux) = &mut config.linux {
        linux.cgroup_parent = parent.map_err(WorkerError::Processes)?;
    }
    // Runtimes reject a host name in the host's UTS namespace.
    if pod.spec.host_network != Some(true) {
        let name = names::kernel_name(pod, &node.dns.domain);
        config.hostname = name.map_err(WorkerError::Sandbox)?;
    }
    Ok(config)
}

async fn run_sandbox(node: &PodNode, pod: &NodePod, attempt: u32) -> Result<(), WorkerError> {
    prepare(node, pod, Vec::new()).await?;
    let logs = assemble::log_directory(&node.paths.logs, pod);
    in_background(move || fs::create_dir_all(logs)).await?;
    let failed = |why: &dyn std::fmt::Display| {
        let message = format!("Failed to create pod sandbox: {why}");
        node.warn(pod, "FailedCreatePodSandBox", message);
    };
    let config = sandbox_config(node, pod, attempt).await;
    let mut config = config.inspect_err(|error| {
        if let WorkerError::Sandbox(why) = error {
            failed(why);
        }
    })?;
    config.dns_config = dns::config(node, pod).await?;
    let handler = runtime_class::handler(&*node.objects, pod).await;
    let handler = handler.inspect_err(|why| failed(why));
    let runtime_handler = handler.map_err(WorkerError::Sandbox)?;
    let request = RunPodSandboxRequest { config: Some(config), runtime_handler };
    let made = node.runtime.run_pod_sandbox(request).await.inspect_err(|error| failed(error));
    let sandbox = made?.pod_sandbox_id;
    tracing::info!(namespace = pod.namespace, pod = pod.name, sandbox, "sandbox runs");
    Ok(())
}

pub(crate) async fn remove_sandbox(
    node: &PodNode,
    pod_sandbox_id: String,
) -> Result<(), WorkerError> {
    let request = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
    node.runtime.stop_pod_sandbox(request).await?;
    node.runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await?;
    Ok(())
}

/// Pulls, creates and starts a container.
async fn start(
    node: &PodNode,
    pod: &NodePod,
    seen: &ObservedPod,
    name: &str,
    attempt: u32,
) -> Result<(), WorkerError> {
    // `next` returns only names of this pod's containers.
    let Some(container) = pod.container(name) else { return Ok(()) };
    let Some(sandbox) = seen.sandboxes.first() else { return Ok(()) };
    let sandbox_config = sandbox_config(node, pod, sandbox.attempt).await?;
    let image = container.image.clone().unwrap_or_default();
    let mut pull = PullRequest {
        pod: pod.identity(),
        field: pod.field(name),
        policy: policy(container.image_pull_policy.as_deref(), &image),
        image,
        credentials: Vec::new(),
        own_credentials: 0,
        sandbox: Some(sandbox_config.clone()),
        runtime_handler: String::new(),
        annotations: pod.annotations.clone(),
    };
    // Pull secrets need the API server, a present image of all pods does not.
    if node.images.needs_credentials(&pull).await {
        let found = credentials(node, pod, &pull.image).await;
        (pull.credentials, pull.own_credentials) = (found.credentials, found.own);
    }
    let image_ref = node.images.ensure(&pull).await?;
    check_user(node, pod, container, &image_ref).await?;
    if let Some(stale) = seen.latest(name).filter(|it| it.state() != ContainerPhase::Exited) {
        let container_id = stale.id.clone();
        node.runtime.remove_container(RemoveContainerRequest { container_id }).await?;
    }
    let is_on_host = pod.spec.host_network == Some(true);
    let pod_ips = if is_on_host { node.host_ips.clone() } else { seen.ips.clone() };
    let hosts = names::hosts_mount(node, pod, container, &pod_ips).await?;
    let facts = node.facts(pod_ips).await;
    let failed = |why: &dyn std::fmt::Display| {
        node.warn_of(pod, name, "Failed", format!("Error: {why}"));
    };
    let environment = environment::resolve(&*node.objects, pod, container, &facts).await;
    let mut environment = environment.inspect_err(|error| failed(error))?;
    let mounts = volumes::mounts(node, pod, container, &mut environment).await;
    let mut mounts = mounts.inspect_err(|error| failed(error))?;
    let devices = volumes::devices(node, pod, container).await;
    let devices = devices.inspect_err(|error| failed(error))?;
    mounts.push(termination::mount(node, pod, container, attempt).await?);
    mounts.extend(hosts);
    let unified = node.process_limit().unified();
    let memory = facts.memory;
    let start =
        ContainerStart { image_ref, attempt, environment, mounts, devices, unified, memory };
    let mut config = assemble::container(pod, container, start, &node.paths.root);
    let restarts = restarts_after(seen.latest(name));
    config.annotations.insert(RESTARTS.to_owned(), restarts.to_string());
    if let Some(target) = target(pod, seen, name)? {
        assemble::share_processes(&mut config, target);
    }
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.id.clone(),
        config: Some(config),
        sandbox_config: Some(sandbox_config),
    };
    let created = node.runtime.create_container(request).await;
    let created = created.inspect_err(|error| failed(error));
    let container_id = created.map_err(WorkerError::Create)?.container_id;
    node.report_of(pod, name, "Created", "Container created".to_owned());
    let request = StartContainerRequest { container_id: container_id.clone() };
    if let Err(error) = node.runtime.start_container(request).await {
        // Otherwise it would be found as created, and replaced in a loop.
        node.runtime.remove_container(RemoveContainerRequest { container_id }).await?;
        failed(&error);
        return Err(WorkerError::Start(error));
    }
    node.report_of(pod, name, "Started", "Container started".to_owned());
    let ip = hooks::address(node, seen);
    let target = ActedContainer { id: container_id, container: container.clone(), ip };
    if let Err(why) = hooks::post_start(node, &target).await {
        node.warn_of(pod, name, "FailedPostStartHook", "PostStartHook failed".to_owned());
        let metadata = Some(ContainerMetadata { name: name.to_owned(), attempt });
        let annotations = hooks::annotations(container);
        let ActedContainer { id, ip, .. } = target;
        let report = &ContainerReport { id, metadata, annotations, ..ContainerReport::default() };
        let grace = assemble::grace(pod);
        hooks::stop(node, &StoppingContainer { pod: Some(pod), report, ip, grace }).await?;
        return Err(WorkerError::PostStart(why));
    }
    tracing::info!(namespace = pod.namespace, pod = pod.name, container = name, attempt, "started");
    tidy(node, seen, name).await
}

/// The container whose processes an ephemeral one sees, if it names one.
fn target(pod: &NodePod, seen: &ObservedPod, name: &str) -> Result<Option<String>, WorkerError> {
    let own = pod.ephemeral.iter().find(|one| one.container.name == name);
    let Some(wanted) = own.and_then(|one| one.target.as_deref()) else { return Ok(None) };
    let running = seen.latest(wanted).filter(|it| it.state() == ContainerPhase::Running);
    let id = running.map(|report| report.id.clone());
    id.map(Some)
        .ok_or_else(|| WorkerError::User(format!("unable to find target container {wanted:?}")))
}

/// Refuses a container that must not be root and would be.
async fn check_user(
    node: &PodNode,
    pod: &NodePod,
    container: &Container,
    image_ref: &str,
) -> Result<(), WorkerError> {
    let mut image = None;
    if run_as::needs_image(pod, container) {
        let spec = Some(ImageSpec { image: image_ref.to_owned(), ..ImageSpec::default() });
        let request = ImageStatusRequest { image: spec, verbose: false };
        image = node.images.runtime().image_status(request).await?.image;
    }
    let Some(why) = run_as::refusal(pod, container, image.as_ref()) else { return Ok(()) };
    node.warn_of(pod, &container.name, "Failed", format!("Error: {why}"));
    Err(WorkerError::User(why))
}

/// Credentials for pulling the image; none: anonymous.
async fn credentials(node: &PodNode, pod: &NodePod, image: &str) -> ImageCredentials {
    let found = pull_secrets::credentials(&*node.objects, &node.providers, pod, image).await;
    if !found.unusable.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not \
             succeed.",
            found.unusable.join(", ")
        );
        node.warn(pod, "FailedToRetrieveImagePullSecret", message);
    }
    found
}

/// Removes all but the newest ended container of this name.
async fn tidy(node: &PodNode, seen: &ObservedPod, name: &str) -> Result<(), WorkerError> {
    let newest = seen.latest(name).map(|report| report.id.clone());
    let is_old = |report: &&ContainerReport| {
        name_of(report).0 == name
            && report.state() == ContainerPhase::Exited
            && Some(&report.id) != newest.as_ref()
    };
    for old in seen.containers.iter().filter(is_old) {
        let container_id = old.id.clone();
        node.runtime.remove_container(RemoveContainerRequest { container_id }).await?;
        log_files::forget(node, &old.log_path).await;
    }
    Ok(())
}

/// kubelet's default: always for `latest`.
fn policy(given: Option<&str>, image: &str) -> PullPolicy {
    match given {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        Some(_) => PullPolicy::IfNotPresent,
        None => {
            let full = ferrokube_images::with_default_tag(image).unwrap_or_default();
            let is_latest = full.ends_with(":latest");
            if is_latest { PullPolicy::Always } else { PullPolicy::IfNotPresent }
        }
    }
}
