//! GET of an object or subresource.

use super::respond::{check_view, is_partial, offer, rendered_bytes, respond, views};
use crate::decode::{ENCODED_BYTES, encode_micros, leave_worker_or_reject};
use crate::exchange::Request;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_registry::{Object, Target};
use ferrokube_serve::{BodyGuard, Response};
use std::sync::Arc;

pub(crate) async fn get(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = request.parsed_head().accepted(offer(&target.served, views(target)))?;
    let mut object = api.registry.get(target, request.action.options().get()?).await?;
    check_view(target, accepted)?;
    if let Object::Stored(entry) = object {
        object = Object::Stored(if is_partial(accepted) {
            entry
        } else {
            api.registry.entry_in_version(&target.served, entry).await?
        });
    }
    let rendered = rendered_bytes(target, &object, accepted);
    if rendered > ENCODED_BYTES {
        leave_worker_or_reject(request.caller_number(), encode_micros(rendered)).await?;
    }
    let room = api.flow.rendered(request.class(), rendered, api.metrics.held()).await?;
    let mut response = respond(api, request, target, &object, 200, accepted).await?;
    if let Some(room) = room {
        response.extensions_mut().insert(BodyGuard(Arc::new(room)));
    }
    Ok(response)
}
