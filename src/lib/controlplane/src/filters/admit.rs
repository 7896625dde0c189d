//! Whether the request may go on: would it find room, is it allowed.

use crate::action::{Action, Refusal, no_such_resource};
use crate::exchange::{Rejection, Request};
use crate::flow::{Seats, Subject};
use crate::state::ServerState;
use ferrokube_auth::Decision;
pub(crate) use ferrokube_auth::access::ANONYMOUS;
use std::sync::Arc;

/// Classifies the request, and refuses it at once when it would not even find room to wait. Its
/// seat is taken when its body is there, see [`crate::flow`]; watches and other long requests have
/// none.
pub(crate) fn flow(state: &ServerState, request: &mut Request<'_>) -> Result<(), Rejection> {
    let action = &request.action;
    let seats = match (action.is_long_running(), action.is_read_only()) {
        (true, _) => Seats::None,
        (false, true) => Seats::Reads,
        (false, false) => Seats::Writes,
    };
    let subject = Subject {
        user: &request.authenticated.user,
        peer: request.peer().map(|peer| &**peer),
        is_anonymous: request.authenticated.user.name == ANONYMOUS,
        path: action.resource().is_none().then(|| action.path()),
        seats,
    };
    request.authenticated.class = state.flow.classify(&subject);
    state.flow.look(request.authenticated.class)?;
    Ok(state.flow.head(request.authenticated.class, &request.head)?)
}

/// An action that its caller may carry out. Only [`authorize`] makes one, and the handler takes
/// nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Authorized(Arc<Action>);

impl Authorized {
    /// What was allowed.
    pub(crate) fn action(&self) -> &Action {
        &self.0
    }
}

/// Asks the authorizer. Hostile paths are refused before, and some paths are open to everybody's
/// reads.
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
    let why = match state.authorizer.authorize(&access) {
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
    annotate(request, "forbid", &why);
    Err(ferrokube_auth::forbidden(&access, &why).into())
}

fn annotate(request: &Request<'_>, decision: &str, reason: &str) {
    if let Some(context) = &request.authenticated.context {
        context.annotate_audit(super::audit::DECISION, decision);
        context.annotate_audit(super::audit::REASON, reason);
    }
}
