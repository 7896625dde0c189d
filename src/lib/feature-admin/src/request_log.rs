//! A client whose requests carry the trace ids of one invocation, each in its own span, and that
//! can print its requests.

use ferrokube_client::traced;
use ferrokube_trace::TraceContext;
use http::Request;
use kube::Client;
use kube::client::Body;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;
use tower::service_fn;

/// Receives a line for each request.
pub type RequestNote = Arc<dyn Fn(&str) + Send + Sync>;

/// `client` with the ids of a new trace, which is its own family.
pub(crate) fn logged(client: &Client, note: Option<RequestNote>) -> Client {
    let root = TraceContext::root();
    let root = root.with_initial(Some(root.trace_id));
    let (shared, namespace) = (client.clone(), client.default_namespace());
    let send = move |request: Request<Body>| {
        let context = root.child();
        let (client, note) = (traced(&shared, &context), note.clone());
        let mut line = format!("{} {}", request.method(), request.uri());
        async move {
            let begun = Instant::now();
            let response = client.send(request).await;
            if let Some(note) = note {
                let outcome = match &response {
                    Ok(response) => response.status().as_str().to_owned(),
                    Err(_) => "no response".to_owned(),
                };
                let initial = context.initial.map(|id| id.to_string()).unwrap_or_default();
                // Writing to a string cannot fail.
                let _ = write!(
                    line,
                    ": {outcome} in {} ms, traceparent {context}, initial-trace-id {initial}",
                    begun.elapsed().as_millis()
                );
                note(&line);
            }
            response
        }
    };
    Client::new(service_fn(send), namespace)
}
