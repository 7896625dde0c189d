//! Termination messages: a file mounted into the container, read after it has terminated.

use crate::assemble;
use crate::background::in_background;
use crate::next::{ObservedPod, name_of};
use crate::node::PodNode;
use crate::pod::NodePod;
use ferrokube_cri::{ContainerMount, ContainerPhase};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Max bytes of a message, as in kubelet.
const MAX_MESSAGE: u64 = 4096;
const DEFAULT_PATH: &str = "/dev/termination-log";

fn file(root: &Path, uid: &str, container: &str, attempt: u32) -> PathBuf {
    let containers = assemble::pod_directory(root, uid).join("containers");
    containers.join(assemble::plain(container)).join(attempt.to_string())
}

/// Creates the file of a container's attempt. Returns its mount.
pub(crate) async fn mount(
    node: &PodNode,
    pod: &NodePod,
    container: &Container,
    attempt: u32,
) -> io::Result<ContainerMount> {
    let path = file(&node.paths.root, &pod.uid, &container.name, attempt);
    let made = path.clone();
    in_background(move || {
        if let Some(folder) = made.parent() {
            fs::create_dir_all(folder)?;
        }
        OpenOptions::new().create(true).append(true).open(&made)?;
        // Writable by any user in the container.
        fs::set_permissions(&made, fs::Permissions::from_mode(0o666))
    })
    .await?;
    let given = container.termination_message_path.clone().filter(|path| !path.is_empty());
    Ok(ContainerMount {
        container_path: given.unwrap_or_else(|| DEFAULT_PATH.to_owned()),
        host_path: path.display().to_string(),
        ..ContainerMount::default()
    })
}

/// Reads the missing messages of terminated containers into `messages`, by id.
pub(crate) async fn read(
    node: &PodNode,
    pod: &NodePod,
    seen: &ObservedPod,
    messages: &mut BTreeMap<String, String>,
) {
    for report in &seen.containers {
        if report.state() != ContainerPhase::Exited || messages.contains_key(&report.id) {
            continue;
        }
        let (name, attempt) = name_of(report);
        let path = file(&node.paths.root, &pod.uid, name, attempt);
        // A missing or unreadable file is treated as no message.
        let text = in_background(move || {
            let mut bytes = Vec::new();
            File::open(path)?.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        messages.insert(report.id.clone(), text.await.unwrap_or_default());
    }
}
