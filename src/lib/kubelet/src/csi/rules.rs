//! Demands of a driver's CSIDriver object on kubelets. Without one, defaults apply.

use super::source::CsiVolume;
use crate::pod::NodePod;
use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};
use std::collections::BTreeMap;

const PERSISTENT: &str = "Persistent";
pub(super) const EPHEMERAL: &str = "Ephemeral";

/// A CSIDriver's fields, or their defaults.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DriverRules {
    /// Volumes are attached to the node before they are mounted.
    pub(super) attaches: bool,
    pod_info: bool,
    group_policy: String,
    /// `None`: no CSIDriver object.
    modes: Option<Vec<String>>,
    /// Tokens of the pod's service account that the driver wants.
    pub(super) tokens: Vec<TokenRequest>,
    /// Whether they are among the secrets, not the attributes.
    pub(super) has_secret_tokens: bool,
    /// Mounted volumes are published periodically.
    pub(super) republishes: bool,
}

impl DriverRules {
    pub(super) fn of(object: Option<CSIDriver>) -> Self {
        let has_object = object.is_some();
        let spec = object.unwrap_or_default().spec;
        let modes = spec.volume_lifecycle_modes.filter(|modes| !modes.is_empty());
        Self {
            attaches: spec.attach_required != Some(false),
            pod_info: spec.pod_info_on_mount == Some(true),
            group_policy: spec.fs_group_policy.unwrap_or_default(),
            modes: has_object.then(|| modes.unwrap_or_else(|| vec![PERSISTENT.to_owned()])),
            tokens: spec.token_requests.unwrap_or_default(),
            has_secret_tokens: spec.service_account_token_in_secrets == Some(true),
            republishes: spec.requires_republish == Some(true),
        }
    }

    /// Why a volume cannot be mounted under these rules; mostly kubelet's messages.
    pub(super) fn refusal(&self, volume: &CsiVolume) -> Option<String> {
        let (driver, mode) = (&volume.driver, mode(volume));
        let Some(modes) = &self.modes else {
            let fault = format!(
                "volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)"
            );
            return (mode != PERSISTENT).then_some(fault);
        };
        let fault = || {
            format!(
                "volume mode {mode:?} not supported by driver {driver} (only supports {modes:?})"
            )
        };
        (!modes.iter().any(|own| own == mode)).then(fault)
    }

    /// The attributes of a volume, with those of its pod if the driver wants them.
    pub(super) fn attributes(&self, volume: &CsiVolume, pod: &NodePod) -> BTreeMap<String, String> {
        let mut attributes = volume.attributes.clone();
        if self.pod_info {
            let own = [
                ("pod.name", pod.name.as_str()),
                ("pod.namespace", &pod.namespace),
                ("pod.uid", &pod.uid),
                ("serviceAccount.name", pod.service_account()),
                ("ephemeral", if volume.is_ephemeral { "true" } else { "false" }),
            ];
            let own =
                own.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
            attributes.extend(own);
        }
        attributes
    }

    /// Whether a volume's files are given to the pod's `fsGroup`.
    pub(super) fn gives_to_group(&self, volume: &CsiVolume) -> bool {
        match self.group_policy.as_str() {
            _ if volume.read_only || volume.is_block => false,
            "None" => false,
            "File" => true,
            // The default, ReadWriteOnceWithFSType.
            _ => !volume.fs_type.is_empty() && volume.is_read_write_once(),
        }
    }
}

/// A volume's lifecycle mode.
pub(super) fn mode(volume: &CsiVolume) -> &'static str {
    if volume.is_ephemeral { EPHEMERAL } else { PERSISTENT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rules(spec: Value) -> DriverRules {
        let object = json!({"metadata": {"name": "d"}, "spec": spec});
        DriverRules::of(Some(serde_json::from_value(object).unwrap()))
    }

    fn volume(is_ephemeral: bool) -> CsiVolume {
        CsiVolume { driver: "d".to_owned(), is_ephemeral, ..CsiVolume::default() }
    }

    #[test]
    fn modes_are_refused_with_kubelets_words() {
        let none = DriverRules::of(None);
        assert_eq!(none.refusal(&volume(false)), None);
        let fault = "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)";
        assert_eq!(none.refusal(&volume(true)).unwrap(), fault);
        let fault =
            "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])";
        assert_eq!(rules(json!({})).refusal(&volume(true)).unwrap(), fault);
        let both = rules(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        assert_eq!((both.refusal(&volume(true)), both.refusal(&volume(false))), (None, None));
    }

    #[test]
    fn attachment_is_the_default() {
        assert!(DriverRules::of(None).attaches && rules(json!({})).attaches);
        assert!(!rules(json!({"attachRequired": false})).attaches);
    }

    #[test]
    fn files_get_the_group_as_the_policy_says() {
        let of = |policy: Value, fs_type: &str, mode: &str, read_only: bool| {
            let volume = CsiVolume {
                fs_type: fs_type.to_owned(),
                access_modes: vec![mode.to_owned()],
                read_only,
                ..CsiVolume::default()
            };
            rules(json!({"fsGroupPolicy": policy})).gives_to_group(&volume)
        };
        let once = "ReadWriteOnce";
        assert!(of(json!("File"), "", "ReadWriteMany", false));
        assert!(!of(json!("File"), "", "ReadWriteMany", true));
        assert!(!of(json!("None"), "ext4", once, false));
        for policy in [Value::Null, json!("ReadWriteOnceWithFSType")] {
            assert!(of(policy.clone(), "ext4", once, false));
            assert!(!of(policy.clone(), "", once, false));
            assert!(!of(policy, "ext4", "ReadWriteMany", false));
        }
        let device = CsiVolume { is_block: true, ..volume(false) };
        assert!(!rules(json!({"fsGroupPolicy": "File"})).gives_to_group(&device));
    }
}
