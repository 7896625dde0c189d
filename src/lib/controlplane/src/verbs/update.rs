//! PUT.

use super::respond::views;
use super::write::{WriteRequest, decode_object};
use crate::action::{Verb, WriteKind};
use crate::decode;
use crate::exchange::Request;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::{Access, Decision};
use ferrokube_registry::Target;
use ferrokube_serve::Response;

pub(crate) async fn update(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let write = WriteRequest::negotiate(request, target, views(target))?;
    // kube-apiserver's order: unlike here, a create decodes its body first.
    let mut options = write.options(request, WriteKind::Update)?;
    let form = decode::body_form(request, &target.served)?;
    let bytes = decode::read_body(&api.flow, request, form).await?;
    if target.subresource.is_empty() && target.served.definition.policy.create_on_update {
        options.forbid_create = forbid_create(api, request);
    }
    let body = decode_object(api, request, target, form, bytes).await?;
    let written = api.registry.update(request.context(), target, body, &options).await?;
    write.respond(api, request, target, &written).await
}

/// The error for an update or apply that would create the object, if the caller may not create it.
pub(super) fn forbid_create(api: &ResourceApi, request: &Request<'_>) -> Option<Failure> {
    let access = Access { verb: Verb::Create.as_str(), ..request.action.access(request.user()) };
    match api.authorization.authorizer.authorize(&access) {
        Decision::Allow(_) => None,
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Some(ferrokube_auth::forbidden(&access, &reason))
        }
    }
}
