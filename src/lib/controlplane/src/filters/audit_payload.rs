//! What the audit keeps of bodies and answers: as JSON, whatever the client speaks, and nothing
//! that the policy does not want.

use crate::encode::list::{self, list_meta};
use crate::encode::stream::Fill;
use crate::encode::table::{Include, Table};
use crate::exchange::Request;
use crate::negotiate::{Accepted, Form, View};
use crate::state::ServerState;
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use ferrokube_auth::audit::{Level, TRUNCATED};
use ferrokube_registry::{ListPage, Target};

/// Keeps a body: JSON as it came, every other form if it is recorded.
pub(crate) fn request(request: &mut Request<'_>, form: Form, bytes: Bytes, document: &Document) {
    if form == Form::Json {
        request.audit.request = Some(bytes);
    } else if request.audit.wants(Level::Request) {
        request.audit.request = Some(json::to_vec(&document.clone().into_value()).into());
    }
}

/// Keeps an answer that is a `Status`.
pub(crate) fn status(request: &mut Request<'_>, status: &Document) {
    if request.audit.wants(Level::RequestResponse) {
        request.audit.response = Some(json::to_vec(&status.clone().into_value()).into());
    }
}

/// Keeps a list, unless it is too large for an event.
pub(crate) fn list(
    shared: &ServerState,
    request: &mut Request<'_>,
    target: &Target,
    (page, accepted, include): (&ListPage, Accepted, Include),
) {
    if !request.audit.wants(Level::RequestResponse) {
        return;
    }
    if page.items.iter().map(|entry| entry.bytes.len()).sum::<usize>()
        > shared.audit.max_event_bytes()
    {
        return request.context().annotate_audit(TRUNCATED, "true");
    }
    let bytes = match accepted.view {
        View::Table(version) => {
            let table = Table::new(&target.served, version, include, request.now);
            table.stream(&list_meta(page), &shared.pieces, page.items.clone()).collect()
        }
        view => list::json(&target.served, page.clone(), view),
    };
    request.audit.response = Some(bytes.into());
}
