//! Non-resource paths that somebody else answers: the OpenID documents, proxies.

use crate::{negotiate, status};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::UserInfo;
use ferrokube_serve::{Body, Response};
use std::future::Future;
use std::pin::Pin;

/// What a route gives back; failures are answered in the form that the client accepts.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send + 'a>>;

/// A request that was authenticated and authorized.
pub struct RouteRequest {
    /// The path that was authorized, decoded: a route decides by this one and not by the URI.
    pub path: String,
    /// Method, URI and headers (without credentials).
    pub head: http::request::Parts,
    /// The body, not yet read: whoever reads it bounds it.
    pub body: Body,
    /// Who asks.
    pub user: UserInfo,
}

/// Answers one path, or everything below it.
pub trait Route: Send + Sync {
    /// Answers.
    fn answer<'a>(&'a self, request: RouteRequest) -> Answer<'a>;
}

/// A document that is made on every read, such as the issuer's keys.
pub struct DocumentRoute {
    /// `application/json`, `application/jwk-set+json`, ...; a client that accepts neither it nor
    /// `*/*` gets 406.
    pub media_type: &'static str,
    /// Makes the document.
    pub produce: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl DocumentRoute {
    fn respond(&self, request: &RouteRequest) -> Result<Response, Failure> {
        let accept = request
            .head
            .headers
            .get(http::header::ACCEPT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if request.head.method != http::Method::GET {
            return Err(crate::handler::method_not_allowed());
        }
        negotiate::route(accept, &[self.media_type])?;
        let mut response =
            status::with_type(200, self.media_type, crate::body::full((self.produce)()));
        response.headers_mut().insert(
            http::header::CACHE_CONTROL,
            http::HeaderValue::from_static("public, max-age=3600"),
        );
        Ok(response)
    }
}

impl Route for DocumentRoute {
    fn answer<'a>(&'a self, request: RouteRequest) -> Answer<'a> {
        Box::pin(std::future::ready(self.respond(&request)))
    }
}
