//! GET of a collection.

use super::respond::{collection_offer, columns_cost, go_type, include, is_partial};
use crate::compress;
use crate::encode::list::{ListEncoder, ListFormat};
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::negotiate::{Accepted, Form, View, Views};
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_apimachinery::status::Failure;
use ferrokube_flow as flow;
use ferrokube_flow::BudgetGrant;
use ferrokube_registry::offload::{INLINE_BYTES, leave_worker};
use ferrokube_registry::{ListOptions, ListPage, Reading, Target, view};
use ferrokube_serve::{BodyGuard, HeldBytes, Response};
use http::header::ACCEPT_ENCODING;
use std::sync::Arc;

pub(crate) async fn list(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = request.parsed_head().accepted(collection_offer(&target.served, Views::List))?;
    let options =
        ListOptions { caller: request.caller_number(), ..request.action.options().list()? };
    let listing = api.registry.listing(target, &options).await?;
    let include = include(request, accepted)?;
    let columns = columns_cost(target, accepted);
    api.flow.list(request.class(), listing.bytes() + columns, api.metrics.held()).await?;
    let mut page = listing.page().await;
    let bytes = size_of_val(&*page.items) + columns;
    flow::shrink_list(bytes);
    accepted.fit(Views::List, || go_type(target, Views::List))?;
    convert(api, target, &mut page, accepted).await?;
    let order = target.served.definition.policy.table_order;
    if let (View::Table(_), Some(order)) = (accepted.view, order) {
        leave_worker().await;
        page.items.sort_by_cached_key(|entry| order(&view(entry, &target.served)));
    }
    let room = api.flow.take_list_grant(request.class(), bytes, api.metrics.held()).await?;
    if (accepted.form != Form::Json || matches!(accepted.view, View::Table(_)))
        && exceeds_inline_bytes(&page, columns)
    {
        // The items' lengths and the first frame are computed before the response starts.
        leave_worker().await;
    }
    let format = ListFormat { accepted, include, now: request.now };
    Ok(respond_list(api, request, target, page, room, format))
}

/// Whether items and definitions of columns are long together.
fn exceeds_inline_bytes(page: &ListPage, columns: usize) -> bool {
    let mut bytes = columns;
    bytes > INLINE_BYTES
        || page.items.iter().any(|entry| {
            bytes += entry.bytes.len();
            bytes > INLINE_BYTES
        })
}

/// Converts the items of a page to the requested version, unless only metadata is returned.
pub(super) async fn convert(
    api: &ResourceApi,
    target: &Target,
    page: &mut ListPage,
    accepted: Accepted,
) -> Result<(), Failure> {
    if !is_partial(accepted) {
        page.items =
            api.registry.in_version(&target.served, std::mem::take(&mut page.items)).await?;
    }
    Ok(())
}

/// Audits and encodes a page. The response holds `room` until it is sent or dropped.
pub(super) fn respond_list(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
    page: ListPage,
    room: Option<BudgetGrant>,
    format: ListFormat,
) -> Response {
    let encoder =
        ListEncoder { encoder: &api.encoder, chunks: &api.chunks, served: &target.served, format };
    audit_payload::list(request, &page, &encoder, api.audit.max_event_bytes());
    let reading = pin_page(api, target, &page, format.accepted);
    let gzip = compress::accepts(request.header(ACCEPT_ENCODING));
    let mut response = encoder.respond(page, gzip);
    if reading.is_some() || room.is_some() {
        response.extensions_mut().insert(BodyGuard(Arc::new((reading, room))));
    }
    response
}

/// Resources that a large list pins until it is sent: its snapshot, and its own memory, charged to
/// the client.
fn pin_page(
    api: &ResourceApi,
    target: &Target,
    page: &ListPage,
    accepted: Accepted,
) -> Option<(Arc<Reading>, Option<HeldBytes>)> {
    let reading = page.reading.clone()?;
    let item_bytes = size_of_val(&*page.items);
    // Items from a conversion webhook are copies.
    let copies = target
        .served
        .definition
        .hooks
        .converter()
        .filter(|_| !is_partial(accepted))
        .map_or(0, |_| page.items.iter().map(|entry| entry.bytes.len()).sum());
    let held = api.metrics.held().map(|held| held.hold(item_bytes + copies));
    Some((reading, held))
}
