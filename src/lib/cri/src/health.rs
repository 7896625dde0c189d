//! The health check of gRPC servers (`grpc.health.v1`), for probes of containers. Not part of CRI:
//! here is the one gRPC client of a node.

use crate::error::{CallCode, CriError};
use crate::socket::{RawCodec, error};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const USER_AGENT: &str = "kube-probe/1.36";
/// Largest response: a number.
const MAX_RESPONSE: usize = 4 << 10;

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Reported health of a service; the empty name is the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceHealth {
    /// Ready for calls.
    Serving,
    /// Any other status, by its number.
    Other(i32),
}

impl std::fmt::Display for ServiceHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Serving => "SERVING",
            Self::Other(2) => "NOT_SERVING",
            Self::Other(3) => "SERVICE_UNKNOWN",
            Self::Other(_) => "UNKNOWN",
        })
    }
}

/// Checks the server at `host:port`, without TLS, over a new connection. The caller bounds the time
/// by dropping the future.
///
/// # Errors
/// It did not answer, or does not know the service.
pub async fn check_health(authority: &str, service: &str) -> Result<ServiceHealth, CriError> {
    let invalid = |text: String| CriError::new(CallCode::InvalidArgument, text);
    let endpoint = Endpoint::from_shared(format!("http://{authority}"));
    let endpoint = endpoint
        .and_then(|endpoint| endpoint.user_agent(USER_AGENT))
        .map_err(|error| invalid(format!("{authority:?}: {error}")))?;
    let failed = |status: Status| error(&status);
    let unavailable = |error: tonic::transport::Error| failed(Status::from_error(error.into()));
    let channel = endpoint.connect().await.map_err(unavailable)?;
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
    grpc.ready().await.map_err(unavailable)?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let request = Request::new(request.encode_to_vec().into());
    let sent = grpc.unary(request, PathAndQuery::from_static(CHECK), RawCodec).await;
    let response = HealthCheckResponse::decode(sent.map_err(failed)?.into_inner());
    let response = response
        .map_err(|error| CriError::new(CallCode::Internal, format!("response: {error}")))?;
    Ok(match response.status {
        1 => ServiceHealth::Serving,
        other => ServiceHealth::Other(other),
    })
}
