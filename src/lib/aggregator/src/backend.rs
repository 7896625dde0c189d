//! One aggregated group version: connections to its server, and requests delegated to it.

use crate::dial::{DialError, Dialer};
use crate::headers::{self, AUDIT_ID};
use crate::service::RemoteService;
use bytes::{Bytes, BytesMut};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::{BudgetCaller, QueueLimit, Share};
use ferrokube_relay::{
    DelegationError, HEAD_BYTES, HEAD_FIELDS, OnUpgrade, Relay, Tunnels, UpgradeCall, broken_by,
    relayed, target_uri, upgrade_protocol,
};
use ferrokube_serve::{Body, Response};
use ferrokube_trace::{Span, SpanInfo, SpanSide, inject};
use ferrokube_webhook::ServiceError;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Max concurrent requests to one service, including watches and tunnels. Shared fairly:
/// long-running ones are revoked for callers with fewer.
const MAX_REQUESTS: usize = 512;
/// Waiting requests.
const QUEUE: QueueLimit = QueueLimit { per_caller: 16, total: 256 };
/// Max wait for a place.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Idle connections kept.
const MAX_IDLE: usize = 16;
/// How long they are kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Max time of a request for discovery: every client of the API waits for these.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// A request that was authenticated and authorized, to be answered by an aggregated server.
pub struct DelegatedRequest<'a> {
    /// As authorized.
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
    /// Audit id of the request.
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
    #[error(transparent)]
    Service(ServiceError),
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
        group: &str,
        version: &str,
        dialer: Dialer,
        tunnels: &Arc<Tunnels>,
        ended: watch::Receiver<bool>,
    ) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
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
        target_uri("https", &authority, path, query)
            .ok_or_else(|| DelegationError::Unreachable("its address is malformed".to_owned()))
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
        let protocol = request.upgrade.as_ref().and_then(|_| upgrade_protocol(request.headers));
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
        let relay = Relay {
            loan: Some(loan),
            deadline: None,
            ended: self.ended.clone(),
            place: None,
            redirects: None,
        };
        let answered = match (protocol, request.upgrade) {
            (Some(protocol), Some(client)) => {
                let call = UpgradeCall { protocol, client, relay, request: delegated };
                self.upgrade(call).await
            }
            _ => self.exchange(delegated, Relay { deadline, ..relay }).await,
        };
        if let Err(error) = &answered {
            span.fail();
            if matches!(error, DelegationError::Unreachable(_)) {
                self.suspected.notify_one();
            }
        }
        answered
    }

    async fn upgrade(&self, mut call: UpgradeCall) -> Result<Response, DelegationError> {
        let dialed = async {
            let dialed = self.dialer.dial().await;
            dialed.map_err(|error| DelegationError::Unreachable(error.to_string()))
        };
        let dialed = call.relay.unless_interrupted(dialed).await?;
        ferrokube_relay::upgraded(dialed.into_inner(), &self.tunnels, call).await
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
    /// The reason, without addresses.
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

fn unreachable_by(error: &(dyn Error + 'static)) -> DelegationError {
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
    broken_by(error)
}
