//! Audit events. The response to a write or connection waits until its event is in the log.

use crate::action::{Action, ResourceAction, Verb};
use crate::exchange::{Exchange, ExchangeView, Incoming, Request};
use crate::rejection::{CLIENT_CLOSED_REQUEST, Rejection};
use bytes::Bytes;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::Access;
use ferrokube_auth::audit::{
    AuditError, AuditEvent, AuditLevel, AuditLog, AuditObject, AuditPlan, AuditRequest, AuditStage,
    LEFT_OUT, MAX_URI, MAX_USER_AGENT, Outcome, Payload, TraceIds, truncate_utf8,
};
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::RequestContext;
use ferrokube_serve::Response;
use ferrokube_storage::Entry;
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Max `X-Forwarded-For` addresses per event.
const MAX_ADDRESSES: usize = 16;

static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Resolves once the event is in the log.
pub(crate) type Recorded = Pin<Box<dyn Future<Output = Result<(), AuditError>> + Send>>;

/// Records requests in the audit log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Auditor {
    pub(crate) log: AuditLog,
    pub(crate) gates: Gates,
}

/// Audit data of one request.
#[derive(Default)]
pub(crate) struct Audit {
    /// The policy's decision, once the caller is known.
    pub(crate) plan: Option<AuditPlan>,
    /// The name in a create's body; audited even if the write fails.
    pub(crate) name: Box<str>,
    /// The request's object as JSON.
    pub(crate) request: Option<Bytes>,
    /// The response's object as JSON.
    pub(crate) response: Option<Bytes>,
    /// Why the request failed.
    pub(crate) failure: Option<Failure>,
    /// Whether the handler panicked.
    pub(crate) panicked: bool,
    /// The entry that a write stored.
    pub(crate) written: Option<Arc<Entry>>,
    /// Set for a streamed response: its end is audited by [`StreamAudit`], with these annotations.
    pub(crate) ending: Option<LateAnnotations>,
    /// Rejections of the same caller that were left out of the log before this event.
    pub(crate) left_out: u64,
    /// Awaited before a write or connection is acknowledged.
    pub(crate) recorded: Mutex<Option<Recorded>>,
}

impl Audit {
    /// Whether at least this level is recorded.
    pub(crate) fn wants(&self, level: AuditLevel) -> bool {
        self.plan.is_some_and(|plan| plan.level >= level)
    }
}

/// Applies the audit policy and records RequestReceived if it says so.
pub(crate) fn received(auditor: &Auditor, request: &mut Request<'_>) -> Result<(), Rejection> {
    let plan = plan(auditor, request.view());
    request.audit.plan = Some(plan);
    if plan.records(AuditStage::RequestReceived) {
        let source_ips = addresses(request);
        let annotations = BTreeMap::new();
        let event = AuditEvent {
            impersonated: None,
            constraint: "",
            object: request.action.resource().map(object_ref),
            outcome: None,
            ..event(auditor, request.view(), AuditStage::RequestReceived, &source_ips, &annotations)
        };
        drop(auditor.log.record(&event, &plan));
    }
    Ok(())
}

/// Rejects writes and connections that cannot be audited. The handler calls it, once all about the
/// caller is known.
///
/// # Errors
/// 500 while the log cannot be written.
pub(crate) fn admit(auditor: &Auditor, request: &Request<'_>) -> Result<(), Failure> {
    let plan = request.audit.plan.unwrap_or_else(|| plan(auditor, request.view()));
    if !request.action.must_be_recorded() {
        return Ok(());
    }
    let Err(error) = auditor.log.admit(&plan) else { return Ok(()) };
    let failure = Failure::new(Reason::InternalError, "the audit log cannot be written");
    if matches!(error, AuditError::Full) {
        request.context().restrict(failure);
        return Ok(());
    }
    tracing::error!(error = %error, "rejected a write or connection that cannot be audited");
    Err(failure)
}

/// Whether the response is sent although its event was not logged: on a full disk, if the request
/// wrote nothing or only helps to delete objects.
pub(crate) fn may_be_missing(exchange: &Exchange, error: &AuditError) -> bool {
    matches!(error, AuditError::Full)
        && exchange.view().context().is_some_and(RequestContext::is_essential)
}

fn plan(auditor: &Auditor, view: ExchangeView<'_>) -> AuditPlan {
    let Access { user, verb, resource, path } = view.incoming.action.access(view.user());
    let subject = AuditRequest { user, verb, resource, path };
    auditor.log.plan(&subject)
}

/// Records ResponseComplete; for a stream ResponseStarted, as [`StreamAudit`] records its end.
pub(crate) fn leave(auditor: &Auditor, exchange: &mut Exchange, response: &Response) {
    let view = exchange.view();
    let plan = view.incoming.audit.plan.unwrap_or_else(|| plan(auditor, view));
    let streams = view.incoming.audit.ending.is_some() && response.status().is_success();
    let stage = match (view.incoming.audit.panicked, streams) {
        (true, _) => AuditStage::Panic,
        (false, true) => AuditStage::ResponseStarted,
        (false, false) => AuditStage::ResponseComplete,
    };
    let code = response.status().as_u16();
    let (plan, left_out) = auditor.log.conclude(plan, code, || caller(view).into_owned());
    if !plan.records(stage) {
        return;
    }
    exchange.incoming.audit.left_out = left_out;
    let recorded = record(auditor, exchange.view(), &plan, stage, code);
    if exchange.incoming.action.must_be_recorded() {
        exchange.incoming.audit.recorded = Mutex::new(Some(recorded));
    }
}

fn record(
    auditor: &Auditor,
    view: ExchangeView<'_>,
    plan: &AuditPlan,
    stage: AuditStage,
    code: u16,
) -> Recorded {
    let audit = &view.incoming.audit;
    let mut annotations = view.context().map(RequestContext::take_audit).unwrap_or_default();
    if let Some(context) = view.context().filter(|_| plan.level >= AuditLevel::Request) {
        annotations.append(&mut context.take_audit_bodies());
    }
    // Names of webhooks and policies must not replace the decision.
    OF_DECISION.iter().for_each(|key| drop(annotations.remove(*key)));
    if audit.left_out > 0 {
        annotations.insert(LEFT_OUT.to_owned(), audit.left_out.to_string());
    }
    if let Some(ending) = &audit.ending {
        ending.keep(&annotations);
    }
    let source_ips = addresses(view.incoming);
    let failure = audit.failure.as_ref();
    let details = failure.and_then(Failure::details_value);
    // The response to a rejection is its Status.
    let refusal = failure
        .filter(|failure| {
            plan.level >= AuditLevel::RequestResponse && failure.code != CLIENT_CLOSED_REQUEST
        })
        .map(Failure::to_document);
    let written = audit.written.as_ref();
    let revision = written.map(|entry| entry.revision.to_string()).unwrap_or_default();
    let event = AuditEvent {
        object: view.incoming.action.resource().map(|action| AuditObject {
            name: if action.name().is_empty() {
                written.map_or(&*audit.name, |entry| entry.key.name())
            } else {
                action.name()
            },
            resource_version: &revision,
            ..object_ref(action)
        }),
        outcome: Some(Outcome {
            code,
            status: if failure.is_some() { "Failure" } else { "" },
            reason: failure.and_then(Failure::reason_text).unwrap_or_default(),
            message: failure.map_or("", |failure| &failure.message),
            details: details.as_ref(),
        }),
        request: audit.request.as_deref().map(Payload::Json),
        response: refusal
            .as_ref()
            .map(Payload::Document)
            .or_else(|| audit.response.as_deref().map(Payload::Json)),
        decision: view.authenticated.map_or(("", ""), |known| {
            let (decision, reason) = &known.decision;
            (*decision, reason.as_str())
        }),
        ..event(auditor, view, stage, &source_ips, &annotations)
    };
    Box::pin(auditor.log.record(&event, plan))
}

/// The part of an event common to all stages.
fn event<'a>(
    auditor: &Auditor,
    view: ExchangeView<'a>,
    stage: AuditStage,
    source_ips: &'a [String],
    annotations: &'a BTreeMap<String, String>,
) -> AuditEvent<'a> {
    let ExchangeView { incoming, authenticated } = view;
    AuditEvent {
        id: incoming.audit_id.to_str().unwrap_or_default(),
        stage,
        uri: incoming.head.uri.path_and_query().map_or("", |path| path.as_str()),
        verb: incoming.action.verb(),
        user: view.user(),
        impersonated: view.impersonated(),
        constraint: authenticated.map_or("", |known| known.impersonation_constraint),
        method: authenticated.map_or("", |known| known.method),
        source_ips,
        user_agent: incoming.header(http::header::USER_AGENT),
        object: None,
        outcome: None,
        request: None,
        response: None,
        received: incoming.now,
        at: SystemTime::now(),
        trace: trace_ids(auditor, view),
        decision: ("", ""),
        annotations,
    }
}

fn object_ref(action: ResourceAction<'_>) -> AuditObject<'_> {
    let access = action.access();
    AuditObject {
        resource: access.resource,
        namespace: access.namespace,
        name: access.name,
        group: access.group,
        version: access.version,
        subresource: access.subresource,
        ..AuditObject::default()
    }
}

/// Annotations with the authorizer's decision and its reason.
const OF_DECISION: [&str; 2] = ["authorization.k8s.io/decision", "authorization.k8s.io/reason"];

/// The request's ids. The initial id is that of the written object; a deletecollection has none, as
/// its objects differ. None while log tracking is off.
fn trace_ids(auditor: &Auditor, view: ExchangeView<'_>) -> Option<TraceIds> {
    let trace = &view.incoming.trace;
    let of_each = view
        .incoming
        .action
        .resource()
        .is_some_and(|action| action.verb() == Verb::DeleteCollection);
    let written = view.initial_trace_id().filter(|_| !of_each);
    let initial = written.or(trace.initial);
    auditor.gates.enabled(&LOG_TRACKING).then_some(TraceIds {
        trace: trace.trace_id,
        span: trace.span_id,
        initial,
    })
}

/// Forwarded addresses in the order of the header, then the peer's.
fn addresses(incoming: &Incoming) -> Vec<String> {
    let forwarded = incoming
        .header(&FORWARDED_FOR)
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty() && text.parse::<IpAddr>().is_ok());
    let mut all: Vec<String> = forwarded.take(MAX_ADDRESSES).map(str::to_owned).collect();
    all.extend(incoming.peer().map(|peer| peer.address.ip().to_string()));
    all
}

/// The key that rejections are counted by: the user, or the peer's network if it is anonymous. (Not
/// the forwarded address, which a client can make up.)
fn caller(view: ExchangeView<'_>) -> std::borrow::Cow<'_, str> {
    let user = view.user();
    if user.name.is_empty() || ferrokube_auth::access::is_anonymous(user) {
        return view
            .incoming
            .peer()
            .map_or_else(String::new, |peer| network(peer.address.ip()))
            .into();
    }
    user.name.as_str().into()
}

/// An IPv4 address, or the /64 network of an IPv6 address.
fn network(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).to_string(),
    }
}

/// Annotations that are only complete after the response has started.
#[derive(Clone, Default)]
pub(crate) struct LateAnnotations(Arc<OnceLock<BTreeMap<String, String>>>);

impl LateAnnotations {
    fn keep(&self, annotations: &BTreeMap<String, String>) {
        // A request ends once.
        let _ = self.0.set(annotations.clone());
    }
}

/// Records ResponseComplete of a streamed response when dropped.
pub(crate) struct StreamAudit {
    log: AuditLog,
    plan: AuditPlan,
    id: HeaderValue,
    uri: String,
    action: Action,
    user: Arc<UserInfo>,
    method: &'static str,
    source_ips: Vec<String>,
    received: SystemTime,
    trace: Option<TraceIds>,
    impersonated: Option<Arc<UserInfo>>,
    constraint: &'static str,
    user_agent: String,
    decision: (&'static str, String),
    late: LateAnnotations,
}

impl StreamAudit {
    /// `None` if the policy does not record the end.
    pub(crate) fn of(auditor: &Auditor, request: &mut Request<'_>) -> Option<Self> {
        let late = request.audit.ending.get_or_insert_default().clone();
        let plan = request.audit.plan.filter(|plan| plan.records(AuditStage::ResponseComplete))?;
        Some(Self {
            log: auditor.log.clone(),
            plan,
            id: request.audit_id.clone(),
            uri: request
                .head
                .uri
                .path_and_query()
                .map_or("", |uri| truncate_utf8(uri.as_str(), MAX_URI))
                .to_owned(),
            // Path and verb only: the query is part of the URI.
            action: request.action.without_options(),
            user: Arc::clone(&request.authenticated.user),
            method: request.authenticated.method,
            source_ips: addresses(request),
            received: request.now,
            trace: trace_ids(auditor, request.view()),
            impersonated: request.authenticated.impersonated.clone(),
            constraint: request.authenticated.impersonation_constraint,
            user_agent: truncate_utf8(request.header(http::header::USER_AGENT), MAX_USER_AGENT)
                .to_owned(),
            decision: request.authenticated.decision.clone(),
            late,
        })
    }
}

impl Drop for StreamAudit {
    fn drop(&mut self) {
        let (decision, reason) = &self.decision;
        let annotations = self.late.0.get().cloned().unwrap_or_default();
        let event = AuditEvent {
            id: self.id.to_str().unwrap_or_default(),
            stage: AuditStage::ResponseComplete,
            uri: &self.uri,
            verb: self.action.verb(),
            user: &self.user,
            impersonated: self.impersonated.as_deref(),
            constraint: self.constraint,
            method: self.method,
            source_ips: &self.source_ips,
            user_agent: &self.user_agent,
            object: self.action.resource().map(object_ref),
            outcome: Some(Outcome { code: 200, ..Outcome::default() }),
            request: None,
            response: None,
            received: self.received,
            at: SystemTime::now(),
            trace: self.trace,
            decision: (decision, reason),
            annotations: &annotations,
        };
        drop(self.log.record(&event, &self.plan));
    }
}
