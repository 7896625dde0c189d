//! Wires the crates of an API server according to a builder.

use crate::admission::{self, OwnSteps, StepInputs};
use crate::authentication_info::AuthenticationInfo;
use crate::builder::{AuditChoice, ControlPlaneBuilder, Handled};
use crate::client_certificate::{FRONT_PROXY, KUBELET_CLIENT, OwnCertificate};
use crate::config::{AuthenticatorKind, StorageConfig};
use crate::connections::connections;
use crate::context::{ServerContext, StoreContext, serves};
use crate::data_dir::DataDir;
use crate::error::{BuildError, InputError};
use crate::expiry::ExpiryWatch;
use crate::static_tokens::StaticTokens;
use crate::token_keys::{KeyFiles, KeyPem};
use ferrokube_admission::PolicyStatus;
use ferrokube_apimachinery::document::Document;
use ferrokube_auth::audit::{AuditConfig, AuditLog};
use ferrokube_auth::authenticate::{
    Bearer, BootstrapTokens, FrontProxy, FrontProxyHeaders, TokenAuthenticator, X509,
};
use ferrokube_auth::bootstrap::{self, PolicyObject};
use ferrokube_auth::token::{ServiceAccountTokens, TokenConfig};
use ferrokube_auth::{
    AnonymousLock, Authenticator, Authorizer, MastersOnly, Rbac, Union, review, system_clock,
};
use ferrokube_controlplane::aggregator::{
    Aggregator, ListedServices, ProxyIdentity, ServiceResolver, StoredServices,
};
use ferrokube_controlplane::connect::Connections;
use ferrokube_controlplane::{
    ApiServer, ApiServerBuilder, DocumentRoute, FeatureSettings, Route, StepError,
};
use ferrokube_pki::Pki;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::{
    Catalog, ComputedResource, Registry, StorageMediaType, StoredValues, Target,
};
use ferrokube_resource::{Bundle, Composition, Definition, Subresource, Verbs};
use ferrokube_schema::Schema;
use ferrokube_storage::remote::WaitReport;
use ferrokube_storage::{
    Config, Engine, Environment, Need, OpenError, RemoteEngine, Store, ValueCodec,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Max time for a dropped store to close.
const CLOSING: Duration = Duration::from_secs(10);
/// Disk space reserved for the audit log in the data directory, in bytes.
pub const AUDIT_RESERVE: u64 = 4 << 20;

const SERVICE_ACCOUNTS: &str = "serviceaccounts";
const TOKEN: &str = "token";
/// Schema of requests to `serviceaccounts/token`.
const TOKEN_REQUEST: &str = "io.k8s.api.authentication.v1.TokenRequest";
const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";

/// Kinds that do not work without another one of their group.
const PAIRS: [(&str, &str, &str); 11] = [
    (RBAC, "roles", "clusterroles"),
    (RBAC, "clusterroles", "clusterrolebindings"),
    (RBAC, "clusterrolebindings", "rolebindings"),
    (RBAC, "rolebindings", "roles"),
    (ADMISSION, "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
    (ADMISSION, "mutatingadmissionpolicybindings", "mutatingadmissionpolicies"),
    (ADMISSION, "validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    (ADMISSION, "validatingadmissionpolicybindings", "validatingadmissionpolicies"),
    (FLOW, "flowschemas", "prioritylevelconfigurations"),
    (FLOW, "prioritylevelconfigurations", "flowschemas"),
    ("", SERVICE_ACCOUNTS, "secrets"),
];

/// Keys, store and kinds of a control plane.
pub(crate) struct Opened {
    pub(crate) pki: Pki,
    pub(crate) store: Store,
    served: Composition,
    policy: Vec<PolicyObject>,
}

/// Service account tokens, and their keys.
pub(crate) struct AccountTokens {
    pub(crate) tokens: ServiceAccountTokens,
    pub(crate) files: KeyFiles,
    pub(crate) read: KeyPem,
}

/// A server without its listener.
pub(crate) struct Assembled {
    pub(crate) api: ApiServer,
    pub(crate) audit: AuditLog,
    pub(crate) tokens: Option<AccountTokens>,
    /// Client certificates of this server.
    pub(crate) certificates: Vec<OwnCertificate>,
    pub(crate) static_tokens: Option<StaticTokens>,
    pub(crate) policy_status: Option<PolicyStatus>,
    pub(crate) expiry: ExpiryWatch,
    /// Names of the admission steps.
    pub(crate) steps: Vec<&'static str>,
}

/// A storage in another process.
pub(crate) struct RemoteStorage {
    engine: Arc<dyn RemoteEngine>,
    history_bytes: usize,
    media_type: StorageMediaType,
}

impl RemoteStorage {
    /// Takes a remote storage; leaves a local one in place.
    pub(crate) fn take(storage: &mut Option<StorageConfig>) -> Option<Self> {
        match storage.take() {
            Some(StorageConfig::Remote { engine, history_bytes, media_type }) => {
                Some(Self { engine, history_bytes, media_type })
            }
            local => {
                *storage = local;
                None
            }
        }
    }
}

/// Inputs that do not depend on the storage.
pub(crate) struct Prepared {
    pub(crate) pki: Pki,
    served: Composition,
    policy: Vec<PolicyObject>,
}

impl Prepared {
    /// Waits for the storage.
    pub(crate) async fn attach(
        self,
        storage: RemoteStorage,
        waits: WaitReport<'_>,
    ) -> Result<Opened, BuildError> {
        let Self { pki, served, policy } = self;
        let RemoteStorage { engine, history_bytes, media_type } = storage;
        let codec = Arc::new(stored_values(&served, media_type));
        let parts = Environment::default();
        let store = Store::attach_reporting(engine, codec, history_bytes, parts, waits).await;
        Ok(Opened { pki, store: store.map_err(BuildError::Storage)?, served, policy })
    }
}

fn panicked(what: &str) -> InputError {
    InputError::Unusable(format!("{what} panicked"))
}

/// Opens keys and composes the bundles, for a remote storage.
pub(crate) fn prepare(
    builder: &ControlPlaneBuilder,
    directory: &DataDir,
) -> Result<Prepared, BuildError> {
    let (bundles, rbac) = (&builder.bundles, builder.rbac);
    // Overlaps key generation (CPU, syncs) and parsing of definitions.
    std::thread::scope(|scope| {
        let served = scope.spawn(|| -> Result<_, BuildError> {
            let served = ferrokube_resources::compose(bundles)?;
            let policy = if has_rbac(rbac, &served) {
                bootstrap::policy(&served.absent, &served.roles)?
            } else {
                Vec::new()
            };
            Ok((served, policy))
        });
        directory.finish()?;
        let pki = Pki::open(&directory.join("pki")).map_err(InputError::from)?;
        let (served, policy) = served.join().map_err(|_| panicked("parsing the kinds"))??;
        Ok(Prepared { pki, served, policy })
    })
}

/// Opens keys and a local storage, and composes the bundles.
pub(crate) fn open(
    builder: &ControlPlaneBuilder,
    directory: &DataDir,
) -> Result<Opened, BuildError> {
    Handle::try_current().map_err(|_| BuildError::Runtime("call build within a runtime"))?;
    let storage = match &builder.storage {
        Some(storage) => storage.clone(),
        None => Config::embedded(directory.join("store")).into(),
    };
    let StorageConfig::Local { config, environment } = storage else {
        const WHY: &str = "only ControlPlaneBuilder::start waits for a storage in another process";
        return Err(BuildError::Setting(WHY));
    };
    // Overlaps recovery (IO) with independent work.
    std::thread::scope(|scope| {
        let store = scope.spawn(move || open_local(config, environment, directory));
        let Prepared { pki, served, policy } = prepare(builder, directory)?;
        let store = store.join().map_err(|_| panicked("opening the state"))??;
        Ok(Opened { pki, store, served, policy })
    })
}

/// Reads and writes the stored values of these bundles' kinds, and of custom resources; for
/// migrations.
///
/// # Errors
/// The bundles do not fit together.
pub fn value_codec(
    bundles: &[Bundle],
    media_type: StorageMediaType,
) -> Result<Arc<dyn ValueCodec>, BuildError> {
    Ok(Arc::new(stored_values(&ferrokube_resources::compose(bundles)?, media_type)))
}

/// Values in remote engines are encoded according to their kinds.
fn stored_values(served: &Composition, media_type: StorageMediaType) -> StoredValues {
    let catalog = Arc::new(Catalog::default());
    served.definitions.iter().for_each(|definition| catalog.put(Arc::clone(definition)));
    StoredValues::new(catalog, Arc::clone(&served.messages), media_type)
}

fn open_local(
    mut config: Config,
    environment: Environment,
    directory: &DataDir,
) -> Result<Store, BuildError> {
    let is_embedded = matches!(config.engine, Engine::Embedded(_));
    if matches!(&config.engine, Engine::Embedded(path) if *path == directory.join("store")) {
        directory.check_migration()?;
    }
    config.must_exist |= is_embedded && directory.had_state();
    let begun = Instant::now();
    let store = loop {
        match Store::open_with(config.clone(), environment.clone()) {
            Err(source @ OpenError::Missing(_)) => {
                return Err(BuildError::StateGone { advice: directory.advice(), source });
            }
            // The directory is ours, so that this is a store of it that has not ended yet: a
            // dropped one closes in the background.
            Err(OpenError::Locked(path))
                if path.starts_with(directory.join("")) && begun.elapsed() < CLOSING =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => break outcome.map_err(BuildError::Storage)?,
        }
    };
    if is_embedded {
        directory.note_state()?;
    }
    Ok(store)
}

fn has_rbac(is_chosen: bool, served: &Composition) -> bool {
    is_chosen && served.definitions.iter().any(|definition| definition.group == RBAC)
}

/// A computed subresource with the schema of its input.
struct TypedSubresource {
    behaviour: ServiceAccountTokens,
    schema: Arc<Schema>,
}

impl ComputedResource for TypedSubresource {
    fn need(&self, target: &Target) -> Need {
        self.behaviour.need(target)
    }

    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        self.behaviour.create(call, object)
    }

    fn fill_in(&self, object: &mut Document) {
        self.behaviour.fill_in(object);
    }

    fn schema(&self) -> Option<Arc<Schema>> {
        Some(Arc::clone(&self.schema))
    }
}

/// Wires everything.
pub(crate) fn assemble(
    mut builder: ControlPlaneBuilder,
    directory: &DataDir,
    opened: Opened,
) -> Result<Assembled, BuildError> {
    let Opened { pki, store, mut served, policy } = opened;
    if !builder.builtin_authenticators.contains(&AuthenticatorKind::ServiceAccountTokens) {
        leave_out_tokens(&mut served);
    }
    let catalog = Arc::new(Catalog::default());
    served.definitions.iter().for_each(|definition| catalog.put(Arc::clone(definition)));
    check_pairs(&builder, &catalog)?;
    for install in builder.installers.drain(..) {
        install(&catalog, &served);
    }
    let tokens = account_tokens(&builder, directory, &store, &catalog, &served)?;
    let index = Arc::new(Rbac::of(&store, &catalog));
    let rbac = has_rbac(builder.rbac, &served).then(|| Arc::clone(&index));
    let context = StoreContext { store: store.clone(), catalog: Arc::clone(&catalog) };
    let authorizer = authorizer(&mut builder, &context, rbac.as_ref());
    let bearer = bearer(&mut builder, &context, tokens.as_ref());
    review::install(&catalog, &authorizer, &index, &bearer);
    let authenticators = authenticators(&mut builder, &context, bearer);
    let context = ServerContext {
        store: store.clone(),
        catalog: Arc::clone(&catalog),
        authorizer: Arc::clone(&authorizer),
    };
    install_handlers(std::mem::take(&mut builder.handlers), &context, &served)?;
    let services = services(&mut builder, &context);
    let credentials = builder.webhooks.clone();
    let inputs = StepInputs::new(context.clone(), rbac, Arc::clone(&services), credentials);
    let certificates = inputs.certificates.clone();
    let own = OwnSteps {
        local: std::mem::take(&mut builder.steps),
        remote: std::mem::take(&mut builder.remote_steps),
        without: std::mem::take(&mut builder.without_steps),
    };
    let chain = admission::chain(&inputs, builder.gates.clone(), own)?;
    let (steps, times) = (chain.names().collect(), chain.times());
    let registry = Registry::new(store, Arc::clone(&catalog), Arc::new(chain))
        .with_token_key(&continue_key(&builder, tokens.as_ref(), &pki));
    let audit = open_audit(&builder, directory)?;
    let front_proxy = serves(&catalog, "apiregistration.k8s.io", "apiservices")
        .then(|| OwnCertificate::new(FRONT_PROXY, &builder.aggregation.client_certificate, &pki))
        .transpose()?;
    let kubelet_client = serves(&catalog, "", "nodes")
        .then(|| {
            let files = &builder.kubelets.client_certificate;
            OwnCertificate::new(KUBELET_CLIENT, files, &pki)
        })
        .transpose()?;
    let info = AuthenticationInfo::new(&builder, &pki, front_proxy.is_some())?;
    let tables = served.tables.clone();
    let features = features(&builder, directory, &catalog, &served);
    let mut api = ApiServer::builder(registry)
        .gates(builder.gates.clone())
        .features(features)
        .messages(Arc::clone(&served.messages))
        .schemas(Arc::new(move |name| tables.get(name)))
        .anonymous(builder.anonymous)
        .authorizer(authorizer)
        .audit(audit.clone())
        .limits(builder.limits.clone());
    let aggregator = match &front_proxy {
        Some(front_proxy) => Aggregator::new(services, front_proxy.identity()),
        // Webhooks that convert custom resources find their services there, too.
        None => Aggregator::new(services, ProxyIdentity::default()),
    };
    api = api.aggregator(aggregator).webhook_certificates(certificates);
    if let Some(connections) =
        connections(&mut builder, &context, &served, kubelet_client.as_ref())?
    {
        api = api.connections(connections);
    }
    for authenticator in authenticators {
        api = api.authenticator(authenticator);
    }
    let expiry = ExpiryWatch::new(directory, &builder.listener_config(), &builder.aggregation);
    let of_certificates = expiry.clone();
    let api = with_metrics(api, &inputs, &catalog)
        .metrics(Box::new(move |registry| times.register(registry)))
        .metrics(Box::new(move |registry| of_certificates.register(registry)));
    let api = with_bootstrap(api, &mut builder, info, policy, &catalog);
    let api = with_routes(api, &mut builder, &context, tokens.as_ref())?;
    let static_tokens = builder.static_tokens;
    let api = api.build();
    let policy_status = PolicyStatus::new(api.registry(), builder.has_controllers);
    let certificates = front_proxy.into_iter().chain(kubelet_client).collect();
    Ok(Assembled { api, audit, tokens, certificates, static_tokens, policy_status, expiry, steps })
}

/// Finds the services of webhooks and aggregated APIs.
fn services(
    builder: &mut ControlPlaneBuilder,
    context: &ServerContext,
) -> Arc<dyn ServiceResolver> {
    let listed = ListedServices::new(std::mem::take(&mut builder.services));
    if !serves(&context.catalog, "", "services") {
        return Arc::new(listed);
    }
    let (store, catalog) = (context.store.clone(), Arc::clone(&context.catalog));
    Arc::new(StoredServices::new(store, catalog, listed, builder.service_routing))
}

/// The key of continue tokens. Servers with the same signing key file accept each other's tokens.
fn continue_key(
    builder: &ControlPlaneBuilder,
    tokens: Option<&AccountTokens>,
    pki: &Pki,
) -> [u8; 32] {
    const PURPOSE: &str = "continue tokens";
    let shared = tokens.filter(|_| builder.service_accounts.signing_key_file.is_some());
    shared.map_or_else(|| pki.derived_key(PURPOSE), |tokens| tokens.read.derived_key(PURPOSE))
}

/// Settings of feature transitions. Kinds that are no longer served may still have objects.
fn features(
    builder: &ControlPlaneBuilder,
    directory: &DataDir,
    catalog: &Catalog,
    served: &Composition,
) -> FeatureSettings {
    let unserved = ferrokube_resources::on_request()
        .iter()
        .filter(|row| catalog.find(row.group, row.version, row.plural).is_none())
        .filter_map(|row| row.definition(&served.tables).ok())
        .map(Arc::new)
        .collect();
    let directory = directory.join("");
    // Machines have the same paths and wildcard addresses.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (host, address) = (host.trim_end(), builder.listener.address);
    FeatureSettings {
        identity: format!("{host} {address:?} {}", directory.display()),
        evaluation: builder.feature_evaluation,
        unserved,
        dynamic: builder.dynamic_features.clone(),
        functions: builder.feature_functions.clone(),
        failpoints: builder.feature_failpoints.clone(),
        ..FeatureSettings::default()
    }
}

/// Registers the metrics of the active steps.
fn with_metrics(
    mut api: ApiServerBuilder,
    inputs: &StepInputs,
    catalog: &Catalog,
) -> ApiServerBuilder {
    let serves = |kinds: [&str; 2]| kinds.iter().any(|plural| serves(catalog, ADMISSION, plural));
    if serves(["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]) {
        let stats = Arc::clone(&inputs.webhooks);
        api = api.metrics(Box::new(move |registry| stats.register(registry)));
    }
    if serves(["mutatingadmissionpolicies", "validatingadmissionpolicies"]) {
        let stats = Arc::clone(&inputs.policies);
        api = api.metrics(Box::new(move |registry| stats.register(registry)));
    }
    api
}

fn check_pairs(builder: &ControlPlaneBuilder, catalog: &Catalog) -> Result<(), BuildError> {
    for (group, of, missing) in PAIRS {
        if serves(catalog, group, of) && !serves(catalog, group, missing) {
            return Err(BuildError::Incomplete { of, missing });
        }
    }
    let wants_tokens = builder.builtin_authenticators.contains(&AuthenticatorKind::BootstrapTokens);
    if wants_tokens && !serves(catalog, "", "secrets") {
        return Err(BuildError::Incomplete { of: "bootstrap tokens", missing: "secrets" });
    }
    Ok(())
}

/// Adds the steps between listening and being ready.
fn with_bootstrap(
    mut api: ApiServerBuilder,
    builder: &mut ControlPlaneBuilder,
    info: AuthenticationInfo,
    policy: Vec<PolicyObject>,
    catalog: &Catalog,
) -> ApiServerBuilder {
    if !policy.is_empty() {
        api = api.post_start(
            "rbac/bootstrap-roles",
            Box::new(move |registry| {
                let policy = policy.clone();
                Box::pin(async move {
                    let ended = bootstrap::reconcile(&registry, policy).await;
                    ended
                        .map(drop)
                        .map_err(|error| StepError::new(error.to_string(), &error.failure))
                })
            }),
        );
    }
    if serves(catalog, "", "configmaps") {
        api = api.post_start_alongside(
            "start-cluster-authentication-info-controller",
            Box::new(move |registry| Box::pin(info.clone().publish(registry))),
        );
    }
    for (name, step) in builder.bootstrap.drain(..) {
        api = api.post_start(name, step);
    }
    api
}

fn with_routes(
    mut api: ApiServerBuilder,
    builder: &mut ControlPlaneBuilder,
    context: &ServerContext,
    tokens: Option<&AccountTokens>,
) -> Result<ApiServerBuilder, BuildError> {
    let mut paths = BTreeSet::new();
    let documents = tokens.map(|tokens| oidc_documents(&tokens.tokens));
    for (path, is_public, route) in documents.into_iter().flatten() {
        paths.insert(path.to_owned());
        api = api.route(path, is_public || builder.service_accounts.public_keys, route);
    }
    for mounted in builder.routes.drain(..) {
        let is_free =
            mounted.path.starts_with('/') && !ferrokube_controlplane::is_own(&mounted.path);
        if !is_free || !paths.insert(mounted.path.clone()) {
            return Err(BuildError::Path(mounted.path));
        }
        api = api.route(mounted.path, mounted.open, (mounted.route)(context));
    }
    if let Some(observer) = builder.observer.take() {
        api = api.observer(observer);
    }
    Ok(api)
}

/// Adds the program's handlers, and checks that none is missing.
fn install_handlers(
    handlers: Vec<Handled>,
    context: &ServerContext,
    served: &Composition,
) -> Result<(), BuildError> {
    let mut seen = BTreeSet::new();
    for Handled { resource, subresource, handler } in handlers {
        let (plural, group) = resource.split_once('.').unwrap_or((&resource, ""));
        let definition = served
            .definitions
            .iter()
            .find(|definition| definition.group == group && definition.plural == plural);
        let is_known = definition.is_some_and(|definition| {
            subresource.is_empty() && definition.storage_prefix.is_none()
                || definition.subresource(0, &subresource).is_some()
        });
        let slash = if subresource.is_empty() { "" } else { "/" };
        let full_name = format!("{resource}{slash}{subresource}");
        if !is_known {
            return Err(BuildError::UnknownResource(full_name));
        }
        if !seen.insert(full_name.clone()) {
            return Err(BuildError::DuplicateHandler(full_name));
        }
        context.catalog.put_computed(group, plural, &subresource, handler(context));
    }
    for definition in &served.definitions {
        if definition.storage_prefix.is_none()
            && context
                .catalog
                .computed_resource(&definition.group, &definition.plural, "")
                .is_none()
        {
            return Err(BuildError::NoHandler(definition.group_resource()));
        }
        if let Some(name) = unhandled(&context.catalog, definition) {
            return Err(BuildError::NoSubresourceHandler(definition.group_resource(), name));
        }
    }
    Ok(())
}

/// A subresource without a handler that is not a view of the stored object, such as `status`.
/// Served like the object, rights to it would be rights to the object.
fn unhandled(catalog: &Catalog, definition: &Definition) -> Option<&'static str> {
    let mut all = definition.versions.iter().flat_map(|version| &version.subresources);
    let is_view = |subresource: &Subresource| {
        let kind = &subresource.kind;
        kind.group == definition.group
            && kind.kind == definition.kind
            && !subresource.verbs.has(Verbs::CREATE)
    };
    let has_handler = |subresource: &Subresource| {
        let Definition { group, plural, .. } = definition;
        catalog.computed_resource(group, plural, subresource.name).is_some()
            || Connections::serves(definition, subresource.name)
    };
    all.find(|subresource| !is_view(subresource) && !has_handler(subresource))
        .map(|subresource| subresource.name)
}

/// OIDC documents for relying parties that verify service account tokens, and whether they are
/// served without credentials.
fn oidc_documents(tokens: &ServiceAccountTokens) -> [(&'static str, bool, Arc<dyn Route>); 2] {
    let (discovery, keys) = (tokens.clone(), tokens.clone());
    let discovery = DocumentRoute {
        media_type: "application/json",
        produce: Box::new(move || discovery.discovery_document()),
    };
    let keys = DocumentRoute {
        media_type: "application/jwk-set+json",
        produce: Box::new(move || keys.jwks()),
    };
    [
        ("/.well-known/openid-configuration", true, Arc::new(discovery)),
        ("/openid/v1/jwks", false, Arc::new(keys)),
    ]
}

/// Removes the subresource `token` if there are no service account tokens.
fn leave_out_tokens(served: &mut Composition) {
    let accounts = served
        .definitions
        .iter_mut()
        .filter(|definition| definition.group.is_empty() && definition.plural == SERVICE_ACCOUNTS);
    for definition in accounts {
        for version in &mut Arc::make_mut(definition).versions {
            version.subresources.retain(|subresource| subresource.name != TOKEN);
        }
    }
}

/// `None` without service accounts.
fn account_tokens(
    builder: &ControlPlaneBuilder,
    directory: &DataDir,
    store: &Store,
    catalog: &Catalog,
    served: &Composition,
) -> Result<Option<AccountTokens>, BuildError> {
    let is_chosen =
        builder.builtin_authenticators.contains(&AuthenticatorKind::ServiceAccountTokens);
    if !is_chosen || !serves(catalog, "", SERVICE_ACCOUNTS) {
        return Ok(None);
    }
    let accounts = &builder.service_accounts;
    let files = KeyFiles::new(accounts, &directory.join("pki"));
    let read = files.read()?;
    let config = TokenConfig {
        issuers: accounts.issuers(),
        api_audiences: accounts.audiences(),
        jwks_uri: String::new(),
        max_life: accounts.max_life,
    };
    let tokens = ServiceAccountTokens::new(config, read.keys()?, store.clone(), system_clock());
    let missing = || InputError::Unusable(format!("no schema {TOKEN_REQUEST}"));
    let schema = served.tables.get(TOKEN_REQUEST).ok_or_else(missing)?;
    let handler = TypedSubresource { behaviour: tokens.clone(), schema };
    catalog.put_computed("", SERVICE_ACCOUNTS, TOKEN, Arc::new(handler));
    Ok(Some(AccountTokens { tokens, files, read }))
}

/// The program's authorizers, then RBAC.
fn authorizer(
    builder: &mut ControlPlaneBuilder,
    context: &StoreContext,
    rbac: Option<&Arc<Rbac>>,
) -> Arc<dyn Authorizer> {
    let mut all: Vec<Arc<dyn Authorizer>> =
        builder.authorizers.drain(..).map(|make| make(context)).collect();
    all.push(match rbac {
        Some(rbac) => Arc::clone(rbac) as _,
        None => Arc::new(MastersOnly),
    });
    let all = if all.len() == 1 { all.remove(0) } else { Arc::new(Union(all)) };
    Arc::new(AnonymousLock(all))
}

/// In order of evaluation.
fn authenticators(
    builder: &mut ControlPlaneBuilder,
    context: &StoreContext,
    bearer: Bearer,
) -> Vec<Arc<dyn Authenticator>> {
    let mut authenticators: Vec<Arc<dyn Authenticator>> = Vec::new();
    if let Some(proxies) = &builder.front_proxies {
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let headers = FrontProxyHeaders {
            user: lower(&proxies.username_headers),
            uid: lower(&proxies.uid_headers),
            group: lower(&proxies.group_headers),
            extra: lower(&proxies.extra_headers_prefix),
        };
        let names = proxies.allowed_names.clone();
        authenticators.push(Arc::new(FrontProxy::new(headers, names, system_clock())));
    }
    if builder.builtin_authenticators.contains(&AuthenticatorKind::ClientCertificates) {
        authenticators.push(Arc::new(X509::new(system_clock())));
    }
    let own = builder.authenticators.drain(..).map(|make| make(context));
    authenticators.extend(own);
    // Last, since it refuses tokens that it does not know.
    authenticators.push(Arc::new(bearer));
    authenticators
}

/// Every supported kind of bearer token.
fn bearer(
    builder: &mut ControlPlaneBuilder,
    context: &StoreContext,
    tokens: Option<&AccountTokens>,
) -> Bearer {
    let mut kinds: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    if let Some(file) = &builder.static_tokens {
        kinds.push(Arc::clone(&file.tokens) as _);
    }
    if let Some(tokens) = tokens {
        kinds.push(Arc::new(tokens.tokens.clone()));
    }
    if builder.builtin_authenticators.contains(&AuthenticatorKind::BootstrapTokens) {
        kinds.push(Arc::new(BootstrapTokens::new(context.store.clone(), system_clock())));
    }
    kinds.extend(builder.token_authenticators.drain(..).map(|make| make(context)));
    Bearer::new(kinds, builder.service_accounts.audiences())
}

fn open_audit(builder: &ControlPlaneBuilder, directory: &DataDir) -> Result<AuditLog, BuildError> {
    let is_memory = builder.storage.as_ref().is_some_and(StorageConfig::is_memory);
    let config = match &builder.audit {
        AuditChoice::Configured(config) => config.clone(),
        AuditChoice::Default if !is_memory => AuditConfig {
            reserve_bytes: AUDIT_RESERVE,
            ..AuditConfig::new(directory.join("audit.log"))
        },
        AuditChoice::Default | AuditChoice::Off => return Ok(AuditLog::disabled()),
    };
    Ok(AuditLog::open(config)?)
}
