//! What the request is about; at the end, its log line and its metrics.

use crate::action::{Action, Refusal, ResourceAction};
use crate::exchange::{Exchange, Rejection};
use crate::observer::{Observer, RequestRecord};
use crate::state::ServerState;
use ferrokube_auth::ResourceAccess;
use ferrokube_serve::Response;
use std::sync::Arc;
use std::time::Duration;

/// Reads method, path and query.
pub(crate) fn enter(shared: &ServerState, exchange: &mut Exchange) -> Result<(), Rejection> {
    let action = Arc::new(Action::parse(
        &exchange.head.method,
        exchange.head.uri.path(),
        exchange.head.uri.query(),
    ));
    exchange.action = Arc::clone(&action);
    if matches!(action.refusal(), Some(Refusal::NoResource)) {
        // Upstream answers before it knows who asks, and clients see this code.
        return Err(crate::status::text(
            500,
            "Internal Server Error: the path names no resource\n",
        )
        .into());
    }
    // What runs for minutes has no timeout, not even a malformed one.
    exchange.timeout = if action.is_long_running() {
        Duration::MAX
    } else {
        action.options().timeout(shared.limits.request)?
    };
    Ok(())
}

/// Counts and logs.
pub(crate) fn leave(shared: &ServerState, exchange: &mut Exchange, response: &mut Response) {
    let took = exchange.started.elapsed();
    let code = response.status().as_u16();
    let is_served =
        exchange.action.resource().is_some_and(|action| code < 400 || is_served(shared, action));
    shared.metrics.request(&exchange.action, is_served, (code, took));
    if exchange.span.is_recorded() {
        exchange.span.number("http.response.status_code", code.into());
        if code >= 500 {
            exchange.span.fail();
        }
    }
    if let Some(observer) = &shared.observer {
        observe(observer.as_ref(), exchange, code, took);
    }
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let resource = exchange.action.resource();
    // The family of what was written, also when the request brought none: one id then finds all
    // lines of an object's life.
    let trace = exchange.trace.with_initial(exchange.trace.initial.or_else(|| exchange.family()));
    ferrokube_trace::in_scope(&trace, || {
        tracing::debug!(
            verb = exchange.action.verb(),
            k8s.resource = resource.map_or("", ResourceAction::plural),
            k8s.namespace = resource.map_or("", ResourceAction::namespace),
            k8s.name = resource.map_or("", ResourceAction::name),
            path = exchange.action.path(),
            user = exchange.user().name,
            http.response.status_code = code,
            audit_id = exchange.audit_id.to_str().unwrap_or_default(),
            took_us = took.as_micros(),
            "request"
        );
    });
}

/// Whether a resource exists: what does not must not make series in the metrics.
fn is_served(shared: &ServerState, action: ResourceAction<'_>) -> bool {
    let subresource = action.subresource();
    let served = shared.registry.catalog().find(action.group(), action.version(), action.plural());
    served.is_some_and(|served| {
        subresource.is_empty()
            || served.version().subresources.iter().any(|known| known.name == subresource)
    })
}

/// Tells of a request that is part of an object's life: it wrote the object, or came from who works
/// on it.
fn observe(observer: &dyn Observer, exchange: &Exchange, code: u16, took: Duration) {
    let trace = exchange.trace.with_initial(exchange.family().or(exchange.trace.initial));
    let Some(resource) =
        exchange.action.resource().filter(|_| trace.initial.is_some()).map(ResourceAction::access)
    else {
        return;
    };
    let written = exchange.audit.written.as_ref().map_or("", |entry| entry.key.name());
    let name = if resource.name.is_empty() { written } else { resource.name };
    observer.seen(&RequestRecord {
        trace: &trace,
        verb: exchange.action.verb(),
        resource: ResourceAccess { name, ..resource },
        path: exchange.action.path(),
        user: &exchange.user().name,
        code,
        audit_id: exchange.audit_id.to_str().unwrap_or_default(),
        received: exchange.now,
        took,
    });
}
