//! GET of an object or subresource.

use super::{ENCODED_BYTES, fit_one, is_partial, leave, offer, rendered_bytes, respond};
use crate::exchange::{Exchange, Rejection};
use crate::handler::accepted;
use crate::negotiate::Views;
use crate::state::ServerState;
use ferrokube_registry::{Object, Target};
use ferrokube_serve::{Kept, Response};
use std::sync::Arc;

pub(crate) async fn get(
    shared: &ServerState,
    exchange: &mut Exchange,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let mut object =
        shared.registry.get(exchange.context(), target, exchange.action.options().get()?).await?;
    fit_one(target, accepted)?;
    if let Object::Stored(entry) = object {
        object = Object::Stored(if is_partial(accepted) {
            entry
        } else {
            shared.registry.entry_in_version(&target.served, entry).await?
        });
    }
    let rendered = rendered_bytes(&object, accepted);
    if rendered > ENCODED_BYTES {
        leave(exchange).await?;
    }
    let room = shared.flow.rendered(exchange.class, rendered, shared.metrics.held()).await?;
    let mut response = respond(shared, exchange, target, &object, (200, accepted)).await?;
    if let Some(room) = room {
        response.extensions_mut().insert(Kept(Arc::new(room)));
    }
    Ok(response)
}
