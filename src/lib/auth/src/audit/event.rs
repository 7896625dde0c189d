//! Audit events; their fields borrow from the request.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_trace::{InitialTraceId, SpanId, TraceId};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Part of a request that is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditLevel {
    /// Nothing.
    #[default]
    None,
    /// User, verb, object, time and outcome.
    Metadata,
    /// Also the request body.
    Request,
    /// Also the response body.
    RequestResponse,
}

impl AuditLevel {
    /// As written in the API.
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

/// The point in a request's handling at which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditStage {
    /// The request arrived; nothing has been executed.
    RequestReceived,
    /// The headers of a long-running response (watch) were sent.
    ResponseStarted,
    /// Nothing more of the response will be sent.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl AuditStage {
    /// As written in the API.
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

/// `omitStages` of a rule or policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSet(u8);

impl StageSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Adds a stage.
    pub fn insert(&mut self, stage: AuditStage) {
        self.0 |= 1 << stage as u8;
    }

    /// Whether the set contains the stage.
    pub fn has(self, stage: AuditStage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    /// The stages in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The log-tracking ids of a request.
#[derive(Clone, Copy, Debug)]
pub struct TraceIds {
    /// Shared by a user's request and everything that it causes.
    pub trace: TraceId,
    /// This request.
    pub span: SpanId,
    /// Shared by the object's family; `None` if the request carried none.
    pub initial: Option<InitialTraceId>,
}

/// The object of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditObject<'a> {
    /// Plural resource name.
    pub resource: &'a str,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
    /// Empty if unknown.
    pub uid: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Empty if unknown.
    pub resource_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
}

/// The response's status.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome<'a> {
    /// The HTTP status.
    pub code: u16,
    /// `Failure` or `Success` if the response is a Status object; else empty.
    pub status: &'a str,
    /// The Status object's reason.
    pub reason: &'a str,
    /// The Status object's message.
    pub message: &'a str,
    /// The Status object's details.
    pub details: Option<&'a Value>,
}

/// A request or response body, recorded from level `Request` on.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// A parsed object.
    Document(&'a Document),
    /// JSON; anything else is left out.
    Json(&'a [u8]),
}

/// One event. [`super::AuditLog::record`] encodes it at once and keeps nothing.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// The `Audit-ID`.
    pub id: &'a str,
    /// The stage that was reached.
    pub stage: AuditStage,
    /// Path and query as sent; the values of token parameters are redacted.
    pub uri: &'a str,
    /// `create`, `get`, ... or the lower-case method of a non-resource request.
    pub verb: &'a str,
    /// The authenticated user, before impersonation.
    pub user: &'a UserInfo,
    /// Impersonated user; `None`: `user` itself.
    pub impersonated: Option<&'a UserInfo>,
    /// The constrained impersonation verb that allowed it; empty for the legacy verb and without
    /// impersonation.
    pub constraint: &'a str,
    /// Authentication method: `x509`, `token-file`, ...; empty when unauthenticated.
    pub method: &'a str,
    /// Source addresses, the client's own last.
    pub source_ips: &'a [String],
    /// The `User-Agent`; cut after 1,024 bytes.
    pub user_agent: &'a str,
    /// `None` for non-resource requests.
    pub object: Option<AuditObject<'a>>,
    /// `None` before the response.
    pub outcome: Option<Outcome<'a>>,
    /// The request body.
    pub request: Option<Payload<'a>>,
    /// The response body.
    pub response: Option<Payload<'a>>,
    /// Arrival of the request.
    pub received: SystemTime,
    /// Time at which this stage was reached.
    pub at: SystemTime,
    /// The log-tracking ids.
    pub trace: Option<TraceIds>,
    /// The authorizer's decision (`allow`, `forbid`) and reason; empty if it was not consulted.
    pub decision: (&'a str, &'a str),
    /// Annotations by admission and others (`RequestContext::take_audit`).
    pub annotations: &'a BTreeMap<String, String>,
}
