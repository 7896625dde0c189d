//! A request on its way through the filters: [`Incoming`] before authentication, [`Request`] after.

use crate::action::{Action, ResourceAction};
use crate::filters::audit::Audit;
use crate::filters::authorize::Authorized;
use crate::negotiate::ParsedHead;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::Class;
use ferrokube_registry::RequestContext;
use ferrokube_serve::{Body, Peer};
use ferrokube_storage::remote::Reliance;
use ferrokube_trace::{InitialTraceId, Span, SpanInfo, TraceContext};
use http::HeaderValue;
use http::request::Parts;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How new the state is that a request sees.
#[derive(Default)]
pub(crate) enum StateBasis {
    /// Not asked for, or only this process writes it.
    #[default]
    Any,
    /// It has all writes acknowledged before the arrival.
    CaughtUp,
    /// The same, as long as no other server writes: to be proven in the end.
    Sole(Arc<Reliance>),
}

/// A request before authentication.
pub(crate) struct Incoming {
    /// Method, URI, headers.
    pub(crate) head: Parts,
    /// Taken by the first reader. The lock is never contended: it makes the value `Sync`.
    pub(crate) body: Mutex<Option<Body>>,
    /// Arrival, on the monotonic clock.
    pub(crate) started: Instant,
    /// Arrival, on the wall clock.
    pub(crate) now: SystemTime,
    /// Set by the "shared state" filter.
    pub(crate) basis: StateBasis,
    /// [`Action::unparsed`] until the "request info" filter.
    pub(crate) action: Arc<Action>,
    /// The client's audit id if it is valid.
    pub(crate) audit_id: HeaderValue,
    /// From `started`.
    pub(crate) timeout: Duration,
    /// The client's trace context, not trusted yet.
    pub(crate) claimed_trace: Option<TraceContext>,
    /// A local trace until the "trace adoption" filter.
    pub(crate) trace: TraceContext,
    /// Audit data collected so far.
    pub(crate) audit: Audit,
}

impl Incoming {
    fn new(head: Parts, body: Body) -> Self {
        Self {
            head,
            body: Mutex::new(Some(body)),
            started: Instant::now(),
            now: SystemTime::now(),
            basis: StateBasis::Any,
            action: Action::unparsed(),
            audit_id: HeaderValue::from_static(""),
            timeout: Duration::ZERO,
            claimed_trace: None,
            trace: TraceContext::root(),
            audit: Audit::default(),
        }
    }

    /// A header's value; empty if absent or not visible ASCII.
    pub(crate) fn header(&self, name: impl http::header::AsHeaderName) -> &str {
        self.head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Takes the body; `None` after the first call.
    pub(crate) fn take_body(&mut self) -> Option<Body> {
        self.body.get_mut().take()
    }

    /// The client's end of the connection.
    pub(crate) fn peer(&self) -> Option<&Arc<Peer>> {
        self.head.extensions.get()
    }

    /// Name and attributes of the request's span.
    pub(crate) fn span_info(&self) -> SpanInfo<'_> {
        let resource = self.action.resource();
        SpanInfo {
            name: self.action.verb(),
            resource: resource.map_or("", ResourceAction::plural),
            namespace: resource.map_or("", ResourceAction::namespace),
            object: resource.map_or("", ResourceAction::name),
        }
    }
}

/// Request state set by authentication and later filters.
pub(crate) struct Authenticated {
    /// The authenticated user, also under impersonation.
    pub(crate) user: Arc<UserInfo>,
    /// Authentication method, for the audit log.
    pub(crate) method: &'static str,
    pub(crate) impersonated: Option<Arc<UserInfo>>,
    /// The verb of constrained impersonation that allowed it; empty without.
    pub(crate) impersonation_constraint: &'static str,
    /// Whether the caller may propagate its trace ids; `None` until asked.
    pub(crate) trusted: Option<bool>,
    /// The request's span; ends when dropped.
    pub(crate) span: Span,
    /// Set by the "initial trace" filter.
    pub(crate) context: Option<RequestContext>,
    /// Set by the "flow control" filter.
    pub(crate) class: Class,
    /// The authorizer's decision and its reason, for the audit log; empty until it was asked.
    pub(crate) decision: (&'static str, String),
    /// Set by the "authorization" filter.
    pub(crate) authorized: Option<Authorized>,
}

impl Authenticated {
    /// A user that was authenticated by `method`.
    pub(crate) fn new(user: Arc<UserInfo>, method: &'static str) -> Self {
        Self {
            user,
            method,
            impersonated: None,
            impersonation_constraint: "",
            trusted: None,
            span: Span::none(),
            context: None,
            class: Class::default(),
            decision: Default::default(),
            authorized: None,
        }
    }
}

/// An authenticated request, as used by later filters and handlers.
pub(crate) struct Request<'a> {
    incoming: &'a mut Incoming,
    pub(crate) authenticated: &'a mut Authenticated,
}

impl Request<'_> {
    /// The user whose rights count: the impersonated one, else the authenticated one.
    pub(crate) fn user(&self) -> &Arc<UserInfo> {
        self.authenticated.impersonated.as_ref().unwrap_or(&self.authenticated.user)
    }

    /// The context that the registry takes.
    pub(crate) fn context(&self) -> &RequestContext {
        self.authenticated.context.as_ref().expect("the initial trace filter set it")
    }

    /// The action and headers, for negotiation.
    pub(crate) fn parsed_head(&self) -> ParsedHead<'_> {
        ParsedHead { action: &self.incoming.action, headers: &self.incoming.head.headers }
    }

    /// The caller, for flow control.
    pub(crate) fn class(&self) -> Class {
        self.authenticated.class
    }

    /// The caller's number in budgets.
    pub(crate) fn caller_number(&self) -> u64 {
        self.authenticated.class.caller.number()
    }

    /// Read access for log, metrics and audit.
    pub(crate) fn view(&self) -> ExchangeView<'_> {
        ExchangeView { incoming: self.incoming, authenticated: Some(self.authenticated) }
    }
}

impl Deref for Request<'_> {
    type Target = Incoming;

    fn deref(&self) -> &Incoming {
        self.incoming
    }
}

impl DerefMut for Request<'_> {
    fn deref_mut(&mut self) -> &mut Incoming {
        self.incoming
    }
}

/// A request from its arrival to its response.
pub(crate) struct Exchange {
    pub(crate) incoming: Incoming,
    /// `None` until the "authentication" filter has succeeded.
    pub(crate) authenticated: Option<Authenticated>,
    /// Number of filters entered; their `leave` runs in reverse order.
    pub(crate) entered: usize,
}

impl Exchange {
    pub(crate) fn new(head: Parts, body: Body) -> Self {
        Self { incoming: Incoming::new(head, body), authenticated: None, entered: 0 }
    }

    /// The request, once its caller is known.
    ///
    /// # Errors
    /// 500 before authentication, which the order of the filters rules out.
    pub(crate) fn request(&mut self) -> Result<Request<'_>, Failure> {
        match &mut self.authenticated {
            Some(authenticated) => Ok(Request { incoming: &mut self.incoming, authenticated }),
            None => Err(Failure::internal("the request was not authenticated")),
        }
    }

    /// Read access for log, metrics and audit.
    pub(crate) fn view(&self) -> ExchangeView<'_> {
        ExchangeView { incoming: &self.incoming, authenticated: self.authenticated.as_ref() }
    }

    /// The caller, for flow control; the default class before that filter.
    pub(crate) fn class(&self) -> Class {
        self.authenticated.as_ref().map(|authenticated| authenticated.class).unwrap_or_default()
    }
}

/// Read access to a request for log, metrics and audit, authenticated or not.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeView<'a> {
    pub(crate) incoming: &'a Incoming,
    pub(crate) authenticated: Option<&'a Authenticated>,
}

/// Stands for the user of a request that is not authenticated.
static UNAUTHENTICATED: UserInfo = UserInfo {
    name: String::new(),
    uid: String::new(),
    groups: Vec::new(),
    extra: BTreeMap::new(),
};

impl<'a> ExchangeView<'a> {
    /// The authenticated user, also under impersonation; empty before authentication.
    pub(crate) fn user(self) -> &'a UserInfo {
        self.authenticated.map_or(&UNAUTHENTICATED, |authenticated| &*authenticated.user)
    }

    pub(crate) fn impersonated(self) -> Option<&'a UserInfo> {
        self.authenticated?.impersonated.as_deref()
    }

    /// Name of the user whose rights count; empty before authentication.
    pub(crate) fn effective_user_name(self) -> &'a str {
        &self.impersonated().unwrap_or(self.user()).name
    }

    /// Absent until the "initial trace" filter.
    pub(crate) fn context(self) -> Option<&'a RequestContext> {
        self.authenticated?.context.as_ref()
    }

    /// The initial trace id of the written object, if known.
    pub(crate) fn initial_trace_id(self) -> Option<InitialTraceId> {
        self.context()?.initial_trace_id()
    }
}
