//! The three ids (design section 5): read early so that log lines have local ids, believed only
//! from those who may propagate.

use crate::exchange::{Incoming, Rejection, Request};
use crate::metrics::Origin;
use crate::state::ServerState;
use ferrokube_auth::{Access, Decision};
use ferrokube_features::{LOG_TRACKING, LOG_TRACKING_INTEROP};
use ferrokube_registry::RequestContext;
use ferrokube_trace::{
    InitialTraceId, Kind, Span, TraceContext, extract, extract_initial, interop, sample,
};
use http::HeaderMap;

/// Who may do this verb on [`PATH`] is believed.
const VERB: &str = "propagate";
/// The non-resource path that stands for the caller's trace context.
const PATH: &str = "/trace-context";
/// Audit annotation: the `traceparent` of somebody who may not propagate.
const LINK: &str = "trace.kubernetes.io/link";
/// Audit annotation: the initial trace id of somebody who may not propagate.
const REFUSED_INITIAL: &str = "trace.kubernetes.io/refused-initial-trace-id";
/// At most so much of a User-Agent is kept.
const MAX_AGENT_BYTES: usize = 1024;

/// Reads `traceparent`; until the caller is known the request has ids of its own.
pub(crate) fn parse(_shared: &ServerState, incoming: &mut Incoming) -> Result<(), Rejection> {
    incoming.claimed = extract(&incoming.head.headers);
    Ok(())
}

/// A new span in the sender's trace, if the sender (the real user, also under impersonation) is
/// trusted; else a new trace with a link.
pub(crate) fn adopt(state: &ServerState, request: &mut Request<'_>) -> Result<(), Rejection> {
    let claimed = request.claimed;
    let (origin, trace) = match claimed {
        Some(claimed) if is_believed(state, request) => (Origin::Adopted, claimed.child()),
        Some(claimed) => (
            Origin::Linked,
            sample(TraceContext { parent_span_id: None, ..request.trace }.with_link(&claimed)),
        ),
        None => (Origin::Started, sample(request.trace)),
    };
    state.metrics.contexts(origin).inc();
    request.trace = trace;
    Ok(())
}

/// The initial id, into the same context (KEP-1668: after the span context, in a handler of its
/// own); then the context is complete.
pub(crate) fn initial(state: &ServerState, request: &mut Request<'_>) -> Result<(), Rejection> {
    let initial = extract_initial(&request.head.headers)
        .or_else(|| from_baggage(state, &request.head.headers));
    if initial.is_some() && is_believed(state, request) {
        request.trace = request.trace.with_initial(initial);
    }
    let agent = request.header(http::header::USER_AGENT);
    let agent = agent[..agent.len().min(MAX_AGENT_BYTES)].to_owned();
    let user = request.user().clone();
    let context = RequestContext::new(user, request.trace, agent, request.now);
    if state.gates.enabled(&LOG_TRACKING) {
        note_refused(&context, initial);
    }
    request.authenticated.context = Some(context);
    begin_span(request);
    Ok(())
}

/// The initial id of senders that know W3C baggage and not our header (gate `LogTrackingInterop`).
fn from_baggage(state: &ServerState, headers: &HeaderMap) -> Option<InitialTraceId> {
    let mut values = headers.get_all(interop::BAGGAGE).iter().peekable();
    values.peek()?;
    if !state.gates.enabled(&LOG_TRACKING_INTEROP) {
        return None;
    }
    let initial = interop::initial_of(values.filter_map(|value| value.to_str().ok()))?;
    state.metrics.count_baggage();
    Some(initial)
}

/// What somebody without the right claimed is not believed, but can be seen in the audit log.
fn note_refused(context: &RequestContext, initial: Option<InitialTraceId>) {
    if let Some((trace, span)) = context.trace.link {
        context.annotate_audit(LINK, format!("{trace}-{span}"));
    }
    if let Some(initial) = initial.filter(|initial| context.trace.initial != Some(*initial)) {
        context.annotate_audit(REFUSED_INITIAL, initial.to_string());
    }
}

/// Asked once, and only about those who claim something.
fn is_believed(state: &ServerState, request: &mut Request<'_>) -> bool {
    if let Some(trusted) = request.authenticated.trusted {
        return trusted;
    }
    let access =
        Access { user: &request.authenticated.user, verb: VERB, resource: None, path: PATH };
    let trusted = matches!(state.authorizer.authorize(&access), Decision::Allow(_));
    request.authenticated.trusted = Some(trusted);
    trusted
}

/// The request's span, from its arrival on; only requests of known callers have one.
fn begin_span(request: &mut Request<'_>) {
    if !request.trace.sampled() {
        return;
    }
    let mut span = Span::since(
        &request.trace,
        Kind::Server,
        &request.span_info(),
        (request.now, request.started.into_std()),
    );
    if span.is_recorded() {
        span.text("http.request.method", request.head.method.as_str());
        span.text("url.path", request.head.uri.path());
        span.text("user_agent.original", request.header(http::header::USER_AGENT));
        span.text("audit-id", request.audit_id.to_str().unwrap_or_default());
        request.authenticated.span = span;
    }
}
