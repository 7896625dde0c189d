//! Paths of the server, and its failures.

use super::KubeletHandler;
use super::access::NeededRight;
use super::logs;
use super::streams::{PodPath, StreamKind};
use ferrokube_relay::{DelegationError, query_pairs};
use ferrokube_serve::{CloseConnection, Request, Response, full};
use ferrokube_trace::TraceContext;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use percent_encoding::percent_decode_str;

/// Why a request has no answer of its own. Texts are kubelet's.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerFailure {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("405: Method Not Allowed")]
    Method,
    /// The API server or the runtime does not work; why is only logged.
    #[error("{0}")]
    Failed(&'static str),
    #[error("{0}")]
    Runtime(String),
    #[error("too many requests, please try again later")]
    Full,
}

impl From<DelegationError> for ServerFailure {
    fn from(error: DelegationError) -> Self {
        Self::Runtime(error.to_string())
    }
}

impl ServerFailure {
    pub(super) fn into_response(self) -> Response {
        let status = match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Failed(_) | Self::Runtime(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Full => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut response = text(self.to_string());
        *response.status_mut() = status;
        if matches!(self, Self::Unauthorized) {
            response.extensions_mut().insert(CloseConnection);
        }
        response
    }
}

pub(super) fn text(body: String) -> Response {
    typed("text/plain; charset=utf-8", body)
}

fn typed(media_type: &'static str, body: impl Into<bytes::Bytes>) -> Response {
    let mut response = Response::new(full(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    let no_sniff = HeaderName::from_static("x-content-type-options");
    headers.insert(no_sniff, HeaderValue::from_static("nosniff"));
    response
}

impl KubeletHandler {
    pub(super) async fn respond(&self, request: Request) -> Result<Response, ServerFailure> {
        let path = percent_decode_str(request.uri().path()).decode_utf8();
        let path = path.map_err(|_| ServerFailure::BadRequest("invalid path".to_owned()))?;
        let path = path.into_owned();
        let user = self.access.authenticate(&request).await?;
        self.access.authorize(&user, &NeededRight::of(request.method(), &path)).await?;
        // The ids of an authenticated request go on to the runtime, and into log lines.
        let context = ferrokube_trace::extract(request.headers());
        let context = context.map_or_else(TraceContext::root, |context| context.child());
        let work = self.route(&path, request);
        ferrokube_trace::scoped(context, tracing::Span::none(), work).await
    }

    async fn route(&self, path: &str, request: Request) -> Result<Response, ServerFailure> {
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let query = query_pairs(request.uri().query().unwrap_or_default());
        let is_get = request.method() == Method::GET;
        let is_get_or_post = is_get || request.method() == Method::POST;
        match segments.as_slice() {
            ["healthz"] | ["healthz", "ping" | "log" | "syncloop"] if is_get => {
                Ok(text("ok".to_owned()))
            }
            ["pods"] if is_get => Ok(typed("application/json", self.served.list())),
            ["metrics"] if is_get => {
                let mut out = String::new();
                prometheus_client::encoding::text::encode(&mut out, &self.metrics)
                    .map_err(|_| ServerFailure::Failed("cannot write the metrics"))?;
                Ok(typed("application/openmetrics-text; version=1.0.0; charset=utf-8", out))
            }
            ["metrics", "resource"] if is_get => {
                Ok(typed("text/plain; version=0.0.4; charset=utf-8", self.usage.metrics().await))
            }
            ["stats", "summary"] if is_get_or_post => {
                let only = query.iter().find(|(name, _)| name == "only_cpu_and_memory");
                let summary = self.usage.summary(only.is_some_and(|(_, value)| value == "true"));
                let summary = summary
                    .await
                    .map_err(|error| ServerFailure::Runtime(format!("Internal Error: {error}")))?;
                Ok(typed("application/json", summary))
            }
            ["containerLogs", namespace, pod, container] if is_get => {
                let options = logs::LogOptions::read(&query)?;
                self.logs(namespace, pod, container, options).await
            }
            ["exec", namespace, pod, rest @ .., container] if is_get_or_post && rest.len() < 2 => {
                let pod = PodPath { namespace, name: pod, uid: rest.first().copied() };
                self.stream(request, pod, &StreamKind::exec(container, &query)?).await
            }
            ["attach", namespace, pod, rest @ .., container]
                if is_get_or_post && rest.len() < 2 =>
            {
                let pod = PodPath { namespace, name: pod, uid: rest.first().copied() };
                self.stream(request, pod, &StreamKind::attach(container, &query)?).await
            }
            ["portForward", namespace, pod, rest @ ..] if is_get_or_post && rest.len() < 2 => {
                let pod = PodPath { namespace, name: pod, uid: rest.first().copied() };
                self.stream(request, pod, &StreamKind::ports(&query)?).await
            }
            ["healthz" | "pods" | "metrics"]
            | ["metrics", "resource"]
            | ["stats", "summary"]
            | ["containerLogs", _, _, _]
                if !is_get =>
            {
                Err(ServerFailure::Method)
            }
            _ => Err(ServerFailure::NotFound("404 page not found\n".to_owned())),
        }
    }
}
