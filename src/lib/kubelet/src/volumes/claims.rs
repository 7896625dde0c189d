//! Volumes of claims: directories or devices named by a persistent volume, local ones or those of
//! CSI drivers.
//!
//! A bound claim stays bound, so what it is bound to is recorded as a link in the pod's directory,
//! and containers restart without the API server.

use super::{VolumeError, check_host_path, claim_of, device_path, path};
use crate::background::in_background;
use crate::csi::{self, CsiVolume, DriverWishes};
use crate::node::PodNode;
use crate::objects::{PodObjectError, PodObjects};
use crate::pod::NodePod;
use ferrokube_apimachinery::quantity::Quantity as ParsedQuantity;
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, Node, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, PersistentVolumeSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

/// A claim with the volume that it is bound to.
struct BoundClaim {
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
}

/// Finds the volume of a claim, checks that this node may use it, and records it.
pub(super) async fn prepare(
    node: &PodNode,
    pod: &NodePod,
    volume: &Volume,
) -> Result<(), VolumeError> {
    if let Ok(known) = kept(node, pod, volume).await
        && in_background(move || Ok(is_ready(&known))).await.unwrap_or(false)
    {
        return Ok(());
    }
    let name = &volume.name;
    let links = [path, device_path].map(|link| link(&node.paths.root, &pod.uid, volume));
    let Some(source) = claim_of(pod, volume) else { return Ok(()) };
    let BoundClaim { volume, .. } = claimed(node, pod, volume, &source).await?;
    let own = node.objects.node(&node.name);
    let spec = volume.spec.unwrap_or_default();
    let title = volume.metadata.name.unwrap_or_default();
    let is_block = csi::is_block(&spec);
    if !is_near(&spec, own).await? {
        let operation = if is_block { "MapVolume" } else { "MountVolume" };
        return Err(VolumeError::Persistent(format!(
            "{operation}.NodeAffinity check failed for volume {title:?} : no matching \
             NodeSelectorTerms"
        )));
    }
    if let Some(why) = misused(pod, name, is_block) {
        return Err(VolumeError::Claim { volume: name.to_owned(), why });
    }
    let [directory_link, device_link] = links;
    let link = if is_block { device_link } else { directory_link };
    if let Some(driven) = &spec.csi {
        let read_only = source.read_only == Some(true);
        let volume = CsiVolume::persistent(pod, &title, &spec, driven, read_only);
        let directory = csi::set_up(node, pod, &volume).await?;
        let kept = in_background(move || keep(&directory, &link)).await;
        return kept.map_err(|error| directory_error(&title, &error));
    }
    let (host_path, local) = (spec.host_path, spec.local.map(|local| local.path));
    let (volume, has_group) = (title.clone(), pod.fs_group().is_some());
    let found = in_background(move || {
        Ok(match (host_path, local) {
            (None, Some(path)) if is_block => local_device(&title, &path),
            (Some(given), _) if !is_block => host_directory(&title, &given),
            (None, Some(_)) if has_group => Err(VolumeError::Directory {
                volume: title.clone(),
                why: "fsGroup is not applied to local volumes".to_owned(),
            }),
            (None, Some(path)) => local_directory(&title, &path),
            _ => Err(VolumeError::Persistent(format!(
                "failed to get Plugin from volumeSpec for volume {title:?} err=no volume plugin \
                 matched"
            ))),
        }
        .and_then(|directory| {
            keep(&directory, &link).map_err(|error| directory_error(&title, &error))
        }))
    });
    found.await.unwrap_or_else(|error| Err(directory_error(&volume, &error)))
}

/// kubelet's message about a volume that a container uses as what it is not.
fn misused(pod: &NodePod, volume: &str, is_block: bool) -> Option<String> {
    let ephemeral = pod.ephemeral.iter().map(|one| &one.container);
    let is_misused = pod.all_containers().chain(ephemeral).any(|container| {
        let mounts = || container.volume_mounts.iter().flatten().map(|mount| &mount.name);
        let devices = || container.volume_devices.iter().flatten().map(|device| &device.name);
        if is_block {
            mounts().any(|name| name == volume)
        } else {
            devices().any(|name| name == volume)
        }
    });
    let (mode, list) =
        if is_block { ("Block", "volumeMounts") } else { ("Filesystem", "volumeDevices") };
    is_misused.then(|| format!("volume {volume} has volumeMode {mode}, but is specified in {list}"))
}

/// Directory or device of a claim, as it is recorded.
///
/// # Errors
/// It is not, or not yet.
pub(super) async fn kept(node: &PodNode, pod: &NodePod, volume: &Volume) -> io::Result<PathBuf> {
    let [directory, device] =
        [path, device_path].map(|link| link(&node.paths.root, &pod.uid, volume));
    in_background(move || fs::read_link(directory).or_else(|_| fs::read_link(device))).await
}

/// The claim of a pod's volume and what it is bound to. A claim of the volume's own must be the
/// pod's, not one of its name that a user has made.
async fn claimed(
    node: &PodNode,
    pod: &NodePod,
    volume: &Volume,
    source: &PersistentVolumeClaimVolumeSource,
) -> Result<BoundClaim, VolumeError> {
    let failed = |why| VolumeError::Claim { volume: volume.name.clone(), why };
    let bound = bound(&*node.objects, &pod.namespace, source).await.map_err(failed)?;
    let owners = bound.claim.metadata.owner_references.iter().flatten();
    let is_own = owners.filter(|owner| owner.controller == Some(true)).any(|it| it.uid == pod.uid);
    if volume.ephemeral.is_some() && !is_own {
        let (namespace, claim, name) = (&pod.namespace, &source.claim_name, &pod.name);
        return Err(failed(format!(
            "PVC {namespace}/{claim} was not created for pod {namespace}/{name} (pod is not owner)"
        )));
    }
    Ok(bound)
}

/// The mounted volume of a claim whose CSI driver may have to be called.
pub(super) struct DrivenClaim {
    bound: BoundClaim,
    volume: CsiVolume,
    wishes: DriverWishes,
}

/// The volume of a claim, if it is mounted and its driver may have to be called. Reads no object
/// otherwise.
pub(super) async fn driven(
    node: &PodNode,
    pod: &NodePod,
    volume: &Volume,
) -> Result<Option<DrivenClaim>, VolumeError> {
    // There is no link until the volume is mounted.
    let Ok(target) = kept(node, pod, volume).await else { return Ok(None) };
    if !csi::is_target(&target) {
        return Ok(None);
    }
    let wishes = csi::wishes(node, &target).await;
    let Some(source) = claim_of(pod, volume).filter(|_| wishes != DriverWishes::default()) else {
        return Ok(None);
    };
    let bound = claimed(node, pod, volume, &source).await?;
    let spec = bound.volume.spec.clone().unwrap_or_default();
    let title = bound.volume.metadata.name.clone().unwrap_or_default();
    let read_only = source.read_only == Some(true);
    let persistent = |driven| CsiVolume::persistent(pod, &title, &spec, driven, read_only);
    Ok(spec.csi.as_ref().map(persistent).map(|volume| DrivenClaim { bound, volume, wishes }))
}

impl DrivenClaim {
    /// Publishes it again, if its driver wants that.
    pub(super) async fn republish(&self, node: &PodNode, pod: &NodePod) -> Result<(), VolumeError> {
        if self.wishes.republishes {
            csi::republish(node, pod, &self.volume).await?;
        }
        Ok(())
    }

    /// Expands it if its storage is larger than its claim shows, and has the claim show that.
    pub(super) async fn expand(&self, node: &PodNode, pod: &NodePod) -> Result<(), VolumeError> {
        let BoundClaim { claim, volume } = &self.bound;
        let Some((capacity, bytes)) = grown(claim, volume).filter(|_| self.wishes.expands) else {
            return Ok(());
        };
        if self.volume.is_read_only() || !csi::expand(node, pod, &self.volume, bytes).await? {
            return Ok(());
        }
        let recorded = node.objects.expanded(claim, capacity).await;
        recorded.map_err(|error| VolumeError::Persistent(error.to_string()))?;
        let title = volume.metadata.name.as_deref().unwrap_or_default();
        let message =
            format!("MountVolume.NodeExpandVolume succeeded for volume {title:?} {}", node.name);
        node.report(pod, "FileSystemResizeSuccessful", message);
        Ok(())
    }
}

/// The capacity of a volume, also in bytes, if its claim shows less: the storage has grown, and the
/// file system on it has not yet.
fn grown<'a>(
    claim: &PersistentVolumeClaim,
    volume: &'a PersistentVolume,
) -> Option<(&'a Quantity, i64)> {
    let bytes = |quantity: &Quantity| Some(ParsedQuantity::parse(&quantity.0).ok()?.value());
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    let shown = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    let has = bytes(capacity)?;
    (has > bytes(shown)?).then_some((capacity, has))
}

fn directory_error(volume: &str, error: &io::Error) -> VolumeError {
    VolumeError::Directory { volume: volume.to_owned(), why: error.to_string() }
}

fn host_directory(volume: &str, given: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
    check_host_path(given).map_err(|error| directory_error(volume, &error))?;
    Ok(PathBuf::from(&given.path))
}

fn local_directory(volume: &str, path: &str) -> Result<PathBuf, VolumeError> {
    let is_directory = fs::metadata(path).map(|meta| meta.is_dir());
    let why = match is_directory {
        Ok(true) => return Ok(PathBuf::from(path)),
        Ok(false) => "only directories are supported".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("path {path:?} does not exist")
        }
        Err(error) => error.to_string(),
    };
    Err(VolumeError::Persistent(format!(
        "MountVolume.NewMounter initialization failed for volume {volume:?} : {why}"
    )))
}

fn local_device(volume: &str, path: &str) -> Result<PathBuf, VolumeError> {
    let why = match fs::metadata(path).map(|meta| meta.file_type().is_block_device()) {
        Ok(true) => return Ok(PathBuf::from(path)),
        Ok(false) => format!("path {path:?} is not a block device"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("path {path:?} does not exist")
        }
        Err(error) => error.to_string(),
    };
    Err(VolumeError::Persistent(format!(
        "MapVolume.NewBlockVolumeMapper initialization failed for volume {volume:?} : {why}"
    )))
}

fn keep(directory: &Path, link: &Path) -> io::Result<()> {
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    match symlink(directory, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Whether what a claim is bound to can be used: a CSI volume must be mounted, which it is not
/// after the machine's restart.
fn is_ready(kept: &Path) -> bool {
    !csi::is_target(kept) || csi::is_ready(kept).unwrap_or(false)
}

/// The volume of a claim. Error messages are kubelet's.
async fn bound(
    objects: &dyn PodObjects,
    namespace: &str,
    source: &PersistentVolumeClaimVolumeSource,
) -> Result<BoundClaim, String> {
    let name = &source.claim_name;
    let failed = |why: String| format!("error processing PVC {namespace}/{name}: {why}");
    let missing = |kind: &str, name: &str| format!("{kind} {name:?} not found");
    let unread = |why: String| failed(format!("failed to fetch PVC from API server: {why}"));
    let claim = objects.claim(namespace, name).await.map_err(|error| unread(error.to_string()))?;
    let claim = claim.ok_or_else(|| unread(missing("persistentvolumeclaims", name)))?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(failed("PVC is being deleted".to_owned()));
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err(failed("PVC is not bound".to_owned()));
    }
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    let volume = volume.unwrap_or_default();
    if volume.is_empty() {
        return Err(failed("PVC has empty pvc.Spec.VolumeName".to_owned()));
    }
    let unread =
        |why: String| failed(format!("failed to fetch PV {volume} from API server: {why}"));
    let found = objects.volume(&volume).await.map_err(|error| unread(error.to_string()))?;
    let found = found.ok_or_else(|| unread(missing("persistentvolumes", &volume)))?;
    let Some(owner) = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(failed(format!(
            "found PV object {volume} but it has a nil pv.Spec.ClaimRef indicating it is not yet \
             bound to the claim"
        )));
    };
    let (theirs, own) = (owner.uid.as_deref(), claim.metadata.uid.as_deref());
    if theirs != own {
        return Err(failed(format!(
            "found PV object {volume} but its pv.Spec.ClaimRef.UID {} does not point to claim.UID {}",
            theirs.unwrap_or_default(),
            own.unwrap_or_default()
        )));
    }
    Ok(BoundClaim { claim, volume: found })
}

/// Whether this node may use a volume.
async fn is_near(
    spec: &PersistentVolumeSpec,
    own: crate::objects::ObjectFuture<'_, Node>,
) -> Result<bool, VolumeError> {
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let Some(required) = required else { return Ok(true) };
    let unread = |error: PodObjectError| VolumeError::Persistent(error.to_string());
    let node = own.await.map_err(unread)?.unwrap_or_default();
    Ok(required.node_selector_terms.iter().any(|term| matches(term, &node)))
}

fn matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let name = node.metadata.name.as_deref();
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let is_met =
        |one: &NodeSelectorRequirement| requirement(one, labels.get(&one.key).map(String::as_str));
    let is_field =
        |one: &NodeSelectorRequirement| one.key == "metadata.name" && requirement(one, name);
    // A term without requirements matches nothing.
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(is_met)
        && fields.iter().all(is_field)
}

fn requirement(one: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let wanted = one.values.as_deref().unwrap_or_default();
    let has = || value.is_some_and(|value| wanted.iter().any(|one| one == value));
    let order = || {
        let bound: i64 = wanted.first()?.parse().ok()?;
        Some(value?.parse::<i64>().ok()?.cmp(&bound))
    };
    match one.operator.as_str() {
        "In" => has(),
        "NotIn" => !has(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => order() == Some(std::cmp::Ordering::Greater),
        "Lt" => order() == Some(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
