//! The request filters: one list, entered in order and left in reverse.

pub(crate) mod audit;
pub(crate) mod audit_payload;
pub(crate) mod authorize;
pub(crate) mod flow;
pub(crate) mod headers;
pub(crate) mod identity;
pub(crate) mod info;
pub(crate) mod limits;
pub(crate) mod shared;
pub(crate) mod trace;

use crate::exchange::{Authenticated, Exchange, Incoming, Request, StateBasis};
use crate::rejection::Rejection;
use crate::state::ServerState;
use ferrokube_auth::CatchUp;
use ferrokube_serve::Response;
use shared::StateWait;

/// One step of every request before its handler.
pub(crate) struct Filter {
    /// Unique, for logs and for the test that pins the order.
    pub(crate) name: &'static str,
    pub(crate) enter: Option<Entering>,
    /// Runs on the response if the filter was entered, even if it rejected the request.
    pub(crate) leave: Option<Leave>,
}

/// The wait of a filter before authentication.
pub(crate) type WaitBefore = for<'a> fn(&'a ServerState, &Incoming) -> StateWait<'a>;

/// The leaving half of a filter. The exchange may have ended before authentication.
pub(crate) type Leave = fn(&ServerState, &mut Exchange, &mut Response);

/// The entering half of a filter. Its type says whether the caller is known.
#[derive(Clone, Copy)]
pub(crate) enum Entering {
    /// Before authentication: records, or rejects.
    Before(fn(&ServerState, &mut Incoming) -> Result<(), Rejection>),
    /// Before authentication: waits, if there is something to wait for.
    WaitBefore(WaitBefore),
    /// Authenticates the caller. Exactly one filter does.
    Authenticate(fn(&ServerState, &mut Incoming) -> Result<Authenticated, Rejection>),
    /// After authentication: records, or rejects.
    After(fn(&ServerState, &mut Request<'_>) -> Result<(), Rejection>),
    /// After authentication: waits, if there is something to wait for.
    WaitAfter(for<'a> fn(&'a ServerState, &Request<'_>) -> Option<CatchUp<'a>>),
}

impl Filter {
    const fn new(name: &'static str, enter: Entering) -> Self {
        Self { name, enter: Some(enter), leave: None }
    }

    /// A filter of responses only.
    const fn leaving(name: &'static str, leave: Leave) -> Self {
        Self { name, enter: None, leave: Some(leave) }
    }

    const fn with_leave(mut self, leave: Leave) -> Self {
        self.leave = Some(leave);
        self
    }
}

/// All filters, in order. The order is behavior: a rejection before authentication reveals nothing
/// about the caller; a filter before "trace adoption" logs a local trace id; nothing that costs
/// memory comes before "flow control".
pub(crate) const FILTERS: [Filter; 15] = [
    Filter::leaving("response headers", |_, exchange, response| headers::leave(exchange, response)),
    Filter::new("limits", Entering::Before(|_, incoming| limits::enter(incoming))),
    Filter::new(
        "request info",
        Entering::Before(|state, incoming| info::enter(state.flow.limits().request, incoming)),
    )
    .with_leave(|state, exchange, response| info::leave(&state.recorder, exchange, response)),
    Filter::new("trace headers", Entering::Before(|_, incoming| trace::parse(incoming))),
    Filter::leaving("audit", |state, exchange, response| {
        audit::leave(&state.auditor, exchange, response);
    }),
    Filter::new(
        "shared state",
        Entering::WaitBefore(|state, incoming| {
            shared::wait(&state.registry, &state.resources.custom, incoming)
        }),
    ),
    Filter::new(
        "authentication",
        Entering::Authenticate(|state, incoming| {
            identity::authenticate(&state.authentication, incoming)
        }),
    ),
    Filter::new(
        "rights",
        Entering::WaitAfter(|state, request| identity::rights(state.authorizer(), request)),
    ),
    Filter::new(
        "impersonation",
        Entering::After(|state, request| identity::impersonate(&state.authorization, request)),
    ),
    Filter::new(
        "impersonated rights",
        Entering::WaitAfter(|state, request| {
            identity::impersonated_rights(state.authorizer(), request)
        }),
    ),
    Filter::new(
        "trace adoption",
        Entering::After(|state, request| trace::adopt(state.authorizer(), &state.metrics, request)),
    ),
    Filter::new(
        "initial trace",
        Entering::After(|state, request| {
            trace::initial(state.authorizer(), &state.gates, &state.metrics, request)
        }),
    ),
    Filter::new(
        "audit policy",
        Entering::After(|state, request| audit::received(&state.auditor, request)),
    ),
    Filter::new(
        "flow control",
        Entering::After(|state, request| flow::enter(&state.flow, &state.registry, request)),
    )
    .with_leave(|_, _, response| flow::leave(response)),
    Filter::new(
        "authorization",
        Entering::After(|state, request| {
            authorize::enter(state.authorizer(), &state.paths.mounts, request)
        }),
    ),
];

/// Enters the filters up to the handler.
///
/// # Errors
/// The rejection of the first filter that rejects the request.
pub(crate) async fn enter(state: &ServerState, exchange: &mut Exchange) -> Result<(), Rejection> {
    for filter in &FILTERS {
        exchange.entered += 1;
        let Some(enter) = filter.enter else { continue };
        let entered = match enter {
            Entering::Before(enter) => enter(state, &mut exchange.incoming),
            Entering::WaitBefore(wait) => {
                wait_before(wait(state, &exchange.incoming), exchange).await
            }
            Entering::Authenticate(authenticate) => authenticate(state, &mut exchange.incoming)
                .map(|authenticated| exchange.authenticated = Some(authenticated)),
            Entering::After(enter) => enter(state, &mut exchange.request()?),
            Entering::WaitAfter(wait) => {
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

async fn wait_before(wait: StateWait<'_>, exchange: &mut Exchange) -> Result<(), Rejection> {
    exchange.incoming.basis = match wait {
        StateWait::Nothing => return Ok(()),
        StateWait::Relying(reliance) => StateBasis::Sole(reliance),
        StateWait::Waiting(wait) => {
            wait.await?;
            StateBasis::CaughtUp
        }
    };
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
            "response headers",
            "limits",
            "request info",
            "trace headers",
            "audit",
            "shared state",
            "authentication",
            "rights",
            "impersonation",
            "impersonated rights",
            "trace adoption",
            "initial trace",
            "audit policy",
            "flow control",
            "authorization",
        ];
        assert_eq!(names, want);
    }

    #[test]
    fn every_filter_has_an_effect() {
        for filter in &FILTERS {
            assert!(filter.enter.is_some() || filter.leave.is_some(), "{}", filter.name);
        }
    }

    #[test]
    fn a_filter_sees_the_caller_only_after_authentication() {
        let authentication = FILTERS
            .iter()
            .position(|filter| matches!(filter.enter, Some(Entering::Authenticate(_))))
            .unwrap();
        for (at, filter) in FILTERS.iter().enumerate() {
            let is_in_order = match filter.enter {
                None => true,
                Some(Entering::Before(_) | Entering::WaitBefore(_)) => at < authentication,
                Some(Entering::Authenticate(_)) => at == authentication,
                Some(Entering::After(_) | Entering::WaitAfter(_)) => at > authentication,
            };
            assert!(is_in_order, "{}", filter.name);
        }
    }
}
