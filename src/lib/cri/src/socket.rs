//! gRPC over a unix socket.

use crate::error::{CallCode, CriError};
use crate::runtime::{Transport, TransportFuture};
use bytes::{Buf, BufMut, Bytes};
use ferrokube_trace::{append_causes, sources};
use http::HeaderMap;
use http::uri::PathAndQuery;
use std::path::PathBuf;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{ConnectError, Request, Status};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response, as kubelet's: a list of all containers or images of a node.
const MAX_RESPONSE: usize = 16 << 20;

/// A runtime behind a unix socket. Connects when called, and again after a failure.
pub struct RuntimeSocket {
    path: PathBuf,
    channel: Channel,
    max_response: usize,
}

/// An address that is not one of a runtime.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no unix socket of a container runtime: unix:///PATH")]
pub struct RuntimeEndpointError(String);

impl RuntimeSocket {
    /// A client of `unix:///run/containerd/containerd.sock`; a plain absolute path works, too.
    ///
    /// # Errors
    /// [`RuntimeEndpointError`]. Only the first call shows whether anything listens.
    pub fn new(endpoint: &str) -> Result<Self, RuntimeEndpointError> {
        let wrong = || RuntimeEndpointError(endpoint.to_owned());
        let path = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        if !path.is_absolute() {
            return Err(wrong());
        }
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()));
        let endpoint = endpoint.map_err(|_| wrong())?.connect_timeout(CONNECT_TIMEOUT);
        Ok(Self { path, channel: endpoint.connect_lazy(), max_response: MAX_RESPONSE })
    }

    /// Refuses responses of more bytes.
    #[must_use]
    pub fn max_response(self, max_response: usize) -> Self {
        Self { max_response, ..self }
    }

    async fn unary(&self, path: &'static str, request: Bytes) -> Result<Bytes, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(self.max_response);
        let unavailable = |error: tonic::transport::Error| Status::from_error(error.into());
        grpc.ready().await.map_err(unavailable)?;
        let mut request = Request::new(request);
        if let Some(context) = ferrokube_trace::current() {
            let mut headers = HeaderMap::new();
            ferrokube_trace::inject(&context, &mut headers);
            *request.metadata_mut() = MetadataMap::from_headers(headers);
        }
        let response = grpc.unary(request, PathAndQuery::from_static(path), RawCodec).await?;
        Ok(response.into_inner())
    }

    /// A failed connection names the socket.
    fn failed(&self, status: &Status) -> CriError {
        let cause = sources(status).find_map(|cause| cause.downcast_ref::<ConnectError>());
        match cause {
            Some(cause) => {
                let message = format!("cannot connect to {}: {cause}", self.path.display());
                CriError::new(CallCode::Unavailable, message)
            }
            None => error(status),
        }
    }
}

impl Transport for RuntimeSocket {
    fn call(&self, path: &'static str, request: Bytes) -> TransportFuture<'_> {
        Box::pin(
            async move { self.unary(path, request).await.map_err(|status| self.failed(&status)) },
        )
    }
}

/// Longest message of an error: events and the back-off of each pod keep it.
const MAX_MESSAGE: usize = 4096;

pub(crate) fn error(status: &Status) -> CriError {
    let mut message = status.message().to_owned();
    // A failed connection may say why only in its sources, of which each repeats the next one or
    // says no more than that it is of the transport.
    let causes = sources(status).filter(|cause| !cause.is::<tonic::transport::Error>());
    append_causes(&mut message, causes, usize::MAX);
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or(0));
        message.push_str("...");
        message.shrink_to_fit();
    }
    CriError::new(CallCode::from_number(status.code() as i32), message)
}

/// Messages as bytes, encoded and decoded elsewhere.
pub(crate) struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_truncated() {
        let long = error(&Status::internal("\u{e9}".repeat(1 << 20))).message;
        assert!(long.len() < MAX_MESSAGE + 4 && long.ends_with("..."), "{}", long.len());
        assert_eq!(error(&Status::internal("no such image")).message, "no such image");
    }

    #[tokio::test]
    async fn a_failed_connection_names_the_socket_and_its_cause_once() {
        let socket = RuntimeSocket::new("unix:///nowhere/runtime.sock").unwrap();
        let failed = socket.call("/runtime.v1.RuntimeService/Status", Bytes::new()).await;
        let failed = failed.unwrap_err();
        assert_eq!(
            failed.to_string(),
            "rpc error: code = Unavailable desc = cannot connect to /nowhere/runtime.sock: No such \
             file or directory (os error 2)"
        );
    }
}
