//! How requests reach an API server: over pooled connections, or without any in the same process.

use crate::pool::{Pool, PooledBody};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{BoxError, Service};

type PendingResponse =
    Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, BoxError>> + Send>>;

/// How requests of one identity reach the server. Clones share its connections.
#[derive(Clone)]
pub(crate) enum RequestTransport {
    Pool(Pool),
    InProcess(Arc<dyn Fn(Request<Body>) -> PendingResponse + Send + Sync>),
}

impl Service<Request<Body>> for RequestTransport {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = PendingResponse;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> PendingResponse {
        match self {
            Self::Pool(pool) => {
                let response = pool.clone().send(request);
                Box::pin(async move { Ok(response.await?.map(ResponseBody::Pooled)) })
            }
            Self::InProcess(call) => call(request),
        }
    }
}

/// A response body of either transport.
pub(crate) enum ResponseBody {
    Pooled(PooledBody),
    InProcess(Pin<Box<dyn http_body::Body<Data = Bytes, Error = io::Error> + Send>>),
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Pooled(body) => Pin::new(body).poll_frame(task).map_err(Into::into),
            Self::InProcess(body) => body.as_mut().poll_frame(task).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Pooled(body) => body.is_end_stream(),
            Self::InProcess(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Pooled(body) => body.size_hint(),
            Self::InProcess(body) => body.size_hint(),
        }
    }
}
