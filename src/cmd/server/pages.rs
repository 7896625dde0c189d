//! Responses of the pages below `/ui/`.

use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_serve::{Response, full};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method};

/// A page before its headers.
pub(super) struct UiPage {
    pub(super) status: u16,
    /// Empty for a redirect.
    pub(super) media_type: &'static str,
    /// Redirect target, relative to the request; or empty.
    pub(super) location: String,
    pub(super) body: String,
    /// Content security policy.
    pub(super) policy: &'static str,
}

/// Pages are only read.
pub(super) fn check_method(method: &Method) -> Result<(), Failure> {
    if method == Method::GET {
        return Ok(());
    }
    let why = "the server does not allow this method on the requested resource";
    Err(Failure::new(Reason::MethodNotAllowed, why))
}

pub(super) fn response(page: UiPage) -> Response {
    let mut response = http::Response::new(full(page.body));
    *response.status_mut() = http::StatusCode::from_u16(page.status).unwrap_or_default();
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page.policy));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The content depends on the user and the time.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !page.media_type.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.media_type));
    }
    if let Ok(location) = HeaderValue::try_from(&page.location)
        && !page.location.is_empty()
    {
        headers.insert(LOCATION, location);
    }
    if page.status == 405 {
        headers.insert(ALLOW, HeaderValue::from_static("GET"));
    }
    response
}
