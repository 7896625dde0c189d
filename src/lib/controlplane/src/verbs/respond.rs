//! Content negotiation per resource, and encoding of single-object responses.

use crate::action::Include;
use crate::compress;
use crate::decode::ENCODED_BYTES;
use crate::encode::rendered::{Rendered, Style};
use crate::encode::table::{self, Table};
use crate::encode::{Encoded, Encoder, stream};
use crate::exchange::Request;
use crate::negotiate::{Accepted, Form, Offer, RouterTypes, View, Views};
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use crate::status;
use bytes::Bytes;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::audit::AuditLevel;
use ferrokube_registry::offload::leave_worker;
use ferrokube_registry::{Object, Served, Target, Written, internal_package};
use ferrokube_serve::Response;
use ferrokube_storage::Entry;
use http::StatusCode;
use http::header::ACCEPT_ENCODING;
use std::sync::Arc;

/// Objects from this size on are sent from the store's own bytes; smaller ones are copied with the
/// trailing newline, which saves a frame.
const UNCOPIED_BYTES: usize = 16 * 1024;

/// Forms and views of a resource.
pub(super) fn offer(served: &Served, views: Views) -> Offer {
    let router = if served.definition.dialect.routes_itself() {
        RouterTypes::None
    } else {
        RouterTypes::Objects
    };
    Offer { protobuf: served.version().message.is_some(), views, router }
}

/// The same for reads of collections: the router knows the types of watches, which they may be.
pub(super) fn collection_offer(served: &Served, views: Views) -> Offer {
    let routes_itself = served.definition.dialect.routes_itself();
    let router = if routes_itself { RouterTypes::None } else { RouterTypes::Streams };
    Offer { router, ..offer(served, views) }
}

/// Views of an object, or of its subresource.
pub(super) fn views(target: &Target) -> Views {
    let untabled = target.served.definition.policy.untabled_subresources;
    if untabled.contains(&target.subresource.as_str()) { Views::Untabled } else { Views::Single }
}

/// The Go type that kube-apiserver names in 406 messages.
pub(super) fn go_type(target: &Target, views: Views) -> String {
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
pub(super) fn is_partial(accepted: Accepted) -> bool {
    matches!(accepted.view, View::Metadata(_) | View::MetadataList(_))
}

pub(super) fn include(request: &Request<'_>, accepted: Accepted) -> Result<Include, Failure> {
    if matches!(accepted.view, View::Table(_)) {
        request.action.options().include()
    } else {
        Ok(Include::Metadata)
    }
}

/// Responds with one object, in the accepted form and view.
pub(super) async fn respond(
    api: &ResourceApi,
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
    let records_response = request.audit.wants(AuditLevel::RequestResponse);
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
        if records_response {
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
        if records_response {
            request.audit.response = Some(json.clone());
        }
        return Ok(rendered(request, json, code, accepted));
    }
    if let Object::Stored(entry) = object
        && accepted == Accepted::JSON
        && entry.bytes.len() >= UNCOPIED_BYTES
        && target.served.is_direct(entry)
    {
        if records_response {
            request.audit.response = Some(entry.bytes.clone());
        }
        let body = crate::body::frames([entry.bytes.clone(), Bytes::from_static(b"\n")]);
        return Ok(status::with_type(code, accepted.form.media_type(), body));
    }
    let Encoded { bytes, form } = api.encoder.object(&target.served, object, accepted)?;
    if records_response {
        let as_json = Accepted { form: Form::Json, pretty: false, ..accepted };
        request.audit.response = Some(match form {
            Form::Json => bytes.clone(),
            _ => api.encoder.object(&target.served, object, as_json)?.bytes,
        });
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

pub(super) async fn respond_written(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
    written: &Written,
    accepted: Accepted,
) -> Result<Response, Rejection> {
    wait_until_served(api, target, &written.object).await;
    if let Object::Stored(entry) = &written.object {
        request.audit.written = Some(Arc::clone(entry));
    }
    let code = if written.created { 201 } else { 200 };
    respond(api, request, target, &written.object, code, accepted).await
}

/// Checks that the response to a write can be encoded in the accepted view. If not, the write must
/// be a dry run: kube-apiserver only notices after the write, so other errors come first; but here
/// an error means that nothing was written.
pub(super) fn check_response(
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
pub(super) fn check_view(target: &Target, accepted: Accepted) -> Result<(), Failure> {
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
pub(super) async fn wait_until_served(api: &ResourceApi, target: &Target, object: &Object) {
    if target.served.definition.group == ferrokube_apiextensions::GROUP
        && let Object::Stored(entry) = object
    {
        api.custom.wait_served(entry.revision.0).await;
    }
}

/// Bytes of an object that is encoded for this response, with those of long definitions of columns;
/// 0 for stored bytes, which indentation is made of a piece at a time, and computed objects.
pub(super) fn rendered_bytes(target: &Target, object: &Object, accepted: Accepted) -> usize {
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

pub(super) fn columns_cost(target: &Target, accepted: Accepted) -> usize {
    match accepted.view {
        View::Table(_) => table::columns_of(&target.served, &target.subresource).cost(),
        _ => 0,
    }
}
