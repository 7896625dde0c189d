//! What an audit event holds; everything is borrowed from the request that it is about.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_registry::UserInfo;
use ferrokube_trace::{InitialTraceId, SpanId, TraceId};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// How much is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who, what, when, and how it ended.
    Metadata,
    /// Also the request's object.
    Request,
    /// Also the answer's object.
    RequestResponse,
}

impl Level {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Metadata, Self::Request, Self::RequestResponse]
            .into_iter()
            .find(|level| level.as_str() == text)
    }
}

/// When in a request's life an event is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request has come, nothing was done.
    RequestReceived,
    /// The head of a long answer (watch) was sent.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl Stage {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic]
            .into_iter()
            .find(|stage| stage.as_str() == text)
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Adds one.
    pub fn insert(&mut self, stage: Stage) {
        self.0 |= 1 << stage as u8;
    }

    /// Whether it is in the set.
    pub fn has(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    /// All of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The three ids, as the trace context holds them.
#[derive(Clone, Copy, Debug)]
pub struct TraceIds {
    /// The user's request and all it causes.
    pub trace: TraceId,
    /// This action.
    pub span: SpanId,
    /// The object's family; `None` when the request brought none.
    pub initial: Option<InitialTraceId>,
}

/// The object that a request is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectRef<'a> {
    /// The plural name.
    pub resource: &'a str,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
    /// The object's uid, when it is known.
    pub uid: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The object's resource version, when it is known.
    pub resource_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome<'a> {
    /// The HTTP status.
    pub code: u16,
    /// `Failure` or `Success` when the answer is a Status object; else empty.
    pub status: &'a str,
    /// The Status object's reason.
    pub reason: &'a str,
    /// The Status object's message.
    pub message: &'a str,
    /// The Status object's details.
    pub details: Option<&'a Value>,
}

/// An object of the request or answer; recorded from level `Request` on.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// As a document.
    Document(&'a Document),
    /// As bytes of JSON; anything that is not JSON is left out.
    Json(&'a [u8]),
}

/// One event. [`super::AuditLog::record`] reads it at once; nothing is kept.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The `Audit-ID`.
    pub id: &'a str,
    /// When it is made.
    pub stage: Stage,
    /// Path and query as the client sent them; values of token parameters are not recorded.
    pub uri: &'a str,
    /// `create`, `get`, ... or the lower-case method of a non-resource request.
    pub verb: &'a str,
    /// Who asked (before impersonation).
    pub user: &'a UserInfo,
    /// As whom.
    pub impersonated: Option<&'a UserInfo>,
    /// The verb of constrained impersonation that allowed it; empty for the older one, or without.
    pub constraint: &'a str,
    /// How the user is known: `x509`, `token-file`, ...; empty when unauthenticated.
    pub method: &'a str,
    /// Addresses, the client's own last.
    pub source_ips: &'a [String],
    /// The header; cut after 1,024 bytes.
    pub user_agent: &'a str,
    /// About what; `None` for non-resource requests.
    pub object: Option<ObjectRef<'a>>,
    /// How it ended; `None` before that.
    pub outcome: Option<Outcome<'a>>,
    /// The request's object.
    pub request: Option<Payload<'a>>,
    /// The answer's object.
    pub response: Option<Payload<'a>>,
    /// When the request came.
    pub received: SystemTime,
    /// When this stage was reached.
    pub at: SystemTime,
    /// The request's ids.
    pub trace: Option<TraceIds>,
    /// The authorizer's decision (`allow`, `forbid`) and reason; empty when nobody was asked.
    pub decision: (&'a str, &'a str),
    /// Annotations of the steps on the way (`RequestContext::take_audit`).
    pub annotations: &'a BTreeMap<String, String>,
}
