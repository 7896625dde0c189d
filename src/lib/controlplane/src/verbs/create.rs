//! POST.

use super::write::{WriteRequest, decode_object};
use crate::action::WriteKind;
use crate::decode;
use crate::exchange::Request;
use crate::negotiate::Views;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::audit::AuditLevel;
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
    let write = WriteRequest::negotiate(request, target, views)?;
    let form = decode::body_form(request, &target.served)?;
    let bytes = decode::read_body(&api.flow, request, form).await?;
    let options = write.options(request, WriteKind::Create)?;
    let body = decode_object(api, request, target, form, bytes).await?;
    if target.name.is_none() && request.audit.wants(AuditLevel::Metadata) {
        request.audit.name = body.document.name().into();
    }
    let written = match &target.name {
        Some(name) if target.subresource.is_empty() => {
            check_name(name, &body.document)?;
            let collection = Target { name: None, ..target.clone() };
            api.registry.create(request.context(), &collection, body, &options).await?
        }
        _ => api.registry.create(request.context(), target, body, &options).await?,
    };
    write.respond(api, request, target, &written).await
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
