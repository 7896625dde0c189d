//! Audit id, and the limit on the query. The body is limited where it is read.

use super::headers::AUDIT_ID;
use crate::exchange::Incoming;
use crate::rejection::Rejection;
use ferrokube_apimachinery::status::Failure;
use http::{HeaderMap, HeaderValue};

const MAX_QUERY_BYTES: usize = 256 * 1024;
/// Longer audit ids from clients are replaced.
const MAX_ID_BYTES: usize = 64;

pub(crate) fn enter(incoming: &mut Incoming) -> Result<(), Rejection> {
    incoming.audit_id = audit_id(&incoming.head.headers);
    let raw = incoming.head.uri.query();
    if raw.is_some_and(|raw| raw.len() > MAX_QUERY_BYTES) {
        return Err(Failure::bad_request(format!(
            "the query is longer than {MAX_QUERY_BYTES} bytes"
        ))
        .into());
    }
    Ok(())
}

/// The client's audit id if it is valid, else a new one.
fn audit_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(&AUDIT_ID).filter(|value| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= MAX_ID_BYTES && bytes.iter().all(u8::is_ascii_graphic)
    });
    // Copied: a slice would keep the whole head alive as long as a watch runs.
    given.and_then(|given| HeaderValue::from_bytes(given.as_bytes()).ok()).unwrap_or_else(|| {
        let mut buffer = uuid::Uuid::encode_buffer();
        // No system call per request, unlike `Uuid::new_v4`.
        let random = ferrokube_trace::TraceId::random().bytes();
        let text = uuid::Builder::from_random_bytes(random)
            .into_uuid()
            .hyphenated()
            .encode_lower(&mut buffer);
        HeaderValue::from_str(text).expect("a UUID is a valid header value")
    })
}
