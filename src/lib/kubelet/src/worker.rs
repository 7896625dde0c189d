//! The worker of a pod: look, do the next step, look again.

use crate::assemble::{self, POD_UID};
use crate::kubelet::PodNode;
use crate::next::{PodAction, SeenPod, SeenSandbox, name_of, next};
use crate::static_pods::StaticPod;
use ferrokube_cri::{
    ContainerFilter, ContainerPhase, ContainerReport, ContainerStatusRequest,
    CreateContainerRequest, CriError, ListContainersRequest, ListPodSandboxRequest,
    PodSandboxFilter, PodSandboxState, RemoveContainerRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use ferrokube_images::{PodIdentity, PullError, PullPolicy, PullRequest};
use k8s_openapi::api::core::v1::Volume;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};
use tokio::sync::watch;

/// Pause after a failed step.
const RETRY: Duration = Duration::from_secs(10);
/// Longest time between two looks, whatever wakes the worker.
const RESYNC: Duration = Duration::from_secs(60);

/// A step that failed; tried again after a pause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("the runtime refused a step: {0}")]
    Runtime(#[from] CriError),
    #[error("cannot make a directory of the pod: {0}")]
    Directory(#[from] io::Error),
    #[error("no image: {0}")]
    Image(#[from] PullError),
}

/// Runs a pod until it has finished; cancel safe. `changes` wakes it.
pub(crate) async fn run(node: Arc<PodNode>, pod: StaticPod, mut changes: watch::Receiver<u64>) {
    loop {
        changes.mark_unchanged();
        match work(&node, &pod).await {
            Ok(Some(pause)) => {
                let _ = tokio::time::timeout(pause.min(RESYNC), changes.changed()).await;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "pod");
                // In full: the failed step itself changed what the runtime has.
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// One step. Returns how long to wait for the next; `None`: look at once.
async fn work(node: &PodNode, pod: &StaticPod) -> Result<Option<Duration>, WorkerError> {
    let seen = look(node, &pod.uid).await?;
    match next(pod, &seen, now()) {
        PodAction::RunSandbox(attempt) => run_sandbox(node, pod, attempt).await?,
        PodAction::RemoveSandbox(id) => remove_sandbox(node, id).await?,
        PodAction::Start(name, attempt) => start(node, pod, &seen, &name, attempt).await?,
        PodAction::Wait(pause) => return Ok(Some(pause)),
        PodAction::Finished => return Ok(Some(Duration::MAX)),
    }
    Ok(None)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// What the runtime has of a pod.
pub(crate) async fn look(node: &PodNode, uid: &str) -> Result<SeenPod, CriError> {
    let label_selector = BTreeMap::from([(POD_UID.to_owned(), uid.to_owned())]);
    let filter =
        PodSandboxFilter { label_selector: label_selector.clone(), ..PodSandboxFilter::default() };
    let request = ListPodSandboxRequest { filter: Some(filter) };
    let mut items = node.runtime.list_pod_sandbox(request).await?.items;
    // A runtime that ignores filters costs time, not correctness.
    items.retain(|sandbox| sandbox.labels.get(POD_UID).is_some_and(|it| it == uid));
    items.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    let newest = items.first().map(|sandbox| sandbox.id.clone());
    let sandboxes = items.into_iter().map(|sandbox| SeenSandbox {
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
    Ok(SeenPod { sandboxes, containers })
}

async fn run_sandbox(node: &PodNode, pod: &StaticPod, attempt: u32) -> Result<(), WorkerError> {
    let is_empty = |volume: &&Volume| volume.host_path.is_none();
    let empty = pod.spec.volumes.iter().flatten().filter(is_empty);
    let empty: Vec<PathBuf> = empty
        .map(|volume| assemble::empty_directory(&node.paths.root, &pod.uid, &volume.name))
        .collect();
    let logs = assemble::log_directory(&node.paths.logs, pod);
    in_background(move || {
        for path in empty {
            fs::create_dir_all(&path)?;
            // Any user of the pod may write: kubelet's mode of an emptyDir.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        }
        fs::create_dir_all(logs)
    })
    .await?;
    let config = Some(assemble::sandbox(pod, &node.paths.logs, attempt));
    let request = RunPodSandboxRequest { config, ..RunPodSandboxRequest::default() };
    let sandbox = node.runtime.run_pod_sandbox(request).await?.pod_sandbox_id;
    tracing::info!(namespace = pod.namespace, pod = pod.name, sandbox, "sandbox runs");
    Ok(())
}

async fn remove_sandbox(node: &PodNode, pod_sandbox_id: String) -> Result<(), WorkerError> {
    let request = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
    node.runtime.stop_pod_sandbox(request).await?;
    node.runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await?;
    Ok(())
}

/// Pulls, creates and starts a container.
async fn start(
    node: &PodNode,
    pod: &StaticPod,
    seen: &SeenPod,
    name: &str,
    attempt: u32,
) -> Result<(), WorkerError> {
    // Both come from the same pod and look.
    let Some(container) = pod.all_containers().find(|container| container.name == name) else {
        return Ok(());
    };
    let Some(sandbox) = seen.sandboxes.first() else { return Ok(()) };
    let sandbox_config = assemble::sandbox(pod, &node.paths.logs, sandbox.attempt);
    let image = container.image.clone().unwrap_or_default();
    let pull = PullRequest {
        pod: PodIdentity {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        policy: policy(container.image_pull_policy.as_deref(), &image),
        image,
        credentials: Vec::new(),
        sandbox: Some(sandbox_config.clone()),
        runtime_handler: String::new(),
        annotations: pod.annotations.clone(),
    };
    let image_ref = node.images.ensure(&pull).await?;
    if let Some(stale) = seen.latest(name).filter(|it| it.state() != ContainerPhase::Exited) {
        let container_id = stale.id.clone();
        node.runtime.remove_container(RemoveContainerRequest { container_id }).await?;
    }
    let config = assemble::container(pod, container, image_ref, attempt, &node.paths.root);
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.id.clone(),
        config: Some(config),
        sandbox_config: Some(sandbox_config),
    };
    let container_id = node.runtime.create_container(request).await?.container_id;
    let request = StartContainerRequest { container_id: container_id.clone() };
    if let Err(error) = node.runtime.start_container(request).await {
        // It would be found as created, and be made again without end.
        node.runtime.remove_container(RemoveContainerRequest { container_id }).await?;
        return Err(error.into());
    }
    tracing::info!(namespace = pod.namespace, pod = pod.name, container = name, attempt, "started");
    tidy(node, seen, name).await
}

/// Removes all but the newest ended container of this name.
async fn tidy(node: &PodNode, seen: &SeenPod, name: &str) -> Result<(), WorkerError> {
    let newest = seen.latest(name).map(|report| report.id.clone());
    let is_old = |report: &&ContainerReport| {
        name_of(report).0 == name
            && report.state() == ContainerPhase::Exited
            && Some(&report.id) != newest.as_ref()
    };
    for old in seen.containers.iter().filter(is_old) {
        let container_id = old.id.clone();
        node.runtime.remove_container(RemoveContainerRequest { container_id }).await?;
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

/// Ends a pod: containers in parallel within its grace period, then the
/// sandbox and the pod's files.
pub(crate) async fn end(node: &PodNode, uid: &str, grace: i64) -> Result<(), WorkerError> {
    let seen = look(node, uid).await?;
    let deadline = Duration::from_secs(grace.unsigned_abs() + 120);
    let runtime = node.runtime.within(Some(deadline));
    let stops = seen.containers.iter().filter(|it| it.state() == ContainerPhase::Running);
    let mut tasks = tokio::task::JoinSet::new();
    for report in stops {
        let (runtime, container_id) = (runtime.clone(), report.id.clone());
        let stop = async move {
            runtime.stop_container(StopContainerRequest { container_id, timeout: grace }).await
        };
        tasks.spawn(node.in_context_of_caller(stop));
    }
    for stopped in tasks.join_all().await {
        stopped?;
    }
    for sandbox in seen.sandboxes {
        remove_sandbox(node, sandbox.id).await?;
    }
    let directory = assemble::pod_directory(&node.paths.root, uid);
    let removed = in_background(move || fs::remove_dir_all(directory)).await;
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs what may block on a disk.
async fn in_background(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
