//! DELETE of a collection.

use super::delete::delete_options;
use super::list::{convert, respond_list};
use super::{go_type, include, offer};
use crate::exchange::{Exchange, Rejection};
use crate::filters::audit_payload;
use crate::handler::accepted;
use crate::negotiate::Views;
use crate::state::ServerState;
use ferrokube_registry::{ListOptions, Target};
use ferrokube_serve::Response;

pub(crate) async fn delete_collection(
    shared: &ServerState,
    exchange: &mut Exchange,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = accepted(exchange, offer(&target.served, Views::List))?;
    let select =
        ListOptions { caller: exchange.class.caller.number(), ..exchange.action.options().list()? };
    shared.registry.check_selection(target, &select)?;
    let options = delete_options(shared, exchange).await?;
    let mut page =
        shared.registry.delete_collection(exchange.context(), target, &options, &select).await?;
    let include = include(exchange, accepted)?;
    accepted.fit(Views::List, || go_type(target, Views::List))?;
    convert(shared, target, &mut page, accepted).await?;
    audit_payload::list(shared, exchange, target, (&page, accepted, include));
    Ok(respond_list(shared, exchange, target, (page, None), (accepted, include)))
}
