//! One request from arrival to response.

use crate::exchange::{Exchange, StateBasis};
use crate::filters::headers::AUDIT_ID;
use crate::rejection::{CLIENT_CLOSED_REQUEST, Rejection};
use crate::state::ServerState;
use crate::{filters, handler, status};
use ferrokube_apimachinery::document::json;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_auth::access::ANONYMOUS;
use ferrokube_flow as flow;
use ferrokube_serve::{Body, CloseConnection, Handler, Request, Response};
use ferrokube_storage::remote::relying;
use ferrokube_trace::{request_span, scoped};
use futures::FutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Method, StatusCode, Version};
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;

impl ServerState {
    /// Responds to one request. A panic in its handling becomes a 500. Not an `async fn`, whose
    /// future would store head and body once more.
    pub(crate) fn respond(
        self: Arc<Self>,
        head: http::request::Parts,
        body: Body,
    ) -> impl Future<Output = Response> + Send {
        let flow = Arc::clone(&self.flow);
        flow::with_budgets(flow, self.respond_with_budgets(head, body))
    }

    async fn respond_with_budgets(
        self: Arc<Self>,
        head: http::request::Parts,
        body: Body,
    ) -> Response {
        let body = without_unread_body(&head, body);
        let mut guard =
            ExchangeGuard { state: &self, exchange: Exchange::new(head, body), left: false };
        let mut response =
            match AssertUnwindSafe(self.process(&mut guard.exchange)).catch_unwind().await {
                Ok(response) => response,
                Err(panic) => self.panicked(&mut guard.exchange, panic.as_ref()),
            };
        guard.leave(&mut response);
        let exchange = &mut guard.exchange;
        let recorded = exchange.incoming.audit.recorded.get_mut().take();
        if let Some(recorded) = recorded
            && let Err(error) = recorded.await
            && !filters::audit::may_be_missing(exchange, &error)
        {
            tracing::error!(error = %error, "a write could not be audited and is not acknowledged");
            response = self.unaudited_write(exchange, response.headers_mut().remove(&AUDIT_ID));
        }
        // Dropping the body may wait; nothing that others need is held meanwhile.
        flow::release_all();
        (exchange.incoming.head.headers, exchange.incoming.head.uri) = Default::default();
        let body = exchange.incoming.take_body();
        crate::body::discard(body, &self.flow, exchange.class().caller).await;
        if exchange.incoming.head.version == Version::HTTP_2 && is_unauthenticated(exchange) {
            // Fault 37: clients without credentials do not keep an HTTP/2 connection.
            response.extensions_mut().insert(CloseConnection);
        } else if response.status() == StatusCode::UNAUTHORIZED && exchange.authenticated.is_none()
        {
            // Fault 51: every further token costs a handshake in the lobby, not only the signature
            // that a worker checks.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn process(self: &Arc<Self>, exchange: &mut Exchange) -> Response {
        let entered = filters::enter(self, exchange).await;
        let basis = std::mem::take(&mut exchange.incoming.basis);
        let outcome = match entered {
            Ok(()) => self.handle(exchange, &basis).await,
            Err(rejection) => Err(rejection),
        };
        match self.upheld(basis, outcome).await {
            Ok(response) => response,
            Err(Rejection::Response(response)) => *response,
            Err(Rejection::Failure(failure) | Rejection::Unrouted(failure)) => {
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

    /// The end of a request, unless it shows a state that may be outdated. An error of the
    /// server shows none, and says whether a write may have happened.
    async fn upheld(
        &self,
        basis: StateBasis,
        outcome: Result<Response, Rejection>,
    ) -> Result<Response, Rejection> {
        let shows_state = outcome.as_ref().map_or_else(Rejection::code, |_| 200) < 500;
        if let StateBasis::Sole(reliance) = basis
            && shows_state
        {
            self.registry.uphold(reliance).await?;
        }
        outcome
    }

    async fn handle(
        self: &Arc<Self>,
        exchange: &mut Exchange,
        basis: &StateBasis,
    ) -> Result<Response, Rejection> {
        let mut request = exchange.request()?;
        let trace = request.trace;
        let span = request_span(&trace, &request.span_info());
        // The deadline may have passed while filters waited.
        let Some(timeout) = request.timeout.checked_sub(request.started.elapsed()) else {
            return Err(timed_out().into());
        };
        // Pinned here, as what follows would store it again.
        let handled = pin!(handler::handle(self, &mut request));
        let handled = scoped(trace, span, handled);
        // Boxed: only where servers share the state.
        let ended = match basis {
            StateBasis::Any => tokio::time::timeout(timeout, handled).await,
            StateBasis::CaughtUp => {
                let handled = Box::pin(ferrokube_registry::caught_up(handled));
                tokio::time::timeout(timeout, handled).await
            }
            StateBasis::Sole(reliance) => {
                let handled = Box::pin(relying(Arc::clone(reliance), handled));
                tokio::time::timeout(timeout, handled).await
            }
        };
        match ended {
            Ok(result) => result,
            Err(_) => Err(timed_out().into()),
        }
    }

    fn panicked(&self, exchange: &mut Exchange, panic: &(dyn Any + Send)) -> Response {
        // Only constant messages: a formatted one may contain client data (fault 54).
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

    fn unaudited_write(&self, exchange: &Exchange, audit_id: Option<HeaderValue>) -> Response {
        let failure = Failure::new(
            Reason::InternalError,
            "the request could not be audited; whether it was carried out is unknown",
        );
        let mut response =
            status::respond(&failure, &self.encoder, &exchange.incoming.head.headers);
        if let Some(id) = audit_id {
            response.headers_mut().insert(&AUDIT_ID, id);
        }
        response
    }
}

/// Whether the client has not authenticated: without credentials, with invalid ones (401), or
/// rejected before they were checked.
fn is_unauthenticated(exchange: &Exchange) -> bool {
    let name = &exchange.view().user().name;
    name.is_empty() || name == ANONYMOUS
}

/// Drops the body of an HTTP/2 read at once instead of keeping it while the request waits. HTTP/1.1
/// would close the connection for that, and reads nothing of a body before it is polled.
fn without_unread_body(head: &http::request::Parts, body: Body) -> Body {
    let is_unread =
        head.version == Version::HTTP_2 && matches!(head.method, Method::GET | Method::HEAD);
    if is_unread { crate::body::empty() } else { body }
}

/// A request between its filters. If it is dropped before its response (the client or the
/// connection went away), it is audited nevertheless: its write may be on its way to the disk
/// (fault 55).
struct ExchangeGuard<'a> {
    state: &'a ServerState,
    exchange: Exchange,
    left: bool,
}

impl ExchangeGuard<'_> {
    fn leave(&mut self, response: &mut Response) {
        self.left = true;
        filters::leave(self.state, &mut self.exchange, response);
    }
}

impl Drop for ExchangeGuard<'_> {
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

/// A `Status` without its type, in plain text, as kube-apiserver's timeout handler writes it.
fn timed_out() -> Response {
    let failure = Failure::new(
        Reason::Timeout,
        "Timeout: request did not complete within the allotted timeout",
    );
    let mut status = failure.to_document();
    status.set(&["details"], json!({}));
    for field in ["kind", "apiVersion"] {
        status.remove(&[field]);
    }
    let bytes = ferrokube_apimachinery::json::write(&status).0;
    status::with_type(504, "text/plain; charset=utf-8", crate::body::full(bytes))
}

impl Handler for ServerState {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let (head, body) = request.into_parts();
        Box::pin(self.respond(head, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange;

    /// Without a value: the closure is never called.
    fn bytes_of<S, R, B, F: Future>(_call: impl FnOnce(S, R, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Every request allocates and clears its future, a GET the same one as a delegated request.
    /// What few requests need (webhooks, aggregated servers) is boxed where it is called, so that
    /// it adds a pointer; a larger future here is a cost of every request.
    #[test]
    fn the_future_of_a_request_stays_small() {
        type Head = http::request::Parts;
        type Request = &'static mut exchange::Request<'static>;
        let whole =
            bytes_of(|state: Arc<ServerState>, head: Head, body: Body| state.respond(head, body));
        let handled = bytes_of(|state: &'static ServerState, request: Request, ()| {
            handler::handle(state, request)
        });
        assert!(handled <= 768, "{handled} bytes in the handler");
        assert!(whole <= 4 << 10, "{whole} bytes in all");
    }
}
