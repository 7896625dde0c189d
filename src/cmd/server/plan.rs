//! The control plane that the flags describe.

use super::ServerSetup;
use super::features_page::{self, FeaturesPage};
use super::trace_page::{self, RingObserver, TracePage};
use crate::cmd::flags::{Profile, Storage};
use ferrokube_auth::audit::{AuditConfig, OnFailure, Rotation};
use ferrokube_controlplane::{FailpointObserver, Route};
use ferrokube_features::FEATURE_API;
use ferrokube_pki::{CONTROLLER_MANAGER, Subject};
use ferrokube_serve::ListenerLimits;
use ferrokube_serve::reload::TlsFiles;
use ferrokube_server::{
    AUDIT_RESERVE, AggregationConfig, AuthenticatorKind, ControlPlane, ControlPlaneBuilder,
    DataDir, FrontProxyConfig, KubeletAccessConfig, ListenerConfig, ServerContext,
    ServiceAccountConfig, StorageConfig, WebhookConfig,
};
use ferrokube_storage::journal::unsynced::UnsyncedDisk;
use ferrokube_storage::{Config, Environment};
use ferrokube_timeline::TracePages;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// History in memory of a server on etcd, which has no journal to read older events from, in
/// bytes.
const HISTORY_BYTES: usize = 64 << 20;

/// Kubeconfigs in the data directory of an API server without controllers in its process.
const COMPONENTS: [(&str, Subject<'static>); 1] =
    [("controller-manager.kubeconfig", CONTROLLER_MANAGER)];

/// All of it apart from the data directory.
pub(super) fn builder(setup: &ServerSetup<'_>) -> ControlPlaneBuilder {
    let (flags, kube_apiserver) = (setup.flags, setup.kube_apiserver);
    let mut builder = ControlPlane::builder()
        .gates(setup.inputs.gates.clone())
        .feature_evaluation(flags.feature_api.feature_evaluation_time)
        .dynamic_features(flags.feature_api.dynamic_features.iter().cloned())
        .feature_failpoints(feature_failpoints())
        .limits(flags.flow.limits())
        .anonymous(kube_apiserver.anonymous_auth)
        .builtin_authenticators(authenticators(setup))
        .service_accounts(service_accounts(setup))
        .aggregation(aggregation(setup))
        .kubelets(kubelets(setup))
        .services(flags.service_address.iter().cloned())
        .service_routing(flags.service.routing())
        .webhooks(WebhookConfig {
            mutating: Arc::clone(&setup.inputs.admission.mutating),
            validating: Arc::clone(&setup.inputs.admission.validating),
        })
        .without_admission(flags.admission.left_out())
        .with_controllers(setup.has_controllers)
        .handlers(ferrokube_cluster::install)
        .listener(listener(setup));
    for bundle in &setup.inputs.bundles {
        builder = builder.bundle(bundle.clone());
    }
    if let Some(step) = &setup.inputs.admission.event_rate {
        let step = Arc::clone(step);
        builder = builder.admission(move |_| step);
    }
    if let Some(ca_file) = &kube_apiserver.requestheader_client_ca_file {
        builder = builder.front_proxies(FrontProxyConfig {
            ca_file: ca_file.clone(),
            allowed_names: kube_apiserver.requestheader_allowed_names.clone(),
            username_headers: kube_apiserver.requestheader_username_headers.clone(),
            uid_headers: kube_apiserver.requestheader_uid_headers.clone(),
            group_headers: kube_apiserver.requestheader_group_headers.clone(),
            extra_headers_prefix: kube_apiserver.requestheader_extra_headers_prefix.clone(),
        });
    }
    if let Some(tokens) = &setup.inputs.static_tokens {
        builder = builder.static_tokens(tokens.clone());
    }
    if setup.inputs.gates.enabled(&FEATURE_API) {
        let page =
            || |context: &ServerContext| Arc::new(FeaturesPage(context.clone())) as Arc<dyn Route>;
        let bare = features_page::PATH.trim_end_matches('/');
        builder = builder.route(bare, false, page()).route(features_page::PATH, false, page());
    }
    if flags.trace_ui.enabled { with_trace_page(setup, builder) } else { builder }
}

/// Completes a builder with the contents of the data directory.
pub(super) fn in_directory(
    builder: ControlPlaneBuilder,
    setup: &ServerSetup<'_>,
    directory: DataDir,
) -> anyhow::Result<ControlPlaneBuilder> {
    let builder = match audit(setup, &directory) {
        Some(config) => builder.audit(config),
        None => builder.without_audit(),
    };
    let storage = if setup.flags.etcd.is_used() {
        let engine = Arc::new(setup.flags.etcd.engine(&directory)?);
        let media_type = setup.flags.etcd.media_type();
        StorageConfig::Remote { engine, history_bytes: HISTORY_BYTES, media_type }
    } else {
        let config = match setup.flags.storage {
            Storage::Embedded => Config::embedded(directory.join("store")),
            Storage::Memory => Config::memory(),
        };
        let mut environment = store_environment()?;
        if setup.flags.is_for_tests {
            environment.io = Arc::new(UnsyncedDisk);
        }
        StorageConfig::Local { config, environment }
    };
    Ok(builder.storage(storage).open_data_dir(directory))
}

fn authenticators(setup: &ServerSetup<'_>) -> Vec<AuthenticatorKind> {
    let mut kinds =
        vec![AuthenticatorKind::ClientCertificates, AuthenticatorKind::ServiceAccountTokens];
    if setup.flags.auth.enable_bootstrap_token_auth {
        kinds.push(AuthenticatorKind::BootstrapTokens);
    }
    kinds
}

/// Service account tokens.
pub(super) fn service_accounts(setup: &ServerSetup<'_>) -> ServiceAccountConfig {
    let (auth, kube_apiserver) = (&setup.flags.auth, setup.kube_apiserver);
    let mut issuers = kube_apiserver.service_account_issuer.iter().cloned();
    ServiceAccountConfig {
        // The flag has a default.
        issuer: issuers.next().unwrap_or_default(),
        older_issuers: issuers.collect(),
        api_audiences: kube_apiserver.api_audiences.clone(),
        max_life: Some(auth.service_account_max_token_expiration).filter(|life| !life.is_zero()),
        signing_key_file: kube_apiserver.service_account_signing_key_file.clone(),
        key_files: kube_apiserver.service_account_key_file.clone(),
        public_keys: auth.public_issuer_discovery,
    }
}

fn aggregation(setup: &ServerSetup<'_>) -> AggregationConfig {
    let kube_apiserver = setup.kube_apiserver;
    let chain = kube_apiserver.proxy_client_cert_file.clone();
    AggregationConfig {
        client_certificate: chain.zip(kube_apiserver.proxy_client_key_file.clone()),
    }
}

fn kubelets(setup: &ServerSetup<'_>) -> KubeletAccessConfig {
    let kube_apiserver = setup.kube_apiserver;
    let chain = kube_apiserver.kubelet_client_certificate.clone();
    KubeletAccessConfig {
        client_certificate: chain.zip(kube_apiserver.kubelet_client_key.clone()),
        ca_file: kube_apiserver.kubelet_certificate_authority.clone(),
        address_types: kube_apiserver.kubelet_preferred_address_types.clone(),
    }
}

fn listener(setup: &ServerSetup<'_>) -> ListenerConfig {
    let (flags, kube_apiserver) = (setup.flags, setup.kube_apiserver);
    let chain = kube_apiserver.tls_cert_file.clone();
    let mut names = flags.tls_sans.clone();
    if flags.profile == Profile::Kubernetes {
        names.extend(flags.service.names());
    }
    ListenerConfig {
        address: SocketAddr::new(flags.bind_address, flags.secure_port),
        names,
        tls: flags.tls.policy(),
        files: TlsFiles {
            serving: chain.zip(kube_apiserver.tls_private_key_file.clone()),
            client_ca: kube_apiserver.client_ca_file.clone(),
            ..TlsFiles::default()
        },
        limits: limits(flags.max_connections),
        admin_lifetime: flags.admin_certificate_lifetime,
        kubeconfigs: if setup.has_controllers { Vec::new() } else { COMPONENTS.to_vec() },
    }
}

/// [`listener`] on another port, as one that is in use is no fault of the flags.
pub(super) fn any_port(setup: &ServerSetup<'_>) -> ListenerConfig {
    let mut config = listener(setup);
    config.address.set_port(0);
    config
}

fn limits(connections: u32) -> ListenerLimits {
    ListenerLimits { connections: connections as usize, ..ListenerLimits::default() }
}

fn with_trace_page(setup: &ServerSetup<'_>, builder: ControlPlaneBuilder) -> ControlPlaneBuilder {
    let page = || {
        let pages =
            TracePages { ring: setup.ring.clone(), backend: setup.flags.trace_ui.backend.clone() };
        move |context: &ServerContext| -> Arc<dyn Route> {
            Arc::new(TracePage { pages, authorizer: Arc::clone(&context.authorizer) })
        }
    };
    let builder = builder.route(trace_page::PATH.trim_end_matches('/'), false, page()).route(
        trace_page::PATH,
        false,
        page(),
    );
    match &setup.ring {
        Some(ring) => builder.observer(Arc::new(RingObserver(Arc::clone(ring)))),
        None => builder,
    }
}

/// `None`: there is no audit log.
fn audit(setup: &ServerSetup<'_>, directory: &DataDir) -> Option<AuditConfig> {
    let flags = &setup.flags.audit;
    let default = || setup.flags.is_persistent().then(|| directory.join("audit.log"));
    // In our own data directory the log's space is our responsibility.
    let reserve_bytes = if flags.audit_log_path.is_none() { AUDIT_RESERVE } else { 0 };
    let path: PathBuf = flags.audit_log_path.clone().or_else(default)?;
    let rotation = Rotation {
        max_bytes: flags.audit_log_maxsize.saturating_mul(1 << 20),
        max_backups: flags.audit_log_maxbackup,
        max_age: Duration::from_secs(u64::from(flags.audit_log_maxage) * 24 * 3600),
    };
    let on_failure =
        if flags.audit_log_mode == "blocking" { OnFailure::Drop } else { OnFailure::Refuse };
    Some(AuditConfig {
        policy: setup.inputs.audit_policy.clone(),
        rotation,
        on_failure,
        sync: flags.audit_log_sync,
        reserve_bytes,
        ..AuditConfig::new(path)
    })
}

/// In debug builds `FERROKUBE_FEATURE_FAILPOINT` may name a feature and a moment of turning it off
/// at which the process dies: `LogTracking:TaskEnded`.
#[cfg(debug_assertions)]
fn feature_failpoints() -> FailpointObserver {
    use rustix::process::{Signal, getpid, kill_process};
    let Ok(text) = std::env::var("FERROKUBE_FEATURE_FAILPOINT") else {
        return FailpointObserver::default();
    };
    FailpointObserver::new(move |feature, failpoint| {
        if text == format!("{feature}:{failpoint:?}") {
            // As an operator's kill -9; a signal to oneself is delivered.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    })
}

#[cfg(not(debug_assertions))]
fn feature_failpoints() -> FailpointObserver {
    FailpointObserver::default()
}

/// The store's environment. In debug builds `FERROKUBE_FAILPOINT` may name a call at which the
/// process dies (`none`: never), with segments small enough to exercise the whole journal.
#[cfg(debug_assertions)]
fn store_environment() -> anyhow::Result<Environment> {
    use anyhow::anyhow;
    use ferrokube_storage::JournalLimits;
    use ferrokube_storage::testing::FailpointDisk;
    let Ok(text) = std::env::var("FERROKUBE_FAILPOINT") else { return Ok(Environment::default()) };
    let failpoint =
        if text == "none" { None } else { Some(text.parse().map_err(|why: String| anyhow!(why))?) };
    let journal = JournalLimits {
        segment_bytes: 64 << 10,
        retain_bytes: 512 << 10,
        ..JournalLimits::default()
    };
    Ok(Environment {
        io: Arc::new(FailpointDisk::new(failpoint)),
        journal,
        ..Environment::default()
    })
}

#[cfg(not(debug_assertions))]
#[allow(clippy::unnecessary_wraps, reason = "same signature as in debug builds")]
fn store_environment() -> anyhow::Result<Environment> {
    Ok(Environment::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::flags::ServerFlags;
    use clap::Parser;

    #[derive(Parser)]
    struct ServerCli {
        #[command(flatten)]
        flags: ServerFlags,
    }

    #[test]
    fn connections_are_bounded_by_a_flag() {
        let connections = |flags: &[&str]| {
            let parsed = ServerCli::try_parse_from([&["x"], flags].concat());
            parsed.ok().map(|cli| limits(cli.flags.max_connections).connections)
        };
        assert_eq!(connections(&[]), Some(ListenerLimits::default().connections));
        assert_eq!(connections(&["--max-connections=20000"]), Some(20_000));
        assert_eq!(connections(&["--max-connections=0"]), None);
    }
}
