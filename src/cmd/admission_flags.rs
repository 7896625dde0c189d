//! Flags of admission.

use clap::Args;
use ferrokube_admission::EVENT_RATE_LIMIT;
use std::path::PathBuf;

/// All that this server has; but for the first one they are always on.
const PLUGINS: [&str; 10] = [
    EVENT_RATE_LIMIT,
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "NamespaceLifecycle",
    "ResourceQuota",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
];

/// Admission flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Admission")]
pub(crate) struct AdmissionFlags {
    /// AdmissionConfiguration (apiserver.config.k8s.io/v1): for MutatingAdmissionWebhook and
    /// ValidatingAdmissionWebhook a kubeconfig whose users are credentials for webhooks, by host
    /// or NAME.NAMESPACE.svc
    #[arg(long = "admission-control-config-file", value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,
    /// Admission plug-ins in addition to the default ones: EventRateLimit, which needs a section in
    /// --admission-control-config-file. The default ones may be named, too
    #[arg(long = "enable-admission-plugins", value_name = "NAME,...", value_delimiter = ',', value_parser = PLUGINS, hide_possible_values = true)]
    pub(crate) enable: Vec<String>,
}
