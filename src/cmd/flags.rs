//! Flags that several roles take, and how they become what crates want.

use super::auth_flags::{self, AuthFlags};
use super::tls::TlsFlags;
use super::tracing::TracingFlags;
use clap::{Args, ValueEnum};
use ferrokube_features::{GateSettings, Gates, KubernetesVersion, LOG_TRACKING};
use ferrokube_trace::log::{self, LogFile, Rotation};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a process logs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogFlags {
    /// Form of the log lines on standard error: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    /// error, warn, info, debug or trace, or directives such as `info,ferrokube_serve=debug` [default: $RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Verbosity as a number: 0-2 info, 3-5 debug, 6-10 trace
    #[arg(short, long = "v", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=10), conflicts_with = "log_level")]
    verbosity: Option<u8>,
    /// Keep the log in this file, too, readable by its owner only; without a level it holds a line for each reconcile besides. `-`: in none
    /// [default: all-in-one with embedded storage: ferrokube.log in the data directory; else none]
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Megabytes after which a new log file is begun
    #[arg(long, value_name = "MB", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    log_file_maxsize: u64,
    /// Old log files that are kept
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    log_file_maxbackup: u16,
}

/// What the log file holds unless a level is chosen: what caused what in the controllers. Requests that write are in the audit log, and a line for every
/// other one would cost each of them time.
const FILE_FILTER: &str = "warn,kube_client=off,ferrokube=info,ferrokube::seam=off,ferrokube_client=debug,ferrokube_controllers=debug";

impl LogFlags {
    /// With the ids of requests if the gate says so. `file` is kept unless another one is chosen.
    pub(crate) fn config(&self, gates: &Gates, file: Option<&Path>) -> log::Config {
        let of_verbosity = self.verbosity.map(|verbosity| log::level_of_verbosity(verbosity).to_owned());
        let of_environment = || std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
        let chosen = self.log_level.clone().or(of_verbosity).or_else(of_environment);
        let path = self.log_file.as_deref().or(file).filter(|path| *path != Path::new("-"));
        let file = path.map(|path| LogFile { path: path.to_owned(), rotation: self.rotation(), filter: chosen.clone().unwrap_or_else(|| FILE_FILTER.into()) });
        let filter = chosen.unwrap_or_else(|| "info".into());
        log::Config { format: self.log_format, filter, ids: gates.enabled(&LOG_TRACKING), file, tap: None }
    }

    fn rotation(&self) -> Rotation {
        Rotation { max_bytes: self.log_file_maxsize << 20, max_backups: self.log_file_maxbackup.into(), max_age: Duration::ZERO }
    }
}

/// Feature gates.
#[derive(Debug, Args)]
#[command(next_help_heading = "Features")]
pub(crate) struct FeatureFlags {
    /// Feature gates: Name=true,... (also AllAlpha and AllBeta); unknown names are warned about and ignored
    #[arg(long = "feature-gates", value_name = "A=true,...")]
    feature_gates: Vec<GateSettings>,
}

impl FeatureFlags {
    /// The gates' values, and what to warn about.
    pub(crate) fn gates(&self) -> anyhow::Result<(Gates, Vec<ferrokube_features::GateWarning>)> {
        let mut settings = GateSettings::default();
        for given in &self.feature_gates {
            settings.merge(given.clone());
        }
        Ok(Gates::new(KubernetesVersion::CURRENT, &settings)?)
    }
}

/// `15s`, `1m30s`, `500ms`, `24h`, `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = if text == "0" { "0s" } else { text };
    let parsed: jiff::SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "it must not be negative".to_owned())
}

/// Where the state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    /// In the data directory; survives everything
    Embedded,
    /// In memory; forgotten at the end
    Memory,
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// No pods and nodes
    Generic,
}

/// What an API server is and where it listens.
#[derive(Debug, Args)]
pub(crate) struct ServerFlags {
    /// Keys, certificates and state; made if missing, for its owner only [default: $XDG_DATA_HOME/ferrokube, else ~/.local/share/ferrokube]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) bind_address: IpAddr,
    /// Port to listen on; 0 takes any free one
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub(crate) secure_port: u16,
    /// Further names and addresses in the serving certificate
    #[arg(long = "tls-san", value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) tls_sans: Vec<String>,
    /// How long the administrator's certificate in admin.kubeconfig is valid; the file is written again after two thirds of it
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = positive_duration)]
    pub(crate) admin_certificate_lifetime: Duration,
    /// Where the state is kept
    #[arg(long, value_enum, default_value_t = Storage::Embedded)]
    pub(crate) storage: Storage,
    /// Which kinds are served
    #[arg(long, value_enum, default_value_t = Profile::Generic)]
    pub(crate) profile: Profile,
    /// API versions that are served only on request: coordination.k8s.io/v1beta1=true, api/beta=true, api/all=true
    #[arg(long, value_name = "GROUP/VERSION=BOOL,...", value_delimiter = ',')]
    pub(crate) runtime_config: Vec<String>,
    // After the flags without a heading: it would hold for them, too.
    #[command(flatten)]
    pub(crate) tls: TlsFlags,
    #[command(flatten)]
    pub(crate) auth: AuthFlags,
    #[command(flatten)]
    pub(crate) trace_ui: TraceUiFlags,
    #[command(flatten)]
    pub(crate) audit: AuditFlags,
    #[command(flatten)]
    pub(crate) features: FeatureFlags,
    #[command(flatten)]
    pub(crate) log: LogFlags,
    #[command(flatten)]
    pub(crate) tracing: TracingFlags,
}

/// The trace page.
#[derive(Debug, Args)]
#[command(next_help_heading = "Trace page")]
pub(crate) struct TraceUiFlags {
    /// Serve /ui/trace/: the timeline of objects, of what this process remembers (for a browser: kubectl proxy)
    #[arg(long = "trace-ui")]
    pub(crate) enabled: bool,
    /// Where the tracing backend shows a trace: a URL with {trace_id} in it
    #[arg(long = "trace-ui-backend", value_name = "URL", value_parser = backend, requires = "enabled")]
    pub(crate) backend: Option<String>,
}

/// Only what a link may lead to.
fn backend(text: &str) -> Result<String, String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    if is_web && text.contains("{trace_id}") && !text.contains(char::is_whitespace) {
        Ok(text.to_owned())
    } else {
        Err("it must begin with https:// or http:// and hold {trace_id}".to_owned())
    }
}

/// What is written to the audit log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Audit")]
pub(crate) struct AuditFlags {
    /// Audit policy (audit.k8s.io/v1) [default: metadata of writes, of reads of secrets, and of what is refused]
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// Audit log; - is standard output [default: audit.log in the data directory; none with memory storage]
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log_path: Option<PathBuf>,
    /// Megabytes after which a new audit log is begun
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub(crate) audit_log_maxsize: u64,
    /// Old audit logs that are kept; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) audit_log_maxbackup: usize,
    /// Days after which old audit logs are removed, and at most one after which a new one is begun; 0 keeps them
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub(crate) audit_log_maxage: u32,
    /// Sync the audit log before a write is acknowledged: it then survives power cuts as the state does, not only the end of the process
    #[arg(long)]
    pub(crate) audit_log_sync: bool,
    /// While the audit log cannot be written: refuse writes (blocking-strict), or drop events and count them
    #[arg(long, value_name = "MODE", default_value = "blocking-strict", value_parser = ["blocking-strict", "blocking"])]
    pub(crate) audit_log_mode: String,
}

/// Further flags of `apiserver`, with the names and meanings of its namesake's.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "As kube-apiserver")]
pub(crate) struct KubeApiserverFlags {
    /// Serving certificate chain; read again when it changes [default: made and renewed by itself]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Key of --tls-cert-file
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// CAs whose client certificates are accepted, besides the own one; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// CAs of front proxies; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that a front proxy may have; empty: any
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "requestheader_client_ca_file")]
    pub(crate) requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-User")]
    pub(crate) requestheader_username_headers: Vec<String>,
    /// Headers with the user's uid
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-Uid")]
    pub(crate) requestheader_uid_headers: Vec<String>,
    /// Headers with the user's groups
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-Group")]
    pub(crate) requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extra attributes of the user
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = auth_flags::header, default_value = "X-Remote-Extra-")]
    pub(crate) requestheader_extra_headers_prefix: Vec<String>,
    /// Issuer of service account tokens
    #[arg(long, value_name = "URL", default_value = DEFAULT_ISSUER, value_parser = auth_flags::issuer)]
    pub(crate) service_account_issuer: String,
    /// Keys (public or private) that verify service account tokens; several times for several; read again when they change [default: the signing key]
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_key_file: Vec<PathBuf>,
    /// Key (ES256) that signs service account tokens; read again when it changes [default: pki/sa.key in the data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_signing_key_file: Option<PathBuf>,
    /// Audiences of the server [default: the issuer]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = auth_flags::word)]
    pub(crate) api_audiences: Vec<String>,
    /// Requests without credentials are those of system:anonymous, which may do next to nothing; false: they are refused
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) anonymous_auth: bool,
    /// How requests are authorized; there is one way
    #[arg(long, value_name = "MODE", default_value = "RBAC", value_parser = ["RBAC"])]
    pub(crate) authorization_mode: String,
}

/// At least a second, and no more than ten years, after which the CA is not valid either.
fn positive_duration(text: &str) -> Result<Duration, String> {
    let parsed = duration(text)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(10 * 365 * 24 * 3600);
    if bounds.contains(&parsed) { Ok(parsed) } else { Err("it must be between 1s and 87600h".to_owned()) }
}

/// As upstream's own clusters have it.
pub(crate) const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc";

/// What `all-in-one` takes for the flags that it does not have.
pub(crate) fn kube_apiserver_defaults() -> KubeApiserverFlags {
    let one = |text: &str| vec![text.to_owned()];
    KubeApiserverFlags {
        requestheader_username_headers: one("X-Remote-User"),
        requestheader_uid_headers: one("X-Remote-Uid"),
        requestheader_group_headers: one("X-Remote-Group"),
        requestheader_extra_headers_prefix: one("X-Remote-Extra-"),
        service_account_issuer: DEFAULT_ISSUER.into(),
        anonymous_auth: true,
        authorization_mode: "RBAC".into(),
        ..KubeApiserverFlags::default()
    }
}
