//! The server's state, shared by all requests.

use crate::discovery::Discovery;
use crate::encode::Encoder;
use crate::encode::chunk_cache::ChunkCache;
use crate::features::settings::FeatureSettings;
use crate::features::stats::FeatureStats;
use crate::health::Health;
use crate::metrics::{MetricSources, Metrics};
use crate::observer::Observer;
use crate::openapi::OpenApi;
use crate::routes::Routes;
use crate::watch::cache::EventCache;
use crate::watch::watchers::Watchers;
use ferrokube_aggregator::{Aggregator, CertificateFaults};
use ferrokube_apiextensions::Custom;
use ferrokube_auth::audit::AuditLog;
use ferrokube_auth::{Authenticator, Authorizer, ImpersonationModes};
use ferrokube_connect::Connections;
use ferrokube_features::Gates;
use ferrokube_flow::Flow;
use ferrokube_flow::Limits;
use ferrokube_registry::Registry;
use std::sync::Arc;

pub(crate) struct ServerState {
    pub(crate) registry: Registry,
    pub(crate) gates: Gates,
    pub(crate) features: FeatureSettings,
    pub(crate) feature_stats: Arc<FeatureStats>,
    pub(crate) authenticators: Vec<Arc<dyn Authenticator>>,
    pub(crate) anonymous: bool,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) impersonation: ImpersonationModes,
    pub(crate) audit: AuditLog,
    pub(crate) encoder: Encoder,
    pub(crate) limits: Limits,
    pub(crate) routes: Routes,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) flow: Arc<Flow>,
    pub(crate) metrics: Metrics,
    pub(crate) discovery: Discovery,
    pub(crate) openapi: OpenApi,
    pub(crate) health: Health,
    pub(crate) events: EventCache,
    pub(crate) watchers: Watchers,
    pub(crate) chunks: ChunkCache,
    pub(crate) custom: Custom,
    pub(crate) aggregator: Arc<Aggregator>,
    /// `None`: pods have no logs here, and nothing is connected to.
    pub(crate) connections: Option<Arc<Connections>>,
    pub(crate) webhook_certificates: CertificateFaults,
}

impl ServerState {
    pub(crate) fn metric_sources(&self) -> MetricSources<'_> {
        MetricSources {
            registry: &self.registry,
            gates: &self.gates,
            feature_stats: &self.feature_stats,
            audit: &self.audit,
            flow: &self.flow,
            aggregator: &self.aggregator,
            webhook_certificates: &self.webhook_certificates,
        }
    }
}

impl AsRef<Custom> for ServerHandle {
    fn as_ref(&self) -> &Custom {
        &self.0.custom
    }
}

/// Handed to background loops.
pub(crate) struct ServerHandle(pub(crate) Arc<ServerState>);
