//! `ControlPlane::builder()`: everything that a server is made of, handed in by who wires it.

use crate::route::Route;
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_auth::{Authenticator, Authorizer, MastersOnly};
use ferrokube_features::Gates;
use ferrokube_registry::Registry;
use ferrokube_serve::Handler;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A bootstrap step: runs once after the namespaces exist; `/readyz` waits for it.
pub type Step = Box<dyn FnOnce(Registry) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send>;

/// Bounds of the request chain.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Requests at a time that change nothing (watches are not counted).
    pub readonly_inflight: usize,
    /// Requests at a time that write.
    pub mutating_inflight: usize,
    /// How long a request that is not a watch may take.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 3 * 1024 * 1024, readonly_inflight: 400, mutating_inflight: 200, request: Duration::from_secs(60) }
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
    authorizer: Arc<dyn Authorizer>,
    messages: Arc<Messages>,
    limits: Limits,
    routes: Vec<(String, bool, Arc<dyn Route>)>,
    steps: Vec<(String, Step)>,
}

impl Builder {
    /// The gates' values (default: none).
    #[must_use]
    pub fn gates(mut self, gates: Gates) -> Self {
        self.gates = gates;
        self
    }

    /// Adds an authenticator; they are asked in order, the first that knows the credentials decides.
    #[must_use]
    pub fn authenticator(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.authenticators.push(authenticator);
        self
    }

    /// Who decides what is allowed (default: [`MastersOnly`]).
    #[must_use]
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizer = authorizer;
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

    /// A non-resource path answered by somebody else; a path that ends with `/` also answers everything below. `anonymous`: open to unauthenticated clients.
    #[must_use]
    pub fn route(mut self, path: impl Into<String>, anonymous: bool, route: Arc<dyn Route>) -> Self {
        self.routes.push((path.into(), anonymous, route));
        self
    }

    /// A bootstrap step; they run in order in [`ControlPlane::start`] and show in `/readyz` as `poststarthook/<name>`.
    #[must_use]
    pub fn post_start(mut self, name: impl Into<String>, step: Step) -> Self {
        self.steps.push((name.into(), step));
        self
    }

    /// The server; it answers requests at once, but is ready only after [`ControlPlane::start`].
    pub fn build(self) -> ControlPlane {
        let _ = (self.registry, self.gates, self.authenticators, self.authorizer, self.messages, self.limits, self.routes, self.steps);
        unimplemented!("controlplane owner")
    }
}

/// An API server without its listener. Cheap to clone.
#[derive(Clone)]
pub struct ControlPlane {}

impl ControlPlane {
    /// A server over a registry (which holds the store, the catalog and admission), with defaults for everything else.
    pub fn builder(registry: Registry) -> Builder {
        Builder {
            registry,
            gates: Gates::default(),
            authenticators: Vec::new(),
            authorizer: Arc::new(MastersOnly),
            messages: Arc::default(),
            limits: Limits::default(),
            routes: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Makes the namespaces that every cluster has, runs the bootstrap steps, then reports ready.
    ///
    /// # Errors
    /// [`StartError`]: the process should end.
    pub async fn start(&self) -> Result<(), StartError> {
        unimplemented!("controlplane owner")
    }

    /// What a listener calls.
    pub fn handler(&self) -> Arc<dyn Handler> {
        unimplemented!("controlplane owner")
    }

    /// One request without a listener (tests, the process's own loops).
    pub async fn call(&self, _request: http::Request<ferrokube_serve::Body>) -> ferrokube_serve::Response {
        unimplemented!("controlplane owner")
    }

    /// Whether `/readyz` says ok.
    pub fn is_ready(&self) -> bool {
        unimplemented!("controlplane owner")
    }

    /// From now on `/readyz` fails and running watches end; other requests finish. Then drain the listener and close the store.
    pub fn begin_shutdown(&self) {
        unimplemented!("controlplane owner")
    }
}
