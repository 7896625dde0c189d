//! Whether the request may go on: is there room, is it allowed.

use crate::exchange::{Exchange, Stop};
use crate::server::Shared;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_auth::{Access, Decision};

/// Takes a place among the requests in flight; watches and other long ones are not counted.
pub(crate) fn flow(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    if exchange.info.is_long_running() {
        return Ok(());
    }
    exchange.permit = shared.flow.enter(exchange.info.is_read_only());
    if exchange.permit.is_some() {
        return Ok(());
    }
    let details = Details { retry_after_seconds: 1, ..Details::default() };
    Err(Failure::new(Reason::TooManyRequests, "too many requests, please try again later").with_details(details).into())
}

/// Asks the authorizer. Hostile paths are refused before, and some paths are open to everybody.
pub(crate) fn authorize(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    if let Some(failure) = exchange.refused.take() {
        return Err(failure.into());
    }
    let info = &exchange.info;
    if info.resource.is_none() && shared.routes.is_open(&info.path) {
        return Ok(());
    }
    let user = exchange.user();
    let anonymous = user.name == ANONYMOUS && exchange.acting.is_none();
    let access = Access { user, verb: &info.verb, resource: info.access(), path: &info.path };
    let why = match shared.authorizer.authorize(&access) {
        // Anonymous access is for the open paths only, whatever the bindings say (design section 8).
        Decision::Allow(_) if anonymous => String::new(),
        Decision::Allow(reason) => {
            annotate(exchange, "allow", &reason);
            return Ok(());
        }
        Decision::Deny(reason) | Decision::NoOpinion(reason) => reason,
    };
    annotate(exchange, "forbid", &why);
    Err(ferrokube_auth::forbidden(&access, &why).into())
}

/// Who has no credentials.
pub(crate) const ANONYMOUS: &str = "system:anonymous";

fn annotate(exchange: &Exchange, decision: &str, reason: &str) {
    if let Some(context) = &exchange.context {
        context.annotate_audit(super::audit::DECISION, decision);
        context.annotate_audit(super::audit::REASON, reason);
    }
}
