//! Settings of a control plane, with safe defaults.

use ferrokube_admission::webhook::WebhookCredentials;
use ferrokube_pki::{ADMIN_LIFETIME, Subject};
use ferrokube_registry::StorageMediaType;
use ferrokube_serve::reload::TlsFiles;
use ferrokube_serve::{ListenerLimits, TlsPolicy};
use ferrokube_storage::{Config, Engine, Environment, RemoteEngine};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Address and certificates of the listener.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Port 0 takes any free one. Default: 127.0.0.1:6443.
    pub address: SocketAddr,
    /// Names and addresses in the serving certificate, besides those of the address.
    pub names: Vec<String>,
    /// TLS versions and cipher suites.
    pub tls: TlsPolicy,
    /// Certificates from files, reloaded on change. Without a serving pair, the server issues and
    /// renews its own. Front proxies are configured by
    /// [`ControlPlaneBuilder::front_proxies`](crate::ControlPlaneBuilder::front_proxies).
    pub files: TlsFiles,
    /// Limits; connections are also bounded by the process's file descriptors.
    pub limits: ListenerLimits,
    /// Lifetime of the certificates in kubeconfigs, which are renewed after two thirds of it.
    pub admin_lifetime: Duration,
    /// Kubeconfigs in the data directory besides the administrator's: file name and user. For
    /// components in other processes of this machine, with no more rights than they need.
    pub kubeconfigs: Vec<(&'static str, Subject<'static>)>,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 6443).into(),
            names: Vec::new(),
            tls: TlsPolicy::default(),
            files: TlsFiles::default(),
            limits: ListenerLimits::default(),
            admin_lifetime: ADMIN_LIFETIME,
            kubeconfigs: Vec::new(),
        }
    }
}

impl From<SocketAddr> for ListenerConfig {
    fn from(address: SocketAddr) -> Self {
        Self { address, ..Self::default() }
    }
}

/// Location of the objects.
#[derive(Clone)]
#[non_exhaustive]
pub enum StorageConfig {
    /// An engine of this process.
    Local {
        /// The engine.
        config: Config,
        /// Clocks, disks and limits.
        environment: Environment,
    },
    /// An engine of other processes, which several servers may share.
    Remote {
        /// Attached at the start, and followed for as long as the server runs.
        engine: Arc<dyn RemoteEngine>,
        /// Bound of the history in memory, in bytes: there is no journal with older events.
        history_bytes: usize,
        /// Encoding of the objects.
        media_type: StorageMediaType,
    },
}

impl StorageConfig {
    /// In memory; lost on exit. There is no audit log unless one is configured.
    pub fn memory() -> Self {
        Config::memory().into()
    }

    /// Whether nothing survives the process.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Local { config: Config { engine: Engine::Memory, .. }, .. })
    }
}

impl From<Config> for StorageConfig {
    fn from(config: Config) -> Self {
        Self::Local { config, environment: Environment::default() }
    }
}

/// Built-in authenticators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthenticatorKind {
    /// Client certificates. The administrator's kubeconfig has one.
    ClientCertificates,
    /// Tokens of service accounts, and their subresource `token`. Needs `serviceaccounts` and
    /// `secrets`.
    ServiceAccountTokens,
    /// Tokens in secrets of type `bootstrap.kubernetes.io/token` in `kube-system`. Off by default;
    /// needs `secrets`.
    BootstrapTokens,
}

/// Service account tokens.
#[derive(Clone, Debug)]
pub struct ServiceAccountConfig {
    /// Claim `iss` of new tokens, and base of OIDC discovery.
    pub issuer: String,
    /// Issuers of earlier tokens, which are accepted, too.
    pub older_issuers: Vec<String>,
    /// Audiences of the server; empty: all issuers.
    pub api_audiences: Vec<String>,
    /// Longer requests are shortened.
    pub max_life: Option<Duration>,
    /// Signs tokens (P-256 or RSA); default: the server's own key. Reloaded on change, as the next
    /// ones.
    pub signing_key_file: Option<PathBuf>,
    /// Verify tokens; default: the signing key.
    pub key_files: Vec<PathBuf>,
    /// Serve the issuer's keys without credentials, like the discovery document.
    pub public_keys: bool,
}

impl Default for ServiceAccountConfig {
    fn default() -> Self {
        Self {
            issuer: "https://kubernetes.default.svc".to_owned(),
            older_issuers: Vec::new(),
            api_audiences: Vec::new(),
            max_life: Some(Duration::from_secs(24 * 3600)),
            signing_key_file: None,
            key_files: Vec::new(),
            public_keys: false,
        }
    }
}

impl ServiceAccountConfig {
    /// All issuers, the current one first.
    pub(crate) fn issuers(&self) -> Vec<String> {
        std::iter::once(&self.issuer).chain(&self.older_issuers).cloned().collect()
    }

    pub(crate) fn audiences(&self) -> Vec<String> {
        if self.api_audiences.is_empty() { self.issuers() } else { self.api_audiences.clone() }
    }
}

/// Proxies that name users in headers of their requests.
#[derive(Clone, Debug)]
pub struct FrontProxyConfig {
    /// CAs of their certificates, reloaded on change.
    pub ca_file: PathBuf,
    /// Common names of their certificates; empty: any.
    pub allowed_names: Vec<String>,
    /// Headers with the user name.
    pub username_headers: Vec<String>,
    /// Headers with the user's uid.
    pub uid_headers: Vec<String>,
    /// Headers with the user's groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with the user's extra attributes.
    pub extra_headers_prefix: Vec<String>,
}

impl Default for FrontProxyConfig {
    /// kube-apiserver's headers; the CA is still to be named.
    fn default() -> Self {
        let one = |text: &str| vec![text.to_owned()];
        Self {
            ca_file: PathBuf::new(),
            allowed_names: Vec::new(),
            username_headers: one("X-Remote-User"),
            uid_headers: one("X-Remote-Uid"),
            group_headers: one("X-Remote-Group"),
            extra_headers_prefix: one("X-Remote-Extra-"),
        }
    }
}

/// Credentials for admission webhooks. Needs their configurations.
#[derive(Clone, Debug, Default)]
pub struct WebhookConfig {
    /// Users of a kubeconfig, for webhooks of MutatingWebhookConfigurations.
    pub mutating: Arc<WebhookCredentials>,
    /// The same, of ValidatingWebhookConfigurations.
    pub validating: Arc<WebhookCredentials>,
}

/// Access to aggregated servers. Needs `apiservices`.
#[derive(Clone, Debug, Default)]
pub struct AggregationConfig {
    /// Client certificate and key, reloaded on change; default: issued by a dedicated CA.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

/// Access to kubelets. Needs `nodes`.
#[derive(Clone, Debug, Default)]
pub struct KubeletAccessConfig {
    /// Client certificate and key, reloaded on change; default: issued for the user
    /// `kube-apiserver-kubelet-client` by the server's own CA.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// CAs of their serving certificates; default: these are not verified.
    pub ca_file: Option<PathBuf>,
    /// Types of node addresses, the preferred one first; default: `InternalIP`, `ExternalIP`,
    /// `Hostname`, `InternalDNS`, `ExternalDNS`.
    pub address_types: Vec<String>,
}
