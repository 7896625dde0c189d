//! PATCH.

use super::respond::views;
use super::update::forbid_create;
use super::write::WriteRequest;
use crate::action::WriteKind;
use crate::decode;
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::negotiate::Form;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_flow as flow;
use ferrokube_registry::{Patch, Target};
use ferrokube_serve::Response;

pub(crate) async fn patch(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let kind = decode::patch_kind(request, &target.served)?;
    let write = WriteRequest::negotiate(request, target, views(target))?;
    let (write_kind, form) = if kind == decode::PatchKind::Apply {
        (WriteKind::Apply, Form::Yaml)
    } else {
        (WriteKind::Patch, Form::Json)
    };
    let bytes = decode::read_body(&api.flow, request, form).await?;
    let mut options = write.options(request, write_kind)?;
    if write_kind == WriteKind::Apply {
        options.forbid_create = forbid_create(api, request);
    }
    let read = decode::patch(kind, &bytes, options.field_validation.unwrap_or_default()).await;
    // A subresource creates no object, so a missing object is reported first.
    let patch = read.or_else(|failure| {
        let is_whole = target.subresource.is_empty();
        if is_whole { Err(failure) } else { Ok(Patch::Unreadable(failure)) }
    })?;
    flow::shrink_tree(|| decode::patch_bytes(&patch));
    match &patch {
        Patch::Apply(body) => audit_payload::request(request, form, bytes, &body.document),
        _ => request.audit.request = Some(bytes),
    }
    let written = api.registry.patch(request.context(), target, patch, &options).await?;
    write.respond(api, request, target, &written).await
}
