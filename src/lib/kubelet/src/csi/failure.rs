//! Volumes that cannot be mounted, with kubelet's names of the operations.

use super::source::CsiVolume;
use std::fmt;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountStep {
    /// The wait for its attachment.
    Attach,
    Stage,
    Publish,
    Expand,
}

/// A volume that cannot be mounted. Retried after a pause.
#[derive(Debug, thiserror::Error)]
pub(crate) struct CsiMountError {
    step: MountStep,
    is_block: bool,
    volume: String,
    why: String,
}

impl CsiVolume {
    pub(super) fn failed(&self, step: MountStep, why: String) -> CsiMountError {
        CsiMountError { step, is_block: self.is_block, volume: self.spec_name.clone(), why }
    }
}

impl fmt::Display for CsiMountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, why, .. } = self;
        write!(f, "{} failed for volume {volume:?} : {why}", self.operation())
    }
}

impl CsiMountError {
    fn operation(&self) -> &'static str {
        match (self.step, self.is_block) {
            (MountStep::Attach, false) => "MountVolume.WaitForAttach",
            (MountStep::Attach, true) => "MapVolume.WaitForAttach",
            (MountStep::Stage, false) => "MountVolume.MountDevice",
            (MountStep::Stage, true) => "MapVolume.SetUpDevice",
            (MountStep::Publish, false) => "MountVolume.SetUp",
            (MountStep::Publish, true) => "MapVolume.MapPodDevice",
            (MountStep::Expand, false) => "MountVolume.NodeExpandVolume",
            (MountStep::Expand, true) => "MapVolume.NodeExpandVolume",
        }
    }

    /// Reason of the event that reports it.
    pub(crate) fn reason(&self) -> &'static str {
        match self.step {
            MountStep::Expand => "VolumeResizeFailed",
            _ if self.is_block => "FailedMapVolume",
            _ => "FailedMount",
        }
    }
}
