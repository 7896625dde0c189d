//! The server's routes.

use super::KubeletHandler;
use super::access::NeededRight;
use super::failure::{ServerFailure, text, typed};
use super::logs;
use super::streams::{PodPath, StreamKind};
use ferrokube_relay::query_pairs;
use ferrokube_serve::{Request, Response};
use ferrokube_trace::TraceContext;
use http::Method;
use percent_encoding::percent_decode_str;

impl KubeletHandler {
    pub(super) async fn respond(&self, request: Request) -> Result<Response, ServerFailure> {
        let path = percent_decode_str(request.uri().path()).decode_utf8();
        let path = path.map_err(|_| ServerFailure::BadRequest("invalid path".to_owned()))?;
        let path = path.into_owned();
        let (head, body) = request.into_parts();
        let user = self.access.authenticate(&head).await?;
        self.access.authorize(&user, &NeededRight::of(&head.method, &path)).await?;
        // The trace ids of an authenticated request are passed on to the runtime and logged.
        let context = ferrokube_trace::extract(&head.headers);
        let context = context.map_or_else(TraceContext::root, |context| context.child());
        let work = self.route(&path, Request::from_parts(head, body));
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
                if let Some(write) = &self.written {
                    write(&mut out);
                }
                self.served.node.volumes.write_metrics(&mut out);
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
