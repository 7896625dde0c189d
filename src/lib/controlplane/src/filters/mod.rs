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

use crate::exchange::{Exchange, Rejection};
use crate::state::ServerState;
use ferrokube_auth::CatchUp;
use ferrokube_serve::Response;

/// One filter.
pub(crate) struct Filter {
    /// Its name, for the test that pins the order and for people.
    pub(crate) name: &'static str,
    /// What it does with a request.
    pub(crate) step: Step,
    /// What it does with the answer, if the request got this far.
    pub(crate) leave: Option<fn(&ServerState, &mut Exchange, &mut Response)>,
}

/// What a filter does.
pub(crate) enum Step {
    /// Catches panics of everything after it.
    Guard,
    /// Looks at the request, adds to it, or ends it.
    Check(fn(&ServerState, &mut Exchange) -> Result<(), Rejection>),
    /// Waits, if there is something to wait for.
    Wait(for<'a> fn(&'a ServerState, &Exchange) -> Option<CatchUp<'a>>),
    /// Answers it.
    Handle,
}

const fn check(
    name: &'static str,
    enter: fn(&ServerState, &mut Exchange) -> Result<(), Rejection>,
) -> Filter {
    Filter { name, step: Step::Check(enter), leave: None }
}

/// The chain. Order is behavior: what is refused before authentication says nothing about who asks;
/// what comes before the trace is adopted logs a local id; nothing that costs memory happens before
/// flow control.
pub(crate) const FILTERS: [Filter; 15] = [
    Filter { name: "panic guard", step: Step::Guard, leave: Some(headers::leave) },
    check("limits", limits::enter),
    Filter { name: "request info", step: Step::Check(info::enter), leave: Some(info::leave) },
    check("trace headers", trace::parse),
    Filter { name: "audit", step: Step::Check(audit::enter), leave: Some(audit::leave) },
    check("authentication", identity::authenticate),
    Filter { name: "rights", step: Step::Wait(identity::rights), leave: None },
    check("impersonation", identity::impersonate),
    Filter {
        name: "impersonated rights",
        step: Step::Wait(identity::impersonated_rights),
        leave: None,
    },
    check("trace adoption", trace::adopt),
    check("initial trace", trace::initial),
    check("audit policy", audit::received),
    check("flow control", admit::flow),
    check("authorization", admit::authorize),
    Filter { name: "handler", step: Step::Handle, leave: None },
];

/// Enters the filters up to the handler.
///
/// # Errors
/// What the filter that ended the request answers.
pub(crate) async fn enter(shared: &ServerState, exchange: &mut Exchange) -> Result<(), Rejection> {
    for filter in &FILTERS {
        exchange.entered += 1;
        match filter.step {
            Step::Check(step) => step(shared, exchange).inspect_err(|_| {
                tracing::trace!(filter = filter.name, "a filter ended the request")
            })?,
            Step::Wait(wait) => {
                if let Some(wait) = wait(shared, exchange) {
                    wait.await;
                }
            }
            Step::Guard | Step::Handle => {}
        }
    }
    Ok(())
}

/// Leaves the filters that were entered, last first.
pub(crate) fn leave(shared: &ServerState, exchange: &mut Exchange, response: &mut Response) {
    for filter in FILTERS[..exchange.entered].iter().rev() {
        if let Some(leave) = filter.leave {
            leave(shared, exchange, response);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_chain_is_pinned() {
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
    fn only_the_first_link_guards_and_only_the_last_handles() {
        for (at, filter) in FILTERS.iter().enumerate() {
            assert_eq!(matches!(filter.step, Step::Guard), at == 0, "{}", filter.name);
            assert_eq!(
                matches!(filter.step, Step::Handle),
                at == FILTERS.len() - 1,
                "{}",
                filter.name
            );
        }
    }
}
