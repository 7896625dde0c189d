//! Unpublishing of a pod's volumes, and unstaging of those that no pod uses.

use super::in_use::unique_name;
use super::mount_table::is_mounted;
use super::records::{self, RecordPhase, VolumeRecord};
use crate::background::in_background;
use crate::node::PodNode;
use ferrokube_csi::{CriError, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Interval of searches for staged volumes without a pod.
const UNUSED: Duration = Duration::from_secs(30);

/// A volume that cannot be unmounted. Retried after a pause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiUnmountError {
    #[error("cannot read or remove files of a CSI volume: {0}")]
    Files(#[from] io::Error),
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : {why}")]
    TearDown { volume: String, why: String },
    #[error("UnmountDevice failed for volume {volume:?} : {why}")]
    Unstage { volume: String, why: String },
}

/// Unpublishes all CSI volumes of a pod whose containers are gone, and unstages those that no other
/// pod uses; idempotent and cancel safe.
///
/// # Errors
/// The first volume that a driver has not unpublished. The others were tried.
pub(crate) async fn tear_down(node: &PodNode, uid: &str) -> Result<(), CsiUnmountError> {
    let (root, own) = (node.paths.root.clone(), uid.to_owned());
    let volumes = in_background(move || records::volumes_of_pod(&root, &own)).await?;
    let mut first = Ok(());
    for directory in volumes {
        let done = unpublish(node, directory).await;
        first = first.and(done);
    }
    first
}

/// Searches for staged volumes that no pod uses, and unstages them. Runs until dropped.
pub(crate) async fn run(node: &PodNode) {
    loop {
        // Drivers need a moment to register after the kubelet's start.
        tokio::time::sleep(UNUSED).await;
        let root = node.paths.root.clone();
        let staged = in_background(move || Ok(records::staged_volumes(&root))).await;
        for record in staged.unwrap_or_default() {
            let lock = node.csi.lock(&record.driver_name, &record.volume_handle);
            let _turn = lock.lock().await;
            if let Err(error) = unstage(node, &record).await {
                tracing::warn!(%error, "cannot unstage a volume without pods");
            }
        }
    }
}

/// Unpublishes the volume of a record's directory.
async fn unpublish(node: &PodNode, directory: PathBuf) -> Result<(), CsiUnmountError> {
    let (read, target) = (directory.clone(), records::mount_of(&directory));
    let Some(record) = in_background(move || VolumeRecord::read(&read)).await? else {
        // Made by a kubelet that was killed before it wrote the record.
        return Ok(in_background(move || VolumeRecord::remove(&directory, &target)).await?);
    };
    let failed = |why| CsiUnmountError::TearDown { volume: record.spec_name.clone(), why };
    let lock = node.csi.lock(&record.driver_name, &record.volume_handle);
    let _turn = lock.lock().await;
    if record.phase != RecordPhase::Waiting {
        let driver = node.csi.driver(&record.driver_name).await.map_err(failed)?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: record.volume_handle.clone(),
            target_path: target.display().to_string(),
        };
        let called = driver.client.node_unpublish_volume(request).await;
        released(called.map(|_| ()), target.clone()).await.map_err(failed)?;
        tracing::info!(volume = record.spec_name, driver = record.driver_name, "volume unmounted");
    }
    in_background(move || VolumeRecord::remove(&directory, &target)).await?;
    if let Err(error) = unstage(node, &record).await {
        tracing::warn!(%error, "cannot unstage a volume, retrying");
    }
    Ok(())
}

/// Unstages a volume unless a pod uses it. The caller has its lock.
async fn unstage(node: &PodNode, record: &VolumeRecord) -> Result<(), CsiUnmountError> {
    let (driver_name, handle) = (&record.driver_name, &record.volume_handle);
    let failed = |why| CsiUnmountError::Unstage { volume: record.spec_name.clone(), why };
    let directory = records::staged(&node.paths.root, driver_name, handle);
    let (root, own, read) = (node.paths.root.clone(), record.clone(), directory.clone());
    let known = in_background(move || {
        let is_used = records::is_used(&root, &own.driver_name, &own.volume_handle)?;
        Ok((is_used, VolumeRecord::read(&read)?))
    });
    let (is_used, staged) = known.await?;
    if is_used {
        return Ok(());
    }
    let path = records::stage_of(&directory);
    if staged.is_some_and(|staged| staged.phase != RecordPhase::Waiting) {
        let driver = node.csi.driver(driver_name).await.map_err(failed)?;
        if driver.abilities.stages {
            let request = NodeUnstageVolumeRequest {
                volume_id: handle.clone(),
                staging_target_path: path.display().to_string(),
            };
            let called = driver.client.node_unstage_volume(request).await;
            released(called.map(|_| ()), path.clone()).await.map_err(failed)?;
            tracing::info!(volume = record.spec_name, driver = driver_name, "volume unstaged");
        }
    }
    in_background(move || VolumeRecord::remove(&directory, &path)).await?;
    node.csi.in_use.remove(&unique_name(driver_name, handle));
    Ok(())
}

/// Checks that a driver has unmounted a path. A volume that it no longer knows counts as unmounted
/// if it is.
async fn released(called: Result<(), CriError>, path: PathBuf) -> Result<(), String> {
    match called {
        Err(error) if !error.is_not_found() => return Err(error.to_string()),
        _ => {}
    }
    let shown = path.display().to_string();
    match in_background(move || is_mounted(&path)).await {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!("the driver has left {shown} mounted")),
        Err(error) => Err(error.to_string()),
    }
}
