//! Whether the request may go on: is there room, is it allowed.

use crate::action::{Action, Refusal, no_such_resource};
use crate::exchange::{Exchange, Stop};
use crate::server::Shared;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_auth::Decision;
use std::sync::Arc;

/// Takes a place among the requests in flight; watches and other long ones are not counted.
pub(crate) fn flow(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    if exchange.action.is_long_running() {
        return Ok(());
    }
    exchange.permit = shared.flow.enter(exchange.action.is_read_only());
    if exchange.permit.is_some() {
        return Ok(());
    }
    let details = Details { retry_after_seconds: 1, ..Details::default() };
    Err(Failure::new(Reason::TooManyRequests, "too many requests, please try again later").with_details(details).into())
}

/// An action that its caller may carry out. Only [`authorize`] makes one, and the handler takes nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Authorized(Arc<Action>);

impl Authorized {
    /// What was allowed.
    pub(crate) fn action(&self) -> &Action {
        &self.0
    }
}

/// Asks the authorizer. Hostile paths are refused before, and some paths are open to everybody.
pub(crate) fn authorize(shared: &Shared, exchange: &mut Exchange) -> Result<(), Stop> {
    let action = Arc::clone(&exchange.action);
    match action.refusal() {
        None => {}
        Some(Refusal::Hostile(failure)) => return Err(failure.clone().into()),
        Some(Refusal::NoResource) => return Err(no_such_resource().into()),
    }
    if action.resource().is_none() && shared.routes.is_open(action.path()) {
        exchange.authorized = Some(Authorized(action));
        return Ok(());
    }
    let user = exchange.user();
    let anonymous = user.name == ANONYMOUS && exchange.acting.is_none();
    let access = action.access(user);
    let why = match shared.authorizer.authorize(&access) {
        // Anonymous access is for the open paths only, whatever the bindings say (design section 8).
        Decision::Allow(_) if anonymous => String::new(),
        Decision::Allow(reason) => {
            annotate(exchange, "allow", &reason);
            exchange.authorized = Some(Authorized(action));
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
