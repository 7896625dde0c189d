//! Flow control and authorization.

use crate::action::{Action, Refusal, no_such_resource};
use crate::exchange::{Rejection, Request};
use crate::state::ServerState;
use ferrokube_auth::Decision;
pub(crate) use ferrokube_auth::access::ANONYMOUS;
use ferrokube_flow::{Classified, Seats};
use std::sync::Arc;

/// Classifies the request and rejects it if even the queue is full. Its seat is taken once its body
/// has arrived, see [`ferrokube_flow`]; watches and other long-running requests have none.
pub(crate) fn flow(state: &ServerState, request: &mut Request<'_>) -> Result<(), Rejection> {
    let action = &request.action;
    let seats = match (action.is_long_running(), action.is_read_only()) {
        (true, _) => Seats::None,
        (false, true) => Seats::Reads,
        (false, false) => Seats::Writes,
    };
    let subject = Classified {
        user: &request.authenticated.user,
        peer: request.peer().map(|peer| &**peer),
        is_anonymous: request.authenticated.user.name == ANONYMOUS,
        path: action.resource().is_none().then(|| action.path()),
        seats,
    };
    request.authenticated.class = state.flow.classify(&subject);
    state.flow.reject_if_hopeless(request.authenticated.class)?;
    Ok(state.flow.head(request.authenticated.class, &request.head)?)
}

/// An action that the caller is allowed to do. Only [`authorize`] makes one; the handler takes
/// nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Authorized(Arc<Action>);

impl Authorized {
    /// The allowed action.
    pub(crate) fn action(&self) -> &Action {
        &self.0
    }
}

/// Asks the authorizer. Hostile paths are rejected first; open paths are readable without asking.
pub(crate) fn authorize(state: &ServerState, request: &mut Request<'_>) -> Result<(), Rejection> {
    let action = Arc::clone(&request.action);
    match action.refusal() {
        None | Some(Refusal::Nowhere) => {}
        Some(Refusal::Hostile(failure)) => return Err(failure.clone().into()),
        Some(Refusal::NoResource) => return Err(no_such_resource().into()),
    }
    if action.resource().is_none() && action.verb() == "get" && state.routes.is_open(action.path())
    {
        request.authenticated.authorized = Some(Authorized(action));
        return Ok(());
    }
    let user = request.user();
    let access = action.access(user);
    let reason = match state.authorizer.authorize(&access) {
        Decision::Allow(reason) => {
            annotate(request, "allow", &reason);
            if matches!(action.refusal(), Some(Refusal::Nowhere)) {
                return Err(no_such_resource().into());
            }
            request.authenticated.authorized = Some(Authorized(action));
            return Ok(());
        }
        Decision::Deny(reason) | Decision::NoOpinion(reason) => reason,
    };
    annotate(request, "forbid", &reason);
    Err(ferrokube_auth::forbidden(&access, &reason).into())
}

fn annotate(request: &Request<'_>, decision: &str, reason: &str) {
    if let Some(context) = &request.authenticated.context {
        context.annotate_audit(super::audit::DECISION, decision);
        context.annotate_audit(super::audit::REASON, reason);
    }
}
