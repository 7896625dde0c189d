//! Rotation: a log above the size limit is renamed and the runtime reopens it; older files are
//! compressed, and the oldest are removed. File names and order are kubelet's.

use super::{COMPRESSED, LogDirectory};
use crate::assemble::{CONTAINER_NAME, POD_UID};
use crate::background::in_background;
use crate::config::LogRotation;
use crate::node::PodNode;
use ferrokube_cri::{
    ContainerFilter, ContainerPhase, ContainerStateValue, ContainerStatusRequest, CriError,
    ListContainersRequest, ReopenContainerLogRequest,
};
use futures::StreamExt;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{Timestamp, ToSpan, civil::DateTime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

const STAMP: &str = "%Y%m%d-%H%M%S";

/// Why a log was not rotated; retried at the next check.
#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error("cannot inspect the container: {0}")]
    Look(#[source] CriError),
    #[error("cannot tidy up the older logs: {0}")]
    Tidy(#[source] io::Error),
    #[error("cannot rename the log: {0}")]
    Rename(#[source] io::Error),
    #[error("the runtime does not reopen the log: {0}")]
    Reopen(#[source] CriError),
}

/// Rotates logs until dropped.
pub(crate) async fn run(node: &PodNode, policy: LogRotation) {
    let Some(max_bytes) = policy.max_bytes else { return std::future::pending().await };
    // By id of the container, which keeps its path.
    let mut paths: BTreeMap<String, PathBuf> = BTreeMap::new();
    loop {
        tokio::time::sleep(policy.interval).await;
        let running = match running(node).await {
            Ok(running) => running,
            Err(error) => {
                tracing::warn!(%error, "cannot list the containers whose logs are to be rotated");
                continue;
            }
        };
        paths.retain(|id, _| running.contains(id));
        for id in running {
            if paths.contains_key(&id) {
                continue;
            }
            match path_of(node, &id).await {
                Ok(path) => paths.extend(path.map(|path| (id, path))),
                Err(error) => failed(&id, &error),
            }
        }
        let attempt = async |(id, path): (String, PathBuf)| {
            let done = rotate(node, &id, path, max_bytes, policy.max_files).await;
            done.unwrap_or_else(|error| failed(&id, &error));
        };
        let large = large(node, paths.clone(), max_bytes).await;
        let workers = policy.workers.max(1) as usize;
        futures::stream::iter(large).for_each_concurrent(workers, attempt).await;
    }
}

fn failed(id: &str, error: &RotationError) {
    tracing::warn!(container = id, %error, "cannot rotate the log of a container");
}

/// Ids of our running containers.
async fn running(node: &PodNode) -> Result<BTreeSet<String>, CriError> {
    let state = Some(ContainerStateValue { state: ContainerPhase::Running as i32 });
    let filter = Some(ContainerFilter { state, ..ContainerFilter::default() });
    let all = node.runtime.list_containers(ListContainersRequest { filter }).await?.containers;
    let ours = all.into_iter().filter(|it| {
        // A runtime may ignore filters.
        it.state == ContainerPhase::Running as i32
            && it.labels.contains_key(POD_UID)
            && it.labels.contains_key(CONTAINER_NAME)
    });
    Ok(ours.map(|it| it.id).collect())
}

/// Path of a container's log; `None` if it has none, or has ended.
async fn path_of(node: &PodNode, id: &str) -> Result<Option<PathBuf>, RotationError> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let report = match node.runtime.container_status(request).await {
        Ok(response) => response.status.unwrap_or_default(),
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(RotationError::Look(error)),
    };
    let has_log = report.state() == ContainerPhase::Running && !report.log_path.is_empty();
    Ok(has_log.then(|| report.log_path.into()))
}

/// Logs that are too large, or whose size is unknown.
async fn large(
    node: &PodNode,
    paths: BTreeMap<String, PathBuf>,
    max_bytes: u64,
) -> Vec<(String, PathBuf)> {
    let logs = node.paths.logs.clone();
    let found = in_background(move || {
        let is_small = |path: &Path| size(&logs, path).is_ok_and(|size| size < max_bytes);
        Ok(paths.into_iter().filter(|(_, path)| !is_small(path)).collect())
    });
    found.await.unwrap_or_default()
}

fn size(logs: &Path, path: &Path) -> io::Result<u64> {
    super::open(logs, path)?.metadata().map(|meta| meta.len())
}

async fn rotate(
    node: &PodNode,
    id: &str,
    path: PathBuf,
    max_bytes: u64,
    max_files: u32,
) -> Result<(), RotationError> {
    let logs = node.paths.logs.clone();
    let size = in_background({
        let (logs, path) = (logs.clone(), path.clone());
        move || size(&logs, &path)
    });
    match size.await {
        Ok(size) if size < max_bytes => return Ok(()),
        Ok(_) => {}
        // A previous kubelet was killed after the rename.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return reopen(node, id).await,
        Err(error) => return Err(RotationError::Tidy(error)),
    }
    let tidied = in_background({
        let (logs, path) = (logs.clone(), path.clone());
        move || tidy(&logs, &path, max_files)
    });
    // Rotate even if compression fails: the disk may be full.
    let newest = tidied.await.map_err(RotationError::Tidy)?;
    let renamed = in_background({
        let (logs, path) = (logs.clone(), path.clone());
        move || {
            let (directory, log) = LogDirectory::of(&logs, &path)?;
            let rotated = format!("{log}.{}", stamp(Timestamp::now(), newest));
            directory.rename(log, &rotated)?;
            Ok(rotated)
        }
    });
    let rotated = renamed.await.map_err(RotationError::Rename)?;
    if let Err(error) = reopen(node, id).await {
        // Undo the rename, so that the next check retries.
        let back = in_background(move || {
            let (directory, log) = LogDirectory::of(&logs, &path)?;
            directory.rename(&rotated, log)
        });
        back.await.map_err(RotationError::Rename)?;
        return Err(error);
    }
    tracing::debug!(container = id, "log rotated");
    Ok(())
}

async fn reopen(node: &PodNode, id: &str) -> Result<(), RotationError> {
    let request = ReopenContainerLogRequest { container_id: id.to_owned() };
    node.runtime.reopen_container_log(request).await.map_err(RotationError::Reopen)?;
    Ok(())
}

/// Makes room for one more file: removes leftovers and the oldest logs, compresses the others.
/// Returns the newest timestamp.
fn tidy(logs: &Path, path: &Path, max_files: u32) -> io::Result<Option<DateTime>> {
    let (directory, log) = LogDirectory::of(logs, path)?;
    let older = directory.older(log)?;
    for name in &older.remains {
        directory.remove(name)?;
    }
    // The current log becomes one of them.
    let stays = (max_files as usize).saturating_sub(2);
    let goes = older.whole.len().saturating_sub(stays);
    for name in &older.whole[..goes] {
        directory.remove(name)?;
    }
    for name in older.whole[goes..].iter().filter(|name| !name.ends_with(COMPRESSED)) {
        if let Err(error) = directory.compress(name) {
            tracing::warn!(file = name, %error, "cannot compress a rotated log");
        }
    }
    let newest = older.whole.last().and_then(|name| name.get(log.len() + 1..)?.get(..15));
    Ok(newest.and_then(|stamp| DateTime::strptime(STAMP, stamp).ok()))
}

/// The current time, or just after `newest` if the clock was set back: names must sort by age.
fn stamp(now: Timestamp, newest: Option<DateTime>) -> String {
    let now = now.to_zoned(TimeZone::UTC).datetime();
    let after = newest.and_then(|newest| newest.checked_add(1.second()).ok());
    after.map_or(now, |after| after.max(now)).strftime(STAMP).to_string()
}

/// Removes all log files of a removed container; failures are logged.
pub(crate) async fn forget(node: &PodNode, log_path: &str) {
    let (logs, path) = (node.paths.logs.clone(), PathBuf::from(log_path));
    let removed = in_background(move || {
        let (directory, log) = match LogDirectory::of(&logs, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let older = directory.older(log)?;
        for name in older.whole.iter().chain(&older.remains) {
            directory.remove(name)?;
        }
        directory.remove(log)
    });
    if let Err(error) = removed.await {
        tracing::warn!(log = log_path, %error, "cannot remove the logs of a removed container");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_also_when_the_clock_does_not() {
        let now: Timestamp = "2026-01-02T15:04:05Z".parse().unwrap();
        let newest = |text| DateTime::strptime(STAMP, text).ok();
        assert_eq!(stamp(now, None), "20260102-150405");
        assert_eq!(stamp(now, newest("20260102-150404")), "20260102-150405");
        assert_eq!(stamp(now, newest("20260102-150405")), "20260102-150406");
        assert_eq!(stamp(now, newest("20261231-235959")), "20270101-000000");
    }
}
