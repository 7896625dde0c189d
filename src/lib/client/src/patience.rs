//! Every request is answered in time, or fails: a server that went without a word (its machine was unplugged, it is paused) must not hold a controller's
//! worker for as long as TCP believes in the connection.

use http::{Request, Response};
use kube::client::Body;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{BoxError, Layer, Service};

/// Until the head of the answer: a little longer than API servers work on a request. What streams after it (a watch) has limits of its own.
const PATIENCE: Duration = Duration::from_secs(65);

/// No answer came.
#[derive(Debug, thiserror::Error)]
#[error("the server did not answer within {} s", PATIENCE.as_secs())]
struct Unanswered;

/// Puts the limit on every request of a client.
#[derive(Clone, Copy)]
pub(crate) struct PatienceLayer;

impl<S> Layer<S> for PatienceLayer {
    type Service = Patient<S>;

    fn layer(&self, inner: S) -> Patient<S> {
        Patient { inner }
    }
}

/// The service that [`PatienceLayer`] makes.
#[derive(Clone)]
pub(crate) struct Patient<S> {
    inner: S,
}

impl<S, B> Service<Request<Body>> for Patient<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.inner.call(request);
        Box::pin(async move {
            match tokio::time::timeout(PATIENCE, answer).await {
                Ok(answered) => answered.map_err(Into::into),
                Err(_) => Err(Unanswered.into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Pending, pending};

    /// A server that is gone without a word.
    struct Gone;

    impl Service<Request<Body>> for Gone {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = Pending<Result<Response<Body>, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            pending()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_answered_fails() {
        let begun = tokio::time::Instant::now();
        let error = PatienceLayer.layer(Gone).call(Request::new(Body::empty())).await.unwrap_err();
        assert_eq!(error.to_string(), "the server did not answer within 65 s");
        assert!((PATIENCE..2 * PATIENCE).contains(&begun.elapsed()));
    }
}
