//! Dispatch of an authorized request: aggregated servers, resources, or a fixed path.

use crate::action::Action;
use crate::exchange::Request;
use crate::filters::audit;
use crate::rejection::Rejection;
use crate::state::ServerState;
use crate::{compress, delegate, paths, router, status};
use ferrokube_aggregator::Backend;
use ferrokube_apimachinery::status::Failure;
use ferrokube_serve::Response;
use ferrokube_storage::Need;
use ferrokube_storage::remote::reliance;
use http::header::ACCEPT_ENCODING;
use std::sync::Arc;

pub(crate) async fn handle(
    state: &ServerState,
    request: &mut Request<'_>,
) -> Result<Response, Rejection> {
    audit::admit(&state.auditor, request)?;
    let gzip = compress::accepts(request.header(ACCEPT_ENCODING));
    let Some(authorized) = request.authenticated.authorized.clone() else {
        return Err(Failure::internal("the request was not authorized").into());
    };
    let action = authorized.action();
    if action.path().starts_with("//") {
        // Authorization reads a leading `//` like one slash; no router has such a path.
        return Ok(status::not_found());
    }
    let backend = aggregated(state, action);
    if backend.is_some() || action.resource().is_none() {
        request.context().admit(Need::Ordinary)?;
    }
    if let Some(backend) = backend {
        // Nothing that is done there can be taken back.
        if let Some(reliance) = reliance() {
            state.registry.uphold(reliance).await?;
        }
        // Boxed: its future is large, and every request would carry it.
        return Box::pin(delegate::forward(&state.flow, request, action, &backend)).await;
    }
    if action.resource().is_none() || action.is_read_only() {
        // Writes of objects take their seat after their body was read.
        state.flow.take_seat(&request.user().name).await?;
    }
    let response = if action.resource().is_some() {
        router::handle(&state.resources, request, &authorized).await?
    } else {
        paths::handle(&state.paths, request, action).await?
    };
    if gzip {
        Ok(compress::maybe(response, state.metrics.held(), request.caller_number()).await)
    } else {
        Ok(response)
    }
}

/// The server of the action's group version; `None` if it is this one.
fn aggregated(state: &ServerState, action: &Action) -> Option<Arc<Backend>> {
    if state.aggregator.is_idle() {
        return None;
    }
    let (group, version) = action.group_version()?;
    state.aggregator.find(group, version)
}
