//! DELETE of a collection.

use super::delete::delete_options;
use super::list::{convert, respond_list};
use super::{go_type, include, offer};
use crate::exchange::{Rejection, Request};
use crate::filters::audit_payload;
use crate::handler::accepted;
use crate::negotiate::Views;
use crate::state::ServerState;
use ferrokube_registry::{ListOptions, Target};
use ferrokube_serve::Response;

pub(crate) async fn delete_collection(
    shared: &ServerState,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = accepted(request, offer(&target.served, Views::List))?;
    let select =
        ListOptions { caller: request.caller_number(), ..request.action.options().list()? };
    shared.registry.check_selection(target, &select)?;
    let options = delete_options(shared, request).await?;
    let mut page =
        shared.registry.delete_collection(request.context(), target, &options, &select).await?;
    let include = include(request, accepted)?;
    accepted.fit(Views::List, || go_type(target, Views::List))?;
    convert(shared, target, &mut page, accepted).await?;
    audit_payload::list(shared, request, target, (&page, accepted, include));
    Ok(respond_list(shared, request, target, (page, None), (accepted, include)))
}
