//! Bounds that need nothing but the head: the query's size. The body is bounded where it is read.

use crate::exchange::{Incoming, Rejection};
use crate::state::ServerState;
use ferrokube_apimachinery::status::Failure;

/// The longest query.
const MAX_QUERY_BYTES: usize = 256 * 1024;

/// Checks the head.
pub(crate) fn enter(_shared: &ServerState, incoming: &mut Incoming) -> Result<(), Rejection> {
    incoming.audit_id = super::audit::id_of(&incoming.head.headers);
    let raw = incoming.head.uri.query();
    if raw.is_some_and(|raw| raw.len() > MAX_QUERY_BYTES) {
        return Err(Failure::bad_request(format!(
            "the query is longer than {MAX_QUERY_BYTES} bytes"
        ))
        .into());
    }
    Ok(())
}
