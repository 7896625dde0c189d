//! PUT.

use super::respond::{check_response, offer, respond_written, views};
use crate::action::{Verb, WriteKind};
use crate::decode;
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_apimachinery::status::Failure;
use ferrokube_auth::{Access, Decision};
use ferrokube_flow as flow;
use ferrokube_registry::Target;
use ferrokube_serve::Response;

pub(crate) async fn update(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let accepted = request.asked().accepted(offer(&target.served, views(target)))?;
    let shown = check_response(request, target, accepted, views(target));
    // kube-apiserver's order: unlike here, a create decodes its body first.
    let mut options = request.action.options().write(WriteKind::Update)?;
    if shown.is_err() {
        options.withhold();
    }
    let form = decode::body_form(request, &target.served)?;
    let bytes = decode::read_body(&api.flow, request, form).await?;
    if target.subresource.is_empty() && target.served.definition.policy.create_on_update {
        options.forbid_create = forbid_create(api, request);
    }
    let body = decode::object(api.encoder.messages(), target, form, &bytes).await?;
    flow::shrink_tree(|| body.document.heap_bytes());
    audit_payload::request(request, form, bytes, &body.document);
    let written = api.registry.update(request.context(), target, body, &options).await?;
    shown?;
    respond_written(api, request, target, &written, accepted).await
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
