//! Requests of any method to subresources that connect to another server.

use crate::action::ResourceAction;
use crate::body;
use crate::exchange::Request;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use crate::status;
use ferrokube_aggregator::{DelegationError, take_upgrade};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_auth::{Access, Decision};
use ferrokube_connect::{ConnectCall, ConnectError, Connections};
use ferrokube_registry::Target;
use ferrokube_serve::Response;
use ferrokube_storage::Need;
use ferrokube_trace::SpanInfo;

pub(crate) async fn connect(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
    connections: &Connections,
) -> Result<Response, Rejection> {
    request.context().admit(Need::Ordinary)?;
    let action = std::sync::Arc::clone(&request.action);
    if !action.is_read_only() {
        api.flow.take_seat(&request.user().name).await?;
    }
    let upgrade = take_upgrade(&mut request.head.extensions);
    if upgrade.is_some() && action.verb() == "get" {
        may_create(api, request)?;
    }
    let body = request.take_body().unwrap_or_else(body::empty);
    let call = ConnectCall {
        registry: &api.registry,
        context: request.context(),
        target,
        method: request.head.method.clone(),
        path: action.path(),
        query: request.head.uri.query().unwrap_or_default(),
        headers: &request.head.headers,
        body,
        upgrade,
        peer: request.peer().map(|peer| peer.address.ip()),
        caller: request.class().caller,
        span: SpanInfo {
            name: action.verb(),
            resource: action.resource().map_or("", ResourceAction::plural),
            namespace: action.resource().map_or("", ResourceAction::namespace),
            object: action.resource().map_or("", ResourceAction::name),
        },
    };
    // As in kube-apiserver, which gives long-running requests none: many slow handshakes with one
    // server would otherwise hold the seats of all users of this level.
    ferrokube_flow::leave_seat();
    let connected = connections.connect(call).await;
    connected.map_err(|error| rejection(error, Connections::is_proxy(target)))
}

/// A websocket is a GET, by which readers must not run commands: it needs `create`, too.
fn may_create(api: &ResourceApi, request: &Request<'_>) -> Result<(), Rejection> {
    let access = Access { verb: "create", ..request.action.access(request.user()) };
    match api.authorization.authorizer.authorize(&access) {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(ferrokube_auth::forbidden(&access, &reason).into())
        }
    }
}

fn rejection(error: ConnectError, is_proxy: bool) -> Rejection {
    let error = match error {
        ConnectError::Failure(failure) => return failure.into(),
        ConnectError::Delegation(error) => error,
    };
    match error {
        DelegationError::Redirect => status::bare_text(502, error.to_string()).into(),
        DelegationError::Full => ferrokube_flow::too_many().into(),
        DelegationError::Unreachable(why) if !is_proxy => {
            Failure::internal(format!("error dialing backend: {why}")).into()
        }
        error => Failure::new(Reason::ServiceUnavailable, error.to_string()).into(),
    }
}
