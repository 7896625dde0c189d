//! What the request is about; at the end, its log line and its metrics.

use crate::exchange::{Exchange, Stop};
use crate::observer::{Observer, Seen};
use crate::request_info;
use crate::server::Shared;
use ferrokube_auth::ResourceAccess;
use ferrokube_serve::Response;
use std::time::Duration;

/// Reads method and path.
pub(crate) fn enter(_shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    let (info, refused) = request_info::parse(&exchange.head.method, exchange.head.uri.path(), &exchange.query);
    exchange.info = info;
    exchange.refused = refused;
    if exchange.info.resource.as_deref().is_some_and(request_info::ResourceInfo::is_verb_alone) {
        // Upstream answers before it knows who asks, and clients see this code.
        return Err(crate::status::text(500, "Internal Server Error: the path names no resource\n").into());
    }
    if exchange.info.is_long_running() {
        exchange.timeout = std::time::Duration::MAX;
    }
    Ok(())
}

/// Counts and logs.
pub(crate) fn leave(shared: &Shared, exchange: &mut Exchange, response: &mut Response) {
    let took = exchange.started.elapsed();
    let code = response.status().as_u16();
    shared.metrics.request(&exchange.info, &exchange.query, code, took);
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
    let resource = exchange.info.resource.as_ref();
    // The family of what was written, also when the request brought none: one id then finds all lines of an object's life.
    let trace = exchange.trace.with_initial(exchange.trace.initial.or_else(|| exchange.family()));
    ferrokube_trace::in_scope(&trace, || {
        tracing::debug!(
            verb = &*exchange.info.verb,
            k8s.resource = resource.map_or("", |info| &info.resource),
            k8s.namespace = resource.map_or("", |info| &info.namespace),
            k8s.name = resource.map_or("", |info| &info.name),
            path = exchange.info.path,
            user = exchange.user().name,
            http.response.status_code = code,
            audit_id = exchange.audit_id.to_str().unwrap_or_default(),
            took_us = took.as_micros(),
            "request"
        );
    });
}

/// Tells of a request that is part of an object's life: it wrote the object, or came from who works on it.
fn observe(observer: &dyn Observer, exchange: &Exchange, code: u16, took: Duration) {
    let trace = exchange.trace.with_initial(exchange.family().or(exchange.trace.initial));
    let Some(resource) = exchange.info.access().filter(|_| trace.initial.is_some()) else { return };
    let written = exchange.audit.written.as_ref().map_or("", |entry| entry.key.name());
    let name = if resource.name.is_empty() { written } else { resource.name };
    observer.seen(&Seen {
        trace: &trace,
        verb: &exchange.info.verb,
        resource: ResourceAccess { name, ..resource },
        path: &exchange.info.path,
        user: &exchange.user().name,
        code,
        audit_id: exchange.audit_id.to_str().unwrap_or_default(),
        received: exchange.now,
        took,
    });
}
