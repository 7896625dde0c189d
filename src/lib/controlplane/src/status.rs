//! The only place that turns failures into responses.

use crate::body;
use crate::encode::{Encoded, Encoder};
use crate::negotiate::{Accepted, Offer, RouterTypes, Views, negotiate};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Details, Failure};
use ferrokube_serve::Response;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, StatusCode};

const MESSAGE: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.Status";

/// The response to a failed request in a form that the client accepts, else JSON.
pub(crate) fn respond(failure: &Failure, encoder: &Encoder, headers: &HeaderMap) -> Response {
    let retry_after = failure.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if failure.code == 429 && failure.reason.is_none() && failure.other_reason.is_none() {
        // In kube-apiserver flow control runs before any `Status` can be encoded.
        let mut response = text(429, format!("{}\n", failure.message));
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after));
        return response;
    }
    let accept =
        headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let offer = Offer {
        protobuf: encoder.messages().contains(MESSAGE),
        views: Views::None,
        router: RouterTypes::None,
    };
    let accepted = negotiate(accept, offer).unwrap_or(Accepted::JSON);
    let status = encoder.document(&failure.to_document(), accepted, Some(MESSAGE));
    let mut response = encoded(failure.code, status);
    if retry_after > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after));
    }
    if failure.code == 401 {
        response
            .headers_mut()
            .insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

pub(crate) fn encoded(code: u16, encoded: Encoded) -> Response {
    with_type(code, encoded.form.media_type(), body::full(encoded.bytes))
}

pub(crate) fn with_type(
    code: u16,
    media_type: &'static str,
    body: ferrokube_serve::Body,
) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Plain text that browsers must not sniff.
pub(crate) fn text(code: u16, text: impl Into<bytes::Bytes>) -> Response {
    let mut response = bare_text(code, text);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Plain text without `nosniff`, where kube-apiserver leaves the type to be detected.
pub(crate) fn bare_text(code: u16, text: impl Into<bytes::Bytes>) -> Response {
    with_type(code, "text/plain; charset=utf-8", body::full(text))
}

/// The response for unknown paths.
pub(crate) fn not_found() -> Response {
    text(404, "404 page not found\n")
}

/// The `Status` of a completed delete.
pub(crate) fn success(details: &Details) -> Document {
    let mut status = Document::new();
    for (field, value) in [("kind", "Status"), ("apiVersion", "v1"), ("status", "Success")] {
        status.set(&[field], value);
    }
    status.set(&["metadata"], json!({}));
    for (field, value) in [
        ("name", &details.name),
        ("group", &details.group),
        ("kind", &details.kind),
        ("uid", &details.uid),
    ] {
        if !value.is_empty() {
            status.set(&["details", field], value.as_str());
        }
    }
    status
}

/// The protobuf message of a `Status`.
pub(crate) fn message() -> &'static str {
    MESSAGE
}
