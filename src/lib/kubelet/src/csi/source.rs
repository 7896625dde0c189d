//! A CSI volume as a PersistentVolume, or the pod itself, describes it.

use super::abilities::DriverAbilities;
use crate::pod::NodePod;
use ferrokube_csi::{
    AccessMode, AccessType, BlockVolume, MountVolume, VolumeAccess, VolumeCapability,
};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolumeSpec, SecretReference,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A volume to mount for a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CsiVolume {
    pub(super) driver: String,
    /// The driver's id of the volume.
    pub(super) handle: String,
    /// Name of the PersistentVolume, or of the pod's volume.
    pub(super) spec_name: String,
    /// Name of its directory in the pod's.
    pub(super) directory: String,
    pub(super) fs_type: String,
    pub(super) mount_options: Vec<String>,
    pub(super) access_modes: Vec<String>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) stage_secret: Option<SecretReference>,
    pub(super) publish_secret: Option<SecretReference>,
    pub(super) expand_secret: Option<SecretReference>,
    pub(super) read_only: bool,
    /// A device instead of a directory (`volumeMode: Block`).
    pub(super) is_block: bool,
    /// Belongs to the pod and is never staged.
    pub(super) is_ephemeral: bool,
}

impl CsiVolume {
    /// The volume of a PersistentVolume, for a claim that may be read-only.
    ///
    /// Its directory is kubelet's, unless a volume of the pod itself has that already: their names
    /// may be equal.
    pub(crate) fn persistent(
        pod: &NodePod,
        name: &str,
        spec: &PersistentVolumeSpec,
        source: &CSIPersistentVolumeSource,
        read_only: bool,
    ) -> Self {
        let mut own = pod.spec.volumes.iter().flatten();
        let is_taken = own.any(|volume| volume.csi.is_some() && volume.name == name);
        // Not the name of a PersistentVolume.
        let suffix = if is_taken { "~claim" } else { "" };
        Self {
            directory: format!("{name}{suffix}"),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            spec_name: name.to_owned(),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: source.node_stage_secret_ref.clone(),
            publish_secret: source.node_publish_secret_ref.clone(),
            expand_secret: source.node_expand_secret_ref.clone(),
            read_only,
            is_block: is_block(spec),
            is_ephemeral: false,
        }
    }

    /// A volume of the pod itself.
    pub(crate) fn inline(pod: &NodePod, name: &str, source: &CSIVolumeSource) -> Self {
        let secret = source.node_publish_secret_ref.as_ref().map(|secret| SecretReference {
            name: Some(secret.name.clone()),
            namespace: Some(pod.namespace.clone()),
        });
        Self {
            driver: source.driver.clone(),
            handle: digest_name(&[&pod.uid, name]),
            spec_name: name.to_owned(),
            directory: name.to_owned(),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            publish_secret: secret,
            read_only: source.read_only == Some(true),
            is_ephemeral: true,
            ..Self::default()
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn is_read_write_once(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOnce")
    }

    /// The capability of a call; `group` for drivers that give files to it themselves.
    pub(super) fn capability(
        &self,
        abilities: DriverAbilities,
        group: Option<u32>,
    ) -> VolumeCapability {
        let mount = || MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        };
        let block = self.is_block.then_some(AccessType::Block(BlockVolume {}));
        VolumeCapability {
            access_type: block.or_else(|| Some(AccessType::Mount(mount()))),
            access_mode: Some(AccessMode { mode: self.access(abilities) as i32 }),
        }
    }

    /// As in kubelet, that of the first access mode.
    fn access(&self, abilities: DriverAbilities) -> VolumeAccess {
        let counts = abilities.counts_writers;
        match self.access_modes.first().map_or("ReadWriteOnce", String::as_str) {
            "ReadWriteOnce" if counts => VolumeAccess::SingleNodeMultiWriter,
            "ReadWriteOncePod" if counts => VolumeAccess::SingleNodeSingleWriter,
            "ReadWriteOnce" | "ReadWriteOncePod" => VolumeAccess::SingleNodeWriter,
            "ReadOnlyMany" => VolumeAccess::MultiNodeReaderOnly,
            "ReadWriteMany" => VolumeAccess::MultiNodeMultiWriter,
            _ => VolumeAccess::Unknown,
        }
    }
}

/// Whether a PersistentVolume is a device, which containers name in `volumeDevices`.
pub(crate) fn is_block(spec: &PersistentVolumeSpec) -> bool {
    spec.volume_mode.as_deref() == Some("Block")
}

/// kubelet's names of what has none: `csi-` and a digest.
pub(super) fn digest_name(of: &[&str]) -> String {
    let mut digest = Sha256::new();
    of.iter().for_each(|text| digest.update(text));
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kubelets() {
        // SHA-256 of "abc".
        let expected = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest_name(&["a", "bc"]), expected);
    }

    #[test]
    fn access_modes_are_those_that_the_driver_knows() {
        let access = |mode: &str, counts_writers| {
            let volume = CsiVolume { access_modes: vec![mode.to_owned()], ..CsiVolume::default() };
            volume.access(DriverAbilities { counts_writers, ..DriverAbilities::default() })
        };
        assert_eq!(access("ReadWriteOnce", false), VolumeAccess::SingleNodeWriter);
        assert_eq!(access("ReadWriteOnce", true), VolumeAccess::SingleNodeMultiWriter);
        assert_eq!(access("ReadWriteOncePod", false), VolumeAccess::SingleNodeWriter);
        assert_eq!(access("ReadWriteOncePod", true), VolumeAccess::SingleNodeSingleWriter);
        assert_eq!(access("ReadOnlyMany", true), VolumeAccess::MultiNodeReaderOnly);
        assert_eq!(access("ReadWriteMany", true), VolumeAccess::MultiNodeMultiWriter);
    }
}
