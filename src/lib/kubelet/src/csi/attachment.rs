//! Attachment of a volume to this node, which controllers do and VolumeAttachments report.

use super::source::{CsiVolume, digest_name};
use crate::objects::PodObjects;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait in one attempt, so that the pod shows early why it waits.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Pause between two reads: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(4)];

/// Name of the attachment of a volume to a node, by kubelet's rule.
pub(super) fn name(volume: &CsiVolume, node: &str) -> String {
    digest_name(&[&volume.handle, &volume.driver, node])
}

/// Waits until a volume is attached, and returns what its driver's controller tells the node;
/// cancel safe. Nodes may only get VolumeAttachments, so it is read repeatedly.
///
/// # Errors
/// kubelet's messages: the controller's error, or none in time.
pub(super) async fn attached(
    objects: &dyn PodObjects,
    volume: &CsiVolume,
    name: &str,
) -> Result<BTreeMap<String, String>, String> {
    let until = Instant::now() + ATTEMPT;
    let [mut pause, longest] = PAUSES;
    loop {
        let found = objects.volume_attachment(name).await.map_err(|error| error.to_string())?;
        if let Some(metadata) = found.map_or(Ok(None), verified)? {
            return Ok(metadata);
        }
        if Instant::now() + pause > until {
            let CsiVolume { driver, handle, .. } = volume;
            return Err(format!(
                "timed out waiting for external-attacher of {driver} CSI driver to attach volume \
                 {handle}"
            ));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

fn verified(found: VolumeAttachment) -> Result<Option<BTreeMap<String, String>>, String> {
    if found.metadata.deletion_timestamp.is_some() {
        return Err("volume attachment is being deleted".to_owned());
    }
    let status = found.status.unwrap_or_default();
    if status.attached {
        return Ok(Some(status.attachment_metadata.unwrap_or_default()));
    }
    match status.attach_error {
        Some(error) => Err(error.message.unwrap_or_default()),
        None => Ok(None),
    }
}
