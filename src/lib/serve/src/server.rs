//! The listener.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A response body: whole, or streamed frame by frame.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
/// A request as it arrives; its body is bounded by who reads it. [`Peer`] is in its extensions as `Arc<Peer>`.
pub type Request = http::Request<hyper::body::Incoming>;
/// A response.
pub type Response = http::Response<Body>;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate chain (DER, leaf first); empty without one.
    pub certificates: Vec<Vec<u8>>,
}

/// Answers requests. A panic is caught per request (500), the connection lives on.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>>;
}

/// Bounds of a listener.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Of the TLS handshake.
    pub handshake: Duration,
    /// Of the request head on HTTP/1.1.
    pub header: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// Connections at a time from one address.
    pub connections_per_address: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
}

/// Why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The certificate or key cannot be used.
    #[error("cannot use the certificate: {0}")]
    Tls(String),
}

/// A bound listener.
pub struct Server {}
