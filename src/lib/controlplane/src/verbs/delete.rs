//! DELETE of an object.

use super::respond::{check_response, offer, respond, wait_until_served};
use crate::encode::slices;
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::negotiate::{Accepted, Form, View, Views, body_form};
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use crate::{decode, status};
use ferrokube_apimachinery::status::{Details, Failure};
use ferrokube_registry::{DeleteOptions, Deleted, Object, Target};
use ferrokube_serve::Response;
use http::header::CONTENT_TYPE;

pub(crate) async fn delete(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = request.parsed_head().accepted(offer(&target.served, Views::Single))?;
    let options = delete_options(api, request).await?;
    let shown = check_response(request, target, accepted, Views::Single);
    if shown.is_err() {
        // If the object is gone, the response is a Status, which every view can encode.
        let trial = DeleteOptions { dry_run: true, ..options.clone() };
        match api.registry.delete(request.context(), target, &trial).await? {
            Deleted::Gone(_) | Deleted::AlreadyPending(_)
                if !target.served.definition.policy.returns_deleted => {}
            _ => shown?,
        }
    }
    let (object, gone) = match api.registry.delete(request.context(), target, &options).await? {
        Deleted::Gone(object) | Deleted::AlreadyPending(object) => (object, true),
        Deleted::Pending(object) => (object, false),
    };
    wait_until_served(api, target, &object).await;
    if gone && !target.served.definition.policy.returns_deleted {
        return Ok(deleted(api, request, target, &object, accepted));
    }
    let code = if !gone && options.orphan_dependents == Some(false) { 202 } else { 200 };
    respond(api, request, target, &object, code, accepted).await
}

pub(super) async fn delete_options(
    api: &ResourceApi,
    request: &mut Request<'_>,
) -> Result<DeleteOptions, Failure> {
    // DeleteOptions have a protobuf form whatever the deleted kind has.
    let form = body_form(request.header(CONTENT_TYPE), true);
    let bytes =
        decode::read_body(&api.flow, request, form.as_ref().copied().unwrap_or(Form::Json)).await?;
    if bytes.is_empty() {
        return request.action.options().delete(None);
    }
    let form = form?;
    let body = decode::delete_options(api.encoder.messages(), form, &bytes).await?;
    audit_payload::request(request, form, bytes, &body);
    request.action.options().delete(Some(&body))
}

/// The `Status` of a completed delete, in the view that the client accepts.
fn deleted(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
    object: &Object,
    accepted: Accepted,
) -> Response {
    let definition = &target.served.definition;
    let uid = match object {
        Object::Stored(entry) => slices::uid(entry).to_owned(),
        Object::Computed(document) => document.uid().to_owned(),
    };
    let name = target.name.clone().unwrap_or_default();
    let details = Details {
        name,
        group: definition.group.clone(),
        kind: definition.plural.clone(),
        uid,
        ..Details::default()
    };
    // A Status has no Table or metadata view.
    let accepted = Accepted { view: View::Whole, ..accepted };
    let status = status::success(&details);
    audit_payload::status(request, &status);
    status::encoded(200, api.encoder.document(&status, accepted, Some(status::message())))
}
