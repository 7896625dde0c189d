//! Requests about resources: from path and method to one call of the registry, and from its outcome to an answer.

use crate::encode::stream::{Fill, Streamed};
use crate::encode::table::{Include, Table};
use crate::encode::{list, slices, table};
use crate::exchange::{Exchange, Stop};
use crate::handler::{accepted, chosen, method_not_allowed};
use crate::negotiate::{Accepted, Form, Offer, View, Views, body_form};
use crate::options::{self, WriteKind};
use crate::request_info::{ResourceInfo, no_such_resource};
use crate::server::Shared;
use crate::{audited, compress, custom, decode, status, watch};
use bytes::Bytes;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_auth::audit::Level;
use ferrokube_auth::{Access, Decision};
use ferrokube_registry::{Deleted, ListPage, Object, Patch, Served, Target, WriteOptions, Written};
use ferrokube_resource::{Scope, Verbs};
use ferrokube_serve::Response;
use http::Method;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http_body_util::BodyExt;
use std::pin::Pin;
use std::sync::Arc;

/// Larger objects are answered with the store's own bytes; smaller ones are copied together with their newline, which is one frame less.
const UNCOPIED_BYTES: usize = 16 * 1024;

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
        Action::Get => Box::pin(get(shared, exchange, target)),
        Action::List => Box::pin(list(shared, exchange, target)),
        Action::Watch => Box::pin(watch::respond(shared, exchange, target)),
        Action::Create => Box::pin(create(shared, exchange, target)),
        Action::Update => Box::pin(update(shared, exchange, target)),
        Action::Patch => Box::pin(patch(shared, exchange, target)),
        Action::Delete => Box::pin(delete(shared, exchange, target)),
        Action::DeleteCollection => Box::pin(delete_collection(shared, exchange, target)),
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

fn offer(served: &Served, views: Views) -> Offer {
    Offer { protobuf: served.version().message.is_some(), views }
}

async fn get(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = chosen(exchange, offer(&target.served, Views::Single))?;
    if exchange.query.flag("export") == Some(true) {
        return Err(Failure::bad_request("the export parameter, deprecated since v1.14, is no longer supported").into());
    }
    let mut object = shared.registry.get(exchange.context(), target, exchange.query.text("resourceVersion")).await?;
    // A custom object passes for a list in upstream until it is written; what a subresource shows as another kind does not.
    let untyped = target.served.definition.custom && target.subresource != "scale";
    accepted.fit(Views::Single).map_err(|failure| if untyped { Failure::bare(500, failure.message) } else { failure })?;
    if let Object::Stored(entry) = object {
        object = Object::Stored(if is_partial(accepted) { entry } else { shared.registry.entry_in_version(&target.served, entry).await? });
    }
    respond(shared, exchange, target, &object, (200, accepted))
}

async fn list(shared: &Arc<Shared>, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = chosen(exchange, offer(&target.served, Views::List))?;
    let options = options::list(&exchange.query)?;
    let include = include(exchange, accepted)?;
    let mut page = shared.registry.list(target, &options).await?;
    accepted.fit(Views::List)?;
    convert(shared, target, &mut page, accepted).await?;
    audited::list(shared, exchange, target, (&page, accepted, include));
    let gzip = compress::accepts(exchange.header(ACCEPT_ENCODING));
    let is_costly = gzip || accepted.form == Form::Protobuf;
    if is_costly && !matches!(accepted.view, View::Table(_)) && page.items.iter().map(|entry| entry.bytes.len()).sum::<usize>() >= compress::MIN_BYTES {
        return costly_list(shared, target, page, (accepted, gzip)).await;
    }
    Ok(respond_list(shared, exchange, target, page, (accepted, include)))
}

/// Whether only metadata is shown, which no conversion changes but for labels and annotations: it is there whatever a converter does.
fn is_partial(accepted: Accepted) -> bool {
    matches!(accepted.view, View::Metadata(_) | View::MetadataList(_))
}

/// Has the items of a page converted where somebody else does that.
async fn convert(shared: &Shared, target: &Target, page: &mut ListPage, accepted: Accepted) -> Result<(), Failure> {
    if !is_partial(accepted) {
        page.items = shared.registry.in_version(&target.served, std::mem::take(&mut page.items)).await?;
    }
    Ok(())
}

/// A large list that is compressed or transcoded: off the workers.
async fn costly_list(shared: &Arc<Shared>, target: &Target, page: ListPage, (accepted, gzip): (Accepted, bool)) -> Result<Response, Stop> {
    let (shared, served) = (Arc::clone(shared), target.served.clone());
    let work = move || {
        let zipped = if gzip { list::zipped(&shared.pieces, &served, &page, accepted) } else { None };
        zipped.unwrap_or_else(|| list::respond(&shared.encoder, &shared.pieces, &served, page, accepted))
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(error = %error, "a list could not be written");
        Failure::internal("the answer could not be written").into()
    })
}

fn include(exchange: &Exchange, accepted: Accepted) -> Result<Include, Failure> {
    if matches!(accepted.view, View::Table(_)) { Include::parse(exchange.query.text("includeObject")) } else { Ok(Include::Metadata) }
}

fn respond_list(shared: &Shared, exchange: &Exchange, target: &Target, mut page: ListPage, (accepted, include): (Accepted, Include)) -> Response {
    let View::Table(version) = accepted.view else {
        return list::respond(&shared.encoder, &shared.pieces, &target.served, page, accepted);
    };
    let entries = std::mem::take(&mut page.items);
    // Small ones are one frame, whose length is known; compressing needs all of it too.
    let whole = entries.len() <= table::FEW || compress::accepts(exchange.header(ACCEPT_ENCODING));
    let stream = Table::new(&target.served, version, include, exchange.now).stream(&list::list_meta(&page), &shared.pieces, entries);
    if !whole && accepted.form == Form::Json && !accepted.pretty {
        return status::with_type(200, Form::Json.media_type(), Streamed::new(stream).boxed_unsync());
    }
    let (bytes, form) = table::finish(stream.collect(), accepted);
    status::with_form(200, bytes, form)
}

/// One object in the accepted form and view.
fn respond(shared: &Shared, exchange: &mut Exchange, target: &Target, object: &Object, (code, accepted): (u16, Accepted)) -> Result<Response, Stop> {
    if let View::Table(version) = accepted.view {
        let include = include(exchange, accepted)?;
        let revision = match object {
            Object::Stored(entry) => entry.revision.to_string(),
            Object::Computed(document) => document.meta("resourceVersion").to_owned(),
        };
        let meta = if revision.is_empty() { "{}".to_owned() } else { format!("{{\"resourceVersion\":\"{revision}\"}}") };
        let bytes = Table::of_subresource((&target.served, &target.subresource), version, include, exchange.now).write(&meta, true, object);
        if exchange.audit.wants(Level::RequestResponse) {
            exchange.audit.response = Some(Bytes::copy_from_slice(&bytes));
        }
        let (bytes, form) = table::finish(bytes, accepted);
        return Ok(status::with_form(code, bytes, form));
    }
    if let Object::Stored(entry) = object
        && accepted == Accepted::JSON
        && entry.bytes.len() >= UNCOPIED_BYTES
        && target.served.is_direct(entry)
    {
        exchange.audit.response = Some(entry.bytes.clone());
        let body = crate::body::frames([entry.bytes.clone(), Bytes::from_static(b"\n")]);
        return Ok(status::with_type(code, accepted.form.media_type(), body));
    }
    let (bytes, form) = shared.encoder.object(&target.served, object, accepted)?;
    if form == Form::Json {
        exchange.audit.response = Some(bytes.clone());
    } else if exchange.audit.wants(Level::RequestResponse) {
        let as_json = Accepted { form: Form::Json, pretty: false, ..accepted };
        exchange.audit.response = Some(shared.encoder.object(&target.served, object, as_json)?.0);
    }
    Ok(status::with_type(code, form.media_type(), crate::body::full(bytes)))
}

async fn respond_written(shared: &Shared, exchange: &mut Exchange, target: &Target, written: &Written, accepted: Accepted) -> Result<Response, Stop> {
    settle(shared, target, &written.object).await;
    if let Object::Stored(entry) = &written.object {
        exchange.audit.written = Some(Arc::clone(entry));
    }
    let code = if written.created { 201 } else { 200 };
    respond(shared, exchange, target, &written.object, (code, accepted))
}

/// A definition that was written is served before its writer is told.
async fn settle(shared: &Shared, target: &Target, object: &Object) {
    if target.served.definition.group == custom::GROUP
        && let Object::Stored(entry) = object
    {
        shared.custom.settled(entry.revision.0).await;
    }
}

/// Reads the body.
async fn read_body(shared: &Shared, exchange: &mut Exchange) -> Result<Bytes, Failure> {
    let Some(body) = exchange.take_body() else { return Ok(Bytes::new()) };
    crate::body::read(body, shared.limits.body_bytes).await
}

async fn create(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let form = decode::body_form(exchange, &target.served)?;
    let bytes = read_body(shared, exchange).await?;
    let options = options::write(&exchange.query, WriteKind::Create)?;
    let body = decode::object(shared, target, form, &bytes)?;
    if exchange.audit.wants(Level::Metadata) && exchange.info.access().is_some_and(|access| access.name.is_empty()) {
        exchange.audit.name = body.document.name().into();
    }
    audited::request(exchange, form, bytes, &body.document);
    let written = shared.registry.create(exchange.context(), target, body, &options).await?;
    respond_written(shared, exchange, target, &written, accepted).await
}

async fn update(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let form = decode::body_form(exchange, &target.served)?;
    let bytes = read_body(shared, exchange).await?;
    let mut options = options::write(&exchange.query, WriteKind::Update)?;
    if target.subresource.is_empty() && target.served.definition.hooks.allow_create_on_update() {
        options.forbid_create = forbid_create(shared, exchange, target);
    }
    let body = decode::object(shared, target, form, &bytes)?;
    audited::request(exchange, form, bytes, &body.document);
    let written = shared.registry.update(exchange.context(), target, body, &options).await?;
    respond_written(shared, exchange, target, &written, accepted).await
}

/// Why the caller may not create the object that it updates or applies.
fn forbid_create(shared: &Shared, exchange: &Exchange, target: &Target) -> Option<Failure> {
    let definition = &target.served.definition;
    let resource = ferrokube_auth::ResourceAccess {
        group: &definition.group,
        version: &target.served.version().name,
        resource: &definition.plural,
        subresource: &target.subresource,
        namespace: target.namespace.as_deref().unwrap_or_default(),
        name: target.name.as_deref().unwrap_or_default(),
    };
    let access = Access { user: exchange.user(), verb: "create", resource: Some(resource), path: &exchange.info.path };
    match shared.authorizer.authorize(&access) {
        Decision::Allow(_) => None,
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Some(ferrokube_auth::forbidden(&access, &reason)),
    }
}

async fn patch(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let kind = decode::patch_kind(exchange, &target.served)?;
    let bytes = read_body(shared, exchange).await?;
    let write_kind = if kind == decode::PatchKind::Apply { WriteKind::Apply } else { WriteKind::Patch };
    let mut options: WriteOptions = options::write(&exchange.query, write_kind)?;
    if write_kind == WriteKind::Apply {
        options.forbid_create = forbid_create(shared, exchange, target);
    }
    let patch = decode::patch(kind, &bytes)?;
    match &patch {
        Patch::Apply(body) => audited::request(exchange, Form::Yaml, bytes, &body.document),
        _ => exchange.audit.request = Some(bytes),
    }
    let written = shared.registry.patch(exchange.context(), target, patch, &options).await?;
    respond_written(shared, exchange, target, &written, accepted).await
}

async fn delete(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::Single))?;
    let options = delete_options(shared, exchange).await?;
    let (object, gone) = match shared.registry.delete(exchange.context(), target, &options).await? {
        Deleted::Gone(object) | Deleted::AlreadyPending(object) => (object, true),
        Deleted::Pending(object) => (object, false),
    };
    settle(shared, target, &object).await;
    if gone && !target.served.definition.hooks.returns_deleted() {
        return Ok(deleted(shared, exchange, target, (&object, accepted)));
    }
    let code = if !gone && options.orphan_dependents == Some(false) { 202 } else { 200 };
    respond(shared, exchange, target, &object, (code, accepted))
}

async fn delete_options(shared: &Shared, exchange: &mut Exchange) -> Result<ferrokube_registry::DeleteOptions, Failure> {
    let bytes = read_body(shared, exchange).await?;
    if bytes.is_empty() {
        return options::delete(&exchange.query, None);
    }
    // Its own kind, with a protobuf form whatever is deleted.
    let form = body_form(exchange.header(CONTENT_TYPE), true)?;
    let body = decode::delete_options(shared, form, &bytes)?;
    audited::request(exchange, form, bytes, &body);
    options::delete(&exchange.query, Some(&body))
}

/// The `Status` of a completed delete.
fn deleted(shared: &Shared, exchange: &mut Exchange, target: &Target, (object, accepted): (&Object, Accepted)) -> Response {
    let definition = &target.served.definition;
    let uid = match object {
        Object::Stored(entry) => slices::uid(entry).to_owned(),
        Object::Computed(document) => document.uid().to_owned(),
    };
    let name = target.name.clone().unwrap_or_default();
    let details = Details { name, group: definition.group.clone(), kind: definition.plural.clone(), uid, ..Details::default() };
    // Whatever view of the object was asked for, this is no object.
    let accepted = Accepted { view: View::Whole, ..accepted };
    let status = status::success(&details);
    audited::status(exchange, &status);
    let (bytes, form) = shared.encoder.document(&status, accepted, Some(status::message()));
    status::with_form(200, bytes, form)
}

async fn delete_collection(shared: &Shared, exchange: &mut Exchange, target: &Target) -> Result<Response, Stop> {
    let accepted = accepted(exchange, offer(&target.served, Views::List))?;
    let include = include(exchange, accepted)?;
    let select = options::list(&exchange.query)?;
    let options = delete_options(shared, exchange).await?;
    let mut page = shared.registry.delete_collection(exchange.context(), target, &options, &select).await?;
    convert(shared, target, &mut page, accepted).await?;
    audited::list(shared, exchange, target, (&page, accepted, include));
    Ok(respond_list(shared, exchange, target, page, (accepted, include)))
}
