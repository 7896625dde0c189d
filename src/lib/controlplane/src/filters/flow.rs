//! Flow control: the flow of a request, and its work.

use crate::action::{Action, Verb};
use crate::exchange::Request;
use crate::rejection::Rejection;
use ferrokube_auth::access::ANONYMOUS;
use ferrokube_flow::priority::{FlowAction, FlowRequest, FlowResource};
use ferrokube_flow::{Classified, Flow};
use ferrokube_registry::Registry;
use ferrokube_serve::Response;
use http::HeaderName;
use std::sync::Arc;

/// Assigns the request to a flow and rejects it if even the queues are full. Its seats are taken
/// once its body has arrived, see [`ferrokube_flow`]. Long-running requests other than watches need
/// none.
pub(crate) fn enter(
    flow: &Flow,
    registry: &Registry,
    request: &mut Request<'_>,
) -> Result<(), Rejection> {
    let subject = Classified {
        user: &request.authenticated.user,
        peer: request.peer().map(|peer| &**peer),
        is_anonymous: request.authenticated.user.name == ANONYMOUS,
    };
    let mut class = flow.classify(&subject);
    let action: Arc<dyn FlowAction> = Arc::clone(&request.action) as _;
    let timeout =
        if request.action.is_long_running() { flow.limits().request } else { request.timeout };
    let subject = FlowRequest {
        user: request.user(),
        action: &action,
        mutates: !request.action.is_read_only(),
        timeout,
        seats: &|| seats(registry, &request.action),
    };
    flow.assign(&mut class, &subject);
    request.authenticated.class = class;
    flow.reject_if_hopeless()?;
    Ok(flow.head(class, &request.head)?)
}

/// Shows which schema and level matched.
pub(crate) fn leave(response: &mut Response) {
    const SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
    const LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
    if let Some([schema, level]) = ferrokube_flow::matched_uids() {
        response.headers_mut().insert(SCHEMA, schema);
        response.headers_mut().insert(LEVEL, level);
    }
}

/// Bytes of objects that are one seat.
const SEAT_BYTES: u64 = 100_000;
/// Max bytes that count for a list: it is sent in pieces.
const MAX_LIST_BYTES: u64 = 1_000_000;

/// Estimated work, in kube-apiserver's measure for lists from its cache: a list and the initial
/// state of a watch need seats by the size of their objects.
fn seats(registry: &Registry, action: &Action) -> usize {
    let Some(resource) = action.resource() else { return 1 };
    let limit = match resource.verb() {
        Verb::List => action.options().limit_hint(),
        Verb::Watch if action.options().has_initial_state() => None,
        _ => return 1,
    };
    if !resource.name().is_empty() {
        return 1;
    }
    let catalog = registry.catalog();
    let Some(served) = catalog.find(resource.group(), resource.version(), resource.plural()) else {
        return 1;
    };
    let Some((count, bytes)) = registry.size(&served) else { return 1 };
    let wanted = limit.map_or(count, |limit| limit.min(count));
    let bytes = bytes / count.max(1) * wanted;
    usize::try_from(bytes.min(MAX_LIST_BYTES).div_ceil(SEAT_BYTES)).unwrap_or(1)
}

impl FlowAction for Action {
    fn verb(&self) -> &str {
        Action::verb(self)
    }

    fn path(&self) -> &str {
        Action::path(self)
    }

    fn resource(&self) -> Option<FlowResource<'_>> {
        let resource = Action::resource(self)?;
        Some(FlowResource {
            group: resource.group(),
            version: resource.version(),
            plural: resource.plural(),
            subresource: resource.subresource(),
            namespace: resource.namespace(),
            name: resource.name(),
        })
    }
}
