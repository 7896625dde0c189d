//! GET of a collection.

use super::{go_type, include, is_partial, offer, streams};
use crate::encode::list;
use crate::encode::table::{Include, Table};
use crate::exchange::{Rejection, Request};
use crate::filters::audit_payload;
use crate::flow::Grant;
use crate::handler::accepted;
use crate::negotiate::{Accepted, Form, Offer, View, Views};
use crate::state::ServerState;
use crate::{compress, flow};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::offload::{INLINE_BYTES, leave_worker};
use ferrokube_registry::{ListOptions, ListPage, Reading, Target};
use ferrokube_serve::{Held, Kept, Response};
use http::header::ACCEPT_ENCODING;
use std::sync::Arc;

pub(crate) async fn list(
    shared: &Arc<ServerState>,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = accepted(
        request,
        Offer { router: streams(&target.served), ..offer(&target.served, Views::List) },
    )?;
    let options =
        ListOptions { caller: request.caller_number(), ..request.action.options().list()? };
    let listing = shared.registry.listing(target, &options).await?;
    let include = include(request, accepted)?;
    shared.flow.list(request.class(), listing.bytes(), shared.metrics.held()).await?;
    let mut page = listing.page().await;
    let bytes = size_of_val(&*page.items);
    flow::has_listed(bytes);
    accepted.fit(Views::List, || go_type(target, Views::List))?;
    convert(shared, target, &mut page, accepted).await?;
    let room = shared.flow.listed(request.class(), bytes, shared.metrics.held()).await?;
    audit_payload::list(shared, request, target, (&page, accepted, include));
    if (accepted.form != Form::Json || matches!(accepted.view, View::Table(_))) && is_long(&page) {
        // Its items are measured, and its first ones written, before any is sent.
        leave_worker().await;
    }
    Ok(respond_list(shared, request, target, (page, room), (accepted, include)))
}

fn is_long(page: &ListPage) -> bool {
    let mut bytes = 0;
    page.items.iter().any(|entry| {
        bytes += entry.bytes.len();
        bytes > INLINE_BYTES
    })
}

/// Has the items of a page converted where somebody else does that.
pub(super) async fn convert(
    shared: &ServerState,
    target: &Target,
    page: &mut ListPage,
    accepted: Accepted,
) -> Result<(), Failure> {
    if !is_partial(accepted) {
        page.items =
            shared.registry.in_version(&target.served, std::mem::take(&mut page.items)).await?;
    }
    Ok(())
}

fn takes_gzip(request: &Request<'_>) -> bool {
    compress::accepts(request.header(ACCEPT_ENCODING))
}

pub(super) fn respond_list(
    shared: &ServerState,
    request: &Request<'_>,
    target: &Target,
    (mut page, room): (ListPage, Option<Grant>),
    (accepted, include): (Accepted, Include),
) -> Response {
    let form = (accepted, takes_gzip(request));
    let kept = keep(shared, target, &page, accepted);
    let kept = (kept.is_some() || room.is_some()).then(|| Kept(Arc::new((kept, room))));
    let response = match accepted.view {
        View::Table(version) => {
            let entries = std::mem::take(&mut page.items);
            Table::new(&target.served, version, include, request.now).respond(
                &list::list_meta(&page),
                &shared.pieces,
                entries,
                form,
            )
        }
        _ => list::respond(&shared.encoder, &shared.pieces, &target.served, page, form),
    };
    keeping(response, kept)
}

/// What a large list holds until it is sent, besides the objects that are stored: they are counted
/// as what its client keeps from being freed.
fn keep(
    shared: &ServerState,
    target: &Target,
    page: &ListPage,
    accepted: Accepted,
) -> Option<(Arc<Reading>, Option<Held>)> {
    let reading = page.reading.clone()?;
    let places = size_of_val(&*page.items);
    // Somebody else has converted them.
    let copies = target
        .served
        .definition
        .hooks
        .converter()
        .filter(|_| !is_partial(accepted))
        .map_or(0, |_| page.items.iter().map(|entry| entry.bytes.len()).sum());
    let held = shared.metrics.held().map(|held| held.hold(places + copies));
    Some((reading, held))
}

fn keeping(mut response: Response, kept: Option<Kept>) -> Response {
    if let Some(kept) = kept {
        response.extensions_mut().insert(kept);
    }
    response
}
