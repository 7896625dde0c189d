//! Rejected requests.

use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_serve::Response;

/// The code in log and audit of a request whose client went away; never sent.
pub(crate) const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The response of a filter or handler that rejects a request.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// Encoded as a `Status` in a form that the client accepts.
    Failure(Box<Failure>),
    /// The same, by kube-apiserver's router: no handler has seen the request.
    Unrouted(Box<Failure>),
    /// A response that is not a `Status`.
    Response(Box<Response>),
}

impl Rejection {
    /// The status code of the response.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Failure(failure) | Self::Unrouted(failure) => failure.code,
            Self::Response(response) => response.status().as_u16(),
        }
    }
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure))
    }
}

impl From<Response> for Rejection {
    fn from(response: Response) -> Self {
        Self::Response(Box::new(response))
    }
}

/// 405 without details, as kube-apiserver's router responds.
pub(crate) fn method_not_allowed() -> Failure {
    Failure::new(
        Reason::MethodNotAllowed,
        "the server does not allow this method on the requested resource",
    )
    .with_details(Details::default())
}
