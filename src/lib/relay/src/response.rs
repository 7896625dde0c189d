//! Relays responses of other servers to clients.

use crate::headers::remove_hop_by_hop;
use bytes::Bytes;
use ferrokube_flow::Loan;
use ferrokube_serve::Response;
use futures::stream;
use http::header::{CONTENT_LENGTH, LOCATION, TRANSFER_ENCODING};
use http::{HeaderValue, Uri};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::any::Any;
use std::error::Error;
use std::io;
use tokio::sync::watch;
use tokio::time::Instant;

/// Why a request was not forwarded successfully.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DelegationError {
    /// 503: the last check of the service failed.
    #[error("service unavailable")]
    Unavailable,
    /// 503, with the cause.
    #[error("error trying to reach service: {0}")]
    Unreachable(String),
    /// 502.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// 500: the user cannot be encoded in headers.
    #[error("the user of this request cannot be forwarded")]
    User,
    /// 429: too many connections.
    #[error("too many requests, please try again later")]
    Full,
}

/// The class of a connection error; its causes are only logged.
pub fn broken_by(error: &(dyn Error + 'static)) -> String {
    tracing::debug!(%error, "a request to another server failed");
    "the connection broke before it answered".to_owned()
}

/// State of a streaming response.
pub struct Relay {
    /// A revocable permit; `None` if bounded elsewhere.
    pub loan: Option<Loan>,
    /// `None`: long-running.
    pub deadline: Option<Instant>,
    /// True once this server shuts down.
    pub ended: watch::Receiver<bool>,
    /// Released when the response has ended.
    pub place: Option<Box<dyn Any + Send>>,
    /// Rewrites redirects for the client; `None`: redirects are refused.
    pub redirects: Option<LocationBase>,
}

/// Maps locations on the other server to paths on this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocationBase {
    /// Host and port of the other server.
    pub authority: String,
    /// Path prefix here.
    pub prefix: String,
}

impl LocationBase {
    /// Rewrites a location for the client; locations on third servers stay unchanged.
    fn located(&self, location: &HeaderValue) -> Option<HeaderValue> {
        let uri: Uri = location.to_str().ok()?.parse().ok()?;
        let is_ours = uri.authority().is_none_or(|host| host.as_str() == self.authority);
        if !is_ours || !uri.path().starts_with('/') {
            return Some(location.clone());
        }
        let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
        HeaderValue::from_str(&format!("{}{}{query}", self.prefix, uri.path())).ok()
    }
}

impl Relay {
    /// Resolves when the permit is revoked or the deadline passes; without a deadline, when the
    /// server shuts down.
    pub async fn interrupted(&mut self) -> DelegationError {
        let Self { loan, deadline, ended, .. } = self;
        let over = async {
            if let Some(deadline) = deadline {
                tokio::time::sleep_until(*deadline).await;
                let why = "it did not answer in time".to_owned();
                return DelegationError::Unreachable(why);
            }
            if ended.wait_for(|ended| *ended).await.is_err() {
                std::future::pending::<()>().await;
            }
            DelegationError::Unavailable
        };
        let revoked = async {
            match loan {
                Some(loan) => loan.revoked().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = revoked => DelegationError::Full,
            why = over => why,
        }
    }

    /// Waits for a step of the request until it is interrupted: a server that does not answer keeps
    /// no permit that other callers need.
    ///
    /// # Errors
    /// Those of the step, and of [`Self::interrupted`].
    pub async fn unless_interrupted<T>(
        &mut self,
        step: impl Future<Output = Result<T, DelegationError>>,
    ) -> Result<T, DelegationError> {
        tokio::select! {
            biased;
            done = step => done,
            why = self.interrupted() => Err(why),
        }
    }
}

/// The response for the client, without hop-by-hop fields.
///
/// # Errors
/// [`DelegationError`]: a refused redirect, or an unrequested switch of protocols.
pub fn relayed(
    response: http::Response<Incoming>,
    relay: Relay,
) -> Result<Response, DelegationError> {
    let (mut head, body) = response.into_parts();
    if head.status.is_redirection()
        && let Some(location) = head.headers.get(LOCATION)
    {
        let located = relay.redirects.as_ref().and_then(|base| base.located(location));
        head.headers.insert(LOCATION, located.ok_or(DelegationError::Redirect)?);
    }
    if head.status.is_informational() {
        // An intermediate proxy would connect its two connections.
        let why = "it switched protocols without being asked to".to_owned();
        return Err(DelegationError::Unreachable(why));
    }
    if head.headers.contains_key(TRANSFER_ENCODING) {
        // RFC 9112, section 6.3: chunked encoding overrides Content-Length.
        head.headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(&mut head.headers);
    let body = if body.is_end_stream() {
        ferrokube_serve::empty()
    } else {
        ferrokube_serve::stream(stream::unfold(Some((body, relay)), next_piece))
    };
    let mut out = Response::new(body);
    *out.status_mut() = head.status;
    *out.headers_mut() = head.headers;
    Ok(out)
}

type Relayed = Option<(Incoming, Relay)>;

async fn next_piece(state: Relayed) -> Option<(io::Result<Bytes>, Relayed)> {
    let (mut body, mut relay) = state?;
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame?,
            why = relay.interrupted() => return Some((Err(io::Error::other(why)), None)),
        };
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) if data.is_empty() => {}
            Ok(Ok(data)) => return Some((Ok(data), Some((body, relay)))),
            // Trailers.
            Ok(Err(_)) => {}
            Err(error) => return Some((Err(io::Error::other(error)), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_within_the_other_server_stays_below_the_proxy() {
        let base = LocationBase { authority: "10.0.0.1:80".to_owned(), prefix: "/p".to_owned() };
        let located = |text: &'static str| base.located(&HeaderValue::from_static(text)).unwrap();
        assert_eq!(located("/login?a=b"), "/p/login?a=b");
        assert_eq!(located("http://10.0.0.1:80/x"), "/p/x");
        assert_eq!(located("http://169.254.169.254/x"), "http://169.254.169.254/x");
    }
}
