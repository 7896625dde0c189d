//! Who is told of requests that belong to an object's life, after they were answered: the trace
//! page's memory.

use ferrokube_auth::ResourceAccess;
use ferrokube_trace::TraceContext;
use std::time::{Duration, SystemTime};

/// A request that wrote an object, or that says to whose family it belongs.
#[derive(Debug)]
pub struct RequestRecord<'a> {
    /// Its ids; the initial one is there.
    pub trace: &'a TraceContext,
    /// `create`, ...
    pub verb: &'a str,
    /// What it was about; the name is there also when the server made it.
    pub resource: ResourceAccess<'a>,
    /// The path, decoded.
    pub path: &'a str,
    /// Who asked.
    pub user: &'a str,
    /// The HTTP status.
    pub code: u16,
    /// Its audit event.
    pub audit_id: &'a str,
    /// When it arrived.
    pub received: SystemTime,
    /// How long it took.
    pub took: Duration,
}

/// Is told. Called on the way of every such request: must be quick and must not wait.
pub trait Observer: Send + Sync {
    /// One request.
    fn seen(&self, request: &RequestRecord<'_>);
}
