//! Resource requests: checks that the resource serves the action, and runs the verb.

use crate::action::{Depth, ResourceAction, Verb, no_such_resource};
use crate::exchange::Request;
use crate::filters::authorize::Authorized;
use crate::rejection::{Rejection, method_not_allowed};
use crate::resource_api::ResourceApi;
use crate::{decode, status, verbs};
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_connect::Connections;
use ferrokube_registry::{Served, Target};
use ferrokube_resource::{Definition, Scope, Verbs};
use ferrokube_serve::Response;
use std::pin::Pin;

pub(crate) async fn handle(
    api: &ResourceApi,
    request: &mut Request<'_>,
    authorized: &Authorized,
) -> Result<Response, Rejection> {
    let Some(action) = authorized.action().resource() else { return Ok(status::not_found()) };
    let Some(served) =
        api.registry.catalog().find(action.group(), action.version(), action.plural())
    else {
        return Err(unknown(api, action));
    };
    if served.definition.dialect.routes_itself() {
        // kube-apiserver's handler of custom resources warns before it checks the method.
        warn_of_deprecation(request, &served);
        check_custom(request, action, &served)?;
    } else {
        check_native(action, &served)?;
        warn_of_deprecation(request, &served);
    }
    let target = target(action, served);
    let caller = request.caller_number();
    let run: VerbFuture<'_> = if Connections::serves(&target.served.definition, &target.subresource)
    {
        // Never as a stored object's subresource, which would read and write the object.
        let connections = api.connections.as_deref().ok_or_else(no_such_resource)?;
        Box::pin(verbs::connect(api, request, &target, connections))
    } else {
        run(api, request, &target, action.verb())
    };
    let answer = api.registry.offload().run(caller, run).await;
    if let Err(Rejection::Unrouted(_)) = &answer {
        request.context().take_warnings();
    }
    answer
}

/// A resource that is not served: a `Status` in a native group, else plain 404.
fn unknown(api: &ResourceApi, action: ResourceAction<'_>) -> Rejection {
    if api.discovery.is_native(action.group()) {
        no_such_resource().into()
    } else {
        status::not_found().into()
    }
}

fn warn_of_deprecation(request: &mut Request<'_>, served: &Served) {
    if let Some(warning) = &served.version().deprecation {
        request.context().warn(warning.as_str());
    }
}

/// The registry's target: exactly what was authorized. A list or watch of one name keeps the name,
/// regardless of its selectors.
fn target(action: ResourceAction<'_>, served: Served) -> Target {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Target {
        namespace: some(action.namespace())
            .filter(|_| served.definition.scope == Scope::Namespaced),
        name: some(action.name()),
        subresource: action.subresource().to_owned(),
        served,
    }
}

/// Boxed: keeps each future small, and `Send` is checked per verb.
type VerbFuture<'a> = Pin<Box<dyn Future<Output = Result<Response, Rejection>> + Send + 'a>>;

fn run<'a>(
    api: &'a ResourceApi,
    request: &'a mut Request<'_>,
    target: &'a Target,
    verb: Verb,
) -> VerbFuture<'a> {
    match verb {
        Verb::Get => Box::pin(verbs::get(api, request, target)),
        Verb::List => Box::pin(verbs::list(api, request, target)),
        Verb::Watch => Box::pin(verbs::watch(&api.watches, request, target)),
        Verb::Create => Box::pin(verbs::create(api, request, target)),
        Verb::Update => Box::pin(verbs::update(api, request, target)),
        Verb::Patch => Box::pin(verbs::patch(api, request, target)),
        Verb::Delete => Box::pin(verbs::delete(api, request, target)),
        Verb::DeleteCollection => Box::pin(verbs::delete_collection(api, request, target)),
        // No definition serves these.
        Verb::Proxy | Verb::Unknown => {
            Box::pin(std::future::ready(Err(method_not_allowed().into())))
        }
    }
}

/// Whether the path's scope is the definition's: a namespaced path never reaches a cluster-scoped
/// object, nor the reverse (fault 50).
fn in_scope(action: ResourceAction<'_>, definition: &Definition, may_span: bool) -> bool {
    match definition.scope {
        Scope::Cluster => action.namespace().is_empty() || action.is_namespace_itself(),
        Scope::Namespaced => !action.namespace().is_empty() || may_span,
    }
}

/// Native resources, like kube-apiserver's router: 404 if no method has such a path, 405 if another
/// one has.
fn check_native(action: ResourceAction<'_>, served: &Served) -> Result<(), Rejection> {
    let (definition, depth) = (&served.definition, action.depth());
    let spans = definition.scope == Scope::Namespaced && action.namespace().is_empty();
    // Paths below a proxy are the other server's.
    let is_proxy = action.subresource() == "proxy";
    let serves = match depth {
        Depth::Beyond if !is_proxy => None,
        Depth::Subresource | Depth::Beyond => served
            .version()
            .subresources
            .iter()
            .find(|known| known.name == action.subresource())
            .map(|known| known.verbs),
        Depth::Collection | Depth::Object => Some(definition.verbs),
    };
    let serves = serves
        .filter(|_| in_scope(action, definition, depth == Depth::Collection))
        .ok_or_else(no_such_resource)?;
    let has = |verb: Verbs| serves.has(verb);
    let is_path = match (action.is_verb_in_path(), depth) {
        (true, Depth::Collection | Depth::Object) => {
            action.verb() == Verb::Watch && has(Verbs::WATCH)
        }
        (true, _) => false,
        (false, Depth::Collection) if spans => has(Verbs::LIST),
        (false, Depth::Collection) => has(Verbs::LIST) || has(Verbs::CREATE),
        (false, Depth::Object) => has(Verbs::GET) || has(Verbs::UPDATE) || has(Verbs::DELETE),
        (false, _) => true,
    };
    if !is_path {
        return Err(no_such_resource().into());
    }
    let verb = action.verb();
    let reads = matches!(verb, Verb::Get | Verb::List | Verb::Watch);
    // Writes do not span namespaces; a collection's path does not update objects, nor an object's
    // path create one.
    let is_route = match depth {
        Depth::Collection => {
            reads || (!spans && matches!(verb, Verb::Create | Verb::DeleteCollection))
        }
        Depth::Object => verb != Verb::Create,
        Depth::Subresource | Depth::Beyond => true,
    };
    // HEAD is authorized like GET but has no route except a proxy's; `/watch/` only has GET.
    let is_method = !reads || action.is_get() || is_proxy && depth >= Depth::Subresource;
    if is_route && is_method && verb.needs().is_some_and(has) {
        Ok(())
    } else {
        Err(method_not_allowed().into())
    }
}

/// Custom resources, like kube-apiserver's single handler for them: verb and subresource first, the
/// method last.
fn check_custom(
    request: &Request<'_>,
    action: ResourceAction<'_>,
    served: &Served,
) -> Result<(), Rejection> {
    let (definition, verb) = (&served.definition, action.verb());
    if !in_scope(action, definition, matches!(verb, Verb::List | Verb::Watch)) {
        return Err(status::not_found().into());
    }
    let serves = if action.subresource().is_empty() {
        definition.verbs
    } else {
        let known =
            served.version().subresources.iter().find(|known| known.name == action.subresource());
        known.ok_or_else(|| Failure::not_found(&action.group_resource(), action.name()))?.verbs
    };
    let is_method = match verb {
        Verb::Watch => action.is_get(),
        _ => !action.is_verb_in_path(),
    };
    if !is_method || !verb.needs().is_some_and(|needed| serves.has(needed)) {
        return Err(custom_not_allowed(action).into());
    }
    match (verb, action.depth()) {
        (Verb::Update, Depth::Collection) => {
            Err(Failure::bad_request("name must be provided").into())
        }
        (Verb::Patch, Depth::Collection) => {
            decode::patch_kind(request, served)?;
            Err(Failure::bad_request("name must be provided").into())
        }
        _ => Ok(()),
    }
}

fn custom_not_allowed(action: ResourceAction<'_>) -> Failure {
    let details = Details {
        group: action.group().to_owned(),
        kind: action.plural().to_owned(),
        ..Details::default()
    };
    let message = format!(
        "{} is not supported on resources of kind {:?}",
        action.verb().as_str(),
        action.group_resource().to_string()
    );
    Failure::new(Reason::MethodNotAllowed, message).with_details(details)
}
