//! Adds `traceparent` and `Initial-Trace-Id` to every request of a reconcile.

use ferrokube_trace::{TraceContext, inject};
use http::{HeaderMap, Request};
use kube::Client;
use kube::client::Body;
use std::task::{Context, Poll};
use tower::Service;

/// A client whose requests carry the ids of one reconcile.
///
/// It shares the connections of `client`. Make one per reconcile, from the context of the
/// reconciled object.
pub fn traced(client: &Client, context: &TraceContext) -> Client {
    let mut headers = HeaderMap::new();
    inject(context, &mut headers);
    Client::new(TraceInjector { client: client.clone(), headers }, client.default_namespace())
}

/// Adds the headers, then sends with the shared client.
struct TraceInjector {
    client: Client,
    headers: HeaderMap,
}

impl Service<Request<Body>> for TraceInjector {
    type Response = http::Response<Body>;
    type Error = kube::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().extend(self.headers.clone());
        let client = self.client.clone();
        Box::pin(async move { client.send(request).await })
    }
}
