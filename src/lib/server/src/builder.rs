//! `ControlPlane::builder()`: the parts of a control plane.

use crate::assembly::{self, Assembled, RemoteStorage};
use crate::client_certificate::{self, FRONT_PROXY, KUBELET_CLIENT};
use crate::config::{
    AggregationConfig, AuthenticatorKind, FrontProxyConfig, KubeletAccessConfig, ListenerConfig,
    ServiceAccountConfig, StorageConfig, WebhookConfig,
};
use crate::connections::{self, OwnConnection};
use crate::context::{FromServer, FromStore, ServerContext, StoreContext};
use crate::data_dir::DataDir;
use crate::error::{BuildError, ServeError};
use crate::listener::{self, Listener};
use crate::running::RunningControlPlane;
use crate::static_tokens::StaticTokens;
use crate::token_keys;
use ferrokube_admission::{AdmissionStep, RemoteStep};
use ferrokube_auth::audit::AuditConfig;
use ferrokube_auth::authenticate::TokenAuthenticator;
use ferrokube_auth::{Authenticator, Authorizer};
use ferrokube_controlplane::aggregator::{ServiceAddress, ServiceRouting};
use ferrokube_controlplane::connect::ConnectResource;
use ferrokube_controlplane::{
    ApiServer, BootstrapStep, FailpointObserver, FeatureFunction, Limits, Observer, Route,
};
use ferrokube_features::Gates;
use ferrokube_pki::Pki;
use ferrokube_registry::{Catalog, ComputedResource};
use ferrokube_resource::{Bundle, Composition};
use ferrokube_storage::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Certificates are renewed after two thirds of their life, which must not become a busy loop.
const MIN_ADMIN_LIFETIME: Duration = Duration::from_secs(1);

pub(crate) type InstallHandlers = Box<dyn FnOnce(&Catalog, &Composition) + Send>;

/// A handler of a computed resource or subresource.
pub(crate) struct Handled {
    /// `plural.group`
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) handler: FromServer<dyn ComputedResource>,
}

/// A route at a non-resource path.
pub(crate) struct MountedPath {
    pub(crate) path: String,
    pub(crate) open: bool,
    pub(crate) route: FromServer<dyn Route>,
}

/// The data directory, opened or chosen.
pub(crate) enum Directory {
    None,
    At(PathBuf),
    Open(DataDir),
}

/// Choice of the audit log.
pub(crate) enum AuditChoice {
    /// `audit.log` in the data directory; none with memory storage.
    Default,
    Off,
    Configured(AuditConfig),
}

/// Created by [`ControlPlane::builder`]. Nothing is opened or written before [`Self::build`].
///
/// Closures run once the storage is open.
pub struct ControlPlaneBuilder {
    pub(crate) bundles: Vec<Bundle>,
    pub(crate) handlers: Vec<Handled>,
    pub(crate) routes: Vec<MountedPath>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) bootstrap: Vec<(String, BootstrapStep)>,
    pub(crate) steps: Vec<FromServer<dyn AdmissionStep>>,
    pub(crate) remote_steps: Vec<FromServer<dyn RemoteStep>>,
    pub(crate) without_steps: Vec<String>,
    pub(crate) authenticators: Vec<FromStore<dyn Authenticator>>,
    pub(crate) token_authenticators: Vec<FromStore<dyn TokenAuthenticator>>,
    pub(crate) builtin_authenticators: Vec<AuthenticatorKind>,
    pub(crate) static_tokens: Option<StaticTokens>,
    pub(crate) anonymous: bool,
    pub(crate) authorizers: Vec<FromStore<dyn Authorizer>>,
    pub(crate) rbac: bool,
    pub(crate) front_proxies: Option<FrontProxyConfig>,
    pub(crate) service_accounts: ServiceAccountConfig,
    pub(crate) aggregation: AggregationConfig,
    pub(crate) kubelets: KubeletAccessConfig,
    pub(crate) webhooks: WebhookConfig,
    pub(crate) connections: Vec<OwnConnection>,
    pub(crate) services: Vec<ServiceAddress>,
    pub(crate) service_routing: ServiceRouting,
    pub(crate) has_controllers: bool,
    pub(crate) installers: Vec<InstallHandlers>,
    pub(crate) gates: Gates,
    pub(crate) feature_evaluation: Duration,
    pub(crate) dynamic_features: BTreeSet<String>,
    pub(crate) feature_functions: BTreeMap<&'static str, FeatureFunction>,
    pub(crate) feature_failpoints: FailpointObserver,
    pub(crate) limits: Limits,
    pub(crate) audit: AuditChoice,
    pub(crate) directory: Directory,
    pub(crate) storage: Option<StorageConfig>,
    pub(crate) listener: ListenerConfig,
    pub(crate) waits: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Resources and routes.
impl ControlPlaneBuilder {
    /// Adds native kinds. Without a bundle, only non-resource paths such as health are served.
    #[must_use]
    pub fn bundle(mut self, bundle: Bundle) -> Self {
        self.bundles.push(bundle);
        self
    }

    /// Adds the handler of a resource that is not stored (`quotes.example.com`), or of a
    /// subresource. Requests reach it authenticated, authorized and decoded.
    #[must_use]
    pub fn computed(
        mut self,
        resource: impl Into<String>,
        subresource: impl Into<String>,
        handler: impl FnOnce(&ServerContext) -> Arc<dyn ComputedResource> + Send + 'static,
    ) -> Self {
        self.handlers.push(Handled {
            resource: resource.into(),
            subresource: subresource.into(),
            handler: Box::new(handler),
        });
        self
    }

    /// Says where the requests of a subresource go that another server answers; it is declared
    /// with [`Verbs::CONNECT`](ferrokube_resource::Verbs::CONNECT).
    #[must_use]
    pub fn connection(
        mut self,
        resource: impl Into<String>,
        subresource: impl Into<String>,
        make: impl FnOnce(&ServerContext) -> Arc<dyn ConnectResource> + Send + 'static,
    ) -> Self {
        self.connections.push(OwnConnection {
            resource: resource.into(),
            subresource: subresource.into(),
            make: Box::new(make),
        });
        self
    }

    /// Installs the handlers of a whole bundle.
    #[must_use]
    pub fn handlers(
        mut self,
        install: impl FnOnce(&Catalog, &Composition) + Send + 'static,
    ) -> Self {
        self.installers.push(Box::new(install));
        self
    }

    /// Mounts a handler at a non-resource path; a path that ends with `/` includes everything
    /// below. `open` allows clients without credentials.
    #[must_use]
    pub fn route(
        mut self,
        path: impl Into<String>,
        open: bool,
        route: impl FnOnce(&ServerContext) -> Arc<dyn Route> + Send + 'static,
    ) -> Self {
        self.routes.push(MountedPath { path: path.into(), open, route: Box::new(route) });
        self
    }

    /// Adds a step between listening and being ready, after the namespaces and roles exist.
    #[must_use]
    pub fn post_start(mut self, name: impl Into<String>, step: BootstrapStep) -> Self {
        self.bootstrap.push((name.into(), step));
        self
    }

    /// Receives requests that have an initial trace id.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Addresses of services that webhooks and aggregated APIs name. Other services are found by
    /// their objects, if those are served, else not at all.
    #[must_use]
    pub fn services(mut self, addresses: impl IntoIterator<Item = ServiceAddress>) -> Self {
        self.services.extend(addresses);
        self
    }

    /// How services that are objects are reached; default: at their endpoints.
    #[must_use]
    pub fn service_routing(mut self, routing: ServiceRouting) -> Self {
        self.service_routing = routing;
        self
    }

    /// The client certificate for aggregated servers.
    #[must_use]
    pub fn aggregation(mut self, config: AggregationConfig) -> Self {
        self.aggregation = config;
        self
    }

    /// Connections to kubelets, for logs, `exec`, `attach`, `port-forward` and proxies.
    #[must_use]
    pub fn kubelets(mut self, config: KubeletAccessConfig) -> Self {
        self.kubelets = config;
        self
    }
}

/// Admission, authentication, authorization.
impl ControlPlaneBuilder {
    /// Adds an admission step: it validates or changes writes within their transaction, and can add
    /// writes to it. Steps named like kube-apiserver's plug-ins run at their position; others in
    /// the order added, before policies, webhooks and quotas.
    #[must_use]
    pub fn admission(
        mut self,
        step: impl FnOnce(&ServerContext) -> Arc<dyn AdmissionStep> + Send + 'static,
    ) -> Self {
        self.steps.push(Box::new(step));
        self
    }

    /// Adds an admission step that may wait for others.
    #[must_use]
    pub fn remote_admission(
        mut self,
        step: impl FnOnce(&ServerContext) -> Arc<dyn RemoteStep> + Send + 'static,
    ) -> Self {
        self.remote_steps.push(Box::new(step));
        self
    }

    /// Disables admission steps, by kube-apiserver's names. Steps for kinds that are not served are
    /// always absent.
    #[must_use]
    pub fn without_admission<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.without_steps.extend(names.into_iter().map(str::to_owned));
        self
    }

    /// Credentials for admission webhooks.
    #[must_use]
    pub fn webhooks(mut self, config: WebhookConfig) -> Self {
        self.webhooks = config;
        self
    }

    /// Whether the program also runs the controllers. The server then performs its part of their
    /// work, such as type checks of policies, without waiting for their lease.
    #[must_use]
    pub fn with_controllers(mut self, has_controllers: bool) -> Self {
        self.has_controllers = has_controllers;
        self
    }

    /// Adds an authenticator, after client certificates and before bearer tokens. The first to
    /// accept credentials decides.
    #[must_use]
    pub fn authenticator(
        mut self,
        authenticator: impl FnOnce(&StoreContext) -> Arc<dyn Authenticator> + Send + 'static,
    ) -> Self {
        self.authenticators.push(Box::new(authenticator));
        self
    }

    /// Adds an authenticator of bearer tokens, which TokenReviews use, too.
    #[must_use]
    pub fn token_authenticator(
        mut self,
        authenticator: impl FnOnce(&StoreContext) -> Arc<dyn TokenAuthenticator> + Send + 'static,
    ) -> Self {
        self.token_authenticators.push(Box::new(authenticator));
        self
    }

    /// Chooses the built-in authenticators; default: client certificates and, if they are served,
    /// service accounts.
    #[must_use]
    pub fn builtin_authenticators(
        mut self,
        kinds: impl IntoIterator<Item = AuthenticatorKind>,
    ) -> Self {
        self.builtin_authenticators = kinds.into_iter().collect();
        self
    }

    /// Accepts the tokens of a file.
    #[must_use]
    pub fn static_tokens(mut self, tokens: StaticTokens) -> Self {
        self.static_tokens = Some(tokens);
        self
    }

    /// Whether requests without credentials run as `system:anonymous` (default), which may read
    /// only health and version, or are rejected.
    #[must_use]
    pub fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Adds an authorizer. Authorizers are consulted in order, then RBAC; the first opinion counts.
    #[must_use]
    pub fn authorizer(
        mut self,
        authorizer: impl FnOnce(&StoreContext) -> Arc<dyn Authorizer> + Send + 'static,
    ) -> Self {
        self.authorizers.push(Box::new(authorizer));
        self
    }

    /// Disables RBAC, as does leaving out its kinds. Only `system:masters` has rights then, besides
    /// those granted by other authorizers.
    #[must_use]
    pub fn without_rbac(mut self) -> Self {
        self.rbac = false;
        self
    }

    /// Trusts front proxies, which assert users in headers; default: none.
    #[must_use]
    pub fn front_proxies(mut self, config: FrontProxyConfig) -> Self {
        self.front_proxies = Some(config);
        self
    }

    /// Service account tokens.
    #[must_use]
    pub fn service_accounts(mut self, config: ServiceAccountConfig) -> Self {
        self.service_accounts = config;
        self
    }

    /// The audit log; default: `audit.log` in the data directory, none with memory storage.
    #[must_use]
    pub fn audit(mut self, config: AuditConfig) -> Self {
        self.audit = AuditChoice::Configured(config);
        self
    }

    /// No audit log.
    #[must_use]
    pub fn without_audit(mut self) -> Self {
        self.audit = AuditChoice::Off;
        self
    }
}

/// Directory, storage, listener and limits.
impl ControlPlaneBuilder {
    /// Keys, the administrator's kubeconfig, and with the embedded engine the state: created if
    /// missing, readable by its owner only, locked while the control plane exists.
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Directory::At(path.into());
        self
    }

    /// A data directory that is open already.
    #[must_use]
    pub fn open_data_dir(mut self, directory: DataDir) -> Self {
        self.directory = Directory::Open(directory);
        self
    }

    /// The storage engine; default: embedded, in the data directory.
    #[must_use]
    pub fn storage(mut self, config: impl Into<StorageConfig>) -> Self {
        self.storage = Some(config.into());
        self
    }

    /// Address and certificates; default: 127.0.0.1:6443 with certificates of its own.
    #[must_use]
    pub fn listener(mut self, config: impl Into<ListenerConfig>) -> Self {
        self.listener = config.into();
        self
    }

    /// Limits of flow control.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Feature gates; default: their defaults.
    #[must_use]
    pub fn gates(mut self, gates: Gates) -> Self {
        self.gates = gates;
        self
    }

    /// Time for components to report the values of gates that they use; default: 60 s.
    #[must_use]
    pub fn feature_evaluation(mut self, time: Duration) -> Self {
        self.feature_evaluation = time;
        self
    }

    /// Features that `spec.desired` of their Feature objects sets: central ones; default: none.
    #[must_use]
    pub fn dynamic_features(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.dynamic_features.extend(names);
        self
    }

    /// Implements the task `Function` of this name, which runs when a feature is turned off.
    #[must_use]
    pub fn feature_function(mut self, name: &'static str, function: FeatureFunction) -> Self {
        self.feature_functions.insert(name, function);
        self
    }

    /// Observes the steps of turning features off: for tests, which end the program between two.
    #[must_use]
    pub fn feature_failpoints(mut self, observer: FailpointObserver) -> Self {
        self.feature_failpoints = observer;
        self
    }

    /// Validates all settings, reads all files that the configuration names and tries the address;
    /// writes nothing.
    ///
    /// # Errors
    /// [`BuildError::Setting`], [`BuildError::Input`].
    pub fn check(&self) -> Result<(), BuildError> {
        self.check_values()?;
        token_keys::KeyFiles::check(&self.service_accounts)?;
        client_certificate::check(FRONT_PROXY, &self.aggregation.client_certificate)?;
        client_certificate::check(KUBELET_CLIENT, &self.kubelets.client_certificate)?;
        connections::trust(&self.kubelets)?;
        listener::check(&self.listener_config())?;
        Ok(())
    }

    fn check_values(&self) -> Result<(), BuildError> {
        let has_issuer = !self.service_accounts.issuer.is_empty();
        let proxies = self.front_proxies.as_ref();
        let unusable = [
            (!has_issuer, "service account tokens need an issuer"),
            (
                proxies.is_some_and(|proxies| proxies.ca_file.as_os_str().is_empty()),
                "front proxies need a ca_file",
            ),
            (
                proxies.is_some_and(|proxies| proxies.username_headers.is_empty()),
                "front proxies need username_headers",
            ),
            (
                self.limits.readonly_inflight == 0 || self.limits.mutating_inflight == 0,
                "readonly_inflight and mutating_inflight must be greater than 0",
            ),
            (
                self.dynamic_features
                    .iter()
                    .any(|name| self.gates.get(name).is_some_and(|gate| !gate.is_central())),
                "features that components read once, or that need other flags, cannot be dynamic",
            ),
            (self.limits.request.is_zero(), "the timeout of requests must be greater than 0"),
            (
                self.listener.admin_lifetime < MIN_ADMIN_LIFETIME,
                "admin_lifetime must be at least 1 second",
            ),
        ];
        match unusable.into_iter().find(|(is_unusable, _)| *is_unusable) {
            Some((_, why)) => Err(BuildError::Setting(why)),
            None => Ok(()),
        }
    }

    pub(crate) fn open_directory(&mut self) -> Result<DataDir, BuildError> {
        match std::mem::replace(&mut self.directory, Directory::None) {
            Directory::Open(directory) => Ok(directory),
            Directory::At(path) => Ok(DataDir::open(Some(&path))?),
            Directory::None => Err(BuildError::NoDirectory),
        }
    }

    /// The listener's configuration, with the CAs of front proxies.
    pub(crate) fn listener_config(&self) -> ListenerConfig {
        let mut config = self.listener.clone();
        config.files.proxy_ca = self.front_proxies.as_ref().map(|proxies| proxies.ca_file.clone());
        config
    }

    /// Called with the reason each time that [`Self::start`] cannot read a storage in another
    /// process.
    #[must_use]
    pub fn on_wait(mut self, waits: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.waits = Arc::new(waits);
        self
    }

    /// [`Self::build`] and [`ControlPlane::start`]. Waits for a storage in another process while
    /// already serving the address: probes fail, `/version` responds, everything else is 503.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn start(mut self) -> Result<RunningControlPlane, ServeError> {
        match RemoteStorage::take(&mut self.storage) {
            Some(remote) => RunningControlPlane::start_remote(self, remote).await,
            None => self.build()?.start().await,
        }
    }

    /// Opens everything: directory, keys, storage, address. Runs within a Tokio runtime. Nothing is
    /// served before [`ControlPlane::start`].
    ///
    /// # Errors
    /// [`BuildError`]. With a storage in another process [`BuildError::Setting`]: only
    /// [`Self::start`] waits for it.
    pub fn build(mut self) -> Result<ControlPlane, BuildError> {
        self.check()?;
        let directory = self.open_directory()?;
        let opened = assembly::open(&self, &directory)?;
        let listener = Listener::bind(self.listener_config(), &opened.pki)?;
        let (pki, store) = (opened.pki.clone(), opened.store.clone());
        let assembled = assembly::assemble(self, &directory, opened)?;
        Ok(ControlPlane { directory, pki, store, listener, assembled })
    }
}

/// A control plane with open storage and address that does not serve yet.
pub struct ControlPlane {
    pub(crate) directory: DataDir,
    pub(crate) pki: Pki,
    pub(crate) store: Store,
    pub(crate) listener: Listener,
    pub(crate) assembled: Assembled,
}

impl ControlPlane {
    /// Nothing is served yet: see [`ControlPlaneBuilder::bundle`]. Everything else has a default
    /// except [`ControlPlaneBuilder::data_dir`].
    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder {
            bundles: Vec::new(),
            handlers: Vec::new(),
            routes: Vec::new(),
            observer: None,
            bootstrap: Vec::new(),
            steps: Vec::new(),
            remote_steps: Vec::new(),
            without_steps: Vec::new(),
            authenticators: Vec::new(),
            token_authenticators: Vec::new(),
            builtin_authenticators: vec![
                AuthenticatorKind::ClientCertificates,
                AuthenticatorKind::ServiceAccountTokens,
            ],
            static_tokens: None,
            anonymous: true,
            authorizers: Vec::new(),
            rbac: true,
            front_proxies: None,
            service_accounts: ServiceAccountConfig::default(),
            aggregation: AggregationConfig::default(),
            kubelets: KubeletAccessConfig::default(),
            webhooks: WebhookConfig::default(),
            connections: Vec::new(),
            services: Vec::new(),
            service_routing: ServiceRouting::default(),
            has_controllers: false,
            installers: Vec::new(),
            gates: Gates::default(),
            feature_evaluation: Duration::from_secs(60),
            dynamic_features: BTreeSet::new(),
            feature_functions: BTreeMap::new(),
            feature_failpoints: FailpointObserver::default(),
            limits: Limits::default(),
            audit: AuditChoice::Default,
            directory: Directory::None,
            storage: None,
            listener: ListenerConfig::default(),
            waits: Arc::new(|_| {}),
        }
    }

    /// The API server, for requests without a connection.
    pub fn api(&self) -> &ApiServer {
        &self.assembled.api
    }

    /// Names of the admission steps, in order.
    pub fn admission_steps(&self) -> &[&'static str] {
        &self.assembled.steps
    }

    /// URL for clients on this machine.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Writes the administrator's kubeconfig, listens, bootstraps the storage, and returns when
    /// `/readyz` succeeds. Dropping the future stops everything.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn start(self) -> Result<RunningControlPlane, ServeError> {
        RunningControlPlane::start(self).await
    }
}
