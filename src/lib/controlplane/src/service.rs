//! The server's state, and one request from its arrival to its answer.

use crate::exchange::{Exchange, Rejection};
use crate::filters::admit::ANONYMOUS;
use crate::filters::headers::AUDIT_ID;
use crate::flow;
use crate::state::ServerState;
use crate::{filters, handler, status};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_serve::{Body, CloseConnection, Handler, Request, Response};
use ferrokube_trace::{request_span, scoped};
use futures::FutureExt;
use http::{Method, StatusCode, Version};
use http_body_util::BodyExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

impl ServerState {
    /// Answers one request; nothing that its handling does can end the server.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        head: http::request::Parts,
        body: Body,
    ) -> Response {
        flow::seated(&self.flow, self.answer_seated(head, body)).await
    }

    async fn answer_seated(self: &Arc<Self>, head: http::request::Parts, body: Body) -> Response {
        let body = wanted(&head, body);
        let mut under_way =
            UnderWay { state: self, exchange: Exchange::new(head, body), left: false };
        let mut response =
            match AssertUnwindSafe(self.process(&mut under_way.exchange)).catch_unwind().await {
                Ok(response) => response,
                Err(panic) => self.panicked(&mut under_way.exchange, panic.as_ref()),
            };
        under_way.leave(&mut response);
        let exchange = &mut under_way.exchange;
        let recorded = exchange.incoming.audit.recorded.get_mut().ok().and_then(Option::take);
        if let Some(recorded) = recorded
            && let Err(error) = recorded.await
        {
            tracing::error!(error = %error, "a write could not be audited and is not acknowledged");
            response = self.unrecorded(exchange);
        }
        // Nothing that others need is held while a body is dropped, nor the head.
        flow::let_go();
        (exchange.incoming.head.headers, exchange.incoming.head.uri) = Default::default();
        let body = exchange.incoming.take_body();
        crate::body::discard(body, &self.flow, exchange.class().caller).await;
        let unknown = exchange.view().user().name == ANONYMOUS
            || response.status() == StatusCode::UNAUTHORIZED;
        if unknown && exchange.incoming.head.version == Version::HTTP_2 {
            // Fault 37: who does not say who they are gets no HTTP/2 connection to play with.
            response.extensions_mut().insert(CloseConnection);
        }
        response
    }

    async fn process(self: &Arc<Self>, exchange: &mut Exchange) -> Response {
        let outcome = match filters::enter(self, exchange).await {
            Ok(()) => self.handle(exchange).await,
            Err(rejection) => Err(rejection),
        };
        match outcome {
            Ok(response) => response,
            Err(Rejection::Response(response)) => *response,
            Err(Rejection::Failure(failure)) => {
                if failure.reason == Some(Reason::InternalError) {
                    ferrokube_trace::in_scope(&exchange.incoming.trace, || {
                        tracing::error!(
                            why = failure.message,
                            path = exchange.incoming.head.uri.path(),
                            "a request failed"
                        )
                    });
                }
                let response =
                    status::respond(&failure, &self.encoder, &exchange.incoming.head.headers);
                exchange.incoming.audit.failure = Some(*failure);
                response
            }
        }
    }

    async fn handle(self: &Arc<Self>, exchange: &mut Exchange) -> Result<Response, Rejection> {
        let mut request = exchange.request()?;
        let trace = request.trace;
        let span = request_span(&trace, &request.span_info());
        // A request whose time is over before it began does nothing.
        let Some(timeout) = request.timeout.checked_sub(request.started.elapsed()) else {
            return Err(timed_out().into());
        };
        let handled = scoped(trace, span, handler::handle(self, &mut request));
        match tokio::time::timeout(timeout, handled).await {
            Ok(result) => result,
            Err(_) => Err(timed_out().into()),
        }
    }

    fn panicked(&self, exchange: &mut Exchange, panic: &(dyn Any + Send)) -> Response {
        // A computed text may hold what the client sent; only constants of the program are logged
        // (fault 54).
        let what = panic.downcast_ref::<&'static str>().copied().unwrap_or("(computed)");
        self.metrics.panics.inc();
        tracing::error!(
            panic = what,
            path = exchange.incoming.action.path(),
            verb = exchange.incoming.action.verb(),
            "a request panicked"
        );
        let failure = Failure::new(
            Reason::InternalError,
            "this request caused the server to panic; see its log",
        );
        let response = status::respond(&failure, &self.encoder, &exchange.incoming.head.headers);
        exchange.incoming.audit.failure = Some(failure);
        exchange.incoming.audit.panicked = true;
        response
    }

    fn unrecorded(&self, exchange: &Exchange) -> Response {
        let failure = Failure::new(
            Reason::InternalError,
            "the request could not be audited; whether it was carried out is unknown",
        );
        let mut response =
            status::respond(&failure, &self.encoder, &exchange.incoming.head.headers);
        response.headers_mut().insert(AUDIT_ID, exchange.incoming.audit_id.clone());
        response
    }
}

/// The body of a request as far as anybody reads it. That of a read is dropped at once, and not
/// kept while the request waits; HTTP/1.1 closes a connection for that, and takes nothing of a body
/// before it is read.
fn wanted(head: &http::request::Parts, body: Body) -> Body {
    let is_unread =
        head.version == Version::HTTP_2 && matches!(head.method, Method::GET | Method::HEAD);
    if is_unread { crate::body::empty() } else { body }
}

/// A request on its way through the chain. Dropped before it was answered (its client went away,
/// the connection broke), it is recorded all the same: what it writes may be on its way to the disk
/// (fault 55).
struct UnderWay<'a> {
    state: &'a ServerState,
    exchange: Exchange,
    left: bool,
}

impl UnderWay<'_> {
    fn leave(&mut self, response: &mut Response) {
        self.left = true;
        filters::leave(self.state, &mut self.exchange, response);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let message = "the client went away before the answer; whether the request was carried out is unknown";
        self.exchange.incoming.audit.failure = Some(Failure {
            code: CLIENT_CLOSED_REQUEST,
            reason: None,
            ..Failure::new(Reason::InternalError, message)
        });
        self.leave(&mut status::with_type(
            CLIENT_CLOSED_REQUEST,
            "text/plain",
            crate::body::empty(),
        ));
    }
}

/// What log and audit say of a request whose client did not wait: nobody sees it.
pub(crate) const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The answer to a request that took too long: a `Status` without its type, in plain text, as
/// upstream's timeout handler writes it.
fn timed_out() -> Response {
    let failure =
        Failure::new(Reason::Timeout, "request did not complete within the allotted timeout");
    let mut status = failure.to_document();
    for field in ["kind", "apiVersion"] {
        status.remove(&[field]);
    }
    let bytes = ferrokube_apimachinery::json::write(&status).0;
    status::with_type(504, "text/plain; charset=utf-8", crate::body::full(bytes))
}

/// What a listener calls.
pub(crate) struct ApiHandler(pub(crate) Arc<ServerState>);

impl Handler for ApiHandler {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let (head, body) = request.into_parts();
        let body = if http_body::Body::is_end_stream(&body) {
            crate::body::empty()
        } else {
            ferrokube_serve::boxed(body.map_err(std::io::Error::other))
        };
        Box::pin(async move { self.0.answer(head, body).await })
    }
}
