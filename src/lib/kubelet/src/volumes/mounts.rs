//! The mounts of a container.

use super::sub_path::{self, SubPathFailure};
use super::{VolumeError, claim_of, device_path, is_read_only, path};
use crate::assemble;
use crate::background::in_background;
use crate::environment::{ContainerEnvironment, expand};
use crate::node::PodNode;
use crate::pod::NodePod;
use ferrokube_cri::{ContainerDevice, ContainerMount, MountPropagation};
use k8s_openapi::api::core::v1::{Container, VolumeMount};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The mounts of a container, whose volumes have been prepared.
///
/// # Errors
/// A subPath that cannot be mounted.
pub(crate) async fn mounts(
    node: &PodNode,
    pod: &NodePod,
    container: &Container,
    environment: &mut ContainerEnvironment,
) -> Result<Vec<ContainerMount>, VolumeError> {
    let mut all = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let volumes = || pod.spec.volumes.iter().flatten();
        let Some(volume) = volumes().find(|volume| volume.name == mount.name) else { continue };
        let mut host_path = path(&node.paths.root, &pod.uid, volume);
        if claim_of(pod, volume).is_some() {
            let found = in_background(move || fs::read_link(host_path)).await;
            host_path = found.map_err(|error| VolumeError::Directory {
                volume: volume.name.clone(),
                why: error.to_string(),
            })?;
        }
        if let Some(part) = checked(mount, environment).map_err(VolumeError::SubPath)? {
            let own = assemble::pod_directory(&node.paths.root, &pod.uid);
            let target = sub_path::target(&own, &volume.name, &container.name, index);
            let (place, directory) = (target.clone(), host_path);
            let bound = in_background(move || Ok(sub_path::bind(&directory, &part, &place)));
            let bound = bound.await.unwrap_or_else(|error| Err(SubPathFailure::Prepare(error)));
            bound.map_err(|failure| VolumeError::SubPath(refused(mount, container, &failure)))?;
            host_path = target;
        }
        all.push(ContainerMount {
            container_path: mount.mount_path.clone(),
            host_path: host_path.display().to_string(),
            readonly: is_read_only(volume) || mount.read_only.unwrap_or(false),
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => MountPropagation::HostToContainer,
                Some("Bidirectional") => MountPropagation::Bidirectional,
                _ => MountPropagation::Private,
            } as i32,
            ..ContainerMount::default()
        });
    }
    Ok(all)
}

/// The devices of a container, whose volumes have been prepared.
///
/// # Errors
/// A volume that is no device.
pub(crate) async fn devices(
    node: &PodNode,
    pod: &NodePod,
    container: &Container,
) -> Result<Vec<ContainerDevice>, VolumeError> {
    let mut all = Vec::new();
    for device in container.volume_devices.iter().flatten() {
        let mut volumes = pod.spec.volumes.iter().flatten();
        let Some(volume) = volumes.find(|volume| volume.name == device.name) else { continue };
        let link = device_path(&node.paths.root, &pod.uid, volume);
        let found = in_background(move || fs::read_link(link)).await;
        let host_path = found.map_err(|error| VolumeError::Directory {
            volume: volume.name.clone(),
            why: error.to_string(),
        })?;
        all.push(ContainerDevice {
            container_path: device.device_path.clone(),
            host_path: host_path.display().to_string(),
            // Read, make a node of it, write.
            permissions: if is_read_only(volume) { "mr" } else { "mrw" }.to_owned(),
        });
    }
    Ok(all)
}

/// The subPath of a mount; `None`: the whole volume. Error messages are kubelet's.
fn checked(
    mount: &VolumeMount,
    environment: &mut ContainerEnvironment,
) -> Result<Option<String>, String> {
    let given = mount.sub_path.clone().unwrap_or_default();
    let part = match mount.sub_path_expr.as_deref() {
        Some(text) if !text.is_empty() => {
            let ContainerEnvironment { values, room } = environment;
            let (values, mut missing) = (&*values, BTreeSet::new());
            let lookup = |name: &str| {
                let value = values.get(name).map(String::as_str);
                if value.is_none_or(str::is_empty) {
                    missing.insert(name.to_owned());
                }
                value
            };
            let part = expand(text, lookup, room);
            if !missing.is_empty() {
                let names: Vec<String> = missing.into_iter().collect();
                return Err(format!("missing value for {}", names.join(", ")));
            }
            part
        }
        _ => given,
    };
    if part.is_empty() {
        return Ok(None);
    }
    if Path::new(&part).is_absolute() {
        return Err(format!("error SubPath `{part}` must not be an absolute path"));
    }
    if part.split('/').any(|item| item == "..") {
        return Err(format!("unable to provision SubPath `{part}`: must not contain '..'"));
    }
    Ok(Some(part))
}

/// The error shown in the pod. The cause is only logged, as it could reveal files of this machine.
fn refused(mount: &VolumeMount, container: &Container, failure: &SubPathFailure) -> String {
    let (volume, container) = (&mount.name, &container.name);
    match failure {
        SubPathFailure::Create(error) => {
            tracing::warn!(volume, container, %error, "cannot make a subPath");
            format!(
                "failed to create subPath directory for volumeMount {volume:?} of container \
                 {container:?}"
            )
        }
        SubPathFailure::Prepare(error) => {
            tracing::warn!(volume, container, %error, "cannot mount a subPath");
            format!(
                "failed to prepare subPath for volumeMount {volume:?} of container {container:?}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variables::VariableRoom;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn check(mount: serde_json::Value) -> Result<Option<String>, String> {
        let mount = serde_json::from_value(mount).unwrap();
        let values = BTreeMap::from([
            ("POD".to_owned(), "p-1".to_owned()),
            ("EMPTY".to_owned(), String::new()),
            ("UP".to_owned(), "..".to_owned()),
        ]);
        checked(&mount, &mut ContainerEnvironment { values, room: VariableRoom::new() })
    }

    #[test]
    fn paths_are_checked_after_their_references_with_kubelets_words() {
        let part = |text: &str| check(json!({"name": "v", "mountPath": "/m", "subPath": text}));
        let expr = |text: &str| check(json!({"name": "v", "mountPath": "/m", "subPathExpr": text}));
        assert_eq!(part(""), Ok(None));
        assert_eq!(part("a/..b"), Ok(Some("a/..b".to_owned())));
        assert_eq!(part("$(POD)"), Ok(Some("$(POD)".to_owned())), "only expressions expand");
        assert_eq!(part("/a"), Err("error SubPath `/a` must not be an absolute path".to_owned()));
        let steps = "unable to provision SubPath `a/../b`: must not contain '..'";
        assert_eq!(part("a/../b"), Err(steps.to_owned()));
        assert_eq!(expr("logs/$(POD)"), Ok(Some("logs/p-1".to_owned())));
        assert_eq!(expr("$$(POD)"), Ok(Some("$(POD)".to_owned())));
        assert_eq!(expr("$(X)/$(A)/$(EMPTY)"), Err("missing value for A, EMPTY, X".to_owned()));
        let steps = "unable to provision SubPath `a/..`: must not contain '..'";
        assert_eq!(expr("a/$(UP)"), Err(steps.to_owned()));
    }
}
