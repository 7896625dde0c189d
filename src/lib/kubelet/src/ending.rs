//! Termination of a pod: containers within the grace period, then the sandbox and files.

use crate::assemble;
use crate::background::in_background;
use crate::csi;
use crate::ends::PodEnd;
use crate::hooks::{self, LEAST_GRACE, StoppingContainer};
use crate::next::{ObservedPod, name_of};
use crate::node::{PodNode, now};
use crate::observe::observe;
use crate::pod::NodePod;
use crate::removal;
use crate::status::{self, StatusInputs, status};
use crate::volumes;
use crate::worker::{WorkerError, remove_sandbox};
use ferrokube_cri::{ContainerPhase, ContainerReport};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};
use tokio::time::Instant;

/// A pod to terminate.
#[derive(Clone, Debug)]
pub(crate) struct EndingPod {
    pub(crate) uid: String,
    /// Seconds.
    pub(crate) grace: i64,
    /// `None` if only the runtime knows the pod.
    pub(crate) pod: Option<NodePod>,
    pub(crate) end: PodEnd,
}

/// Terminates a pod; idempotent.
pub(crate) async fn end(node: &Arc<PodNode>, ending: &EndingPod) -> Result<(), WorkerError> {
    let EndingPod { uid, pod, .. } = ending;
    let seen = observe(node, uid).await?;
    stop(node, ending, &seen).await?;
    // After a restart the runtime may have nothing left to report; keep the previous status.
    let is_shown = match &ending.end {
        PodEnd::Failed { .. } => true,
        PodEnd::Deleted => !seen.containers.is_empty(),
        PodEnd::Removed | PodEnd::Refused => false,
    };
    if let Some(pod) = pod.as_ref().filter(|_| is_shown) {
        let seen = observe(node, uid).await?;
        let mut messages = BTreeMap::new();
        crate::termination::read(node, pod, &seen, &mut messages).await;
        let inputs = StatusInputs {
            messages,
            host_ips: node.host_ips.clone(),
            runtime: node.runtime_name(),
            started_at: now(),
            ..StatusInputs::default()
        };
        let mut status = status(pod, &seen, &inputs, now());
        if let PodEnd::Failed { reason, message, .. } = &ending.end {
            status::set_failed(&mut status, reason, message);
        }
        node.statuses.post(pod, status);
    }
    for sandbox in seen.sandboxes {
        remove_sandbox(node, sandbox.id).await?;
    }
    let (logs, own) = (node.paths.logs.clone(), uid.clone());
    if let Err(error) = in_background(move || remove_logs(&logs, &own)).await {
        tracing::warn!(uid, %error, "cannot remove the logs of an ended pod");
    }
    let (limit, own) = (node.process_limit(), uid.clone());
    in_background(move || limit.release(&own)).await?;
    let directory = assemble::pod_directory(&node.paths.root, uid);
    in_background(move || volumes::release_all(&directory)).await?;
    csi::tear_down(node, uid).await?;
    let (root, own) = (node.paths.root.clone(), uid.clone());
    Ok(in_background(move || removal::remove(&root, &own)).await?)
}

/// Removes a pod's log directories, whose names end with its UID, without following links.
fn remove_logs(logs: &Path, uid: &str) -> io::Result<()> {
    let own = assemble::plain(uid);
    let all = match fs::read_dir(logs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in all {
        let entry = entry?;
        let name = entry.file_name();
        let is_own =
            name.to_str().and_then(|name| name.rsplit_once('_')).is_some_and(|it| it.1 == own);
        if is_own && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Stops running containers in parallel, then sidecars in reverse order.
async fn stop(
    node: &Arc<PodNode>,
    ending: &EndingPod,
    seen: &ObservedPod,
) -> Result<(), WorkerError> {
    let ip = hooks::address(node, seen);
    let begun = Instant::now();
    let inits = ending.pod.iter().flat_map(|pod| pod.spec.init_containers.iter().flatten());
    let sidecars: Vec<&str> = inits
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| &*container.name)
        .collect();
    let running = || seen.containers.iter().filter(|it| it.state() == ContainerPhase::Running);
    let mains: Vec<_> = running().filter(|report| !sidecars.contains(&name_of(report).0)).collect();
    stop_all(node, ending, &mains, &ip, ending.grace).await?;
    for name in sidecars.into_iter().rev() {
        let own: Vec<_> = running().filter(|report| name_of(report).0 == name).collect();
        let used = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
        let left = ending.grace.saturating_sub(used).max(LEAST_GRACE.min(ending.grace));
        stop_all(node, ending, &own, &ip, left).await?;
    }
    Ok(())
}

async fn stop_all(
    node: &Arc<PodNode>,
    ending: &EndingPod,
    reports: &[&ContainerReport],
    ip: &str,
    grace: i64,
) -> Result<(), WorkerError> {
    let mut tasks = tokio::task::JoinSet::new();
    for report in reports {
        if let Some(pod) = &ending.pod {
            let name = name_of(report).0;
            node.report_of(pod, name, "Killing", format!("Stopping container {name}"));
        }
        let (own, pod) = (Arc::clone(node), ending.pod.clone());
        let (report, ip) = ((*report).clone(), ip.to_owned());
        let stop = async move {
            let (pod, report) = (pod.as_ref(), &report);
            hooks::stop(&own, &StoppingContainer { pod, report, ip, grace }).await
        };
        tasks.spawn(node.in_context_of_caller(stop));
    }
    for stopped in tasks.join_all().await {
        stopped?;
    }
    Ok(())
}
