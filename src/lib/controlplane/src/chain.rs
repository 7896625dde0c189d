//! The request chain: one list, in the order in which its links are entered; links are left in the opposite order.

use crate::exchange::{Exchange, Stop};
use crate::links;
use crate::server::Shared;
use ferrokube_auth::CatchUp;
use ferrokube_serve::Response;

/// One link.
pub(crate) struct Link {
    /// Its name, for the test that pins the order and for people.
    pub(crate) name: &'static str,
    /// What it does with a request.
    pub(crate) step: Step,
    /// What it does with the answer, if the request got this far.
    pub(crate) leave: Option<fn(&Shared, &mut Exchange, &mut Response)>,
}

/// What a link does.
pub(crate) enum Step {
    /// Catches panics of everything after it.
    Guard,
    /// Looks at the request, adds to it, or ends it.
    Check(fn(&Shared, &mut Exchange) -> Result<(), Stop>),
    /// Waits, if there is something to wait for.
    Wait(for<'a> fn(&'a Shared, &Exchange) -> Option<CatchUp<'a>>),
    /// Answers it.
    Handle,
}

const fn check(name: &'static str, enter: fn(&Shared, &mut Exchange) -> Result<(), Stop>) -> Link {
    Link { name, step: Step::Check(enter), leave: None }
}

/// The chain. Order is behavior: what is refused before authentication says nothing about who asks; what comes before the trace is
/// adopted logs a local id; nothing that costs memory happens before flow control.
pub(crate) const CHAIN: [Link; 15] = [
    Link { name: "panic guard", step: Step::Guard, leave: Some(links::headers::leave) },
    check("limits", links::limits::enter),
    Link { name: "request info", step: Step::Check(links::info::enter), leave: Some(links::info::leave) },
    check("trace headers", links::trace::parse),
    Link { name: "audit", step: Step::Check(links::audit::enter), leave: Some(links::audit::leave) },
    check("authentication", links::identity::authenticate),
    Link { name: "rights", step: Step::Wait(links::identity::rights), leave: None },
    check("impersonation", links::identity::impersonate),
    Link { name: "impersonated rights", step: Step::Wait(links::identity::impersonated_rights), leave: None },
    check("trace adoption", links::trace::adopt),
    check("initial trace", links::trace::initial),
    check("audit policy", links::audit::received),
    check("flow control", links::admit::flow),
    check("authorization", links::admit::authorize),
    Link { name: "handler", step: Step::Handle, leave: None },
];

/// Enters the links up to the handler.
///
/// # Errors
/// What the link that ended the request answers.
pub(crate) async fn enter(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    for link in &CHAIN {
        exchange.entered += 1;
        match link.step {
            Step::Check(step) => step(shared, exchange).inspect_err(|_| tracing::trace!(link = link.name, "a link ended the request"))?,
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

/// Leaves the links that were entered, last first.
pub(crate) fn leave(shared: &Shared, exchange: &mut Exchange, response: &mut Response) {
    for link in CHAIN[..exchange.entered].iter().rev() {
        if let Some(leave) = link.leave {
            leave(shared, exchange, response);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_chain_is_pinned() {
        let names = CHAIN.map(|link| link.name);
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
        for (at, link) in CHAIN.iter().enumerate() {
            assert_eq!(matches!(link.step, Step::Guard), at == 0, "{}", link.name);
            assert_eq!(matches!(link.step, Step::Handle), at == CHAIN.len() - 1, "{}", link.name);
        }
    }
}
