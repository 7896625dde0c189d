//! GET of an object or subresource.

use super::{fit_one, is_partial, offer, respond};
use crate::exchange::{Exchange, Stop};
use crate::handler::accepted;
use crate::negotiate::{Accepted, Views};
use crate::server::Shared;
use ferrokube_registry::offload::{INLINE_BYTES, leave_worker};
use ferrokube_registry::{Object, Target};
use ferrokube_serve::Response;

pub(crate) async fn get(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let mut object = shared.registry.get(exchange.context(), target, exchange.action.options().get()?).await?;
    fit_one(target, accepted)?;
    if let Object::Stored(entry) = object {
        object = Object::Stored(if is_partial(accepted) { entry } else { shared.registry.entry_in_version(&target.served, entry).await? });
    }
    if matches!(&object, Object::Stored(entry) if entry.bytes.len() > INLINE_BYTES && accepted != Accepted::JSON) {
        leave_worker().await;
    }
    respond(shared, exchange, target, &object, (200, accepted))
}
