//! What the audit keeps of bodies and answers: as JSON, whatever the client speaks, and nothing
//! that the policy does not want.

use crate::encode::list::{self, list_meta};
use crate::encode::stream::Fill;
use crate::encode::table::{Include, Table};
use crate::exchange::Exchange;
use crate::negotiate::{Accepted, Form, View};
use crate::state::ServerState;
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use ferrokube_auth::audit::{Level, TRUNCATED};
use ferrokube_registry::{ListPage, Target};

/// Keeps a body: JSON as it came, every other form if it is recorded.
pub(crate) fn request(exchange: &mut Exchange, form: Form, bytes: Bytes, document: &Document) {
    if form == Form::Json {
        exchange.audit.request = Some(bytes);
    } else if exchange.audit.wants(Level::Request) {
        exchange.audit.request = Some(json::to_vec(&document.clone().into_value()).into());
    }
}

/// Keeps an answer that is a `Status`.
pub(crate) fn status(exchange: &mut Exchange, status: &Document) {
    if exchange.audit.wants(Level::RequestResponse) {
        exchange.audit.response = Some(json::to_vec(&status.clone().into_value()).into());
    }
}

/// Keeps a list, unless it is too large for an event.
pub(crate) fn list(
    shared: &ServerState,
    exchange: &mut Exchange,
    target: &Target,
    (page, accepted, include): (&ListPage, Accepted, Include),
) {
    if !exchange.audit.wants(Level::RequestResponse) {
        return;
    }
    if page.items.iter().map(|entry| entry.bytes.len()).sum::<usize>()
        > shared.audit.max_event_bytes()
    {
        return exchange.context().annotate_audit(TRUNCATED, "true");
    }
    let bytes = match accepted.view {
        View::Table(version) => {
            let table = Table::new(&target.served, version, include, exchange.now);
            table.stream(&list_meta(page), &shared.pieces, page.items.clone()).collect()
        }
        view => list::json(&target.served, page.clone(), view),
    };
    exchange.audit.response = Some(bytes.into());
}
