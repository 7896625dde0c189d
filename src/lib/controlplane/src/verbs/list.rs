//! GET of a collection.

use super::{include, is_partial, offer};
use crate::encode::stream::{Fill, Streamed};
use crate::encode::table::{Include, Table};
use crate::encode::{list, table};
use crate::exchange::{Exchange, Stop};
use crate::handler::chosen;
use crate::negotiate::{Accepted, Form, View, Views};
use crate::server::Shared;
use crate::{audited, compress, options, status};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{ListPage, Target};
use ferrokube_serve::Response;
use http::header::ACCEPT_ENCODING;
use http_body_util::BodyExt;
use std::sync::Arc;

pub(crate) async fn list(shared: &Arc<Shared>, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = chosen(exchange, offer(&target.served, Views::List))?;
    let options = options::list(&exchange.query)?;
    let include = include(exchange, accepted)?;
    let mut page = shared.registry.list(target, &options).await?;
    accepted.fit(Views::List)?;
    convert(shared, target, &mut page, accepted).await?;
    audited::list(shared, exchange, target, (&page, accepted, include));
    let gzip = compress::accepts(exchange.header(ACCEPT_ENCODING));
    let is_costly = gzip || accepted.form == Form::Protobuf;
    if is_costly && !matches!(accepted.view, View::Table(_)) && page.items.iter().map(|entry| entry.bytes.len()).sum::<usize>() >= compress::MIN_BYTES {
        return costly_list(shared, target, page, (accepted, gzip)).await;
    }
    Ok(respond_list(shared, exchange, target, page, (accepted, include)))
}

/// Has the items of a page converted where somebody else does that.
pub(super) async fn convert(shared: &Shared, target: &Target, page: &mut ListPage, accepted: Accepted) -> Result<(), Failure> {
    if !is_partial(accepted) {
        page.items = shared.registry.in_version(&target.served, std::mem::take(&mut page.items)).await?;
    }
    Ok(())
}

/// A large list that is compressed or transcoded: off the workers.
async fn costly_list(shared: &Arc<Shared>, target: &Target, page: ListPage, (accepted, gzip): (Accepted, bool)) -> Result<Response, Stop> {
    let (shared, served) = (Arc::clone(shared), target.served.clone());
    let work = move || {
        let zipped = if gzip { list::zipped(&shared.pieces, &served, &page, accepted) } else { None };
        zipped.unwrap_or_else(|| list::respond(&shared.encoder, &shared.pieces, &served, page, accepted))
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(error = %error, "a list could not be written");
        Failure::internal("the answer could not be written").into()
    })
}

pub(super) fn respond_list(shared: &Shared, exchange: &Exchange, target: &Target, mut page: ListPage, (accepted, include): (Accepted, Include)) -> Response {
    let View::Table(version) = accepted.view else {
        return list::respond(&shared.encoder, &shared.pieces, &target.served, page, accepted);
    };
    let entries = std::mem::take(&mut page.items);
    // Small ones are one frame, whose length is known; compressing needs all of it too.
    let whole = entries.len() <= table::FEW || compress::accepts(exchange.header(ACCEPT_ENCODING));
    let stream = Table::new(&target.served, version, include, exchange.now).stream(&list::list_meta(&page), &shared.pieces, entries);
    if !whole && accepted.form == Form::Json && !accepted.pretty {
        return status::with_type(200, Form::Json.media_type(), Streamed::new(stream).boxed_unsync());
    }
    let (bytes, form) = table::finish(stream.collect(), accepted);
    status::with_form(200, bytes, form)
}
