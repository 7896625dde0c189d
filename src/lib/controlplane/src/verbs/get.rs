//! GET of an object or subresource.

use super::{fit_one, is_partial, offer, respond};
use crate::exchange::{Exchange, Stop};
use crate::handler::accepted;
use crate::negotiate::{Accepted, Views};
use crate::server::Shared;
use ferrokube_registry::offload::{INLINE_BYTES, leave_worker};
use ferrokube_registry::{Object, Target};
use ferrokube_serve::{Kept, Response};
use std::sync::Arc;

pub(crate) async fn get(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let mut object = shared.registry.get(exchange.context(), target, exchange.action.options().get()?).await?;
    fit_one(target, accepted)?;
    if let Object::Stored(entry) = object {
        object = Object::Stored(if is_partial(accepted) { entry } else { shared.registry.entry_in_version(&target.served, entry).await? });
    }
    let rendered = rendered_bytes(&object, accepted);
    if rendered > INLINE_BYTES {
        leave_worker().await;
    }
    let room = shared.flow.rendered(exchange.class, rendered, shared.metrics.held()).await?;
    let mut response = respond(shared, exchange, target, &object, (200, accepted))?;
    if let Some(room) = room {
        response.extensions_mut().insert(Kept(Arc::new(room)));
    }
    Ok(response)
}

/// How long an object is that is written for this answer; 0: it is sent as it is stored.
fn rendered_bytes(object: &Object, accepted: Accepted) -> usize {
    match object {
        Object::Stored(entry) if accepted != Accepted::JSON => entry.bytes.len(),
        _ => 0,
    }
}
