//! Non-resource paths that somebody else answers: the OpenID documents, proxies.

use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::UserInfo;
use ferrokube_serve::{Body, Response};
use std::future::Future;
use std::pin::Pin;

/// What a route gives back; failures are answered in the form that the client accepts.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response, Failure>> + Send + 'a>>;

/// A request that was authenticated and authorized.
pub struct RouteRequest {
    /// Method, URI and headers.
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
    /// `application/json`, `application/jwk-set+json`, ...; a client that accepts neither it nor `*/*` gets 406.
    pub media_type: &'static str,
    /// Makes the document.
    pub produce: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl Route for DocumentRoute {
    fn answer<'a>(&'a self, _request: RouteRequest) -> Answer<'a> {
        unimplemented!("controlplane owner")
    }
}
