//! The interface between a listener and the handler of its requests.

use crate::body::{Body, full};
use http::StatusCode;
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

/// An incoming request. Its body is not bounded yet; its extensions have an
/// `Arc<`[`Peer`](crate::Peer)`>`.
pub type Request = http::Request<Body>;
/// A handler's response; its body may be streamed.
pub type Response = http::Response<Body>;

/// Handles requests. A panic is caught per request (500); the connection continues.
pub trait Handler: Send + Sync + 'static {
    /// Handles one request. Dropped if the client goes away: state must be consistent at every
    /// await.
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>>;

    /// The response after a panic. Must not reveal why.
    fn panicked(&self) -> Response {
        let mut response = Response::new(full("internal error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    }
}

/// In a response's extensions: closes the connection after it (HTTP/2: GOAWAY, other streams
/// finish). For unauthenticated clients, which should not reuse connections cheaply.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

/// In a response's extensions: dropped with its body, sent or not.
#[derive(Clone)]
pub struct BodyGuard(pub Arc<dyn Any + Send + Sync>);
