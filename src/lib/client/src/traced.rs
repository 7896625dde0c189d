//! The three ids on every request of a reconcile: `traceparent` and `Initial-Trace-Id`.

use ferrokube_trace::{Carrier, TraceContext, inject};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use kube::Client;
use kube::client::Body;
use std::task::{Context, Poll};
use tower::Service;

/// A client whose requests carry the ids of one reconcile.
///
/// It shares the connections of `client`. Make one for each reconcile, from the context of the object that the reconcile acts on.
pub fn traced(client: &Client, context: &TraceContext) -> Client {
    let mut headers = Headers(HeaderMap::new());
    inject(context, &mut headers);
    Client::new(Injecting { client: client.clone(), headers: headers.0 }, client.default_namespace())
}

struct Headers(HeaderMap);

impl Carrier for Headers {
    fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.get_all(name).iter();
        let first = values.next()?;
        if values.next().is_some() { None } else { first.to_str().ok() }
    }

    fn set(&mut self, name: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

/// Adds the headers, then sends with the shared client.
struct Injecting {
    client: Client,
    headers: HeaderMap,
}

impl Service<Request<Body>> for Injecting {
    type Response = http::Response<Body>;
    type Error = kube::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.headers_mut().extend(self.headers.clone());
        let client = self.client.clone();
        Box::pin(async move { client.send(request).await })
    }
}
