//! One aggregated group version: connections to its server, and requests delegated to it.

use crate::dial::{DialError, Dialer};
use crate::headers::{self, AUDIT_ID};
use crate::service::RemoteService;
use crate::tunnel::{self, Tunnels};
use bytes::{Bytes, BytesMut};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::{BudgetCaller, Loan, Share};
use ferrokube_serve::{Body, Response};
use ferrokube_trace::{Span, SpanInfo, SpanSide, inject};
use futures::stream;
use http::header::{ACCEPT, CONTENT_LENGTH, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Requests at a time to one service, watches and tunnels included. Shared fairly among callers:
/// what runs long is called back for those with less.
const MAX_REQUESTS: usize = 512;
/// Waiting requests: of one caller, of all.
const QUEUE: (usize, usize) = (16, 256);
/// Max wait for a place.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Idle connections kept, and for how long.
const IDLE: (usize, Duration) = (16, Duration::from_secs(60));
/// Bytes and fields of a response's head.
pub(crate) const HEAD_BYTES: usize = 64 << 10;
pub(crate) const HEAD_FIELDS: usize = 256;
/// Of a request for discovery: every client of the API waits for these.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// As Go writes paths.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// A request that was authenticated and authorized, to be answered by an aggregated server.
pub struct DelegatedRequest<'a> {
    /// Method.
    pub method: Method,
    /// The decoded path that was authorized.
    pub path: &'a str,
    /// The query as it was read; empty for none.
    pub query: String,
    /// The client's.
    pub headers: &'a HeaderMap,
    /// Not read yet.
    pub body: Body,
    /// The user whose rights were checked.
    pub user: &'a UserInfo,
    /// Of the request.
    pub audit_id: &'a HeaderValue,
    /// The client's address.
    pub peer: Option<IpAddr>,
    /// For the service's budget.
    pub caller: BudgetCaller,
    /// Until the end of the response; `None`: long-running.
    pub timeout: Option<Duration>,
    /// The client's connection, if it can be taken over.
    pub upgrade: Option<OnUpgrade>,
    /// Name and attributes of the call's span.
    pub span: SpanInfo<'a>,
}

/// Why a request was not answered by its server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DelegationError {
    /// 503: the last check of the service failed.
    #[error("service unavailable")]
    Unavailable,
    /// 503, with what is known.
    #[error("error trying to reach service: {0}")]
    Unreachable(String),
    /// 502.
    #[error("the backend attempted to redirect this request, which is not permitted")]
    Redirect,
    /// 500: its user cannot be written into headers.
    #[error("the user of this request cannot be forwarded")]
    User,
    /// 429: no room.
    #[error("too many requests, please try again later")]
    Full,
}

/// The server of a group version.
pub struct Backend {
    pub(crate) group: String,
    pub(crate) version: String,
    dialer: Dialer,
    client: Client<Dialer, Body>,
    available: AtomicBool,
    /// Notified when a request fails, so that the next check does not wait.
    pub(crate) suspected: Notify,
    share: Share,
    tunnels: Arc<Tunnels>,
    /// True once the server shuts down.
    ended: watch::Receiver<bool>,
}

/// Why a request of our own failed, without addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    /// The service has no address.
    #[error("{0}")]
    Service(String),
    #[error("{0}")]
    Failed(String),
}

/// The response to a request of our own.
pub(crate) struct Fetched {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Backend {
    pub(crate) fn new(
        (group, version): (&str, &str),
        dialer: Dialer,
        tunnels: &Arc<Tunnels>,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE.0)
            .pool_idle_timeout(IDLE.1)
            .http1_max_buf_size(HEAD_BYTES)
            .http1_max_headers(HEAD_FIELDS)
            .http2_max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
            .build(dialer.clone());
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            dialer,
            client,
            available: AtomicBool::new(false),
            suspected: Notify::new(),
            share: Share::new(MAX_REQUESTS, QUEUE),
            tunnels: Arc::clone(tunnels),
            ended,
        }
    }

    pub(crate) fn service(&self) -> &RemoteService {
        self.dialer.service()
    }

    pub(crate) fn set_available(&self, available: bool) {
        self.available.store(available, Ordering::Relaxed);
    }

    fn uri(&self, path: &str, query: &str) -> Result<Uri, DelegationError> {
        let RemoteService { namespace, name, port, .. } = self.service();
        let authority = match port {
            443 => format!("{name}.{namespace}.svc"),
            port => format!("{name}.{namespace}.svc:{port}"),
        };
        let path = utf8_percent_encode(path, PATH).to_string();
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        Uri::builder()
            .scheme("https")
            .authority(authority)
            .path_and_query(target)
            .build()
            .map_err(|_| DelegationError::Unreachable("its address is malformed".to_owned()))
    }

    /// Delegates a request. Dropped if the client goes away.
    ///
    /// # Errors
    /// [`DelegationError`].
    pub async fn forward(
        &self,
        request: DelegatedRequest<'_>,
    ) -> Result<Response, DelegationError> {
        if !self.available.load(Ordering::Relaxed) {
            return Err(DelegationError::Unavailable);
        }
        let loan =
            self.share.lend(request.caller, 1, MAX_WAIT).await.ok_or(DelegationError::Full)?;
        let protocol = request.upgrade.as_ref().and_then(|_| headers::upgrade(request.headers));
        let mut head = headers::request(request.headers, request.user, request.peer)
            .map_err(|_| DelegationError::User)?;
        head.insert(AUDIT_ID, request.audit_id.clone());
        let (context, mut span) = Span::part(SpanSide::Client, &request.span);
        if let Some(context) = context {
            inject(&context, &mut head);
        }
        let deadline = request.timeout.map(|timeout| Instant::now() + timeout);
        let mut delegated = Request::new(request.body);
        *delegated.method_mut() = request.method;
        *delegated.uri_mut() = self.uri(request.path, &request.query)?;
        *delegated.headers_mut() = head;
        let answered = match (protocol, request.upgrade) {
            (Some(protocol), Some(client)) => {
                let call = tunnel::UpgradeCall { protocol, client, loan, request: delegated };
                tunnel::forward(&self.dialer, &self.tunnels, call).await
            }
            _ => {
                let relay = Relay { loan, deadline, ended: self.ended.clone() };
                self.exchange(delegated, relay).await
            }
        };
        if let Err(error) = &answered {
            span.fail();
            if matches!(error, DelegationError::Unreachable(_)) {
                self.suspected.notify_one();
            }
        }
        answered
    }

    async fn exchange(
        &self,
        request: Request<Body>,
        mut relay: Relay,
    ) -> Result<Response, DelegationError> {
        let answered = tokio::select! {
            biased;
            answered = self.client.request(request) => answered,
            why = relay.interrupted() => return Err(why),
        };
        let response = answered.map_err(|error| unreachable_by(&error))?;
        relayed(response, relay)
    }

    /// GET as the aggregator itself, with a bounded body.
    ///
    /// # Errors
    /// What is known of the reason, without addresses.
    pub(crate) async fn fetch(
        &self,
        path: &str,
        accept: &'static str,
        etag: Option<&HeaderValue>,
        max_bytes: usize,
    ) -> Result<Fetched, FetchError> {
        let user = UserInfo {
            name: "system:kube-aggregator".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        let mut request = Request::new(ferrokube_serve::empty());
        *request.uri_mut() = self.uri(path, "").map_err(|error| failed(&error))?;
        let head = request.headers_mut();
        headers::identify(head, &user).map_err(|_| failed(&"the user is malformed"))?;
        head.insert(ACCEPT, HeaderValue::from_static(accept));
        if let Some(etag) = etag {
            head.insert(http::header::IF_NONE_MATCH, etag.clone());
        }
        let fetching = async {
            let response =
                self.client.request(request).await.map_err(|error| fetch_error(&error))?;
            let (head, body) = response.into_parts();
            let body = collect(body, max_bytes).await.map_err(FetchError::Failed)?;
            Ok(Fetched { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(DISCOVERY_TIMEOUT, fetching)
            .await
            .unwrap_or_else(|_| Err(failed(&"it did not answer in time")))
    }
}

fn failed(why: &dyn Display) -> FetchError {
    FetchError::Failed(why.to_string())
}

fn fetch_error(error: &(dyn Error + 'static)) -> FetchError {
    match dial_error(error) {
        Some(DialError::Service(why)) => FetchError::Service(why.clone()),
        _ => FetchError::Failed(reason(error)),
    }
}

async fn collect(mut body: Incoming, max_bytes: usize) -> Result<Bytes, String> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| "its answer broke off".to_owned())?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > max_bytes {
                return Err(format!("its answer is longer than {max_bytes} bytes"));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

pub(crate) fn unreachable_by(error: &(dyn Error + 'static)) -> DelegationError {
    DelegationError::Unreachable(reason(error))
}

/// The error of the connection behind an error of the client.
fn dial_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a DialError> {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if let Some(dial) = inner.downcast_ref::<DialError>() {
            return Some(dial);
        }
        cause = inner.source();
    }
    None
}

/// The class of an error; its causes are only logged.
fn reason(error: &(dyn Error + 'static)) -> String {
    if let Some(dial) = dial_error(error) {
        return dial.to_string();
    }
    tracing::debug!(%error, "a request to an aggregated server failed");
    "the connection broke before it answered".to_owned()
}

/// What a response holds while it streams.
pub(crate) struct Relay {
    pub(crate) loan: Loan,
    /// `None`: long-running.
    pub(crate) deadline: Option<Instant>,
    pub(crate) ended: watch::Receiver<bool>,
}

impl Relay {
    /// Resolves when others need the place, or the time is over: for what has no deadline, when
    /// the server shuts down.
    pub(crate) async fn interrupted(&mut self) -> DelegationError {
        let Self { loan, deadline, ended } = self;
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
        tokio::select! {
            () = loan.called_back() => DelegationError::Full,
            why = over => why,
        }
    }
}

/// The response for the client: no redirects, no fields of the other connection.
pub(crate) fn relayed(
    response: http::Response<Incoming>,
    relay: Relay,
) -> Result<Response, DelegationError> {
    let (mut head, body) = response.into_parts();
    if head.status.is_redirection() && head.headers.contains_key(LOCATION) {
        return Err(DelegationError::Redirect);
    }
    if head.status.is_informational() {
        // A proxy in between would join its two connections.
        let why = "it switched protocols without being asked to".to_owned();
        return Err(DelegationError::Unreachable(why));
    }
    if head.headers.contains_key(TRANSFER_ENCODING) {
        // RFC 9112, section 6.3: the length is that of the chunks.
        head.headers.remove(CONTENT_LENGTH);
    }
    headers::remove_hop_by_hop(&mut head.headers);
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

/// Takes the client's connection out of a request, for [`DelegatedRequest::upgrade`].
pub fn take_upgrade(extensions: &mut http::Extensions) -> Option<OnUpgrade> {
    extensions.remove()
}
