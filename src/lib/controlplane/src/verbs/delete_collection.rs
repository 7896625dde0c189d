//! DELETE of a collection.

use super::delete::delete_options;
use super::list::{convert, respond_list};
use super::respond::{check_response, include, offer};
use crate::encode::list::ListFormat;
use crate::exchange::Request;
use crate::negotiate::Views;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_registry::{ListOptions, Target};
use ferrokube_serve::Response;

pub(crate) async fn delete_collection(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = request.parsed_head().accepted(offer(&target.served, Views::List))?;
    let select =
        ListOptions { caller: request.caller_number(), ..request.action.options().list()? };
    api.registry.check_selection(target, &select)?;
    let mut options = delete_options(api, request).await?;
    let shown = check_response(request, target, accepted, Views::List);
    options.dry_run |= shown.is_err();
    let mut page =
        api.registry.delete_collection(request.context(), target, &options, &select).await?;
    shown?;
    let include = include(request, accepted)?;
    convert(api, target, &mut page, accepted).await?;
    let format = ListFormat { accepted, include, now: request.now };
    Ok(respond_list(api, request, target, page, None, format))
}
