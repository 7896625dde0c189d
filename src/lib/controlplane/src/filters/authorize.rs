//! Authorization.

use crate::action::{Action, Refusal, no_such_resource};
use crate::exchange::Request;
use crate::mounts::Mounts;
use crate::rejection::Rejection;
use ferrokube_auth::{Authorizer, Decision};
use std::sync::Arc;

/// An action that the caller is allowed to do. Only [`enter`] makes one; the handler takes
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
pub(crate) fn enter(
    authorizer: &dyn Authorizer,
    mounts: &Mounts,
    request: &mut Request<'_>,
) -> Result<(), Rejection> {
    let action = Arc::clone(&request.action);
    match action.refusal() {
        None | Some(Refusal::Nowhere) => {}
        Some(Refusal::Hostile(failure)) => return Err(failure.clone().into()),
        Some(Refusal::NoResource | Refusal::Malformed) => return Err(no_such_resource().into()),
    }
    if action.resource().is_none() && action.verb() == "get" && mounts.is_open(action.path()) {
        request.authenticated.authorized = Some(Authorized(action));
        return Ok(());
    }
    let user = request.user();
    let access = action.access(user);
    let reason = match authorizer.authorize(&access) {
        Decision::Allow(reason) => {
            request.authenticated.decision = ("allow", reason);
            if matches!(action.refusal(), Some(Refusal::Nowhere)) {
                return Err(no_such_resource().into());
            }
            request.authenticated.authorized = Some(Authorized(action));
            return Ok(());
        }
        Decision::Deny(reason) | Decision::NoOpinion(reason) => reason,
    };
    let failure = ferrokube_auth::forbidden(&access, &reason);
    request.authenticated.decision = ("forbid", reason);
    Err(failure.into())
}
