//! Request and response objects for the audit log, always JSON, and only if the policy records
//! them.

use crate::encode::list::ListEncoder;
use crate::exchange::Request;
use crate::negotiate::Form;
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use ferrokube_auth::audit::{AuditLevel, TRUNCATED};
use ferrokube_registry::ListPage;

/// Keeps a request body; other forms than JSON are converted, if the policy records them.
pub(crate) fn request(request: &mut Request<'_>, form: Form, bytes: Bytes, document: &Document) {
    if form == Form::Json {
        request.audit.request = Some(bytes);
    } else if request.audit.wants(AuditLevel::Request) {
        request.audit.request = Some(json::to_vec(&document.clone().into_value()).into());
    }
}

/// Keeps a `Status` response.
pub(crate) fn status(request: &mut Request<'_>, status: &Document) {
    if request.audit.wants(AuditLevel::RequestResponse) {
        request.audit.response = Some(json::to_vec(&status.clone().into_value()).into());
    }
}

/// Keeps a list unless it exceeds `max_bytes`.
pub(crate) fn list(
    request: &mut Request<'_>,
    page: &ListPage,
    encoder: &ListEncoder<'_>,
    max_bytes: usize,
) {
    if !request.audit.wants(AuditLevel::RequestResponse) {
        return;
    }
    if page.items.iter().map(|entry| entry.bytes.len()).sum::<usize>() > max_bytes {
        return request.context().annotate_audit(TRUNCATED, "true");
    }
    request.audit.response = Some(encoder.collect_json(page.clone()).into());
}
