//! Audit id, and the limit on the query. The body is limited where it is read.

use crate::exchange::Incoming;
use crate::rejection::Rejection;
use ferrokube_apimachinery::status::Failure;

const MAX_QUERY_BYTES: usize = 256 * 1024;

pub(crate) fn enter(incoming: &mut Incoming) -> Result<(), Rejection> {
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
