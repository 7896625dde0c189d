//! `ControlPlane::builder()`: everything that a server is made of, handed in by who wires it.

use crate::bootstrap;
use crate::custom::{Custom, Follower};
use crate::discovery::Discovery;
use crate::encode::Encoder;
use crate::encode::chunk_cache::ChunkCache;
use crate::flow::Flow;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::openapi::OpenApi;
use crate::route::Route;
use crate::routes::Routes;
use crate::service::ApiHandler;
use crate::state::{Server, ServerState};
use crate::watch::{EventCache, Watchers};
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_auth::audit::AuditLog;
use ferrokube_auth::{AnonymousLock, Authenticator, Authorizer, MastersOnly};
use ferrokube_features::Gates;
use ferrokube_registry::Registry;
use ferrokube_serve::{Body, Handler, Response};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// What a [`Step`] gives back; the text says what went wrong.
pub type StepFuture = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A bootstrap step: runs once after the namespaces exist; `/readyz` waits for it.
pub type Step = Box<dyn FnOnce(Registry) -> StepFuture + Send>;

/// Bounds of the request chain.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Requests at a time that change nothing (watches are not counted). Of this and all below one
    /// caller has at most half, less when others are there.
    pub readonly_inflight: usize,
    /// Requests at a time that write, counted from when their body is there.
    pub mutating_inflight: usize,
    /// Requests at a time whose body has not arrived yet.
    pub slow_bodies: usize,
    /// Bytes of the bodies of all requests together.
    pub bodies_bytes: usize,
    /// Bytes of the trees that are made of them, by estimate.
    pub trees_bytes: usize,
    /// Bytes of everything that waits for webhooks.
    pub away_bytes: usize,
    /// Bytes that lists hold to know what they are of, until their clients have taken them.
    pub lists_bytes: usize,
    /// Bytes of the heads of requests that are not answered yet, those of up to 4 KiB left out.
    pub heads_bytes: usize,
    /// How long a request that is not a watch may take.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 3 << 20,
            readonly_inflight: 400,
            mutating_inflight: 200,
            slow_bodies: 1_000,
            bodies_bytes: 16 << 20,
            trees_bytes: 48 << 20,
            away_bytes: 24 << 20,
            lists_bytes: 32 << 20,
            heads_bytes: 8 << 20,
            request: Duration::from_secs(60),
        }
    }
}

/// Why the server cannot become ready.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A bootstrap step failed.
    #[error("bootstrap step {step} failed: {why}")]
    Step {
        /// Its name.
        step: String,
        /// What it said.
        why: String,
    },
}

/// What a server is made of. Made by [`ControlPlane::builder`].
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
    steps: Vec<(String, Step)>,
}

impl Builder {
    /// The gates' values (default: none).
    #[must_use]
    pub fn gates(mut self, gates: Gates) -> Self {
        self.gates = gates;
        self
    }

    /// Adds an authenticator; they are asked in order, the first that knows the credentials
    /// decides.
    #[must_use]
    pub fn authenticator(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.authenticators.push(authenticator);
        self
    }

    /// Whether requests without credentials are those of `system:anonymous` (default) or refused.
    #[must_use]
    pub fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Who decides what is allowed (default: [`MastersOnly`]), behind an [`AnonymousLock`].
    #[must_use]
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizer = authorizer;
        self
    }

    /// Where requests are recorded (default: nowhere).
    #[must_use]
    pub fn audit(mut self, audit: AuditLog) -> Self {
        self.audit = audit;
        self
    }

    /// The protobuf tables of the served native kinds (default: none, so no protobuf).
    #[must_use]
    pub fn messages(mut self, messages: Arc<Messages>) -> Self {
        self.messages = messages;
        self
    }

    /// Bounds of the request chain.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// A non-resource path answered by somebody else; a path that ends with `/` also answers
    /// everything below. `anonymous`: open to unauthenticated clients.
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

    /// Who is told of requests that belong to an object's life (default: nobody).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// A bootstrap step; they run in order in [`ControlPlane::start`] and show in `/readyz` as
    /// `poststarthook/<name>`.
    #[must_use]
    pub fn post_start(mut self, name: impl Into<String>, step: Step) -> Self {
        self.steps.push((name.into(), step));
        self
    }

    /// The server; it answers requests at once, but is ready only after [`ControlPlane::start`].
    pub fn build(mut self) -> ControlPlane {
        let namespaces: Step =
            Box::new(|registry| Box::pin(async move { bootstrap::namespaces(&registry).await }));
        self.steps.insert(0, ("start-system-namespaces-controller".to_owned(), namespaces));
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
            metrics: Metrics::default(),
            discovery: Discovery::default(),
            openapi: OpenApi::default(),
            health: Health::new(self.steps.iter().map(|(name, _)| name.clone())),
            events: EventCache::default(),
            watchers: Watchers::default(),
            chunks: ChunkCache::default(),
            custom: Custom::default(),
        };
        ControlPlane {
            state: Arc::new(state),
            steps: Arc::new(Mutex::new(self.steps)),
            loops: Arc::default(),
        }
    }
}

/// An API server without its listener. Cheap to clone.
#[derive(Clone)]
pub struct ControlPlane {
    state: Arc<ServerState>,
    steps: Arc<Mutex<Vec<(String, Step)>>>,
    /// Background loops; aborted when the last clone is dropped.
    loops: Arc<Mutex<JoinSet<()>>>,
}

impl ControlPlane {
    /// A server over a registry (which holds the store, the catalog and admission), with defaults
    /// for everything else.
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
        }
    }

    /// Makes the namespaces that every cluster has, runs the bootstrap steps, then reports ready.
    /// Only the first call does anything.
    ///
    /// # Errors
    /// [`StartError`]: the process should end.
    pub async fn start(&self) -> Result<(), StartError> {
        self.start_loops();
        let steps = std::mem::take(&mut *self.steps.lock().expect("no panic while held"));
        for (name, step) in steps {
            if let Err(why) = step(self.state.registry.clone()).await {
                return Err(StartError::Step { step: name, why });
            }
            self.state.health.step_done(&name);
        }
        self.state.health.start();
        tracing::info!("the API server is ready");
        Ok(())
    }

    /// Serves the custom resources that exist already and starts the background loops, once.
    fn start_loops(&self) {
        let mut loops = self.loops.lock().expect("no panic while held");
        if !loops.is_empty() {
            return;
        }
        let state = Arc::clone(&self.state);
        loops.spawn(async move { state.openapi.cool_down().await });
        let state = Arc::clone(&self.state);
        loops.spawn(async move {
            state.registry.tidy_pages(|pinned| state.metrics.show_pinned(pinned)).await;
        });
        if let Some((follower, informer)) =
            Follower::start(&self.state.registry, &self.state.custom)
        {
            loops.spawn(follower.run(informer, Server(Arc::clone(&self.state))));
        }
    }

    /// Shows a listener's counters among the metrics.
    pub fn show_listener(&self, stats: Arc<ferrokube_serve::Stats>) {
        self.state.metrics.show_listener(stats);
    }

    /// What a listener calls.
    pub fn handler(&self) -> Arc<dyn Handler> {
        Arc::new(ApiHandler(Arc::clone(&self.state)))
    }

    /// One request without a listener (tests, the process's own loops). A `Arc<Peer>` in its
    /// extensions says who is at the other end.
    pub async fn call(&self, request: http::Request<Body>) -> Response {
        let (head, body) = request.into_parts();
        self.state.answer(head, body).await
    }

    /// The gates' values that the server was built with.
    pub fn gates(&self) -> &Gates {
        &self.state.gates
    }

    /// The registry that the server was built over.
    pub fn registry(&self) -> &Registry {
        &self.state.registry
    }

    /// Whether `/readyz` says ok.
    pub fn is_ready(&self) -> bool {
        self.state.health.is_ready()
    }

    /// From now on `/readyz` fails and running watches end; other requests finish. Then drain the
    /// listener and close the store.
    pub fn begin_shutdown(&self) {
        self.state.health.stop();
        self.state.registry.end_watches();
        // Status writes that this loses are made at the next start.
        self.loops.lock().expect("no panic while held").abort_all();
    }

    /// Waits until the background loops have ended, after [`ControlPlane::begin_shutdown`].
    pub async fn stopped(&self) {
        let mut loops = std::mem::take(&mut *self.loops.lock().expect("no panic while held"));
        loops.shutdown().await;
    }
}
