//! Command line inputs: flags and the files they name, read and checked before anything is opened
//! or written.
//!
//! Flags that can be wrong in ways that clap does not detect are checked here, so that a wrong one
//! leaves nothing behind: no data directory, log file or listening socket. The values read here are
//! the ones used, unless reloaded later.

use super::{Companion, KeyFiles, front_proxy, listener, static_tokens::StaticTokens};
use crate::cmd::flags::{KubeApiserverFlags, ServerFlags};
use crate::cmd::{process, runtime_config};
use anyhow::{Context, anyhow};
use ferrokube_auth::audit::AuditPolicy;
use ferrokube_features::{GateWarning, Gates};
use ferrokube_pki::files;
use ferrokube_resource::native::NativeKind;
use ferrokube_trace::export;
use std::path::Path;

/// Checked flag values.
pub(crate) struct Inputs {
    pub(crate) gates: Gates,
    /// Feature gate warnings, to be logged.
    pub(super) warnings: Vec<GateWarning>,
    pub(super) spans: Option<export::ExportConfig>,
    /// Enabled optional kinds.
    pub(super) on_request: Vec<&'static NativeKind>,
    pub(super) audit_policy: AuditPolicy,
    pub(super) static_tokens: Option<StaticTokens>,
}

impl Inputs {
    /// Reads everything; fails at the first error.
    pub(super) fn read(
        flags: &ServerFlags,
        kube_apiserver: &KubeApiserverFlags,
        companion: Option<&dyn Companion>,
    ) -> anyhow::Result<Self> {
        let (gates, warnings) = flags.features.gates()?;
        let spans =
            flags.tracing.config(if companion.is_some() { "ferrokube" } else { "apiserver" })?;
        process::check_log(&flags.log.config(&gates, None))?;
        if let Some(companion) = companion {
            companion.check()?;
        }
        let inputs = Self {
            gates,
            warnings,
            spans,
            on_request: runtime_config::on_request(&flags.runtime_config)?,
            audit_policy: audit_policy(flags.audit.audit_policy_file.as_deref())?,
            static_tokens: flags
                .auth
                .token_auth_file
                .clone()
                .map(StaticTokens::read)
                .transpose()?,
        };
        process::check_log_path("--audit-log-path", flags.audit.audit_log_path.as_deref())?;
        KeyFiles::check(kube_apiserver)?;
        front_proxy::check(kube_apiserver)?;
        listener::check(flags, kube_apiserver)?;
        Ok(inputs)
    }
}

fn audit_policy(path: Option<&Path>) -> anyhow::Result<AuditPolicy> {
    let Some(path) = path else { return Ok(AuditPolicy::default()) };
    let text = files::read(path)?.ok_or_else(|| anyhow!("{} does not exist", path.display()))?;
    AuditPolicy::parse(&text).with_context(|| format!("cannot use {}", path.display()))
}
