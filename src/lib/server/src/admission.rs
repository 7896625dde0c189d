//! The built-in admission steps of a control plane: those of the kinds that it serves.

use crate::config::WebhookConfig;
use crate::context::{FromServer, ServerContext, serves};
use crate::error::BuildError;
use crate::rights::{Rights, escalation_step};
use ferrokube_admission::certificates::{
    CertificateApproval, CertificateSigning, CertificateSubjectRestriction,
};
use ferrokube_admission::devices::DeviceRights;
use ferrokube_admission::namespace::NamespaceLifecycle;
use ferrokube_admission::quota::QuotaStep;
use ferrokube_admission::webhook::{CertificateFaults, ServiceResolver};
use ferrokube_admission::{
    AdmissionStep, Chain, MutatingPolicies, MutatingWebhooks, Permits, PolicyInputs, PolicyReaders,
    PolicyStats, RemoteStep, ValidatingPolicies, ValidatingWebhooks, WebhookEnvironment,
    WebhookStats,
};
use ferrokube_auth::Rbac;
use ferrokube_features::Gates;
use std::collections::BTreeSet;
use std::sync::Arc;

const ADMISSION: &str = "admissionregistration.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";

/// Inputs of the built-in steps.
pub(crate) struct StepInputs {
    pub(crate) context: ServerContext,
    pub(crate) permits: Arc<dyn Permits>,
    /// The RBAC authorizer, if in use.
    pub(crate) rbac: Option<Arc<Rbac>>,
    pub(crate) services: Arc<dyn ServiceResolver>,
    pub(crate) credentials: WebhookConfig,
    pub(crate) certificates: CertificateFaults,
    pub(crate) webhooks: Arc<WebhookStats>,
    pub(crate) policies: Arc<PolicyStats>,
}

/// A local or remote step.
enum ChainStep {
    Local(Arc<dyn AdmissionStep>),
    Remote(Arc<dyn RemoteStep>),
}

/// A built-in step, and the kinds of which a server must serve one to run it.
struct BuiltinStep {
    name: &'static str,
    group: &'static str,
    kinds: &'static [&'static str],
    make: fn(&StepInputs) -> Option<ChainStep>,
}

/// The default steps of [`PLUGINS`](ferrokube_admission::PLUGINS), and those of the storage.
const BUILTIN: &[BuiltinStep] = &[
    BuiltinStep {
        name: "RBACEscalation",
        group: "rbac.authorization.k8s.io",
        kinds: &["roles", "clusterroles", "rolebindings", "clusterrolebindings"],
        make: |inputs| {
            let rbac = inputs.rbac.as_ref()?;
            Some(ChainStep::Local(escalation_step(rbac, &inputs.context.authorizer)))
        },
    },
    BuiltinStep {
        name: "PolicyReaders",
        group: ADMISSION,
        kinds: &["mutatingadmissionpolicies", "validatingadmissionpolicies"],
        make: |inputs| Some(ChainStep::Local(Arc::new(PolicyReaders::new(inputs.policies())))),
    },
    BuiltinStep {
        name: "DeviceRights",
        group: "resource.k8s.io",
        kinds: &["resourceclaims", "resourceclaimtemplates"],
        make: |inputs| {
            let (store, permits) = (inputs.context.store.clone(), Arc::clone(&inputs.permits));
            Some(ChainStep::Local(Arc::new(DeviceRights::new(store, permits))))
        },
    },
    BuiltinStep {
        name: "NamespaceLifecycle",
        group: "",
        kinds: &["namespaces"],
        make: |inputs| {
            let store = inputs.context.store.clone();
            Some(ChainStep::Local(Arc::new(NamespaceLifecycle::new(store))))
        },
    },
    BuiltinStep {
        name: "CertificateApproval",
        group: CERTIFICATES,
        kinds: &["certificatesigningrequests"],
        make: |inputs| {
            let permits = Arc::clone(&inputs.permits);
            Some(ChainStep::Local(Arc::new(CertificateApproval::new(permits))))
        },
    },
    BuiltinStep {
        name: "CertificateSigning",
        group: CERTIFICATES,
        kinds: &["certificatesigningrequests"],
        make: |inputs| {
            let permits = Arc::clone(&inputs.permits);
            Some(ChainStep::Local(Arc::new(CertificateSigning::new(permits))))
        },
    },
    BuiltinStep {
        name: "CertificateSubjectRestriction",
        group: CERTIFICATES,
        kinds: &["certificatesigningrequests"],
        make: |_| Some(ChainStep::Local(Arc::new(CertificateSubjectRestriction))),
    },
    BuiltinStep {
        name: "MutatingAdmissionPolicy",
        group: ADMISSION,
        kinds: &["mutatingadmissionpolicies"],
        make: |inputs| Some(ChainStep::Remote(Arc::new(MutatingPolicies::new(inputs.policies())))),
    },
    BuiltinStep {
        name: "MutatingAdmissionWebhook",
        group: ADMISSION,
        kinds: &["mutatingwebhookconfigurations"],
        make: |inputs| {
            let credentials = Arc::clone(&inputs.credentials.mutating);
            let step = MutatingWebhooks::new(inputs.environment(), credentials);
            Some(ChainStep::Remote(Arc::new(step)))
        },
    },
    BuiltinStep {
        name: "ValidatingAdmissionPolicy",
        group: ADMISSION,
        kinds: &["validatingadmissionpolicies"],
        make: |inputs| {
            Some(ChainStep::Remote(Arc::new(ValidatingPolicies::new(inputs.policies()))))
        },
    },
    BuiltinStep {
        name: "ValidatingAdmissionWebhook",
        group: ADMISSION,
        kinds: &["validatingwebhookconfigurations"],
        make: |inputs| {
            let credentials = Arc::clone(&inputs.credentials.validating);
            let step = ValidatingWebhooks::new(inputs.environment(), credentials);
            Some(ChainStep::Remote(Arc::new(step)))
        },
    },
    BuiltinStep {
        name: "ResourceQuota",
        group: "",
        kinds: &["resourcequotas"],
        make: |inputs| {
            let store = inputs.context.store.clone();
            Some(ChainStep::Local(Arc::new(QuotaStep::new(store))))
        },
    },
];

impl StepInputs {
    pub(crate) fn new(
        context: ServerContext,
        rbac: Option<Arc<Rbac>>,
        services: Arc<dyn ServiceResolver>,
        credentials: WebhookConfig,
    ) -> Self {
        let permits = Arc::new(Rights(Arc::clone(&context.authorizer)));
        let (webhooks, policies) = (Arc::default(), Arc::default());
        let certificates = CertificateFaults::default();
        Self { context, permits, rbac, services, credentials, certificates, webhooks, policies }
    }

    fn policies(&self) -> PolicyInputs {
        PolicyInputs {
            store: self.context.store.clone(),
            catalog: Arc::clone(&self.context.catalog),
            permits: Arc::clone(&self.permits),
            stats: Arc::clone(&self.policies),
        }
    }

    fn environment(&self) -> WebhookEnvironment {
        WebhookEnvironment {
            store: self.context.store.clone(),
            catalog: Arc::clone(&self.context.catalog),
            permits: Arc::clone(&self.permits),
            services: Arc::clone(&self.services),
            stats: Arc::clone(&self.webhooks),
            certificates: self.certificates.clone(),
        }
    }

    fn serves(&self, group: &str, kinds: &[&str]) -> bool {
        kinds.iter().any(|plural| serves(&self.context.catalog, group, plural))
    }
}

/// Steps added by the program.
pub(crate) struct OwnSteps {
    pub(crate) local: Vec<FromServer<dyn AdmissionStep>>,
    pub(crate) remote: Vec<FromServer<dyn RemoteStep>>,
    /// Names of disabled steps.
    pub(crate) without: Vec<String>,
}

/// The chain of the built-in steps and the program's own.
pub(crate) fn chain(inputs: &StepInputs, gates: Gates, own: OwnSteps) -> Result<Chain, BuildError> {
    let mut steps = Vec::new();
    for builtin in BUILTIN.iter().filter(|builtin| inputs.serves(builtin.group, builtin.kinds)) {
        steps.extend((builtin.make)(inputs).map(|step| (builtin.name, step)));
    }
    for make in own.local {
        let step = make(&inputs.context);
        steps.push((step.name(), ChainStep::Local(step)));
    }
    for make in own.remote {
        let step = make(&inputs.context);
        steps.push((step.name(), ChainStep::Remote(step)));
    }
    for name in own.without {
        let before = steps.len();
        steps.retain(|(known, _)| *known != name);
        // A step of kinds that are not served is left out already.
        if steps.len() == before && !BUILTIN.iter().any(|builtin| builtin.name == name) {
            let known: Vec<&str> = steps.iter().map(|(known, _)| *known).collect();
            return Err(BuildError::UnknownStep { name, known: known.join(", ") });
        }
    }
    let mut seen = BTreeSet::new();
    let mut chain = Chain::empty(gates);
    for (name, step) in steps {
        if !seen.insert(name) {
            return Err(BuildError::DuplicateStep(name));
        }
        chain = match step {
            ChainStep::Local(step) => chain.with(step),
            ChainStep::Remote(step) => chain.with_remote(step),
        };
    }
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_admission::{Availability, PLUGINS};

    #[test]
    fn every_default_plug_in_is_built_in() {
        let is_built_in =
            |availability| matches!(availability, Availability::Default | Availability::Storage);
        let listed = PLUGINS.iter().filter(|plugin| is_built_in(plugin.availability));
        let built_in: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
        assert_eq!(built_in, listed.map(|plugin| plugin.name).collect::<Vec<_>>());
    }
}
