//! Requests about resources: from path and method to one call of the registry.

use crate::exchange::{Exchange, Stop};
use crate::handler::method_not_allowed;
use crate::request_info::{ResourceInfo, no_such_resource};
use crate::server::Shared;
use crate::{decode, status, verbs, watch};
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_registry::{Served, Target};
use ferrokube_resource::{Scope, Verbs};
use ferrokube_serve::Response;
use http::Method;
use std::pin::Pin;
use std::sync::Arc;

/// What is asked of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// Answers a request about a resource.
pub(crate) async fn handle(shared: &Arc<Shared>, exchange: &mut Exchange) -> Result<Response, Stop> {
    // Shared, not taken: a request that is cut off is recorded with what it was about.
    let info = exchange.info.resource.clone().expect("the caller saw it");
    dispatch(shared, exchange, &info).await
}

async fn dispatch(shared: &Arc<Shared>, exchange: &mut Exchange, info: &ResourceInfo) -> Result<Response, Stop> {
    let Some(served) = shared.registry.catalog().find(&info.group, &info.version, &info.resource) else {
        return Err(unknown(shared, info));
    };
    let action = if served.definition.custom {
        // Whatever comes of it: upstream's handler of custom resources routes by itself, and warns first.
        warn_of_deprecation(exchange, &served);
        route(exchange, info, &served)?
    } else {
        let action = route(exchange, info, &served)?;
        warn_of_deprecation(exchange, &served);
        action
    };
    let mut target = target(info, served);
    if action == Action::Create && target.subresource.is_empty() {
        target.name = None;
    }
    act(shared, exchange, &target, action).await
}

fn warn_of_deprecation(exchange: &mut Exchange, served: &Served) {
    if let Some(warning) = &served.version().deprecation {
        exchange.context().warn(warning.as_str());
    }
}

/// What an action gives. Boxed: one small future for each, and the compiler proves that each may move between threads by itself.
type Acting<'a> = Pin<Box<dyn Future<Output = Result<Response, Stop>> + Send + 'a>>;

fn act<'a>(shared: &'a Arc<Shared>, exchange: &'a mut Exchange, target: &'a Target, action: Action) -> Acting<'a> {
    match action {
        Action::Get => Box::pin(verbs::get(shared, exchange, target)),
        Action::List => Box::pin(verbs::list(shared, exchange, target)),
        Action::Watch => Box::pin(watch::respond(shared, exchange, target)),
        Action::Create => Box::pin(verbs::create(shared, exchange, target)),
        Action::Update => Box::pin(verbs::update(shared, exchange, target)),
        Action::Patch => Box::pin(verbs::patch(shared, exchange, target)),
        Action::Delete => Box::pin(verbs::delete(shared, exchange, target)),
        Action::DeleteCollection => Box::pin(verbs::delete_collection(shared, exchange, target)),
    }
}

/// A resource that is not served: a `Status` below a native group, else what any unknown path gets.
fn unknown(shared: &Shared, info: &ResourceInfo) -> Stop {
    if shared.discovery.is_native(shared, &info.group) { no_such_resource().into() } else { status::not_found().into() }
}

/// The registry's target: exactly the segments that authorization was asked about.
fn target(info: &ResourceInfo, served: Served) -> Target {
    let namespaced = served.definition.scope == Scope::Namespaced;
    Target {
        namespace: (namespaced && info.in_namespace).then(|| info.namespace.clone()),
        name: (info.segments > 1).then(|| info.name.clone()),
        subresource: info.subresource.clone(),
        served,
    }
}

/// Which action a method on a path is: 404 when no method has the path, 405 when another has.
fn route(exchange: &Exchange, info: &ResourceInfo, served: &Served) -> Result<Action, Stop> {
    let definition = &served.definition;
    let namespaced = definition.scope == Scope::Namespaced;
    let refuse = || if definition.custom { custom_not_allowed(info) } else { method_not_allowed() };
    let missing = || if definition.custom { Stop::from(status::not_found()) } else { no_such_resource().into() };
    // A namespaced route never reaches a cluster-scoped object, nor the other way round (fault 50).
    if (info.segments > 3 && !definition.custom) || (!namespaced && info.in_namespace) || (namespaced && !info.in_namespace && info.segments > 1) {
        return Err(missing());
    }
    let method = match &exchange.head.method {
        &Method::HEAD if definition.custom && exchange.info.verb != "watch" => &Method::GET,
        method => method,
    };
    if info.segments >= 3 {
        let Some(subresource) = served.version().subresources.iter().find(|subresource| subresource.name == info.subresource) else {
            return Err(if definition.custom { Failure::not_found(&definition.group_resource(), &info.name).into() } else { missing() });
        };
        return subresource_action(method, subresource.verbs).ok_or_else(|| refuse().into());
    }
    if info.legacy_watch {
        let ok = *method == Method::GET && definition.verbs.has(Verbs::WATCH);
        return if ok { Ok(Action::Watch) } else { Err(refuse().into()) };
    }
    let across = namespaced && !info.in_namespace;
    let (action, verb) = match (method, info.segments) {
        (&Method::GET, 1) if exchange.info.verb == "watch" => (Action::Watch, Verbs::WATCH),
        (&Method::GET, 1) => (Action::List, Verbs::LIST),
        (&Method::POST, 1) if !across => (Action::Create, Verbs::CREATE),
        (&Method::DELETE, 1) if !across => (Action::DeleteCollection, Verbs::DELETE_COLLECTION),
        (&Method::GET, 2) => (Action::Get, Verbs::GET),
        (&Method::PUT, 2) => (Action::Update, Verbs::UPDATE),
        (&Method::PATCH, 2) => (Action::Patch, Verbs::PATCH),
        (&Method::DELETE, 2) => (Action::Delete, Verbs::DELETE),
        // Only natives have routes for each method: the handler of custom resources sees what is missing.
        (&Method::POST, 2) if definition.custom => (Action::Create, Verbs::CREATE),
        (&Method::PUT, 1) if definition.custom && !across => return Err(Failure::bad_request("name must be provided").into()),
        (&Method::PATCH, 1) if definition.custom && !across => {
            decode::patch_kind(exchange, served)?;
            return Err(Failure::bad_request("name must be provided").into());
        }
        // Upstream's router does not know such a path of a custom resource at all.
        _ if definition.custom && across => return Err(missing()),
        _ => return Err(if has_path(definition.verbs, info.segments, across) { refuse().into() } else { missing() }),
    };
    if definition.verbs.has(verb) {
        return Ok(action);
    }
    Err(if has_path(definition.verbs, info.segments, across) { refuse().into() } else { missing() })
}

/// Whether any method has a path of this form.
fn has_path(verbs: Verbs, segments: usize, across: bool) -> bool {
    let any: &[Verbs] = match (segments, across) {
        (1, true) => &[Verbs::LIST],
        (1, false) => &[Verbs::LIST, Verbs::CREATE],
        _ => &[Verbs::GET, Verbs::UPDATE, Verbs::DELETE],
    };
    any.iter().any(|verb| verbs.has(*verb))
}

fn subresource_action(method: &Method, verbs: Verbs) -> Option<Action> {
    let (action, verb) = match *method {
        Method::GET => (Action::Get, Verbs::GET),
        Method::PUT => (Action::Update, Verbs::UPDATE),
        Method::PATCH => (Action::Patch, Verbs::PATCH),
        Method::POST => (Action::Create, Verbs::CREATE),
        Method::DELETE => (Action::Delete, Verbs::DELETE),
        _ => return None,
    };
    verbs.has(verb).then_some(action)
}

fn custom_not_allowed(info: &ResourceInfo) -> Failure {
    let details = Details { group: info.group.clone(), kind: info.resource.clone(), ..Details::default() };
    Failure::new(Reason::MethodNotAllowed, format!("this method is not supported on resources of kind {:?}", info.resource)).with_details(details)
}
