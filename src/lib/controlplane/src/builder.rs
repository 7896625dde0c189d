//! `ControlPlane::builder()`: the parts of an API server.

use crate::bootstrap;
use crate::discovery::Discovery;
use crate::encode::Encoder;
use crate::encode::chunk_cache::ChunkCache;
use crate::flow_objects::FlowObjects;
use crate::health::Health;
use crate::maintained;
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::openapi::OpenApi;
use crate::route::Route;
use crate::routes::Routes;
use crate::service::ApiHandler;
use crate::state::{ServerHandle, ServerState};
use crate::watch::{EventCache, Watchers};
use ferrokube_aggregator::{Aggregator, ListedServices, ProxyIdentity};
use ferrokube_apiextensions::{Custom, Follower};
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_auth::audit::AuditLog;
use ferrokube_auth::{AnonymousLock, Authenticator, Authorizer, MastersOnly};
use ferrokube_features::Gates;
use ferrokube_flow::Flow;
use ferrokube_flow::Limits;
use ferrokube_registry::Registry;
use ferrokube_serve::{Body, Handler, Response};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Result of a [`BootstrapStep`]; the error is logged and ends the process.
pub type BootstrapFuture = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Runs once, after the system namespaces exist; `/readyz` waits for it.
pub type BootstrapStep = Box<dyn FnOnce(Registry) -> BootstrapFuture + Send>;

/// Registers further metrics.
pub type RegisterMetrics = Box<dyn FnOnce(&mut prometheus_client::registry::Registry) + Send>;

/// [`ControlPlane::start`] failed; the server never becomes ready.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A bootstrap step failed.
    #[error("bootstrap step {step} failed: {why}")]
    Step {
        /// As registered.
        step: String,
        /// The step's error.
        why: String,
    },
}

/// Made by [`ControlPlane::builder`].
pub struct Builder {
    registry: Registry,
    gates: Gates,
    authenticators: Vec<Arc<dyn Authenticator>>,
    anonymous: bool,
    authorizer: Arc<dyn Authorizer>,
    audit: AuditLog,
    messages: Arc<Messages>,
    limits: Limits,
    routes: Vec<(String, bool, Arc<dyn Route>)>,
    observer: Option<Arc<dyn Observer>>,
    steps: Vec<(String, BootstrapStep)>,
    aggregator: Arc<Aggregator>,
    metrics: Vec<RegisterMetrics>,
}

impl Builder {
    /// Feature gates; default: their defaults.
    #[must_use]
    pub fn gates(mut self, gates: Gates) -> Self {
        self.gates = gates;
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

    /// Adds metrics of other crates.
    #[must_use]
    pub fn metrics(mut self, register: RegisterMetrics) -> Self {
        self.metrics.push(register);
        self
    }

    /// Adds a bootstrap step. They run in order in [`ControlPlane::start`] and appear in `/readyz`
    /// as `poststarthook/<name>`.
    #[must_use]
    pub fn post_start(mut self, name: impl Into<String>, step: BootstrapStep) -> Self {
        self.steps.push((name.into(), step));
        self
    }

    /// Requests are served at once, but `/readyz` fails until [`ControlPlane::start`].
    pub fn build(mut self) -> ControlPlane {
        let namespaces: BootstrapStep =
            Box::new(|registry| Box::pin(async move { bootstrap::namespaces(&registry).await }));
        self.steps.insert(0, ("start-system-namespaces-controller".to_owned(), namespaces));
        let flow: BootstrapStep =
            Box::new(|registry| Box::pin(async move { maintained::reconcile(&registry).await }));
        self.steps.insert(1, ("priority-and-fairness-config-producer".to_owned(), flow));
        let loops = Arc::default();
        let registration = registration(&self.aggregator, &loops);
        self.steps.push(("kube-apiserver-autoregistration".to_owned(), registration));
        let state = ServerState {
            registry: self.registry,
            gates: self.gates,
            authenticators: self.authenticators,
            anonymous: self.anonymous,
            authorizer: Arc::new(AnonymousLock(self.authorizer)),
            impersonation: ferrokube_auth::ImpersonationModes::default(),
            audit: self.audit,
            encoder: Encoder::new(self.messages),
            flow: Arc::new(Flow::new(&self.limits)),
            limits: self.limits,
            routes: Routes::new(self.routes),
            observer: self.observer,
            metrics: Metrics::with(self.metrics),
            discovery: Discovery::default(),
            openapi: OpenApi::default(),
            health: Health::new(self.steps.iter().map(|(name, _)| name.clone())),
            events: EventCache::default(),
            watchers: Watchers::default(),
            chunks: ChunkCache::default(),
            custom: Custom::default(),
            aggregator: self.aggregator,
        };
        ControlPlane { state: Arc::new(state), steps: Arc::new(Mutex::new(self.steps)), loops }
    }
}

/// Registers what this server serves, and keeps it registered.
fn registration(aggregator: &Arc<Aggregator>, loops: &Arc<Mutex<JoinSet<()>>>) -> BootstrapStep {
    let (aggregator, loops) = (Arc::clone(aggregator), Arc::downgrade(loops));
    Box::new(move |_registry| {
        Box::pin(async move {
            let kept = aggregator
                .register()
                .await
                .map_err(|failure| format!("cannot register the API services: {failure}"))?;
            if let Some(loops) = loops.upgrade() {
                loops.lock().spawn(kept);
            }
            Ok(())
        })
    })
}

/// An API server without its listener. Cheap to clone.
#[derive(Clone)]
pub struct ControlPlane {
    state: Arc<ServerState>,
    steps: Arc<Mutex<Vec<(String, BootstrapStep)>>>,
    /// Background loops; aborted when the last clone is dropped.
    loops: Arc<Mutex<JoinSet<()>>>,
}

impl ControlPlane {
    /// `registry` holds the store, the catalog and admission. Everything else has a default.
    pub fn builder(registry: Registry) -> Builder {
        Builder {
            registry,
            gates: Gates::default(),
            authenticators: Vec::new(),
            anonymous: true,
            authorizer: Arc::new(MastersOnly),
            audit: AuditLog::disabled(),
            messages: Arc::default(),
            limits: Limits::default(),
            routes: Vec::new(),
            observer: None,
            steps: Vec::new(),
            aggregator: Arc::new(Aggregator::new(
                Arc::new(ListedServices::default()),
                ProxyIdentity::default(),
            )),
            metrics: Vec::new(),
        }
    }

    /// Creates the system namespaces, runs the bootstrap steps, then reports ready. Later calls do
    /// nothing.
    ///
    /// # Errors
    /// [`StartError`]; the process should exit.
    pub async fn start(&self) -> Result<(), StartError> {
        self.start_loops();
        let steps = std::mem::take(&mut *self.steps.lock());
        let is_first = !steps.is_empty();
        for (name, step) in steps {
            if let Err(why) = step(self.state.registry.clone()).await {
                return Err(StartError::Step { step: name, why });
            }
            self.state.health.step_done(&name);
        }
        if is_first && let Some(objects) = FlowObjects::start(&self.state).await {
            let state = Arc::clone(&self.state);
            self.loops.lock().spawn(objects.run(state));
        }
        self.state.health.start();
        tracing::info!("the API server is ready");
        Ok(())
    }

    /// Serves the custom resources that exist already and starts the background loops, once.
    fn start_loops(&self) {
        let mut loops = self.loops.lock();
        if !loops.is_empty() {
            return;
        }
        let state = Arc::clone(&self.state);
        loops.spawn(async move { state.openapi.cool_down().await });
        let state = Arc::clone(&self.state);
        loops.spawn(async move {
            state.registry.evict_pages(|pinned| state.metrics.show_pinned(pinned)).await;
        });
        if let Some((follower, informer)) =
            Follower::start(&self.state.registry, &self.state.custom)
        {
            loops.spawn(follower.run(informer, ServerHandle(Arc::clone(&self.state))));
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
        Arc::new(ApiHandler(Arc::clone(&self.state)))
    }

    /// One request without a listener (tests, internal clients). The peer is an `Arc<Peer>` in the
    /// request's extensions.
    pub async fn call(&self, request: http::Request<Body>) -> Response {
        let (head, body) = request.into_parts();
        self.state.answer(head, body).await
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
        self.state.health.is_ready()
    }

    /// From now on `/readyz` fails and watches end; other requests finish. Next, drain the
    /// listener, await [`ControlPlane::stopped`] and close the store.
    pub fn begin_shutdown(&self) {
        self.state.health.stop();
        self.state.registry.end_watches();
        self.state.aggregator.end();
        // Status writes that this loses are made at the next start.
        self.loops.lock().abort_all();
    }

    /// Waits until the background loops have ended, after [`ControlPlane::begin_shutdown`].
    pub async fn stopped(&self) {
        let mut loops = std::mem::take(&mut *self.loops.lock());
        loops.shutdown().await;
    }
}
