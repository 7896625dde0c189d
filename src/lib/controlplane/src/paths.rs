//! Non-resource paths: discovery, OpenAPI, health, metrics, tables of flow control, mounted routes.

use crate::action::{Action, no_such_resource};
use crate::decode::leave_worker_or_reject;
use crate::discovery::Discovery;
use crate::encode::{Encoded, Encoder};
use crate::exchange::Request;
use crate::health::Health;
use crate::metrics::{self, MetricSources, Metrics};
use crate::mounts::Mounts;
use crate::negotiate::{self, Accepted, Form, wants_pretty};
use crate::openapi::OpenApi;
use crate::rejection::{Rejection, method_not_allowed};
use crate::route::{Route, RouteRequest};
use crate::{body, openapi, status, version};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_features::{Gates, OPENAPI_V3};
use ferrokube_flow::{Flow, shrink_list};
use ferrokube_registry::Registry;
use ferrokube_serve::{BodyGuard, Response};
use http::header::{ACCEPT, AUTHORIZATION, HeaderName, USER_AGENT};
use http_body::Body as _;
use std::sync::Arc;

/// State of non-resource paths.
pub(crate) struct PathApi {
    pub(crate) discovery: Arc<Discovery>,
    pub(crate) openapi: OpenApi,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) metric_sources: MetricSources,
    pub(crate) mounts: Mounts,
    pub(crate) encoder: Encoder,
    pub(crate) gates: Gates,
    pub(crate) flow: Arc<Flow>,
    pub(crate) registry: Registry,
}

/// Responds to an authorized request for a path that is no resource's.
pub(crate) async fn handle(
    api: &PathApi,
    request: &mut Request<'_>,
    action: &Action,
) -> Result<Response, Rejection> {
    let path = action.path();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    if path.len() > 1
        && path.ends_with('/')
        && matches!(segments[0], "healthz" | "livez" | "readyz" | "metrics" | "openapi")
    {
        // These are registered as exact paths; the others are parsed into segments.
        return Ok(if segments.len() == 2 && segments[1] == "v3" {
            openapi::not_found()
        } else {
            status::not_found()
        });
    }
    let is_get = action.verb() == "get";
    let get_only = || if is_get { Ok(()) } else { Err(Rejection::from(method_not_allowed())) };
    if path.starts_with("/apis//") {
        // An empty group name is not the core group.
        return Ok(status::not_found());
    }
    match segments.as_slice() {
        [""] | ["index.html"] => root(api),
        ["api"] => {
            get_only()?;
            discover(api, request, &segments).await
        }
        ["apis"] | ["apis", _] | ["api", _] | ["apis", _, _] => {
            discover(api, request, &segments).await
        }
        ["version"] => {
            get_only()?;
            negotiate::route(request.header(ACCEPT), &[Form::Json.media_type()])?;
            let pretty = wants_pretty(action.options().pretty(), request.header(USER_AGENT));
            let accepted = Accepted { pretty, ..Accepted::JSON };
            Ok(status::encoded(200, api.encoder.document(&version::document(), accepted, None)))
        }
        ["version", ..] => Err(no_such_resource().into()),
        ["healthz" | "livez" | "readyz"] => {
            Ok(api.health.respond(segments[0], None, action.options()))
        }
        ["healthz" | "livez" | "readyz", check @ ..] => {
            Ok(api.health.respond(segments[0], Some(&check.join("/")), action.options()))
        }
        ["metrics"] => Ok(api.metrics.respond(&api.metric_sources, request.header(ACCEPT))),
        ["metrics", "slis"] => {
            Ok(metrics::respond(api.health.outcomes().text(), request.header(ACCEPT)))
        }
        ["debug", "api_priority_and_fairness", table] => {
            get_only()?;
            Ok(dump(api, table, action).unwrap_or_else(status::not_found))
        }
        ["openapi", "v2"] => api.openapi.v2(request.parsed_head()).await,
        ["openapi", "v3", ..] if !api.gates.enabled(&OPENAPI_V3) => Ok(openapi::not_found()),
        ["openapi", "v3"] => {
            api.openapi.index(api.registry.offload(), request.caller_number()).await
        }
        ["openapi", "v3", document @ ..] => {
            api.openapi.v3(request.parsed_head(), &document.join("/")).await
        }
        _ => route(api, request, action).await,
    }
}

/// Discovery. Its time is the caller's, as that of a request for an object: every user may read
/// documents of all kinds.
async fn discover(
    api: &PathApi,
    request: &Request<'_>,
    segments: &[&str],
) -> Result<Response, Rejection> {
    let (discovery, head) = (&api.discovery, request.parsed_head());
    let answer = async move {
        match *segments {
            ["api"] => discovery.core(head).await,
            ["apis"] => discovery.groups(head).await,
            ["apis", group] => discovery.group(head, group).await,
            ["api", version] => discovery.resources(head, "", version).await,
            ["apis", group, version] => discovery.resources(head, group, version).await,
            _ => Ok(status::not_found()),
        }
    };
    api.registry.offload().run(request.caller_number(), Box::pin(answer)).await
}

async fn route(
    api: &PathApi,
    request: &mut Request<'_>,
    action: &Action,
) -> Result<Response, Rejection> {
    let Some(route) = api.mounts.find(action.path()) else { return Ok(status::not_found()) };
    let mut head = http::Request::new(()).into_parts().0;
    head.method = request.head.method.clone();
    head.uri = request.head.uri.clone();
    head.version = request.head.version;
    // A mounted route gets the user, not the credentials or identity headers.
    head.headers = request.head.headers.clone();
    let claims: Vec<HeaderName> =
        head.headers.keys().filter(|name| is_identity_header(name)).cloned().collect();
    for name in claims {
        head.headers.remove(name);
    }
    let routed = RouteRequest {
        path: action.path().to_owned(),
        head,
        body: request.take_body().unwrap_or_else(body::empty),
        user: UserInfo::clone(request.user()),
    };
    if route.room() == 0 {
        return route.answer(routed).await.map_err(Rejection::from);
    }
    // Boxed: every request would carry its future.
    Box::pin(answer_in_slot(api, request, &*route, routed)).await
}

/// The response of a route that needs room, which it holds until its client has read it.
async fn answer_in_slot(
    api: &PathApi,
    request: &Request<'_>,
    route: &dyn Route,
    routed: RouteRequest,
) -> Result<Response, Rejection> {
    let (class, held) = (request.class(), api.metrics.held());
    api.flow.list(class, route.room(), held).await?;
    let caller = request.caller_number();
    let answer = async {
        leave_worker_or_reject(caller, 0).await?;
        route.answer(routed).await.map_err(Rejection::from)
    };
    let mut response = api.registry.offload().run(caller, Box::pin(answer)).await?;
    let bytes = response.body().size_hint().upper().and_then(|bytes| bytes.try_into().ok());
    let bytes = bytes.unwrap_or(route.room());
    shrink_list(bytes);
    if let Some(room) = api.flow.take_list_grant(class, bytes, held).await? {
        response.extensions_mut().insert(BodyGuard(Arc::new(room)));
    }
    Ok(response)
}

fn is_identity_header(name: &HeaderName) -> bool {
    *name == AUTHORIZATION
        || name.as_str().starts_with("impersonate-")
        || name.as_str().starts_with("x-remote-")
}

/// The tables of priority and fairness, while it is on.
fn dump(api: &PathApi, table: &str, action: &Action) -> Option<Response> {
    let levels = api.flow.levels();
    let text = match table {
        _ if !api.flow.limits().priority_and_fairness => return None,
        "dump_priority_levels" => levels.dump_levels(),
        "dump_queues" => levels.dump_queues(),
        "dump_requests" => levels.dump_requests(action.options().has_request_details()),
        _ => return None,
    };
    Some(status::bare_text(200, text))
}

/// The list of paths at `/`.
fn root(api: &PathApi) -> Result<Response, Rejection> {
    let mut paths: Vec<String> = [
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for (group, versions) in api.discovery.group_versions() {
        if group.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    for probe in ["healthz", "livez", "readyz"] {
        paths.extend(api.health.names(probe).map(|check| format!("/{probe}/{check}")));
    }
    paths.extend(api.mounts.paths().map(str::to_owned));
    paths.sort_unstable();
    paths.dedup();
    let mut document = Document::new();
    document.set(&["paths"], paths);
    let value = document.into_value();
    let mut bytes = ferrokube_apimachinery::json::to_vec_pretty(&value);
    bytes.push(b'\n');
    Ok(status::encoded(200, Encoded { bytes: bytes.into(), form: Form::Json }))
}
