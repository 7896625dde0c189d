//! `ApiServer::builder()`: the parts of an API server, whose registry is made already.

use crate::bootstrap::{self, BootstrapStep, NamedSteps, StepError};
use crate::discovery::Discovery;
use crate::election::Elections;
use crate::encode::Encoder;
use crate::encode::chunk_cache::ChunkCache;
use crate::features::settings::FeatureSettings;
use crate::features::stats::FeatureStats;
use crate::features::{self, FeatureFlow};
use crate::filters::audit::Auditor;
use crate::filters::identity::{Authentication, Authorization};
use crate::filters::info::RequestRecorder;
use crate::flow_objects::{self, FlowObjects};
use crate::health::Health;
use crate::identity_leases::IdentityLeases;
use crate::maintained;
use crate::metrics::{MetricSources, Metrics, RegisterMetrics};
use crate::mounts::Mounts;
use crate::observer::Observer;
use crate::openapi::{ListedDocuments, OpenApi, OpenApiSources, SchemaSource};
use crate::paths::PathApi;
use crate::resource_api::ResourceApi;
use crate::route::Route;
use crate::state::ServerState;
use crate::verbs::watch::WatchService;
use ferrokube_aggregator::{Aggregator, CertificateFaults, ListedServices, ProxyIdentity};
use ferrokube_apiextensions::{DefinitionLoop, Follower};
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_auth::audit::AuditLog;
use ferrokube_auth::{AnonymousLock, Authenticator, Authorizer, ImpersonationModes, MastersOnly};
use ferrokube_connect::Connections;
use ferrokube_features::Gates;
use ferrokube_flow::Flow;
use ferrokube_flow::Limits;
use ferrokube_registry::Registry;
use ferrokube_serve::{Body, Handler, Response};
use futures::future::try_join_all;
use parking_lot::Mutex;
use std::mem;
use std::sync::{Arc, Weak};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// [`ApiServer::start`] failed; the server never becomes ready.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A bootstrap step failed.
    #[error("bootstrap step {step} failed: {why}")]
    Step {
        /// As registered.
        step: String,
        /// The step's error.
        why: String,
    },
    /// An earlier call was dropped before it ended; which steps have run is unknown.
    #[error("an earlier start was dropped before it ended")]
    Dropped,
}

/// Made by [`ApiServer::builder`].
pub struct ApiServerBuilder {
    registry: Registry,
    gates: Gates,
    features: FeatureSettings,
    authenticators: Vec<Arc<dyn Authenticator>>,
    anonymous: bool,
    authorizer: Arc<dyn Authorizer>,
    audit: AuditLog,
    messages: Arc<Messages>,
    schemas: SchemaSource,
    limits: Limits,
    routes: Vec<(String, bool, Arc<dyn Route>)>,
    observer: Option<Arc<dyn Observer>>,
    steps: NamedSteps,
    /// Each runs alongside those.
    independent: NamedSteps,
    aggregator: Arc<Aggregator>,
    connections: Option<Arc<Connections>>,
    webhook_certificates: CertificateFaults,
    metrics: Vec<RegisterMetrics>,
}

impl ApiServerBuilder {
    /// Feature gates; default: their defaults.
    #[must_use]
    pub fn gates(mut self, gates: Gates) -> Self {
        self.gates = gates;
        self
    }

    /// How features are turned on and off, where the Feature API is served.
    #[must_use]
    pub fn features(mut self, features: FeatureSettings) -> Self {
        self.features = features;
        self
    }

    /// Adds an authenticator. They are asked in order; the first to accept the credentials decides.
    #[must_use]
    pub fn authenticator(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.authenticators.push(authenticator);
        self
    }

    /// Whether requests without credentials run as `system:anonymous` (default) or are rejected.
    #[must_use]
    pub fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Default: [`MastersOnly`]. Wrapped in an [`AnonymousLock`].
    #[must_use]
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizer = authorizer;
        self
    }

    /// The audit log; default: disabled.
    #[must_use]
    pub fn audit(mut self, audit: AuditLog) -> Self {
        self.audit = audit;
        self
    }

    /// Protobuf tables of the served native kinds; default: empty, so no protobuf.
    #[must_use]
    pub fn messages(mut self, messages: Arc<Messages>) -> Self {
        self.messages = messages;
        self
    }

    /// Schemas of lists and of the API machinery's types (`Status`, `DeleteOptions`, `Scale`) for
    /// OpenAPI documents; default: none, which leaves references in documents dangling.
    #[must_use]
    pub fn schemas(mut self, schemas: SchemaSource) -> Self {
        self.schemas = schemas;
        self
    }

    /// Limits of the request filters; default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Mounts a handler at a non-resource path; a path that ends with `/` includes everything
    /// below. `anonymous`: open to unauthenticated clients.
    #[must_use]
    pub fn route(
        mut self,
        path: impl Into<String>,
        anonymous: bool,
        route: Arc<dyn Route>,
    ) -> Self {
        self.routes.push((path.into(), anonymous, route));
        self
    }

    /// Receives requests that have an initial trace id.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// How aggregated servers are reached; default: there are none.
    #[must_use]
    pub fn aggregator(mut self, aggregator: Aggregator) -> Self {
        self.aggregator = Arc::new(aggregator);
        self
    }

    /// How kubelets, pods and services are connected to; default: not at all.
    #[must_use]
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = Some(Arc::new(connections));
        self
    }

    /// Counts certificates of webhooks that are refused: those that convert, and those of the
    /// admission steps that have the same one.
    #[must_use]
    pub fn webhook_certificates(mut self, certificates: CertificateFaults) -> Self {
        self.webhook_certificates = certificates;
        self
    }

    /// Adds metrics of other crates.
    #[must_use]
    pub fn metrics(mut self, register: RegisterMetrics) -> Self {
        self.metrics.push(register);
        self
    }

    /// Adds a bootstrap step. They run in order in [`ApiServer::start`] and appear in `/readyz`
    /// as `poststarthook/<name>`.
    #[must_use]
    pub fn post_start(mut self, name: impl Into<String>, step: BootstrapStep) -> Self {
        self.steps.push((name.into(), step));
        self
    }

    /// As [`Self::post_start`], for a step that needs no other than the namespaces.
    #[must_use]
    pub fn post_start_alongside(mut self, name: impl Into<String>, step: BootstrapStep) -> Self {
        self.independent.push((name.into(), step));
        self
    }

    /// Requests are served at once, but `/readyz` fails until [`ApiServer::start`].
    pub fn build(mut self) -> ApiServer {
        features::open_guards(&self.registry, &self.gates);
        let loops = Arc::default();
        let steps = self.step_chains(&loops);
        let (_, served) = self.registry.catalog().all();
        let encoder = Encoder::new(self.messages);
        let mounts = Mounts::new(self.routes);
        let catalog = Arc::clone(self.registry.catalog());
        let discovery = Discovery::new(catalog, Arc::clone(&self.aggregator), encoder.clone());
        let discovery = Arc::new(discovery);
        let openapi = OpenApi::new(OpenApiSources {
            schemas: self.schemas,
            catalog: Arc::clone(self.registry.catalog()),
            aggregator: Arc::clone(&self.aggregator),
            mounted: mounts.paths().map(|path| path.trim_matches('/').to_owned()).collect(),
            listed: ListedDocuments::default(),
        });
        let (store, audit) = (self.registry.store().clone(), self.audit.clone());
        let names = steps.iter().flatten().map(|(name, _)| name.clone());
        let health = Health::new(store, audit, names, |plural| {
            served.iter().any(|definition| definition.plural == plural)
        });
        let flow = Arc::new(Flow::new(&self.limits));
        let metrics = Arc::new(Metrics::with(self.metrics));
        let feature_stats: Arc<FeatureStats> = Arc::default();
        let auditor = Auditor { log: self.audit.clone(), gates: self.gates.clone() };
        let authorization = Arc::new(Authorization {
            authorizer: Arc::new(AnonymousLock(self.authorizer)),
            impersonation: ImpersonationModes::default(),
        });
        let custom = Arc::new(DefinitionLoop::new(
            Arc::clone(self.aggregator.services()),
            self.webhook_certificates.clone(),
        ));
        let metric_sources = MetricSources {
            registry: self.registry.clone(),
            gates: self.gates.clone(),
            feature_stats: Arc::clone(&feature_stats),
            audit: self.audit.clone(),
            flow: Arc::clone(&flow),
            aggregator: Arc::clone(&self.aggregator),
            webhook_certificates: self.webhook_certificates,
        };
        let state = ServerState {
            recorder: RequestRecorder {
                metrics: Arc::clone(&metrics),
                catalog: Arc::clone(self.registry.catalog()),
                observer: self.observer,
            },
            authentication: Authentication {
                authenticators: self.authenticators,
                anonymous: self.anonymous,
            },
            authorization: Arc::clone(&authorization),
            auditor: auditor.clone(),
            aggregator: Arc::clone(&self.aggregator),
            paths: PathApi {
                discovery: Arc::clone(&discovery),
                openapi,
                health,
                metrics: Arc::clone(&metrics),
                metric_sources,
                mounts,
                encoder: encoder.clone(),
                gates: self.gates.clone(),
                flow: Arc::clone(&flow),
                registry: self.registry.clone(),
            },
            resources: ResourceApi {
                registry: self.registry.clone(),
                flow: Arc::clone(&flow),
                encoder: encoder.clone(),
                metrics: Arc::clone(&metrics),
                authorization,
                audit: self.audit,
                discovery,
                chunks: ChunkCache::default(),
                watches: Arc::new(WatchService::new(
                    &self.registry,
                    &flow,
                    &encoder,
                    &metrics,
                    auditor,
                )),
                custom,
                connections: self.connections,
            },
            registry: self.registry,
            gates: self.gates,
            flow,
            encoder,
            metrics,
        };
        ApiServer {
            state: Arc::new(state),
            features: Arc::new(FeatureApi { settings: self.features, stats: feature_stats }),
            steps: Arc::new(Mutex::new(Some(steps))),
            started: Arc::default(),
            loops,
        }
    }

    /// Steps of the API server itself and those added. The first chain runs before the others,
    /// which run side by side: a start waits for the disk as often as the longest.
    fn step_chains(&mut self, loops: &Arc<Mutex<JoinSet<()>>>) -> Vec<NamedSteps> {
        let serves =
            |group: &str, plural: &str| self.registry.catalog().definition(group, plural).is_some();
        let has_levels =
            flow_objects::RESOURCES.iter().all(|plural| serves(flow_objects::GROUP, plural));
        let registers = serves(ferrokube_aggregator::GROUP, ferrokube_aggregator::PLURAL);
        let (mut first, mut levels) = (NamedSteps::new(), NamedSteps::new());
        if serves("", "namespaces") {
            let step: BootstrapStep = Box::new(|registry| {
                Box::pin(async move { bootstrap::namespaces(&registry).await })
            });
            first.push(("start-system-namespaces-controller".to_owned(), step));
        }
        if has_levels {
            let step: BootstrapStep = Box::new(|registry| {
                Box::pin(async move { maintained::reconcile(&registry).await })
            });
            levels.push(("priority-and-fairness-config-producer".to_owned(), step));
        } else {
            self.limits.priority_and_fairness = false;
        }
        let registration = registers.then(|| {
            ("kube-apiserver-autoregistration".to_owned(), registration(&self.aggregator, loops))
        });
        let independent = mem::take(&mut self.independent).into_iter().chain(registration);
        let mut chains = vec![first, levels, mem::take(&mut self.steps)];
        chains.extend(independent.map(|step| vec![step]));
        chains
    }
}

/// Registers the local group versions, and keeps them registered.
fn registration(aggregator: &Arc<Aggregator>, loops: &Arc<Mutex<JoinSet<()>>>) -> BootstrapStep {
    let (aggregator, loops) = (Arc::clone(aggregator), Arc::downgrade(loops));
    Box::new(move |_registry| {
        let (aggregator, loops) = (Arc::clone(&aggregator), Weak::clone(&loops));
        Box::pin(async move {
            let kept = aggregator.register().await.map_err(|failure| {
                StepError::new(format!("cannot register the API services: {failure}"), &failure)
            })?;
            if let Some(loops) = loops.upgrade() {
                loops.lock().spawn(kept);
            }
            Ok(())
        })
    })
}

/// Inputs of the Feature API's loop.
struct FeatureApi {
    settings: FeatureSettings,
    stats: Arc<FeatureStats>,
}

/// An API server without its listener. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    state: Arc<ServerState>,
    features: Arc<FeatureApi>,
    /// `None` once they run.
    steps: Arc<Mutex<Option<Vec<NamedSteps>>>>,
    started: Arc<OnceCell<Result<(), StartError>>>,
    /// Background loops; aborted when the last clone is dropped.
    loops: Arc<Mutex<JoinSet<()>>>,
}

impl ApiServer {
    /// `registry` holds the store, the catalog and admission. Everything else has a default.
    pub fn builder(registry: Registry) -> ApiServerBuilder {
        ApiServerBuilder {
            registry,
            gates: Gates::default(),
            features: FeatureSettings::default(),
            authenticators: Vec::new(),
            anonymous: true,
            authorizer: Arc::new(MastersOnly),
            audit: AuditLog::disabled(),
            messages: Arc::default(),
            schemas: Arc::new(|_| None),
            limits: Limits::default(),
            routes: Vec::new(),
            observer: None,
            steps: Vec::new(),
            independent: Vec::new(),
            aggregator: Arc::new(Aggregator::new(
                Arc::new(ListedServices::default()),
                ProxyIdentity::default(),
            )),
            connections: None,
            webhook_certificates: CertificateFaults::default(),
            metrics: Vec::new(),
        }
    }

    /// Creates the system namespaces, runs the bootstrap steps, then reports ready. Later calls
    /// wait for the first one, and return its result.
    ///
    /// # Errors
    /// [`StartError`]; the process should exit.
    pub async fn start(&self) -> Result<(), StartError> {
        self.started.get_or_init(|| self.start_once()).await.clone()
    }

    async fn start_once(&self) -> Result<(), StartError> {
        let chains = self.steps.lock().take().ok_or(StartError::Dropped)?;
        self.start_loops();
        let mut position = 0;
        let mut chains = chains.into_iter().map(|steps| {
            let first = position;
            position += steps.len();
            self.run_chain(first, steps)
        });
        if let Some(first) = chains.next() {
            first.await?;
        }
        try_join_all(chains).await?;
        let ServerState { registry, flow, gates, .. } = &*self.state;
        if let Some(objects) = FlowObjects::start(registry, flow) {
            self.loops.lock().spawn(objects.run(registry.clone(), Arc::clone(flow)));
        }
        self.start_identity().await;
        if let Some(elections) = Elections::start(registry, gates) {
            self.loops.lock().spawn(elections.run());
        }
        self.state.paths.health.start();
        tracing::info!("the API server is ready");
        Ok(())
    }

    /// Runs steps in order. `position`: that of the first one among all.
    async fn run_chain(&self, position: usize, steps: NamedSteps) -> Result<(), StartError> {
        let (registry, health) = (&self.state.registry, &self.state.paths.health);
        for (position, (name, mut step)) in (position..).zip(steps) {
            if let Err(why) = bootstrap::run(&name, &mut step, position, registry, health).await {
                return Err(StartError::Step { step: name, why });
            }
        }
        Ok(())
    }

    /// The Feature API's loop, which keeps this server's identity Lease. Without it the Lease is
    /// kept where other servers may share the state.
    async fn start_identity(&self) {
        let ServerState { registry, gates, .. } = &*self.state;
        let FeatureApi { settings, stats } = &*self.features;
        let flow = FeatureFlow::start(registry, gates, settings, stats);
        if let Some(features) = flow.await {
            self.loops.lock().spawn(features.run());
        } else if registry.store().is_shared()
            && let Some(leases) = IdentityLeases::new(registry, settings)
        {
            self.loops.lock().spawn(leases.keep());
        }
    }

    /// Serves the custom resources that exist already and starts the background loops.
    fn start_loops(&self) {
        let mut loops = self.loops.lock();
        let state = Arc::clone(&self.state);
        loops.spawn(async move { state.paths.openapi.cool_down().await });
        let state = Arc::clone(&self.state);
        loops.spawn(async move {
            state.registry.evict_pages(|pinned| state.metrics.show_pinned(pinned)).await;
        });
        if let Some((follower, informer)) =
            Follower::start(&self.state.registry, &self.state.resources.custom)
        {
            loops.spawn(follower.run(informer, Arc::clone(&self.state.resources.custom)));
        }
        // After the custom resources: they count as served here.
        let aggregator = &self.state.aggregator;
        if let Some(followed) = aggregator.start(&self.state.registry) {
            loops.spawn(Arc::clone(aggregator).run(followed));
        }
    }

    /// Exports a listener's counters as metrics.
    pub fn show_listener(&self, stats: Arc<ferrokube_serve::ListenerStats>) {
        self.state.metrics.show_listener(stats);
    }

    /// The handler of a listener.
    pub fn handler(&self) -> Arc<dyn Handler> {
        Arc::clone(&self.state) as Arc<dyn Handler>
    }

    /// One request without a listener (tests, internal clients). The peer is an `Arc<Peer>` in the
    /// request's extensions.
    pub async fn call(&self, request: http::Request<Body>) -> Response {
        let (head, body) = request.into_parts();
        Arc::clone(&self.state).respond(head, body).await
    }

    /// As passed to the builder.
    pub fn gates(&self) -> &Gates {
        &self.state.gates
    }

    /// As passed to the builder.
    pub fn registry(&self) -> &Registry {
        &self.state.registry
    }

    /// Whether `/readyz` succeeds.
    pub fn is_ready(&self) -> bool {
        self.state.paths.health.is_ready()
    }

    /// From now on `/readyz` fails and watches end; other requests finish. Next, drain the
    /// listener, await [`ApiServer::stopped`] and close the store.
    pub fn begin_shutdown(&self) {
        self.state.paths.health.stop();
        self.state.registry.end_watches();
        self.state.aggregator.end();
        if let Some(connections) = &self.state.resources.connections {
            connections.end();
        }
        // Status writes that this loses are made at the next start.
        self.loops.lock().abort_all();
    }

    /// Waits until the background loops have ended, after [`ApiServer::begin_shutdown`].
    pub async fn stopped(&self) {
        let mut loops = std::mem::take(&mut *self.loops.lock());
        loops.shutdown().await;
    }
}
