//! Requests for aggregated group versions: forwarded after the filters, regardless of their verb.

use crate::action::{Action, ResourceAction};
use crate::exchange::Request;
use crate::rejection::Rejection;
use crate::{body, status};
use ferrokube_aggregator::{Backend, DelegatedRequest, DelegationError, take_upgrade};
use ferrokube_flow::Flow;
use ferrokube_serve::Response;
use ferrokube_trace::SpanInfo;
use std::pin::{Pin, pin};
use std::time::Duration;

/// Discovery of one group version should be fast: clients ask for all of them.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request keeps its seats while its server does not respond: a hung server must not
/// block a level's seats for a whole request timeout. The number of such requests is bounded per
/// server.
const SEATED: Duration = Duration::from_secs(1);

/// Forwards the authorized action. It needs seats like any other; a watch only to begin.
pub(crate) async fn forward(
    flow: &Flow,
    request: &mut Request<'_>,
    action: &Action,
    backend: &Backend,
) -> Result<Response, Rejection> {
    flow.take_seat(&request.user().name).await?;
    if action.is_long_running() {
        ferrokube_flow::leave_seat();
    }
    let resource = action.resource();
    let left = request.timeout.saturating_sub(request.started.elapsed());
    let is_openapi = action.path().starts_with("/openapi/");
    let timeout = match resource {
        Some(_) if action.is_long_running() => None,
        Some(_) => Some(left),
        None if is_openapi => Some(left),
        None => Some(left.min(DISCOVERY_TIMEOUT)),
    };
    // A server redirects from the hash of an old document, which is not forwarded.
    let query = if is_openapi { String::new() } else { Action::encoded_query(&request.head.uri) };
    let upgrade = take_upgrade(&mut request.head.extensions);
    let body = request.take_body().unwrap_or_else(body::empty);
    let delegated = DelegatedRequest {
        method: request.head.method.clone(),
        path: action.path(),
        query,
        headers: &request.head.headers,
        body,
        user: request.user(),
        audit_id: &request.audit_id,
        peer: request.peer().map(|peer| peer.address.ip()),
        caller: request.class().caller,
        timeout,
        upgrade,
        span: SpanInfo {
            name: action.verb(),
            resource: resource.map_or("", ResourceAction::plural),
            namespace: resource.map_or("", ResourceAction::namespace),
            object: resource.map_or("", ResourceAction::name),
        },
    };
    let answered = seated_at_first(pin!(backend.forward(delegated))).await;
    answered.map_err(|error| rejection(&error))
}

/// Waits for another server: with the request's seats until [`SEATED`] has passed, then without.
async fn seated_at_first<T>(mut call: Pin<&mut impl Future<Output = T>>) -> T {
    match tokio::time::timeout(SEATED, &mut call).await {
        Ok(answered) => answered,
        Err(_) => {
            ferrokube_flow::leave_seat();
            call.await
        }
    }
}

/// As texts, like kube-aggregator.
fn rejection(error: &DelegationError) -> Rejection {
    let code = match error {
        DelegationError::Unavailable | DelegationError::Unreachable(_) => 503,
        DelegationError::Redirect => return status::bare_text(502, error.to_string()).into(),
        DelegationError::User => 500,
        DelegationError::Full => return ferrokube_flow::too_many().into(),
    };
    status::text(code, format!("{error}\n")).into()
}
