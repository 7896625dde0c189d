//! `emptyDir` with `medium: Memory`: a tmpfs on the volume's directory.
//!
//! The runtime sees it if it shares the kubelet's mounts, as on a host. Its pages are charged to
//! the container that writes them.

use crate::assemble::EMPTY_DIRS;
use crate::pod::NodePod;
use ferrokube_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// Whether a volume is in memory.
pub(crate) fn is_in_memory(source: &EmptyDirVolumeSource) -> bool {
    source.medium.as_deref() == Some("Memory")
}

/// Bytes that `sizeLimit` allows; `None`: no limit.
pub(crate) fn limit(source: &EmptyDirVolumeSource) -> Option<u64> {
    let limit = Quantity::parse(&source.size_limit.as_ref()?.0).ok()?.value();
    u64::try_from(limit).ok().filter(|bytes| *bytes > 0)
}

/// Size of the tmpfs, as in kubelet: the least of the node's memory, the limits of the pod's
/// containers and the volume's own.
pub(super) fn bytes(pod: &NodePod, source: &EmptyDirVolumeSource, node: u64) -> u64 {
    let limits = pod.spec.containers.iter().filter_map(|container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        u64::try_from(Quantity::parse(&limits.get("memory")?.0).ok()?.value()).ok()
    });
    let pod = limits.reduce(u64::saturating_add).filter(|bytes| *bytes > 0);
    [pod, limit(source)].into_iter().flatten().fold(node, u64::min)
}

/// Mounts a tmpfs on a directory, unless a previous kubelet has.
pub(super) fn mount(directory: &Path, bytes: u64) -> io::Result<()> {
    if is_mounted(directory)? {
        return Ok(());
    }
    let options = if bytes == 0 { String::new() } else { format!("size={bytes}") };
    let options = CString::new(options).map_err(io::Error::other)?;
    rustix::mount::mount("tmpfs", directory, "tmpfs", MountFlags::empty(), Some(&*options))?;
    Ok(())
}

fn is_mounted(directory: &Path) -> io::Result<bool> {
    let device = |path: &Path| Ok::<_, io::Error>(fs::symlink_metadata(path)?.dev());
    let Some(parent) = directory.parent() else { return Ok(false) };
    Ok(device(directory)? != device(parent)?)
}

/// Unmounts a pod's tmpfs volumes, which discards their contents.
pub(super) fn unmount_all(pod: &Path) -> io::Result<()> {
    let volumes = match fs::read_dir(pod.join(EMPTY_DIRS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for volume in volumes {
        let volume = volume?.path();
        loop {
            match rustix::mount::unmount(&volume, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                // Not mounted; or this process may not unmount, and so has mounted nothing.
                Err(Errno::INVAL | Errno::NOENT | Errno::PERM) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_testkit::MountGuard;
    use serde_json::json;

    fn pod(limits: &[&str]) -> NodePod {
        let containers = limits.iter().enumerate().map(|(index, limit)| {
            let resources =
                if limit.is_empty() { json!({}) } else { json!({"limits": {"memory": limit}}) };
            json!({"name": format!("c{index}"), "image": "i", "resources": resources})
        });
        let containers: Vec<_> = containers.collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": containers}});
        NodePod::from_file(pod.to_string().as_bytes(), "n").unwrap()
    }

    fn source(fields: serde_json::Value) -> EmptyDirVolumeSource {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn the_size_is_the_least_of_node_pod_and_volume() {
        let of = |limits: &[&str], fields| bytes(&pod(limits), &source(fields), 1 << 30);
        assert_eq!(of(&[""], json!({"medium": "Memory"})), 1 << 30);
        assert_eq!(of(&["100Mi", ""], json!({})), 100 << 20);
        assert_eq!(of(&["100Mi", "50Mi"], json!({})), 150 << 20);
        assert_eq!(of(&["100Mi"], json!({"sizeLimit": "10Mi"})), 10 << 20);
        assert_eq!(of(&["100Mi"], json!({"sizeLimit": "0"})), 100 << 20, "as if there were none");
        assert_eq!(of(&["4Gi"], json!({"sizeLimit": "2Gi"})), 1 << 30);
    }

    /// Only where this process may mount.
    #[test]
    fn a_volume_in_memory_is_bounded_kept_and_unmounted() {
        let folder = tempfile::tempdir().unwrap();
        let _mounts = MountGuard::new(folder.path());
        let volume = folder.path().join(EMPTY_DIRS).join("fast");
        let plain = folder.path().join(EMPTY_DIRS).join("plain");
        fs::create_dir_all(&volume).unwrap();
        fs::create_dir_all(&plain).unwrap();
        fs::write(plain.join("file"), "kept").unwrap();
        match mount(&volume, 1 << 20) {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                eprintln!("skipped: this process may not mount");
                return;
            }
            other => other.unwrap(),
        }
        fs::write(volume.join("file"), "kept").unwrap();
        mount(&volume, 1 << 20).unwrap();
        assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "kept", "by the next kubelet");
        let full = fs::write(volume.join("large"), vec![0; 2 << 20]).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        unmount_all(folder.path()).unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(plain.join("file")).unwrap(), "kept");
        unmount_all(folder.path()).unwrap();
        unmount_all(&folder.path().join("other")).unwrap();
    }
}
