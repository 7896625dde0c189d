//! Observes requests that have an initial trace id, after their response is made.

use ferrokube_auth::ResourceAccess;
use ferrokube_trace::TraceContext;
use std::time::{Duration, SystemTime};

/// A request that wrote an object, or was made on behalf of one.
#[derive(Debug)]
pub struct RequestRecord<'a> {
    /// `trace.initial` is set.
    pub trace: &'a TraceContext,
    /// `create`, `watch`, ...
    pub verb: &'a str,
    /// With the object's name, even if the server generated it.
    pub resource: ResourceAccess<'a>,
    /// Decoded.
    pub path: &'a str,
    /// The impersonated user, else the authenticated one.
    pub user: &'a str,
    /// HTTP status.
    pub code: u16,
    /// Id of its audit event.
    pub audit_id: &'a str,
    /// Arrival.
    pub received: SystemTime,
    /// From arrival to response head.
    pub took: Duration,
}

/// Receives [`RequestRecord`]s. Called before the response is sent: must be fast and must not
/// block.
pub trait Observer: Send + Sync {
    /// Called once per request.
    fn observe(&self, request: &RequestRecord<'_>);
}
