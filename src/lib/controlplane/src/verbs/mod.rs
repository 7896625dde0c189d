//! One file per verb: decode options and body, call the registry once, encode the outcome. This
//! file has what they share.

mod connect;
mod create;
mod delete;
mod delete_collection;
mod get;
mod list;
mod patch;
mod update;

pub(crate) use connect::connect;
pub(crate) use create::create;
pub(crate) use delete::delete;
pub(crate) use delete_collection::delete_collection;
pub(crate) use get::get;
pub(crate) use list::list;
pub(crate) use patch::patch;
pub(crate) use update::update;

use crate::compress;
use crate::encode::rendered::{Rendered, Style};
use crate::encode::table::{self, Include, Table};
use crate::encode::{Encoded, Encoder, stream};
use crate::exchange::Request;
use crate::negotiate::{Accepted, Form, Offer, RouterTypes, View, Views};
use crate::rejection::Rejection;
use crate::state::ServerState;
use crate::status;
use bytes::Bytes;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::audit::AuditLevel;
use ferrokube_flow as flow;
use ferrokube_registry::offload::{INLINE_BYTES, is_costly, leave_worker, queue_is_full};
use ferrokube_registry::{Object, Served, Target, Written, internal_package};
use ferrokube_serve::Response;
use ferrokube_storage::Entry;
use http::StatusCode;
use http::header::ACCEPT_ENCODING;
use std::sync::Arc;

/// Objects from this size on are sent from the store's own bytes; smaller ones are copied with the
/// trailing newline, which saves a frame.
const UNCOPIED_BYTES: usize = 16 * 1024;

/// Longer YAML bodies are parsed off the workers: 1 KiB takes about 0.1 ms.
pub(crate) const YAML_BYTES: usize = 1024;
/// Longer protobuf bodies are decoded, and longer objects encoded to anything but JSON, off the
/// workers.
const ENCODED_BYTES: usize = INLINE_BYTES / 2;

/// What a resource can be encoded to.
pub(crate) fn offer(served: &Served, views: Views) -> Offer {
    let router = if served.definition.dialect.routes_itself() {
        RouterTypes::None
    } else {
        RouterTypes::Objects
    };
    Offer { protobuf: served.version().message.is_some(), views, router }
}

/// Media types that the router knows for reads of collections, which may be watches.
pub(crate) fn collection_router(served: &Served) -> RouterTypes {
    if served.definition.dialect.routes_itself() { RouterTypes::None } else { RouterTypes::Streams }
}

/// Views of an object, or of its subresource.
fn views(target: &Target) -> Views {
    let untabled = target.served.definition.policy.untabled_subresources;
    if untabled.contains(&target.subresource.as_str()) { Views::Untabled } else { Views::Single }
}

/// The Go type that kube-apiserver names in 406 messages.
pub(crate) fn go_type(target: &Target, views: Views) -> String {
    let definition = &target.served.definition;
    let list = if views == Views::List { "List" } else { "" };
    match definition.subresource(target.served.version, &target.subresource) {
        Some(subresource)
            if subresource.kind.kind != definition.kind && !definition.dialect.is_typed() =>
        {
            format!("*{}.{}", subresource.kind.version, subresource.kind.kind)
        }
        Some(subresource) if subresource.kind.kind != definition.kind => {
            format!("*{}.{}", internal_package(&subresource.kind.group), subresource.kind.kind)
        }
        _ if !definition.dialect.is_typed() => format!("*unstructured.Unstructured{list}"),
        _ => format!("*{}.{}{list}", internal_package(&definition.group), definition.kind),
    }
}

/// Whether only metadata is returned. No conversion is needed for that: converters may only change
/// labels and annotations of it.
fn is_partial(accepted: Accepted) -> bool {
    matches!(accepted.view, View::Metadata(_) | View::MetadataList(_))
}

fn include(request: &Request<'_>, accepted: Accepted) -> Result<Include, Failure> {
    if matches!(accepted.view, View::Table(_)) {
        request.action.options().include()
    } else {
        Ok(Include::Metadata)
    }
}

/// Responds with one object, in the accepted form and view.
async fn respond(
    state: &ServerState,
    request: &mut Request<'_>,
    target: &Target,
    object: &Object,
    code: u16,
    accepted: Accepted,
) -> Result<Response, Rejection> {
    if rendered_bytes(target, object, accepted) > ENCODED_BYTES {
        leave_worker().await;
    }
    let style = Style::of(accepted);
    if let View::Table(version) = accepted.view {
        let include = include(request, accepted)?;
        let revision = match object {
            Object::Stored(entry) => entry.revision.to_string(),
            Object::Computed(document) => document.meta("resourceVersion").to_owned(),
        };
        let meta = if revision.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{\"resourceVersion\":\"{revision}\"}}")
        };
        let frames = Table::of_subresource(
            &target.served,
            &target.subresource,
            version,
            include,
            request.now,
        )
        .frames(&meta, true, object);
        if request.audit.wants(AuditLevel::RequestResponse) {
            request.audit.response = Some(frames.concat().into());
        }
        if style != Style::Plain {
            let mut table = frames.concat();
            table.pop();
            return Ok(rendered(request, table.into(), code, accepted));
        }
        return Ok(status::with_type(code, Form::Json.media_type(), crate::body::frames(frames)));
    }
    if style != Style::Plain && accepted.form != Form::Protobuf {
        let json = Encoder::json(&target.served, object, accepted.view);
        if style == Style::Indented || request.audit.wants(AuditLevel::RequestResponse) {
            request.audit.response = Some(json.clone());
        }
        return Ok(rendered(request, json, code, accepted));
    }
    if let Object::Stored(entry) = object
        && accepted == Accepted::JSON
        && entry.bytes.len() >= UNCOPIED_BYTES
        && target.served.is_direct(entry)
    {
        request.audit.response = Some(entry.bytes.clone());
        let body = crate::body::frames([entry.bytes.clone(), Bytes::from_static(b"\n")]);
        return Ok(status::with_type(code, accepted.form.media_type(), body));
    }
    let Encoded { bytes, form } = state.encoder.object(&target.served, object, accepted)?;
    if form == Form::Json {
        request.audit.response = Some(bytes.clone());
    } else if request.audit.wants(AuditLevel::RequestResponse) {
        let as_json = Accepted { form: Form::Json, pretty: false, ..accepted };
        request.audit.response = Some(state.encoder.object(&target.served, object, as_json)?.bytes);
    }
    Ok(status::with_type(code, form.media_type(), crate::body::full(bytes)))
}

/// Responds with text that is made of JSON while it is sent.
fn rendered(request: &Request<'_>, json: Bytes, code: u16, accepted: Accepted) -> Response {
    let gzip = compress::accepts(request.header(ACCEPT_ENCODING));
    let text = Rendered::whole(json, Style::of(accepted));
    let mut response = stream::respond(text, accepted.form.media_type(), gzip);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response
}

async fn respond_written(
    state: &ServerState,
    request: &mut Request<'_>,
    target: &Target,
    written: &Written,
    accepted: Accepted,
) -> Result<Response, Rejection> {
    wait_until_served(state, target, &written.object).await;
    if let Object::Stored(entry) = &written.object {
        request.audit.written = Some(Arc::clone(entry));
    }
    let code = if written.created { 201 } else { 200 };
    respond(state, request, target, &written.object, code, accepted).await
}

/// Checks that the response to a write can be encoded in the accepted view. If not, the write must
/// be a dry run: kube-apiserver only notices after the write, so other errors come first; but here
/// an error means that nothing was written.
fn check_response(
    request: &Request<'_>,
    target: &Target,
    accepted: Accepted,
    views: Views,
) -> Result<(), Failure> {
    include(request, accepted)?;
    match views {
        Views::List => accepted.fit(Views::List, || go_type(target, Views::List)),
        _ => check_view(target, accepted),
    }
}

/// For custom objects, kube-apiserver only notices while encoding that one object is no list of
/// metadata; `scale` is a typed object there.
fn check_view(target: &Target, accepted: Accepted) -> Result<(), Failure> {
    match accepted.view {
        View::MetadataList(_)
            if !target.served.definition.dialect.is_typed() && target.subresource != "scale" =>
        {
            Err(Failure::bare(500, "content is not a list"))
        }
        _ => accepted.fit(Views::Single, || go_type(target, Views::Single)),
    }
}

/// Returns once a written CustomResourceDefinition is served.
async fn wait_until_served(state: &ServerState, target: &Target, object: &Object) {
    if target.served.definition.group == ferrokube_apiextensions::GROUP
        && let Object::Stored(entry) = object
    {
        state.custom.settled(entry.revision.0).await;
    }
}

/// Reads the body. If decoding it may take long, the task continues off the workers.
async fn read_body(
    state: &ServerState,
    request: &mut Request<'_>,
    form: Form,
) -> Result<Bytes, Failure> {
    let bytes = crate::decode::take_body(state, request, form).await?;
    let is_long = match form {
        Form::Json => is_costly(&bytes),
        // Most applies are JSON; others leave the worker when they are read.
        Form::Yaml if bytes.first() == Some(&b'{') => is_costly(&bytes),
        Form::Yaml => bytes.len() > YAML_BYTES,
        Form::Protobuf => bytes.len() > ENCODED_BYTES,
    };
    if is_long {
        leave_worker_or_reject(request.caller_number()).await?;
    }
    Ok(bytes)
}

/// Moves the task off the workers; 429 if the caller has too many tasks waiting there.
pub(crate) async fn leave_worker_or_reject(caller: u64) -> Result<(), Failure> {
    if queue_is_full(caller) {
        return Err(flow::too_many());
    }
    leave_worker().await;
    Ok(())
}

/// Bytes of an object that is encoded for this response, with those of long definitions of columns;
/// 0 for stored bytes, which indentation is made of a piece at a time, and computed objects.
fn rendered_bytes(target: &Target, object: &Object, accepted: Accepted) -> usize {
    let is_lent = |entry: &Entry| {
        !matches!(accepted.view, View::Table(_))
            && Style::of(accepted) == Style::Indented
            && target.served.is_direct(entry)
    };
    let object = match object {
        Object::Stored(entry) if accepted != Accepted::JSON && !is_lent(entry) => entry.bytes.len(),
        _ => 0,
    };
    object + columns_cost(target, accepted)
}

fn columns_cost(target: &Target, accepted: Accepted) -> usize {
    match accepted.view {
        View::Table(_) => table::columns_of(&target.served, &target.subresource).cost(),
        _ => 0,
    }
}
