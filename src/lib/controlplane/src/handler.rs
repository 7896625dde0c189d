//! Dispatch of an authorized request: resources by the catalog, everything else by path.

use crate::action::{Action, no_such_resource};
use crate::encode::Encoded;
use crate::exchange::Request;
use crate::filters::audit;
use crate::negotiate::{self, Accepted, Form, wants_pretty};
use crate::rejection::{Rejection, method_not_allowed};
use crate::route::RouteRequest;
use crate::state::ServerState;
use crate::{body, compress, delegate, openapi, router, status, version};
use ferrokube_aggregator::Backend;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_features::OPENAPI_V3;
use ferrokube_serve::Response;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderName, USER_AGENT};
use std::sync::Arc;

pub(crate) async fn handle(
    state: &Arc<ServerState>,
    request: &mut Request<'_>,
) -> Result<Response, Rejection> {
    audit::admit(state, request)?;
    let gzip = compress::accepts(request.header(ACCEPT_ENCODING));
    let Some(authorized) = request.authenticated.authorized.clone() else {
        return Err(Failure::internal("the request was not authorized").into());
    };
    let action = authorized.action();
    if action.path().starts_with("//") {
        // Authorization reads a leading `//` like one slash; no router has such a path.
        return Ok(status::not_found());
    }
    if let Some(backend) = aggregated(state, action) {
        // Boxed: its future is large, and every request would carry it.
        return Box::pin(delegate::forward(state, request, action, &backend)).await;
    }
    if action.resource().is_none() || action.is_read_only() {
        // Writes of objects take their seat after their body was read.
        state.flow.take_seat(&request.user().name).await?;
    }
    let response = if action.resource().is_some() {
        router::handle(state, request, &authorized).await?
    } else {
        path(state, request, action).await?
    };
    if gzip {
        Ok(compress::maybe(response, state.metrics.held(), request.caller_number()).await)
    } else {
        Ok(response)
    }
}

/// The server of the action's group version; `None` if it is this one.
fn aggregated(state: &ServerState, action: &Action) -> Option<Arc<Backend>> {
    if state.aggregator.is_idle() {
        return None;
    }
    let (group, version) = action.group_version()?;
    state.aggregator.find(group, version)
}

/// The tables of priority and fairness, while it is on.
fn dump(state: &ServerState, table: &str, action: &Action) -> Option<Response> {
    let levels = state.flow.levels();
    let text = match table {
        _ if !state.limits.priority_and_fairness => return None,
        "dump_priority_levels" => levels.dump_levels(),
        "dump_queues" => levels.dump_queues(),
        "dump_requests" => levels.dump_requests(action.options().has_request_details()),
        _ => return None,
    };
    Some(status::bare_text(200, text))
}

/// Non-resource paths.
async fn path(
    state: &Arc<ServerState>,
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
        [""] | ["index.html"] => root(state),
        ["api"] => {
            get_only()?;
            state.discovery.core(request.asked())
        }
        ["apis"] => state.discovery.groups(request.asked()),
        ["apis", group] => state.discovery.group(request.asked(), group),
        ["api", version] => state.discovery.resources(request.asked(), "", version),
        ["apis", group, version] => state.discovery.resources(request.asked(), group, version),
        ["version"] => {
            get_only()?;
            negotiate::route(request.header(ACCEPT), &[Form::Json.media_type()])?;
            let pretty = wants_pretty(action.options().pretty(), request.header(USER_AGENT));
            let accepted = Accepted { pretty, ..Accepted::JSON };
            Ok(status::encoded(200, state.encoder.document(&version::document(), accepted, None)))
        }
        ["version", ..] => Err(no_such_resource().into()),
        ["healthz" | "livez" | "readyz"] => {
            Ok(state.health.respond(segments[0], None, action.options()))
        }
        ["healthz" | "livez" | "readyz", check @ ..] => {
            Ok(state.health.respond(segments[0], Some(&check.join("/")), action.options()))
        }
        ["metrics"] => Ok(state.metrics.respond(&state.metric_sources(), request.header(ACCEPT))),
        ["debug", "api_priority_and_fairness", table] => {
            get_only()?;
            Ok(dump(state, table, action).unwrap_or_else(status::not_found))
        }
        ["openapi", "v2"] => state.openapi.v2(request.asked()).await,
        ["openapi", "v3", ..] if !state.gates.enabled(&OPENAPI_V3) => Ok(openapi::not_found()),
        ["openapi", "v3"] => state.openapi.index().await,
        ["openapi", "v3", document @ ..] => {
            state.openapi.v3(request.asked(), &document.join("/")).await
        }
        _ => route(state, request, action).await,
    }
}

async fn route(
    state: &ServerState,
    request: &mut Request<'_>,
    action: &Action,
) -> Result<Response, Rejection> {
    let Some(route) = state.routes.find(action.path()) else { return Ok(status::not_found()) };
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
        user: request.user().clone(),
    };
    route.answer(routed).await.map_err(Rejection::from)
}

fn is_identity_header(name: &HeaderName) -> bool {
    *name == AUTHORIZATION
        || name.as_str().starts_with("impersonate-")
        || name.as_str().starts_with("x-remote-")
}

/// The list of paths at `/`.
fn root(state: &ServerState) -> Result<Response, Rejection> {
    let mut paths: Vec<String> = [
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for (group, versions) in state.discovery.group_versions() {
        if group.is_empty() {
            continue;
        }
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    for probe in ["healthz", "livez", "readyz"] {
        paths.extend(state.health.names(probe).map(|check| format!("/{probe}/{check}")));
    }
    paths.extend(state.routes.paths().map(str::to_owned));
    paths.sort_unstable();
    paths.dedup();
    let mut document = Document::new();
    document.set(&["paths"], paths);
    let value = document.into_value();
    let mut bytes = ferrokube_apimachinery::json::to_vec_pretty(&value);
    bytes.push(b'\n');
    Ok(status::encoded(200, Encoded { bytes: bytes.into(), form: Form::Json }))
}
