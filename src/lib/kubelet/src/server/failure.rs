//! Failures of the server, and responses of text.

use ferrokube_relay::DelegationError;
use ferrokube_serve::{CloseConnection, Response, full};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, StatusCode};

/// A failed request, with kubelet's messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerFailure {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("405: Method Not Allowed")]
    Method,
    /// The API server or the runtime failed; the cause is only logged.
    #[error("{0}")]
    Failed(&'static str),
    #[error("{0}")]
    Runtime(String),
    #[error("too many requests, please try again later")]
    Full,
}

impl From<DelegationError> for ServerFailure {
    fn from(error: DelegationError) -> Self {
        Self::Runtime(error.to_string())
    }
}

impl ServerFailure {
    pub(super) fn into_response(self) -> Response {
        let status = match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Failed(_) | Self::Runtime(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Full => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut response = text(self.to_string());
        *response.status_mut() = status;
        if matches!(self, Self::Unauthorized) {
            response.extensions_mut().insert(CloseConnection);
        }
        response
    }
}

pub(super) fn text(body: String) -> Response {
    typed("text/plain; charset=utf-8", body)
}

pub(super) fn typed(media_type: &'static str, body: impl Into<bytes::Bytes>) -> Response {
    let mut response = Response::new(full(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    let no_sniff = HeaderName::from_static("x-content-type-options");
    headers.insert(no_sniff, HeaderValue::from_static("nosniff"));
    response
}
