//! Adds `traceparent` and `Initial-Trace-Id` to every request of a reconcile.

use ferrokube_trace::{TraceContext, inject};
use http::{HeaderMap, Request};
use kube::Client;
use kube::client::Body;
use tower::service_fn;

/// A client whose requests carry the ids of one reconcile.
///
/// It shares the connections of `client`. Make one per reconcile, from the context of the
/// reconciled object.
pub fn traced(client: &Client, context: &TraceContext) -> Client {
    let mut headers = HeaderMap::new();
    inject(context, &mut headers);
    let (sender, namespace) = (client.clone(), client.default_namespace());
    let send = move |mut request: Request<Body>| {
        request.headers_mut().extend(headers.clone());
        let client = sender.clone();
        async move { client.send(request).await }
    };
    Client::new(service_fn(send), namespace)
}
