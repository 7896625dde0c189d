//! Non-resource paths that are mounted by the process: the OpenID documents, the trace page.

use crate::{negotiate, status};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_serve::{Body, Response};
use std::future::Future;
use std::pin::Pin;

/// A failure is encoded in a form that the client accepts.
pub type RouteFuture<'a> = Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send + 'a>>;

/// A request that was authenticated and authorized.
pub struct RouteRequest {
    /// The decoded path that was authorized. Routes match this one, not the URI.
    pub path: String,
    /// Method, URI and headers, without credentials.
    pub head: http::request::Parts,
    /// Not read yet; the route bounds it.
    pub body: Body,
    /// The user whose rights were checked.
    pub user: UserInfo,
}

/// Serves one path, or everything below it.
pub trait Route: Send + Sync {
    /// Most bytes that a response takes, with what it is computed from; 0 for what all responses
    /// share, and for little that is made in less than 0.2 ms. Otherwise it is computed off the
    /// workers, in a slot of the caller, and its bytes count like those of a list until the client
    /// has read it.
    fn room(&self) -> usize {
        0
    }

    /// Responds. Dropped if the client goes away.
    fn answer<'a>(&'a self, request: RouteRequest) -> RouteFuture<'a>;
}

/// A document that is made for every read, such as the issuer's keys.
pub struct DocumentRoute {
    /// `application/json`, `application/jwk-set+json`, ...; 406 for clients that accept neither it
    /// nor `*/*`.
    pub media_type: &'static str,
    /// Returns the document's bytes.
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
            return Err(crate::rejection::method_not_allowed());
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
    fn answer<'a>(&'a self, request: RouteRequest) -> RouteFuture<'a> {
        Box::pin(std::future::ready(self.respond(&request)))
    }
}
