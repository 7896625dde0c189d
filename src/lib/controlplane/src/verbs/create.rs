//! POST.

use super::respond::{check_response, offer, respond_written};
use crate::action::WriteKind;
use crate::decode;
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::negotiate::Views;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::audit::AuditLevel;
use ferrokube_flow as flow;
use ferrokube_registry::Target;
use ferrokube_resource::Verbs;
use ferrokube_serve::Response;

pub(crate) async fn create(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    // Kinds that can be created but not listed (reviews) have no columns.
    let is_read = target.served.definition.verbs.has(Verbs::LIST) && target.subresource.is_empty();
    let views = if is_read { Views::Single } else { Views::Untabled };
    let accepted = request.asked().accepted(offer(&target.served, views))?;
    let shown = check_response(request, target, accepted, views);
    let form = decode::body_form(request, &target.served)?;
    let bytes = decode::read_body(&api.flow, request, form).await?;
    let mut options = request.action.options().write(WriteKind::Create)?;
    if shown.is_err() {
        options.withhold();
    }
    let body = decode::object(api.encoder.messages(), target, form, &bytes).await?;
    flow::shrink_tree(|| body.document.heap_bytes());
    if target.name.is_none() && request.audit.wants(AuditLevel::Metadata) {
        request.audit.name = body.document.name().into();
    }
    audit_payload::request(request, form, bytes, &body.document);
    let written = match &target.name {
        Some(name) if target.subresource.is_empty() => {
            check_name(name, &body.document)?;
            let collection = Target { name: None, ..target.clone() };
            api.registry.create(request.context(), &collection, body, &options).await?
        }
        _ => api.registry.create(request.context(), target, body, &options).await?,
    };
    shown?;
    respond_written(api, request, target, &written, accepted).await
}

/// A POST to an object's path creates that object, since its name was authorized. (kube-apiserver
/// takes any name from the body.)
fn check_name(expected: &str, object: &Document) -> Result<(), Failure> {
    match object.name() {
        name if name == expected => Ok(()),
        "" => Err(Failure::bad_request("name must be provided")),
        name => Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}
