//! Parses the request into an action; at the end, its log line and metrics.

use crate::action::{Action, Refusal, ResourceAction};
use crate::exchange::{Authenticated, Exchange, ExchangeView, Incoming};
use crate::metrics::Metrics;
use crate::observer::{Observer, RequestRecord};
use crate::rejection::Rejection;
use ferrokube_auth::ResourceAccess;
use ferrokube_registry::Catalog;
use ferrokube_serve::Response;
use std::sync::Arc;
use std::time::Duration;

/// Records requests when they end.
pub(crate) struct RequestRecorder {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// `timeout`: of a request that sets none, and the longest that one can set.
pub(crate) fn enter(timeout: Duration, incoming: &mut Incoming) -> Result<(), Rejection> {
    let action = Arc::new(Action::parse(
        &incoming.head.method,
        incoming.head.uri.path(),
        incoming.head.uri.query(),
    ));
    incoming.action = Arc::clone(&action);
    // kube-apiserver responds before authentication, and clients see these codes.
    match action.refusal() {
        Some(Refusal::NoResource) => {
            let text = "Internal Server Error: the path names no resource\n";
            return Err(crate::status::text(500, text).into());
        }
        Some(Refusal::Malformed) => {
            return Err(crate::status::bare_text(400, "400 Bad Request").into());
        }
        _ => {}
    }
    // Long-running requests have no timeout, not even if the parameter is malformed.
    incoming.timeout =
        if action.is_long_running() { Duration::MAX } else { action.options().timeout(timeout)? };
    Ok(())
}

pub(crate) fn leave(recorder: &RequestRecorder, exchange: &mut Exchange, response: &Response) {
    let took = exchange.incoming.started.elapsed();
    let code = response.status().as_u16();
    let action = &exchange.incoming.action;
    let is_served =
        action.resource().is_some_and(|action| code < 400 || is_served(&recorder.catalog, action));
    recorder.metrics.request(action, is_served, code, took);
    if let Some(Authenticated { span, .. }) = &mut exchange.authenticated
        && span.is_recorded()
    {
        span.number("http.response.status_code", code.into());
        if code >= 500 {
            span.fail();
        }
    }
    let view = exchange.view();
    if let Some(observer) = &recorder.observer {
        observe(observer.as_ref(), view, code, took);
    }
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let incoming = view.incoming;
    let resource = incoming.action.resource();
    // With the written object's initial id, even if the request brought none, so that one id finds
    // all lines of an object's life.
    let trace =
        incoming.trace.with_initial(incoming.trace.initial.or_else(|| view.initial_trace_id()));
    ferrokube_trace::in_scope(&trace, || {
        tracing::debug!(
            verb = incoming.action.verb(),
            k8s.resource = resource.map_or("", ResourceAction::plural),
            k8s.namespace = resource.map_or("", ResourceAction::namespace),
            k8s.name = resource.map_or("", ResourceAction::name),
            path = incoming.action.path(),
            user = view.effective_user_name(),
            http.response.status_code = code,
            audit_id = incoming.audit_id.to_str().unwrap_or_default(),
            took_us = took.as_micros(),
            "request"
        );
    });
}

/// Whether the resource exists: others must not create metric series.
fn is_served(catalog: &Catalog, action: ResourceAction<'_>) -> bool {
    let subresource = action.subresource();
    let served = catalog.find(action.group(), action.version(), action.plural());
    served.is_some_and(|served| {
        subresource.is_empty()
            || served.version().subresources.iter().any(|known| known.name == subresource)
    })
}

/// Reports a request that has an initial trace id: it wrote an object, or acts on behalf of one.
fn observe(observer: &dyn Observer, view: ExchangeView<'_>, code: u16, took: Duration) {
    let incoming = view.incoming;
    let trace = incoming.trace.with_initial(view.initial_trace_id().or(incoming.trace.initial));
    let Some(resource) =
        incoming.action.resource().filter(|_| trace.initial.is_some()).map(ResourceAction::access)
    else {
        return;
    };
    let written = incoming.audit.written.as_ref().map_or("", |entry| entry.key.name());
    let name = if resource.name.is_empty() { written } else { resource.name };
    observer.observe(&RequestRecord {
        trace: &trace,
        verb: incoming.action.verb(),
        resource: ResourceAccess { name, ..resource },
        path: incoming.action.path(),
        user: view.effective_user_name(),
        code,
        audit_id: incoming.audit_id.to_str().unwrap_or_default(),
        received: incoming.now,
        took,
    });
}
