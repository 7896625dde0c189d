//! The server state that the verbs use.

use crate::discovery::Discovery;
use crate::encode::Encoder;
use crate::encode::chunk_cache::ChunkCache;
use crate::filters::identity::Authorization;
use crate::metrics::Metrics;
use crate::verbs::watch::WatchService;
use ferrokube_apiextensions::DefinitionLoop;
use ferrokube_auth::audit::AuditLog;
use ferrokube_connect::Connections;
use ferrokube_flow::Flow;
use ferrokube_registry::Registry;
use std::sync::Arc;

pub(crate) struct ResourceApi {
    pub(crate) registry: Registry,
    pub(crate) flow: Arc<Flow>,
    pub(crate) encoder: Encoder,
    pub(crate) metrics: Arc<Metrics>,
    /// For rights that depend on the body, or on whether the object exists.
    pub(crate) authorization: Arc<Authorization>,
    /// Bounds the lists that are kept for it.
    pub(crate) audit: AuditLog,
    pub(crate) discovery: Arc<Discovery>,
    pub(crate) chunks: ChunkCache,
    pub(crate) watches: Arc<WatchService>,
    pub(crate) custom: Arc<DefinitionLoop>,
    /// `None`: pods have no logs here, and nothing is connected to.
    pub(crate) connections: Option<Arc<Connections>>,
}
