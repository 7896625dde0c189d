//! One request on its way through the chain: what is known so far.

use crate::action::{Action, ResourceAction};
use crate::filters::admit::Authorized;
use crate::filters::audit::Audit;
use crate::flow::Class;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{RequestContext, UserInfo};
use ferrokube_serve::{Body, Peer, Response};
use ferrokube_trace::{InitialTraceId, Span, SpanInfo, TraceContext};
use http::HeaderValue;
use http::request::Parts;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// What a link that ends a request answers.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// A failure, written in the form that the client accepts.
    Failure(Box<Failure>),
    /// An answer that is no `Status`.
    Response(Box<Response>),
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure))
    }
}

impl From<Response> for Rejection {
    fn from(response: Response) -> Self {
        Self::Response(Box::new(response))
    }
}

/// A request and what the filters have found out about it.
pub(crate) struct Exchange {
    /// Method, URI, headers.
    pub(crate) head: Parts,
    /// The body, until somebody reads it. The lock is never contended: it makes the value
    /// shareable.
    pub(crate) body: Mutex<Option<Body>>,
    /// When it arrived.
    pub(crate) started: Instant,
    /// The wall clock then.
    pub(crate) now: SystemTime,
    /// What it does.
    pub(crate) action: Arc<Action>,
    /// The same, once its caller may do it: what the handler carries out.
    pub(crate) authorized: Option<Authorized>,
    /// The audit id: the client's when it is valid.
    pub(crate) audit_id: HeaderValue,
    /// How long it may take.
    pub(crate) timeout: Duration,
    /// The sender's span, before it is known whether it is trusted.
    pub(crate) claimed: Option<TraceContext>,
    /// Whether the sender's ids are believed, once that was asked.
    pub(crate) trusted: Option<bool>,
    /// The ids of this request; local until the sender is known.
    pub(crate) trace: TraceContext,
    /// The request's span, once its ids are known; it ends with the exchange.
    pub(crate) span: Span,
    /// Who authenticated (also under impersonation).
    pub(crate) real_user: UserInfo,
    /// How that is known.
    pub(crate) method: &'static str,
    /// Who acts, when that is another.
    pub(crate) acting: Option<UserInfo>,
    /// The verb of constrained impersonation that let them; empty without.
    pub(crate) constraint: &'static str,
    /// Made once everything about the caller is known.
    pub(crate) context: Option<RequestContext>,
    /// What flow control makes of it.
    pub(crate) class: Class,
    /// What is audited.
    pub(crate) audit: Audit,
    /// How many filters were entered: their `leave` runs, last first.
    pub(crate) entered: usize,
}

impl Exchange {
    /// A request that nobody has looked at.
    pub(crate) fn new(head: Parts, body: Body) -> Self {
        Self {
            head,
            body: Mutex::new(Some(body)),
            started: Instant::now(),
            now: SystemTime::now(),
            action: Action::unparsed(),
            authorized: None,
            audit_id: HeaderValue::from_static(""),
            timeout: Duration::ZERO,
            claimed: None,
            trusted: None,
            trace: TraceContext::root(),
            span: Span::none(),
            real_user: UserInfo::default(),
            method: "",
            acting: None,
            constraint: "",
            context: None,
            class: Class::default(),
            audit: Audit::default(),
            entered: 0,
        }
    }

    /// Who acts.
    pub(crate) fn user(&self) -> &UserInfo {
        match (&self.context, &self.acting) {
            (Some(context), _) => &context.user,
            (None, Some(user)) => user,
            (None, None) => &self.real_user,
        }
    }

    /// What the request's span is about.
    pub(crate) fn span_info(&self) -> SpanInfo<'_> {
        let resource = self.action.resource();
        SpanInfo {
            name: self.action.verb(),
            resource: resource.map_or("", ResourceAction::plural),
            namespace: resource.map_or("", ResourceAction::namespace),
            object: resource.map_or("", ResourceAction::name),
        }
    }

    /// The context that the pipeline takes.
    pub(crate) fn context(&self) -> &RequestContext {
        self.context.as_ref().expect("the initial-trace link made it before the handler")
    }

    /// The initial trace id of the object that is written, once that is known.
    pub(crate) fn family(&self) -> Option<InitialTraceId> {
        self.context.as_ref()?.family()
    }

    /// A header's text; empty when absent or no text.
    pub(crate) fn header(&self, name: impl http::header::AsHeaderName) -> &str {
        self.head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Takes the body, once.
    pub(crate) fn take_body(&mut self) -> Option<Body> {
        self.body.get_mut().ok()?.take()
    }

    /// The other end.
    pub(crate) fn peer(&self) -> Option<&Arc<Peer>> {
        self.head.extensions.get()
    }
}
