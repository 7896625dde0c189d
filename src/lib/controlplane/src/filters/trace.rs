//! The three trace ids: parsed early so that log lines have local ids, adopted only from callers
//! that may propagate them.

use crate::exchange::{Incoming, Request};
use crate::metrics::{Metrics, Origin};
use crate::rejection::Rejection;
use ferrokube_auth::{Access, Authorizer, Decision};
use ferrokube_features::{Gates, LOG_TRACKING, LOG_TRACKING_INTEROP};
use ferrokube_registry::RequestContext;
use ferrokube_trace::{
    InitialTraceId, Span, SpanSide, SpanStart, TraceContext, extract, extract_initial, interop,
    sample,
};
use http::{HeaderMap, HeaderName};
use std::sync::Arc;

/// Callers that may do this on [`PATH`] may set the ids of their requests.
const VERB: &str = "propagate";
/// The non-resource path that stands for the caller's trace context.
const PATH: &str = "/trace-context";
/// Audit annotation: the `traceparent` of a caller that may not propagate.
const LINK: &str = "trace.kubernetes.io/link";
/// Audit annotation: the initial trace id of a caller that may not propagate.
const REFUSED_INITIAL: &str = "trace.kubernetes.io/refused-initial-trace-id";
static BAGGAGE: HeaderName = HeaderName::from_static(interop::BAGGAGE);
/// Max bytes of a User-Agent kept for the context.
const MAX_AGENT_BYTES: usize = 1024;

/// Parses `traceparent`; the request has local ids until the caller is known.
pub(crate) fn parse(incoming: &mut Incoming) -> Result<(), Rejection> {
    incoming.claimed_trace = extract(&incoming.head.headers);
    Ok(())
}

/// A child span in the client's trace if the caller (the authenticated user, also under
/// impersonation) may propagate; else a new trace that links to it.
pub(crate) fn adopt(
    authorizer: &dyn Authorizer,
    metrics: &Metrics,
    request: &mut Request<'_>,
) -> Result<(), Rejection> {
    let claimed = request.claimed_trace;
    let (origin, trace) = match claimed {
        Some(claimed) if may_propagate(authorizer, request) => (Origin::Adopted, claimed.child()),
        Some(claimed) => (
            Origin::Linked,
            sample(TraceContext { parent_span_id: None, ..request.trace }.with_link(&claimed)),
        ),
        None => (Origin::Started, sample(request.trace)),
    };
    metrics.contexts(origin).inc();
    request.trace = trace;
    Ok(())
}

/// Adds the initial trace id (KEP-1668: after the span context, in its own handler) and completes
/// the request context.
pub(crate) fn initial(
    authorizer: &dyn Authorizer,
    gates: &Gates,
    metrics: &Metrics,
    request: &mut Request<'_>,
) -> Result<(), Rejection> {
    let initial = extract_initial(&request.head.headers)
        .or_else(|| from_baggage(gates, metrics, &request.head.headers));
    if initial.is_some() && may_propagate(authorizer, request) {
        request.trace = request.trace.with_initial(initial);
    }
    let agent = request.header(http::header::USER_AGENT);
    let agent = agent[..agent.len().min(MAX_AGENT_BYTES)].to_owned();
    let user = Arc::clone(request.user());
    let context = RequestContext::new(user, request.trace, agent, request.now);
    if gates.enabled(&LOG_TRACKING) {
        annotate_refused(&context, initial);
    }
    request.authenticated.context = Some(context);
    begin_span(request);
    Ok(())
}

/// The initial id of clients that send W3C baggage instead of our header (gate
/// `LogTrackingInterop`).
fn from_baggage(gates: &Gates, metrics: &Metrics, headers: &HeaderMap) -> Option<InitialTraceId> {
    let mut values = headers.get_all(&BAGGAGE).iter().peekable();
    values.peek()?;
    if !gates.enabled(&LOG_TRACKING_INTEROP) {
        return None;
    }
    let initial = interop::initial_of(values.filter_map(|value| value.to_str().ok()))?;
    metrics.count_baggage();
    Some(initial)
}

/// Annotates ids that were not adopted.
fn annotate_refused(context: &RequestContext, initial: Option<InitialTraceId>) {
    if let Some((trace, span)) = context.trace.link {
        context.annotate_audit(LINK, format!("{trace}-{span}"));
    }
    if let Some(initial) = initial.filter(|initial| context.trace.initial != Some(*initial)) {
        context.annotate_audit(REFUSED_INITIAL, initial.to_string());
    }
}

/// Asks the authorizer once, and only if the request claims an id.
fn may_propagate(authorizer: &dyn Authorizer, request: &mut Request<'_>) -> bool {
    if let Some(trusted) = request.authenticated.trusted {
        return trusted;
    }
    let access =
        Access { user: &request.authenticated.user, verb: VERB, resource: None, path: PATH };
    let trusted = matches!(authorizer.authorize(&access), Decision::Allow(_));
    request.authenticated.trusted = Some(trusted);
    trusted
}

/// Starts the request's span, backdated to its arrival. Unauthenticated requests have none.
fn begin_span(request: &mut Request<'_>) {
    if !request.trace.sampled() {
        return;
    }
    let mut span = Span::since(
        &request.trace,
        SpanSide::Server,
        &request.span_info(),
        SpanStart { wall: request.now, monotonic: request.started.into_std() },
    );
    if span.is_recorded() {
        span.text("http.request.method", request.head.method.as_str());
        span.text("url.path", request.head.uri.path());
        span.text("user_agent.original", request.header(http::header::USER_AGENT));
        span.text("audit-id", request.audit_id.to_str().unwrap_or_default());
        request.authenticated.span = span;
    }
}
