//! PATCH.

use super::respond::{check_response, offer, respond_written, views};
use super::update::forbid_create;
use crate::action::WriteKind;
use crate::decode;
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::negotiate::Form;
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use ferrokube_flow as flow;
use ferrokube_registry::{Patch, Target, WriteOptions};
use ferrokube_serve::Response;

pub(crate) async fn patch(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
) -> Result<Response, Rejection> {
    let kind = decode::patch_kind(request, &target.served)?;
    let accepted = request.asked().accepted(offer(&target.served, views(target)))?;
    let shown = check_response(request, target, accepted, views(target));
    let (write_kind, form) = if kind == decode::PatchKind::Apply {
        (WriteKind::Apply, Form::Yaml)
    } else {
        (WriteKind::Patch, Form::Json)
    };
    let bytes = decode::read_body(&api.flow, request, form).await?;
    let mut options: WriteOptions = request.action.options().write(write_kind)?;
    if shown.is_err() {
        options.withhold();
    }
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
    shown?;
    respond_written(api, request, target, &written, accepted).await
}
