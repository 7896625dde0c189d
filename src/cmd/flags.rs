//! Flags shared by several roles, and their conversion to the crates' configurations.

use super::admission_flags::AdmissionFlags;
use super::auth_flags::{self, AuthFlags};
use super::etcd_flags::EtcdFlags;
use super::flow_flags::FlowFlags;
use super::service_flags::ServiceFlags;
use super::tls::TlsFlags;
use super::tracing::TracingFlags;
use clap::{Args, ValueEnum};
use ferrokube_controlplane::aggregator::ServiceAddress;
use ferrokube_controlplane::connect::ADDRESS_TYPES;
use ferrokube_features::{
    EmulatedVersion, GateSettings, GateVersions, GateWarning, Gates, LOG_TRACKING, known,
};
use ferrokube_resource::Bundle;
use ferrokube_trace::log::{self, LogFile, Rotation};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A type of node addresses.
fn address_type(text: &str) -> Result<String, String> {
    let known = || format!("must be one of {}", ADDRESS_TYPES.join(", "));
    ADDRESS_TYPES.contains(&text).then(|| text.to_owned()).ok_or_else(known)
}

/// Logging flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogFlags {
    /// Log format on standard error: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::LogFormat,
    /// error, warn, info, debug or trace, or directives such as `info,ferrokube_serve=debug`
    /// [default: $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Verbosity: 0-2 info, 3-5 debug, 6-10 trace
    #[arg(short, long = "v", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=10), conflicts_with = "log_level")]
    verbosity: Option<u8>,
    /// Also write the log to this file, readable by its owner only; unless a level is set, it
    /// additionally has a line per reconcile. `-`: no file [default: with all-in-one and embedded
    /// storage ferrokube.log in the data directory; else none]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Size in megabytes at which the log file is rotated
    #[arg(long, value_name = "MB", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    log_file_maxsize: u64,
    /// Rotated log files to keep
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    log_file_maxbackup: u16,
}

/// Default filter of the log file: causes and effects in the controllers. Writes are in the audit
/// log, and a line per read would cost each of them time.
const FILE_FILTER: &str = "warn,kube_client=off,ferrokube=info,ferrokube::request=off,ferrokube_client=debug,ferrokube_controllers=debug";

impl LogFlags {
    /// Includes trace ids if the gate is on. `file` is the default log file.
    pub(crate) fn config(&self, gates: &Gates, file: Option<&Path>) -> log::LogConfig {
        let of_verbosity =
            self.verbosity.map(|verbosity| log::level_of_verbosity(verbosity).to_owned());
        let of_environment = || std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
        let chosen = self.log_level.clone().or(of_verbosity).or_else(of_environment);
        let path = self.log_file.as_deref().or(file).filter(|path| *path != Path::new("-"));
        let file = path.map(|path| LogFile {
            path: path.to_owned(),
            rotation: self.rotation(),
            filter: chosen.clone().unwrap_or_else(|| FILE_FILTER.into()),
        });
        let filter = chosen.unwrap_or_else(|| "info".into());
        log::LogConfig {
            format: self.log_format,
            filter,
            ids: gates.live(&LOG_TRACKING),
            file,
            tap: None,
        }
    }

    fn rotation(&self) -> Rotation {
        Rotation {
            max_bytes: self.log_file_maxsize << 20,
            max_backups: self.log_file_maxbackup.into(),
            max_age: Duration::ZERO,
        }
    }
}

/// Feature gate flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Features")]
pub(crate) struct FeatureFlags {
    /// Feature gates: Name=true,... (also AllAlpha and AllBeta); unknown names are ignored with a
    /// warning
    #[arg(long = "feature-gates", value_name = "A=true,...")]
    feature_gates: Vec<GateSettings>,
    /// Version whose feature gates apply, at most three minors old: 1.35 or kube=1.35 [default:
    /// the binary's]
    #[arg(long, value_name = "VERSION")]
    emulated_version: Option<EmulatedVersion>,
    /// Oldest version of the components that it works together with, which decides on defaults of
    /// feature gates; at most the emulated version: 1.35 or kube=1.35 [default: the one before
    /// that]
    #[arg(long, value_name = "VERSION")]
    min_compatibility_version: Option<EmulatedVersion>,
}

impl FeatureFlags {
    /// The gates' values, and warnings about the settings.
    pub(crate) fn gates(&self) -> anyhow::Result<(Gates, Vec<GateWarning>)> {
        let mut settings = GateSettings::default();
        for given in &self.feature_gates {
            settings.merge(given.clone());
        }
        let versions =
            GateVersions::of_flags(self.emulated_version, self.min_compatibility_version)?;
        Ok(Gates::new(versions, &settings)?)
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Features")]
pub(crate) struct FeatureApiFlags {
    /// Time in which components report the values of feature gates that they use, before a
    /// transition ends; longer than the longest outage of a component that must not be missed
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = positive_duration)]
    pub(crate) feature_evaluation_time: Duration,
    /// Features that spec.desired of their Feature objects turns on and off, in place of
    /// --feature-gates; those that are read once at startup cannot be among them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = dynamic_feature)]
    pub(crate) dynamic_features: Vec<String>,
}

/// Refuses a feature that the API cannot set.
fn dynamic_feature(name: &str) -> Result<String, String> {
    known::check_dynamic(name).map_err(|error| error.to_string())?;
    Ok(name.to_owned())
}

/// Parses `15s`, `1m30s`, `500ms`, `24h` or `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = if text == "0" { "0s" } else { text };
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())
}

/// Storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    /// In the data directory; persistent
    Embedded,
    /// In memory; lost on exit
    Memory,
}

/// Set of resources served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// No pods, no nodes
    Generic,
    /// All kinds of Kubernetes
    Kubernetes,
}

impl Profile {
    /// In discovery order.
    pub(crate) fn bundles(self) -> Vec<Bundle> {
        match self {
            Self::Generic => vec![ferrokube_resources::bundle()],
            Self::Kubernetes => {
                vec![ferrokube_resources::bundle(), ferrokube_workloads::bundle()]
            }
        }
    }
}

/// Flags of an API server's identity and listener.
#[derive(Debug, Args)]
pub(crate) struct ServerFlags {
    /// Keys, certificates and state; created if missing, for its owner only [default:
    /// $XDG_DATA_HOME/ferrokube, else ~/.local/share/ferrokube]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) bind_address: IpAddr,
    /// Port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub(crate) secure_port: u16,
    /// Max concurrent connections, each at most 27 KiB of memory while idle; capped at three
    /// quarters of the file descriptors. One address may use as many as remain free
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub(crate) max_connections: u32,
    /// Additional names and addresses in the serving certificate
    #[arg(long = "tls-san", value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) tls_sans: Vec<String>,
    /// Lifetime of the certificates in admin.kubeconfig, and in the kubeconfigs of components next
    /// to it; the files are renewed after two thirds of it
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = positive_duration)]
    pub(crate) admin_certificate_lifetime: Duration,
    /// Storage engine
    #[arg(long, value_enum, default_value_t = Storage::Embedded)]
    pub(crate) storage: Storage,
    /// Resources to serve; kubernetes is the default when run as kube-apiserver
    #[arg(long, value_enum, default_value_t = Profile::Generic)]
    pub(crate) profile: Profile,
    /// Optional API versions to serve: coordination.k8s.io/v1beta1=true, api/beta=true,
    /// api/all=true
    #[arg(long, value_name = "GROUP/VERSION=BOOL,...", value_delimiter = ',')]
    pub(crate) runtime_config: Vec<String>,
    /// Addresses of services of aggregated APIs and webhooks, without a port for all ports of the
    /// service. Others cannot be used, unless the profile has Service objects
    #[arg(long, value_name = "NAME.NAMESPACE[:PORT]=IP:PORT,...", value_delimiter = ',')]
    pub(crate) service_address: Vec<ServiceAddress>,
    /// The state is of a test: it outlives the process, but need not outlive the machine, and there
    /// are no log files.
    #[arg(skip)]
    pub(crate) is_for_tests: bool,
    // After the flags without a heading, as clap would apply this one to them.
    #[command(flatten)]
    pub(crate) etcd: EtcdFlags,
    #[command(flatten)]
    pub(crate) service: ServiceFlags,
    #[command(flatten)]
    pub(crate) tls: TlsFlags,
    #[command(flatten)]
    pub(crate) auth: AuthFlags,
    #[command(flatten)]
    pub(crate) admission: AdmissionFlags,
    #[command(flatten)]
    pub(crate) flow: FlowFlags,
    #[command(flatten)]
    pub(crate) trace_ui: TraceUiFlags,
    #[command(flatten)]
    pub(crate) audit: AuditFlags,
    #[command(flatten)]
    pub(crate) features: FeatureFlags,
    #[command(flatten)]
    pub(crate) feature_api: FeatureApiFlags,
    #[command(flatten)]
    pub(crate) log: LogFlags,
    #[command(flatten)]
    pub(crate) tracing: TracingFlags,
}

impl ServerFlags {
    /// Whether state, audit log and log are kept for good.
    pub(crate) fn is_persistent(&self) -> bool {
        !self.is_for_tests && (self.etcd.is_used() || self.storage == Storage::Embedded)
    }
}

/// Trace page flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Trace page")]
pub(crate) struct TraceUiFlags {
    /// Serve /ui/trace/: timelines of objects from this process's recent events (in a browser:
    /// kubectl proxy)
    #[arg(long = "trace-ui")]
    pub(crate) enabled: bool,
    /// URL of a trace in the tracing backend, with the placeholder {trace_id}
    #[arg(long = "trace-ui-backend", value_name = "URL", value_parser = backend, requires = "enabled")]
    pub(crate) backend: Option<String>,
}

/// Restricts links to HTTP URLs.
fn backend(text: &str) -> Result<String, String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    if is_web && text.contains("{trace_id}") && !text.contains(char::is_whitespace) {
        Ok(text.to_owned())
    } else {
        Err("must start with https:// or http:// and contain {trace_id}".to_owned())
    }
}

/// Audit log flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Audit")]
pub(crate) struct AuditFlags {
    /// Audit policy (audit.k8s.io/v1) [default: metadata of writes, of reads of secrets, of
    /// connections to containers and kubelets, and of what is refused]
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// Audit log file; - for standard output [default: audit.log in the data directory; none with
    /// memory storage]
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log_path: Option<PathBuf>,
    /// Size in megabytes at which the audit log is rotated
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub(crate) audit_log_maxsize: u64,
    /// Rotated audit logs to keep; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) audit_log_maxbackup: usize,
    /// Days after which rotated audit logs are removed; also rotates at least this often; 0: never
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub(crate) audit_log_maxage: u32,
    /// Sync the audit log before a write is acknowledged: it then survives power cuts like the
    /// state, not only crashes of the process
    #[arg(long)]
    pub(crate) audit_log_sync: bool,
    /// When the audit log cannot be written: refuse what must be in it (blocking-strict), or drop
    /// and count events
    #[arg(long, value_name = "MODE", default_value = "blocking-strict", value_parser = ["blocking-strict", "blocking"])]
    pub(crate) audit_log_mode: String,
}

/// kube-apiserver's flags, where supported.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "As kube-apiserver")]
pub(crate) struct KubeApiserverFlags {
    /// Serving certificate chain; reloaded on change [default: generated and renewed automatically]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Key of --tls-cert-file
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// CAs of accepted client certificates, in addition to our own; reloaded on change
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// CAs of front proxies; reloaded on change
    #[arg(long, value_name = "FILE")]
    pub(crate) requestheader_client_ca_file: Option<PathBuf>,
    /// Common names allowed for front proxies; empty: any
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "requestheader_client_ca_file"
    )]
    pub(crate) requestheader_allowed_names: Vec<String>,
    /// Headers with the user name
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-User")]
    pub(crate) requestheader_username_headers: Vec<String>,
    /// Headers with the user's uid
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-Uid")]
    pub(crate) requestheader_uid_headers: Vec<String>,
    /// Headers with the user's groups
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-Group")]
    pub(crate) requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with the user's extra attributes
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-Extra-")]
    pub(crate) requestheader_extra_headers_prefix: Vec<String>,
    /// Certificate by which aggregated servers recognize this server; reloaded on change [default:
    /// issued by pki/front-proxy-ca.crt in the data directory]
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub(crate) proxy_client_cert_file: Option<PathBuf>,
    /// Key of --proxy-client-cert-file
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub(crate) proxy_client_key_file: Option<PathBuf>,
    /// Certificate by which kubelets recognize this server; reloaded on change [default: issued by
    /// pki/client-ca.crt in the data directory for the user kube-apiserver-kubelet-client]
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    pub(crate) kubelet_client_certificate: Option<PathBuf>,
    /// Key of --kubelet-client-certificate
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    pub(crate) kubelet_client_key: Option<PathBuf>,
    /// CAs of kubelets' serving certificates [default: these are not verified]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubelet_certificate_authority: Option<PathBuf>,
    /// Types of node addresses, the preferred one first
    #[arg(long, value_name = "TYPE,...", value_delimiter = ',', default_values_t = ADDRESS_TYPES.map(str::to_owned), value_parser = address_type)]
    pub(crate) kubelet_preferred_address_types: Vec<String>,
    /// Issuer of service account tokens; repeatable: the first one issues, tokens of all are
    /// accepted
    #[arg(long, value_name = "URL", default_value = DEFAULT_ISSUER, value_parser = auth_flags::issuer)]
    pub(crate) service_account_issuer: Vec<String>,
    /// Key (public or private) that verifies service account tokens; repeatable; reloaded on change
    /// [default: the signing key]
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_key_file: Vec<PathBuf>,
    /// Key (P-256 or RSA) that signs service account tokens; reloaded on change [default:
    /// pki/sa.key in the data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_signing_key_file: Option<PathBuf>,
    /// Audiences of the server [default: the issuers]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = auth_flags::word)]
    pub(crate) api_audiences: Vec<String>,
    /// Treat requests without credentials as system:anonymous, which has almost no rights; false:
    /// reject them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) anonymous_auth: bool,
    /// Authorization mode; only RBAC is supported
    #[arg(long, value_name = "MODE", default_value = "RBAC", value_parser = ["RBAC"])]
    pub(crate) authorization_mode: String,
}

/// Between a second and ten years, the lifetime of the CA.
fn positive_duration(text: &str) -> Result<Duration, String> {
    let parsed = duration(text)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(10 * 365 * 24 * 3600);
    if bounds.contains(&parsed) {
        Ok(parsed)
    } else {
        Err("must be between 1s and 87600h".to_owned())
    }
}

/// As in clusters set up by kubeadm.
pub(crate) const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc";

/// Defaults for `all-in-one`, which lacks these flags.
pub(crate) fn kube_apiserver_defaults() -> KubeApiserverFlags {
    let one = |text: &str| vec![text.to_owned()];
    KubeApiserverFlags {
        requestheader_username_headers: one("X-Remote-User"),
        requestheader_uid_headers: one("X-Remote-Uid"),
        requestheader_group_headers: one("X-Remote-Group"),
        requestheader_extra_headers_prefix: one("X-Remote-Extra-"),
        service_account_issuer: one(DEFAULT_ISSUER),
        anonymous_auth: true,
        authorization_mode: "RBAC".into(),
        ..KubeApiserverFlags::default()
    }
}
