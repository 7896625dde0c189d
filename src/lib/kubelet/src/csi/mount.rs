//! Staging and publishing of a volume for a pod.

use super::abilities::DriverAbilities;
use super::attachment;
use super::drivers::RegisteredDriver;
use super::failure::{CsiMountError, MountStep};
use super::in_use::unique_name;
use super::mount_table::is_mounted;
use super::records::{self, RecordPhase, VolumeRecord};
use super::rules::{DriverRules, mode};
use super::source::CsiVolume;
use super::tokens::{TOKENS, tokens};
use crate::background::in_background;
use crate::node::PodNode;
use crate::objects::{PodObjectError, PodObjects};
use crate::pod::NodePod;
use crate::volumes::group_files;
use ferrokube_csi::{CriError, NodePublishVolumeRequest, NodeStageVolumeRequest};
use k8s_openapi::api::core::v1::SecretReference;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A volume on its way to a pod.
pub(super) struct MountingVolume<'a> {
    node: &'a PodNode,
    pod: &'a NodePod,
    volume: &'a CsiVolume,
    driver: &'a RegisteredDriver,
    pub(super) rules: DriverRules,
    record: VolumeRecord,
    pub(super) publish_context: BTreeMap<String, String>,
}

impl CsiVolume {
    /// Where it is mounted for a pod.
    pub(super) fn target(&self, node: &PodNode, pod: &NodePod) -> PathBuf {
        records::target(&node.paths.root, &pod.uid, &self.directory)
    }
}

/// Whether a volume with this mount point is mounted already. Nothing is asked of its driver or of
/// the API server.
pub(crate) fn is_ready(target: &Path) -> io::Result<bool> {
    let Some(directory) = target.parent() else { return Ok(false) };
    let record = VolumeRecord::read(directory)?;
    Ok(record.is_some_and(|record| record.phase == RecordPhase::Mounted) && is_mounted(target)?)
}

/// Mounts a volume for a pod, and returns where; idempotent, and cancel safe: what was begun is
/// recorded, and is continued by the next call or undone when the pod ends.
///
/// # Errors
/// [`CsiMountError`].
pub(crate) async fn set_up(
    node: &PodNode,
    pod: &NodePod,
    volume: &CsiVolume,
) -> Result<PathBuf, CsiMountError> {
    let failed = |why: String| volume.failed(MountStep::Publish, why);
    let lock = node.csi.lock(&volume.driver, &volume.handle);
    let _turn = lock.lock().await;
    let target = volume.target(node, pod);
    let known = target.clone();
    let is_ready = in_background(move || is_ready(&known)).await;
    if is_ready.map_err(|error| failed(error.to_string()))? {
        return Ok(target);
    }
    let driver = node.csi.driver(&volume.driver).await.map_err(|why| failed(no_client(why)))?;
    let rules = node.csi.rules.read(&*node.objects, &volume.driver).await;
    let rules = rules.map_err(|error| failed(error.to_string()))?;
    if let Some(why) = rules.refusal(volume) {
        return Err(failed(why));
    }
    let mut mounting = MountingVolume::new(node, pod, volume, &driver, rules);
    if !volume.is_ephemeral {
        mounting.attach().await?;
        mounting.stage().await?;
    }
    mounting.publish(&target).await.map_err(failed)?;
    tracing::info!(
        namespace = pod.namespace,
        pod = pod.name,
        volume = volume.spec_name,
        driver = volume.driver,
        "volume mounted"
    );
    Ok(target)
}

pub(super) fn no_client(why: String) -> String {
    format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {why}")
}

impl<'a> MountingVolume<'a> {
    /// Nothing has been done.
    pub(super) fn new(
        node: &'a PodNode,
        pod: &'a NodePod,
        volume: &'a CsiVolume,
        driver: &'a RegisteredDriver,
        rules: DriverRules,
    ) -> Self {
        let record = VolumeRecord {
            driver_name: volume.driver.clone(),
            volume_handle: volume.handle.clone(),
            spec_name: volume.spec_name.clone(),
            node_name: node.name.clone(),
            attachment: String::new(),
            volume_lifecycle_mode: mode(volume).to_owned(),
            phase: RecordPhase::Waiting,
        };
        Self { node, pod, volume, driver, rules, record, publish_context: BTreeMap::new() }
    }

    /// Waits for the attachment, if the driver wants one.
    async fn attach(&mut self) -> Result<(), CsiMountError> {
        let Self { node, volume, .. } = *self;
        if !self.rules.attaches {
            return Ok(());
        }
        let failed = |why| volume.failed(MountStep::Attach, why);
        let name = attachment::name(volume, &node.name);
        self.record.attachment.clone_from(&name);
        // Found by a next kubelet, which must report the volume, too.
        self.keep(RecordPhase::Waiting).await.map_err(failed)?;
        self.keep_staged(RecordPhase::Waiting).await.map_err(failed)?;
        let in_use = unique_name(&volume.driver, &volume.handle);
        node.csi.in_use.add(&in_use).await.map_err(failed)?;
        let context = attachment::attached(&*node.objects, volume, &name).await;
        self.publish_context = context.map_err(failed)?;
        Ok(())
    }

    /// Stages the volume, unless the driver does without.
    async fn stage(&mut self) -> Result<(), CsiMountError> {
        let Self { node, volume, driver, .. } = *self;
        let failed = |why| volume.failed(MountStep::Stage, why);
        self.keep(RecordPhase::Called).await.map_err(failed)?;
        self.keep_staged(RecordPhase::Called).await.map_err(failed)?;
        if !driver.abilities.stages {
            return Ok(());
        }
        let secrets = secrets(&*node.objects, "NodeStageSecretRef", volume.stage_secret.as_ref());
        let directory = records::staged(&node.paths.root, &volume.driver, &volume.handle);
        let path = records::stage_of(&directory);
        let made = path.clone();
        let made = in_background(move || std::fs::create_dir_all(made)).await;
        made.map_err(|error| failed(error.to_string()))?;
        let request = NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: path.display().to_string(),
            volume_capability: Some(volume.capability(driver.abilities, self.group_of_driver())),
            secrets: secrets.await.map_err(failed)?,
            volume_context: volume.attributes.clone(),
        };
        let staged = driver.client.node_stage_volume(request).await;
        staged.map(|_| ()).map_err(|error: CriError| failed(error.to_string()))
    }

    async fn publish(&mut self, target: &Path) -> Result<(), String> {
        self.keep(RecordPhase::Called).await?;
        self.call(target).await?;
        self.keep(RecordPhase::Mounted).await
    }

    /// Has the driver publish the volume; idempotent.
    pub(super) async fn call(&self, target: &Path) -> Result<(), String> {
        let Self { node, pod, volume, driver, .. } = *self;
        let DriverAbilities { stages, mounts_for_group, .. } = driver.abilities;
        let directory = records::staged(&node.paths.root, &volume.driver, &volume.handle);
        let staged = records::stage_of(&directory).display().to_string();
        let secret = volume.publish_secret.as_ref();
        let mut secrets = secrets(&*node.objects, "NodePublishSecretRef", secret).await?;
        let mut volume_context = self.rules.attributes(volume, pod);
        if let Some(tokens) = tokens(&*node.objects, pod, &self.rules.tokens).await? {
            let is_secret = self.rules.has_secret_tokens;
            let among = if is_secret { &mut secrets } else { &mut volume_context };
            among.insert(TOKENS.to_owned(), tokens);
        }
        let request = NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: if stages && !volume.is_ephemeral {
                staged
            } else {
                String::new()
            },
            target_path: target.display().to_string(),
            volume_capability: Some(volume.capability(driver.abilities, self.group_of_driver())),
            readonly: volume.read_only,
            secrets,
            volume_context,
        };
        driver.client.node_publish_volume(request).await.map_err(|error| error.to_string())?;
        let group =
            pod.fs_group().filter(|_| !mounts_for_group && self.rules.gives_to_group(volume));
        if let Some(group) = group {
            let (path, handle) = (target.to_owned(), &volume.handle);
            let if_needed = pod.gives_files_if_needed();
            let given = in_background(move || group_files::give(&path, group, if_needed)).await;
            given.map_err(|error| format!("applyFSGroup failed for vol {handle}: {error}"))?;
        }
        Ok(())
    }

    /// The group for a driver that gives files to it itself.
    fn group_of_driver(&self) -> Option<u32> {
        self.pod.fs_group().filter(|_| self.driver.abilities.mounts_for_group)
    }

    /// Writes the pod's record. One whose driver was called never waits again: it must be asked to
    /// undo what it did.
    async fn keep(&mut self, phase: RecordPhase) -> Result<(), String> {
        let directory = &self.volume.directory;
        let directory = records::published(&self.node.paths.root, &self.pod.uid, directory);
        let was_called = phase == RecordPhase::Waiting
            && phase_in(&directory).await?.is_some_and(|known| known != RecordPhase::Waiting);
        self.record.phase = if was_called { RecordPhase::Called } else { phase };
        write(self.record.clone(), directory).await
    }

    /// Writes the node's record. It stays `Called` once it is.
    async fn keep_staged(&mut self, phase: RecordPhase) -> Result<(), String> {
        let CsiVolume { driver, handle, .. } = self.volume;
        let directory = records::staged(&self.node.paths.root, driver, handle);
        if phase_in(&directory).await? == Some(RecordPhase::Called) {
            return Ok(());
        }
        write(VolumeRecord { phase, ..self.record.clone() }, directory).await
    }
}

/// How far the volume of a record's directory is.
async fn phase_in(directory: &Path) -> Result<Option<RecordPhase>, String> {
    let read = directory.to_owned();
    let known = in_background(move || VolumeRecord::read(&read)).await;
    Ok(known.map_err(|error| error.to_string())?.map(|record| record.phase))
}

async fn write(record: VolumeRecord, directory: PathBuf) -> Result<(), String> {
    let written = in_background(move || record.write(&directory)).await;
    written.map_err(|error| error.to_string())
}

/// The content of a referenced secret. Error messages are kubelet's.
pub(super) async fn secrets(
    objects: &dyn PodObjects,
    field: &str,
    reference: Option<&SecretReference>,
) -> Result<BTreeMap<String, String>, String> {
    let Some(reference) = reference else { return Ok(BTreeMap::new()) };
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    let failed = |why: String| format!("fetching {field} {namespace}/{name} failed: {why}");
    let missing = || PodObjectError::Missing { kind: "secrets", name: name.to_owned() };
    let found = objects.secret(namespace, name).await.map_err(|error| failed(error.to_string()))?;
    let secret = found.ok_or_else(|| failed(missing().to_string()))?;
    let text = |(key, value): (String, k8s_openapi::ByteString)| {
        let value = String::from_utf8(value.0);
        // The value itself is in the error.
        let value = value.map_err(|_| failed(format!("key {key} is not UTF-8")))?;
        Ok((key, value))
    };
    secret.data.unwrap_or_default().into_iter().map(text).collect()
}
