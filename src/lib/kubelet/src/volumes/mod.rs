//! The volumes of a pod: created before its sandbox, and kept up to date while it runs.
//!
//! Files from config maps, secrets and fields are updated atomically (`atomic.rs`), in a directory
//! that only the kubelet's user may enter.

mod atomic;
mod claims;
pub(crate) mod group_files;
pub(crate) mod measure;
mod memory;
mod mounts;
mod ownership;
mod payload;
mod sub_path;
pub(crate) mod upkeep;

pub(crate) use memory::{is_in_memory, limit};
pub(crate) use mounts::{devices, mounts};

use crate::assemble;
use crate::background::in_background;
use crate::csi::{self, CsiMountError, CsiVolume};
use crate::directories::make_pod_directory;
use crate::fields::NodeFacts;
use crate::node::PodNode;
use crate::objects::PodObjectError;
use crate::pod::NodePod;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, PersistentVolumeClaimVolumeSource, Volume};
use ownership::Ownership;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A volume that cannot be prepared. Retried after a pause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {source}")]
    Object {
        volume: String,
        #[source]
        source: PodObjectError,
    },
    #[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
    Directory { volume: String, why: String },
    #[error("{0}")]
    SubPath(String),
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {why}"
    )]
    Claim { volume: String, why: String },
    #[error("{0}")]
    Persistent(String),
    #[error(transparent)]
    Csi(#[from] CsiMountError),
}

impl VolumeError {
    /// Reason of the event that reports it.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Csi(error) => error.reason(),
            _ => "FailedMount",
        }
    }
}

/// Path of a volume on this machine; that of a claim is a link.
fn path(root: &Path, uid: &str, volume: &Volume) -> PathBuf {
    if let Some(given) = &volume.host_path {
        return PathBuf::from(&given.path);
    }
    if volume.csi.is_some() {
        return csi::target(root, uid, &volume.name);
    }
    let kind = match volume {
        Volume { config_map: Some(_), .. } => "configmap",
        Volume { secret: Some(_), .. } => "secret",
        Volume { downward_api: Some(_), .. } => "downward-api",
        Volume { projected: Some(_), .. } => "projected",
        Volume { persistent_volume_claim: Some(_), .. } | Volume { ephemeral: Some(_), .. } => {
            "persistent-volume-claim"
        }
        _ => return assemble::empty_directory(root, uid, &volume.name),
    };
    let volumes = assemble::pod_directory(root, uid).join("volumes");
    volumes.join(format!("kubernetes.io~{kind}")).join(&volume.name)
}

/// Link to the device of a claim whose volume is one. It has no other: nothing else can be mounted.
fn device_path(root: &Path, uid: &str, volume: &Volume) -> PathBuf {
    let devices = assemble::pod_directory(root, uid).join("volumeDevices");
    devices.join("kubernetes.io~persistent-volume-claim").join(&volume.name)
}

/// The claim of a volume: the one that it names, or its own, which a controller makes by its
/// template, and which is named after pod and volume.
fn claim_of(pod: &NodePod, volume: &Volume) -> Option<PersistentVolumeClaimVolumeSource> {
    let claim_name = volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name, volume.name));
    let own = |claim_name| PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
    claim_name.map(own).or_else(|| volume.persistent_volume_claim.clone())
}

/// Creates or updates all volumes of a pod.
///
/// # Errors
/// The first volume that cannot be prepared.
pub(crate) async fn prepare(
    node: &PodNode,
    pod: &NodePod,
    facts: &NodeFacts,
) -> Result<(), VolumeError> {
    let (root, uid) = (node.paths.root.clone(), pod.uid.clone());
    if let Err(error) = in_background(move || make_pod_directory(&root, &uid)).await {
        let volume = String::new();
        return Err(VolumeError::Directory { volume, why: error.to_string() });
    }
    for volume in pod.spec.volumes.iter().flatten() {
        let target = path(&node.paths.root, &pod.uid, volume);
        if claim_of(pod, volume).is_some() {
            claims::prepare(node, pod, volume).await?;
            continue;
        }
        if let Some(source) = &volume.csi {
            csi::set_up(node, pod, &CsiVolume::inline(pod, &volume.name, source)).await?;
            continue;
        }
        let payload = payload::payload(&*node.objects, pod, volume, facts).await;
        let payload = payload
            .map_err(|source| VolumeError::Object { volume: volume.name.clone(), source })?;
        let host_path = volume.host_path.clone();
        let group = pod.fs_group();
        let in_memory = volume.empty_dir.as_ref().filter(|source| is_in_memory(source));
        let in_memory = in_memory.map(|source| memory::bytes(pod, source, facts.memory));
        let work = move || match (payload, host_path) {
            (Some(files), _) => atomic::write(&target, &files, Ownership::read_only(group)),
            (None, Some(given)) => check_host_path(&given),
            (None, None) => {
                fs::create_dir_all(&target)?;
                if let Some(bytes) = in_memory {
                    memory::mount(&target, bytes)?;
                }
                // kubelet's mode of an emptyDir: writable by any user of the pod.
                Ownership::writable(group).give_directory(&target, 0o777)
            }
        };
        in_background(work).await.map_err(|error| VolumeError::Directory {
            volume: volume.name.clone(),
            why: error.to_string(),
        })?;
    }
    Ok(())
}

/// Unmounts the parts of volumes that a pod's containers had.
pub(crate) fn release_parts(pod: &Path) -> io::Result<()> {
    sub_path::release_all(pod)
}

/// Unmounts everything below a pod's directory but CSI volumes. Required before removing it.
pub(crate) fn release_all(pod: &Path) -> io::Result<()> {
    sub_path::release_all(pod)?;
    memory::unmount_all(pod)
}

/// Whether containers get it read-only: volumes written by the kubelet, and read-only claims.
fn is_read_only(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.persistent_volume_claim.as_ref().is_some_and(|it| it.read_only == Some(true))
        || volume.csi.as_ref().is_some_and(|it| it.read_only == Some(true))
}

/// Whether any volume of the pod can change while it runs.
pub(crate) fn has_updates(pod: &NodePod) -> bool {
    pod.spec.volumes.iter().flatten().any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some()
    })
}

/// Pods that may have volumes of CSI drivers.
fn with_driven_volumes(node: &PodNode) -> Vec<NodePod> {
    let has_volumes = |pod: &&Arc<NodePod>| {
        let mut volumes = pod.spec.volumes.iter().flatten();
        volumes.any(|volume| volume.csi.is_some() || claim_of(pod, volume).is_some())
    };
    let active = node.active.lock();
    active.values().filter(has_volumes).map(|pod| NodePod::clone(pod)).collect()
}

/// Checks the path's type, or creates it if the type says so. Error messages are kubelet's.
fn check_host_path(given: &HostPathVolumeSource) -> io::Result<()> {
    let path = Path::new(&given.path);
    let wrong = |what: &str| {
        let path = path.display();
        io::Error::other(format!("hostPath type check failed: {path} is not {what}"))
    };
    let kind = || fs::metadata(path).map(|it| it.file_type());
    match given.type_.as_deref().unwrap_or_default() {
        "" => Ok(()),
        "DirectoryOrCreate" if !path.exists() => {
            DirBuilder::new().recursive(true).mode(0o755).create(path)
        }
        "FileOrCreate" if !path.exists() => {
            OpenOptions::new().create(true).append(true).open(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o644))
        }
        "Directory" | "DirectoryOrCreate" => match kind() {
            Ok(kind) if kind.is_dir() => Ok(()),
            _ => Err(wrong("a directory")),
        },
        "File" | "FileOrCreate" => match kind() {
            Ok(kind) if kind.is_file() => Ok(()),
            _ => Err(wrong("a file")),
        },
        "Socket" => match kind() {
            Ok(kind) if kind.is_socket() => Ok(()),
            _ => Err(wrong("a socket file")),
        },
        "CharDevice" => match kind() {
            Ok(kind) if kind.is_char_device() => Ok(()),
            _ => Err(wrong("a character device")),
        },
        "BlockDevice" => match kind() {
            Ok(kind) if kind.is_block_device() => Ok(()),
            _ => Err(wrong("a block device")),
        },
        other => Err(io::Error::other(format!("{other} is an invalid volume type"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &Path, type_: &str) -> Result<(), String> {
        let path = path.display().to_string();
        let given = HostPathVolumeSource { path, type_: Some(type_.to_owned()) };
        check_host_path(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn types_of_host_paths_are_checked_or_made() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("a");
        assert_eq!(check(&missing, ""), Ok(()));
        assert!(check(&missing, "Directory").unwrap_err().ends_with("is not a directory"));
        assert_eq!(check(&missing, "DirectoryOrCreate"), Ok(()));
        assert_eq!(check(&missing, "Directory"), Ok(()));
        assert!(check(&missing, "FileOrCreate").unwrap_err().ends_with("is not a file"));
        let file = folder.path().join("b");
        assert_eq!(check(&file, "FileOrCreate"), Ok(()));
        assert_eq!(check(&file, "File"), Ok(()));
        assert!(check(&file, "Socket").is_err());
        assert_eq!(check(Path::new("/dev/null"), "CharDevice"), Ok(()));
        assert!(check(&file, "Other").unwrap_err().contains("invalid volume type"));
    }
}
