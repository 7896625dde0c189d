//! The server's state, shared by all requests.

use crate::encode::Encoder;
use crate::filters::audit::Auditor;
use crate::filters::identity::{Authentication, Authorization};
use crate::filters::info::RequestRecorder;
use crate::metrics::Metrics;
use crate::paths::PathApi;
use crate::resource_api::ResourceApi;
use ferrokube_aggregator::Aggregator;
use ferrokube_auth::Authorizer;
use ferrokube_features::Gates;
use ferrokube_flow::Flow;
use ferrokube_registry::Registry;
use std::sync::Arc;

/// A value for each part of the request path. Filters and verbs take the parts that they use; only
/// `service.rs`, the list of filters and `handler.rs` see the whole.
pub(crate) struct ServerState {
    pub(crate) registry: Registry,
    pub(crate) gates: Gates,
    pub(crate) flow: Arc<Flow>,
    pub(crate) encoder: Encoder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) recorder: RequestRecorder,
    pub(crate) authentication: Authentication,
    pub(crate) authorization: Arc<Authorization>,
    pub(crate) auditor: Auditor,
    pub(crate) aggregator: Arc<Aggregator>,
    pub(crate) paths: PathApi,
    pub(crate) resources: ResourceApi,
}

impl ServerState {
    pub(crate) fn authorizer(&self) -> &dyn Authorizer {
        &*self.authorization.authorizer
    }
}
