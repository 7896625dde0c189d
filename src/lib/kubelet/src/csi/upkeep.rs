//! Calls for volumes that are mounted: what their drivers want, and what their storage needs.
//!
//! A failure leaves the volume as it is, and the call is repeated in the next round.

use super::attachment;
use super::failure::{CsiMountError, MountStep};
use super::mount::{MountingVolume, is_ready, no_client, secrets};
use super::records::{self, VolumeRecord};
use super::source::CsiVolume;
use crate::background::in_background;
use crate::node::PodNode;
use crate::pod::NodePod;
use ferrokube_csi::{CapacityRange, NodeExpandVolumeRequest};
use std::path::Path;

/// Calls that a mounted volume may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverWishes {
    /// The driver wants it published periodically.
    pub(crate) republishes: bool,
    /// The driver can expand it.
    pub(crate) expands: bool,
}

/// The wishes of the driver whose volume is mounted at `target`: from memory, for the most part.
pub(crate) async fn wishes(node: &PodNode, target: &Path) -> DriverWishes {
    let Some(directory) = target.parent().map(Path::to_owned) else {
        return DriverWishes::default();
    };
    let record = in_background(move || VolumeRecord::read(&directory)).await;
    let Some(record) = record.ok().flatten() else { return DriverWishes::default() };
    let name = &record.driver_name;
    let rules = node.csi.rules.recent(&*node.objects, name).await;
    DriverWishes {
        republishes: rules.is_some_and(|rules| rules.republishes),
        expands: node.csi.registered(name).is_some_and(|driver| driver.abilities.expands),
    }
}

/// Publishes a volume again, if its driver wants that and it is mounted.
///
/// # Errors
/// [`CsiMountError`].
pub(crate) async fn republish(
    node: &PodNode,
    pod: &NodePod,
    volume: &CsiVolume,
) -> Result<(), CsiMountError> {
    let failed = |why: String| volume.failed(MountStep::Publish, why);
    let rules = node.csi.rules.recent(&*node.objects, &volume.driver).await;
    let Some(rules) = rules.filter(|rules| rules.republishes) else { return Ok(()) };
    let lock = node.csi.lock(&volume.driver, &volume.handle);
    let _turn = lock.lock().await;
    if !is_mounted(node, pod, volume).await.map_err(failed)? {
        return Ok(());
    }
    let driver = node.csi.driver(&volume.driver).await.map_err(|why| failed(no_client(why)))?;
    let mut mounted = MountingVolume::new(node, pod, volume, &driver, rules);
    if mounted.rules.attaches && !volume.is_ephemeral {
        let name = attachment::name(volume, &node.name);
        let context = attachment::attached(&*node.objects, volume, &name).await;
        mounted.publish_context = context.map_err(failed)?;
    }
    mounted.call(&volume.target(node, pod)).await.map_err(failed)?;
    let (name, volume, driver) = (&pod.name, &volume.spec_name, &volume.driver);
    tracing::debug!(namespace = pod.namespace, pod = name, volume, driver, "volume republished");
    Ok(())
}

/// Has the driver expand a volume to a capacity. Returns whether it did: not if the volume is no
/// longer mounted.
///
/// # Errors
/// [`CsiMountError`].
pub(crate) async fn expand(
    node: &PodNode,
    pod: &NodePod,
    volume: &CsiVolume,
    bytes: i64,
) -> Result<bool, CsiMountError> {
    let failed = |why: String| volume.failed(MountStep::Expand, why);
    let lock = node.csi.lock(&volume.driver, &volume.handle);
    let _turn = lock.lock().await;
    if !is_mounted(node, pod, volume).await.map_err(failed)? {
        return Ok(false);
    }
    let driver = node.csi.driver(&volume.driver).await.map_err(failed)?;
    let secret = volume.expand_secret.as_ref();
    let secrets = secrets(&*node.objects, "NodeExpandSecretRef", secret).await.map_err(failed)?;
    let staged = records::staged(&node.paths.root, &volume.driver, &volume.handle);
    let staged = driver.abilities.stages.then(|| records::stage_of(&staged).display().to_string());
    let group = pod.fs_group().filter(|_| driver.abilities.mounts_for_group);
    let request = NodeExpandVolumeRequest {
        volume_id: volume.handle.clone(),
        volume_path: volume.target(node, pod).display().to_string(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        staging_target_path: staged.unwrap_or_default(),
        volume_capability: Some(volume.capability(driver.abilities, group)),
        secrets,
    };
    let expanded = driver.client.node_expand_volume(request).await;
    expanded.map_err(|error| failed(error.to_string()))?;
    let (name, volume, driver) = (&pod.name, &volume.spec_name, &volume.driver);
    tracing::info!(namespace = pod.namespace, pod = name, volume, driver, bytes, "volume expanded");
    Ok(true)
}

/// The caller has the volume's lock, so its pod has not ended if it is.
async fn is_mounted(node: &PodNode, pod: &NodePod, volume: &CsiVolume) -> Result<bool, String> {
    let target = volume.target(node, pod);
    in_background(move || is_ready(&target)).await.map_err(|error| error.to_string())
}
