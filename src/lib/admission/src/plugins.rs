//! All admission plug-ins by name, in the order in which they run: the one list that the chain, the
//! flags and the server's table of built-in steps follow.

use crate::event_rate::EVENT_RATE_LIMIT;

/// A name of the list.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// As flags and messages have it.
    pub name: &'static str,
    /// Whether a server has the step.
    pub availability: Availability,
}

/// Whether a server has a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Always: kube-apiserver has it in its storage, not as a plug-in. No flag may name it.
    Storage,
    /// Unless a flag leaves it out, or the server lacks its kinds.
    Default,
    /// Only if a flag enables it.
    Optional,
    /// Never; as of kube-apiserver, flags may leave it out.
    Absent,
}

impl Plugin {
    /// Whether flags may enable it.
    pub fn is_offered(&self) -> bool {
        matches!(self.availability, Availability::Default | Availability::Optional)
    }

    /// Position in [`PLUGINS`].
    pub(crate) fn position(name: &str) -> Option<usize> {
        PLUGINS.iter().position(|known| known.name == name)
    }
}

const fn storage(name: &'static str) -> Plugin {
    Plugin { name, availability: Availability::Storage }
}

const fn default(name: &'static str) -> Plugin {
    Plugin { name, availability: Availability::Default }
}

const fn optional(name: &'static str) -> Plugin {
    Plugin { name, availability: Availability::Optional }
}

const fn absent(name: &'static str) -> Plugin {
    Plugin { name, availability: Availability::Absent }
}

/// kube-apiserver 1.36's plug-ins in its order, and any that only this server has. Only quota runs
/// after the policies and webhooks, since a counted write must not be rejected later.
pub const PLUGINS: &[Plugin] = &[
    storage("RBACEscalation"),
    storage("PolicyReaders"),
    storage("DeviceRights"),
    absent("AlwaysAdmit"),
    absent("NamespaceAutoProvision"),
    default("NamespaceLifecycle"),
    absent("NamespaceExists"),
    absent("LimitPodHardAntiAffinityTopology"),
    absent("LimitRanger"),
    absent("ServiceAccount"),
    absent("NodeRestriction"),
    absent("TaintNodesByCondition"),
    absent("AlwaysPullImages"),
    absent("ImagePolicyWebhook"),
    absent("PodSecurity"),
    absent("PodNodeSelector"),
    absent("Priority"),
    absent("DefaultTolerationSeconds"),
    absent("PodTolerationRestriction"),
    optional(EVENT_RATE_LIMIT),
    absent("ExtendedResourceToleration"),
    absent("DefaultStorageClass"),
    absent("StorageObjectInUseProtection"),
    absent("OwnerReferencesPermissionEnforcement"),
    absent("PersistentVolumeClaimResize"),
    absent("RuntimeClass"),
    default("CertificateApproval"),
    default("CertificateSigning"),
    absent("ClusterTrustBundleAttest"),
    default("CertificateSubjectRestriction"),
    absent("DefaultIngressClass"),
    absent("DenyServiceExternalIPs"),
    absent("PodTopologyLabels"),
    absent("NodeDeclaredFeatureValidator"),
    default(FIRST_POLICIES),
    default("MutatingAdmissionWebhook"),
    default("ValidatingAdmissionPolicy"),
    default("ValidatingAdmissionWebhook"),
    default("ResourceQuota"),
    absent("AlwaysDeny"),
];

/// Steps that are not in [`PLUGINS`] run before this one.
pub(crate) const FIRST_POLICIES: &str = "MutatingAdmissionPolicy";
