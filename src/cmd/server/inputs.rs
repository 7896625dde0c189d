//! Command line inputs: flags and the files they name, read and checked before anything is opened
//! or written.
//!
//! Flags that can be wrong in ways that clap does not detect are checked here, so that a wrong one
//! leaves nothing behind: no data directory, log file or listening socket. Files that the control
//! plane reads itself are checked by it. The values read here are
//! the ones used, unless reloaded later.

use super::Companion;
use crate::cmd::admission_flags::AdmissionFlags;
use crate::cmd::flags::ServerFlags;
use crate::cmd::{process, runtime_config};
use anyhow::{Context, anyhow};
use ferrokube_admission::EventRateLimit;
use ferrokube_admission::config::{AdmissionConfig, AdmissionConfigError};
use ferrokube_admission::webhook::{MUTATING, VALIDATING, WebhookCredentials};
use ferrokube_auth::audit::AuditPolicy;
use ferrokube_features::{GateWarning, Gates};
use ferrokube_pki::files;
use ferrokube_resource::Bundle;
use ferrokube_server::static_tokens::StaticTokens;
use ferrokube_trace::export;
use std::path::Path;
use std::sync::Arc;

/// Checked flag values.
pub(crate) struct Inputs {
    pub(crate) gates: Gates,
    /// Feature gate warnings, to be logged.
    pub(super) warnings: Vec<GateWarning>,
    pub(super) spans: Option<export::ExportConfig>,
    /// The kinds to serve.
    pub(super) bundles: Vec<Bundle>,
    pub(super) audit_policy: AuditPolicy,
    pub(super) static_tokens: Option<StaticTokens>,
    pub(super) admission: AdmissionInputs,
}

/// The parsed `--admission-control-config-file`.
pub(super) struct AdmissionInputs {
    pub(super) config: AdmissionConfig,
    /// For the webhooks of each kind.
    pub(super) mutating: Arc<WebhookCredentials>,
    pub(super) validating: Arc<WebhookCredentials>,
    /// If it is enabled.
    pub(super) event_rate: Option<Arc<EventRateLimit>>,
}

impl AdmissionInputs {
    fn read(flags: &AdmissionFlags) -> Result<Self, AdmissionConfigError> {
        let path = flags.config_file.as_deref();
        let config = path.map(AdmissionConfig::read).transpose()?.unwrap_or_default();
        let event_rate = flags.limits_events().then(|| EventRateLimit::of(&config).map(Arc::new));
        let event_rate = event_rate.transpose()?;
        let credentials = |step| config.credentials(step).map(Arc::new);
        let (mutating, validating) = (credentials(MUTATING)?, credentials(VALIDATING)?);
        Ok(Self { config, mutating, validating, event_rate })
    }
}

impl Inputs {
    /// Reads everything; fails at the first error.
    pub(super) fn read(
        flags: &ServerFlags,
        companion: Option<&dyn Companion>,
    ) -> anyhow::Result<Self> {
        let (gates, warnings) = flags.features.gates()?;
        let spans =
            flags.tracing.config(if companion.is_some() { "ferrokube" } else { "apiserver" })?;
        process::check_log(&flags.log.config(&gates, None))?;
        flags.admission.check()?;
        flags.etcd.check()?;
        if let Some(companion) = companion {
            companion.check()?;
        }
        let inputs = Self {
            warnings,
            spans,
            bundles: runtime_config::configure(
                flags.profile.bundles(),
                &flags.runtime_config,
                &gates,
            )?,
            audit_policy: audit_policy(flags.audit.audit_policy_file.as_deref())?,
            static_tokens: flags
                .auth
                .token_auth_file
                .clone()
                .map(StaticTokens::read)
                .transpose()?,
            gates,
            admission: AdmissionInputs::read(&flags.admission)
                .context("cannot use --admission-control-config-file")?,
        };
        process::check_log_path("--audit-log-path", flags.audit.audit_log_path.as_deref())?;
        Ok(inputs)
    }
}

fn audit_policy(path: Option<&Path>) -> anyhow::Result<AuditPolicy> {
    let Some(path) = path else { return Ok(AuditPolicy::default()) };
    let text = files::read(path)?.ok_or_else(|| anyhow!("{} does not exist", path.display()))?;
    AuditPolicy::parse(&text).with_context(|| format!("cannot use {}", path.display()))
}
