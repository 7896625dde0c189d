//! The request chain: one list, in the order in which its filters are entered; filters are left in
//! the opposite order.

pub(crate) mod admit;
pub(crate) mod audit;
pub(crate) mod audit_payload;
pub(crate) mod headers;
pub(crate) mod identity;
pub(crate) mod info;
pub(crate) mod limits;
pub(crate) mod trace;

use crate::exchange::{Authenticated, Exchange, Incoming, Rejection, Request};
use crate::state::ServerState;
use ferrokube_auth::CatchUp;
use ferrokube_serve::Response;

/// One step of every request before its handler.
pub(crate) struct Filter {
    /// Unique, for logs and for the test that pins the order.
    pub(crate) name: &'static str,
    pub(crate) enter: Entry,
    /// Runs on the response if the filter was entered, even if it rejected the request.
    pub(crate) leave: Option<Leave>,
}

/// The leaving half of a filter. The exchange may have ended before authentication.
pub(crate) type Leave = fn(&ServerState, &mut Exchange, &mut Response);

/// The entering half of a filter. Its type says whether the caller is known.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Catches panics of everything after it.
    Guard,
    /// Before authentication: records, or rejects.
    Before(fn(&ServerState, &mut Incoming) -> Result<(), Rejection>),
    /// Authenticates the caller. Exactly one filter does.
    Authenticate(fn(&ServerState, &mut Incoming) -> Result<Authenticated, Rejection>),
    /// After authentication: records, or rejects.
    After(fn(&ServerState, &mut Request<'_>) -> Result<(), Rejection>),
    /// After authentication: waits, if there is something to wait for.
    Wait(for<'a> fn(&'a ServerState, &Request<'_>) -> Option<CatchUp<'a>>),
    /// The handler runs.
    Handle,
}

impl Filter {
    const fn new(name: &'static str, enter: Entry) -> Self {
        Self { name, enter, leave: None }
    }

    const fn with_leave(mut self, leave: Leave) -> Self {
        self.leave = Some(leave);
        self
    }
}

/// All filters, in order. The order is behavior: a rejection before authentication says nothing about
/// the caller; a filter before "trace adoption" logs a local trace id; nothing that costs memory
/// comes before "flow control".
pub(crate) const FILTERS: [Filter; 15] = [
    Filter::new("panic guard", Entry::Guard).with_leave(headers::leave),
    Filter::new("limits", Entry::Before(limits::enter)),
    Filter::new("request info", Entry::Before(info::enter)).with_leave(info::leave),
    Filter::new("trace headers", Entry::Before(trace::parse)),
    Filter::new("audit", Entry::Before(audit::enter)).with_leave(audit::leave),
    Filter::new("authentication", Entry::Authenticate(identity::authenticate)),
    Filter::new("rights", Entry::Wait(identity::rights)),
    Filter::new("impersonation", Entry::After(identity::impersonate)),
    Filter::new("impersonated rights", Entry::Wait(identity::impersonated_rights)),
    Filter::new("trace adoption", Entry::After(trace::adopt)),
    Filter::new("initial trace", Entry::After(trace::initial)),
    Filter::new("audit policy", Entry::After(audit::received)),
    Filter::new("flow control", Entry::After(admit::flow)),
    Filter::new("authorization", Entry::After(admit::authorize)),
    Filter::new("handler", Entry::Handle),
];

/// Enters the filters up to the handler.
///
/// # Errors
/// The rejection of the first filter that rejects the request.
pub(crate) async fn enter(state: &ServerState, exchange: &mut Exchange) -> Result<(), Rejection> {
    for filter in &FILTERS {
        exchange.entered += 1;
        let entered = match filter.enter {
            Entry::Guard | Entry::Handle => Ok(()),
            Entry::Before(enter) => enter(state, &mut exchange.incoming),
            Entry::Authenticate(authenticate) => authenticate(state, &mut exchange.incoming)
                .map(|authenticated| exchange.authenticated = Some(authenticated)),
            Entry::After(enter) => enter(state, &mut exchange.request()?),
            Entry::Wait(wait) => {
                let caught_up = wait(state, &exchange.request()?);
                if let Some(caught_up) = caught_up {
                    caught_up.await;
                }
                Ok(())
            }
        };
        entered.inspect_err(|_| {
            tracing::trace!(filter = filter.name, "a filter rejected the request")
        })?;
    }
    Ok(())
}

/// Leaves the filters that were entered, last first.
pub(crate) fn leave(state: &ServerState, exchange: &mut Exchange, response: &mut Response) {
    for filter in FILTERS[..exchange.entered].iter().rev() {
        if let Some(leave) = filter.leave {
            leave(state, exchange, response);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_filters_is_pinned() {
        let names = FILTERS.map(|filter| filter.name);
        let want = [
            "panic guard",
            "limits",
            "request info",
            "trace headers",
            "audit",
            "authentication",
            "rights",
            "impersonation",
            "impersonated rights",
            "trace adoption",
            "initial trace",
            "audit policy",
            "flow control",
            "authorization",
            "handler",
        ];
        assert_eq!(names, want);
    }

    #[test]
    fn a_filter_sees_the_caller_only_after_authentication() {
        let authentication = FILTERS
            .iter()
            .position(|filter| matches!(filter.enter, Entry::Authenticate(_)))
            .unwrap();
        for (at, filter) in FILTERS.iter().enumerate() {
            let is_in_order = match filter.enter {
                Entry::Guard => at == 0,
                Entry::Before(_) => at < authentication,
                Entry::Authenticate(_) => at == authentication,
                Entry::After(_) | Entry::Wait(_) => at > authentication,
                Entry::Handle => at == FILTERS.len() - 1,
            };
            assert!(is_in_order, "{}", filter.name);
        }
    }
}
