//! One POST to the collector, over HTTP/1.1 or as gRPC; the connection is kept for the next.

use super::endpoint::Endpoint;
use super::otlp;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, TE};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Of a whole request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// gRPC's path of the method.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// May be tried again: nobody answered, or the answer says so.
    #[error("{0}")]
    Again(String),
    /// Would be refused again.
    #[error("the collector refused them: {0}")]
    Refused(String),
}

/// A collector, perhaps connected.
pub(super) struct Collector {
    endpoint: Endpoint,
    connection: Option<Connection>,
}

enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Collector {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, connection: None }
    }

    /// Sends a request message; gives how many of its spans were refused. A connection that failed is made anew the next time.
    pub(super) async fn send(&mut self, message: Vec<u8>) -> Result<u64, SendError> {
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_open() => connection,
            _ => within(self.connect()).await?,
        };
        let request = self.request(message);
        let answer = within(exchange(&mut connection, request)).await?;
        self.connection = Some(connection);
        judge(&self.endpoint, &answer)
    }

    async fn connect(&self) -> Result<Connection, SendError> {
        let failed = |error: &dyn std::fmt::Display| SendError::Again(error.to_string());
        match &self.endpoint {
            Endpoint::Http { authority, .. } => {
                let stream = TcpStream::connect(authority.as_str()).await.map_err(|error| failed(&error))?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
                tokio::spawn(connection);
                Ok(Connection::Http1(sender))
            }
            Endpoint::Grpc { authority } => http2(TcpStream::connect(authority.as_str()).await.map_err(|error| failed(&error))?).await,
            Endpoint::GrpcUnix { path } => http2(UnixStream::connect(path).await.map_err(|error| failed(&error))?).await,
        }
    }

    fn request(&self, message: Vec<u8>) -> Request<Full<Bytes>> {
        let (uri, authority) = match &self.endpoint {
            Endpoint::Http { authority, path } => (path.clone(), authority.as_str()),
            Endpoint::Grpc { authority } => (format!("http://{authority}{GRPC_PATH}"), authority.as_str()),
            Endpoint::GrpcUnix { .. } => (format!("http://localhost{GRPC_PATH}"), "localhost"),
        };
        let is_http = matches!(self.endpoint, Endpoint::Http { .. });
        let body = if is_http { message } else { framed(message) };
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = uri.parse().expect("made of an authority and a path that were checked");
        let headers = request.headers_mut();
        if is_http {
            headers.insert(HOST, HeaderValue::from_str(authority).expect("a checked authority"));
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        } else {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        request
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        match self {
            Self::Http1(sender) => !sender.is_closed(),
            Self::Http2(sender) => !sender.is_closed(),
        }
    }
}

async fn http2(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection, SendError> {
    let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|error| SendError::Again(error.to_string()))?;
    tokio::spawn(connection);
    Ok(Connection::Http2(sender))
}

/// A gRPC message: not compressed, its length, itself.
fn framed(message: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("the buffer is bounded by megabytes");
    let mut framed = Vec::with_capacity(message.len() + 5);
    framed.push(0);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

async fn within<T>(work: impl Future<Output = Result<T, SendError>>) -> Result<T, SendError> {
    match tokio::time::timeout(TIMEOUT, work).await {
        Ok(result) => result,
        Err(_) => Err(SendError::Again("no answer in time".to_owned())),
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    trailers: HeaderMap,
    body: Bytes,
}

async fn exchange(connection: &mut Connection, request: Request<Full<Bytes>>) -> Result<Answer, SendError> {
    let failed = |error: hyper::Error| SendError::Again(error.to_string());
    let response = match connection {
        Connection::Http1(sender) => {
            sender.ready().await.map_err(failed)?;
            sender.send_request(request).await
        }
        Connection::Http2(sender) => {
            sender.ready().await.map_err(failed)?;
            sender.send_request(request).await
        }
    };
    let (head, body) = Response::<Incoming>::into_parts(response.map_err(failed)?);
    let collected = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|error| SendError::Again(error.to_string()))?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, trailers, body: collected.to_bytes() })
}

fn judge(endpoint: &Endpoint, answer: &Answer) -> Result<u64, SendError> {
    match answer.status {
        200..=299 => {}
        429 | 502..=504 => return Err(SendError::Again(format!("status {}", answer.status))),
        status => return Err(SendError::Refused(format!("status {status}"))),
    }
    if matches!(endpoint, Endpoint::Http { .. }) {
        return Ok(otlp::rejected(&answer.body));
    }
    let status = answer.trailers.get("grpc-status").or_else(|| answer.headers.get("grpc-status")).and_then(|value| value.to_str().ok()).unwrap_or("2");
    match status {
        "0" => Ok(otlp::rejected(answer.body.get(5..).unwrap_or_default())),
        // Cancelled, deadline, exhausted, aborted, out of range, unavailable, data loss: as the protocol lists them.
        "1" | "4" | "8" | "10" | "11" | "14" | "15" => Err(SendError::Again(format!("gRPC status {status}"))),
        _ => Err(SendError::Refused(format!("gRPC status {}", &status[..status.len().min(3)]))),
    }
}
