//! `status.volumesInUse` of the Node: attached volumes that must not be detached.

use super::records::staged_volumes;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait for the Node's status, whose writes may fail for a while.
const REPORTING: Duration = Duration::from_secs(30);

/// Names of volumes, as the attach-detach controller knows them.
pub(crate) struct VolumesInUse {
    current: watch::Sender<BTreeSet<String>>,
    /// As the Node's status has them; `None`: nothing writes it.
    reported: watch::Sender<Option<BTreeSet<String>>>,
}

/// kubelet's unique name of a volume.
pub(super) fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

impl VolumesInUse {
    /// The volumes that a previous kubelet has staged.
    pub(super) fn below(root: &Path) -> Self {
        let attached = staged_volumes(root).into_iter().filter(|record| record.is_attached());
        let names = attached.map(|record| unique_name(&record.driver_name, &record.volume_handle));
        Self { current: watch::Sender::new(names.collect()), reported: watch::Sender::new(None) }
    }

    /// The names for the Node's status, as they change.
    pub(crate) fn changes(&self) -> watch::Receiver<BTreeSet<String>> {
        self.current.subscribe()
    }

    /// Called by the writer of the Node's status with what it has written; at first, with nothing.
    pub(crate) fn written(&self, names: BTreeSet<String>) {
        self.reported.send_replace(Some(names));
    }

    /// Adds a volume, and waits until the Node lists it; cancel safe.
    ///
    /// # Errors
    /// kubelet's message if that takes too long.
    pub(super) async fn add(&self, name: &str) -> Result<(), String> {
        self.current.send_if_modified(|names| names.insert(name.to_owned()));
        let mut reported = self.reported.subscribe();
        let is_listed = |names: &Option<BTreeSet<String>>| {
            names.as_ref().is_none_or(|names| names.contains(name))
        };
        let listed = tokio::time::timeout(REPORTING, reported.wait_for(is_listed)).await;
        listed.map(|_| ()).map_err(|_| {
            "Volume has not been added to the list of VolumesInUse in the node's volume status"
                .to_owned()
        })
    }

    /// Removes a volume that is not staged.
    pub(super) fn remove(&self, name: &str) {
        self.current.send_if_modified(|names| names.remove(name));
    }
}
