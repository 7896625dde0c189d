//! Common parts of create, update and patch: negotiation before the write, the response after it.

use super::respond::{check_response, offer, respond_written};
use crate::action::WriteKind;
use crate::decode;
use crate::exchange::Request;
use crate::filters::audit_payload;
use crate::negotiate::{Accepted, Form, Views};
use crate::rejection::Rejection;
use crate::resource_api::ResourceApi;
use bytes::Bytes;
use ferrokube_apimachinery::status::Failure;
use ferrokube_flow as flow;
use ferrokube_registry::{Body, Target, WriteOptions, Written};
use ferrokube_serve::Response;

/// A write whose response is negotiated.
pub(super) struct WriteRequest {
    accepted: Accepted,
    /// Why the response cannot be encoded. The write is a dry run then, so that other errors come
    /// first.
    encodable: Result<(), Failure>,
}

impl WriteRequest {
    pub(super) fn negotiate(
        request: &Request<'_>,
        target: &Target,
        views: Views,
    ) -> Result<Self, Rejection> {
        let accepted = request.parsed_head().accepted(offer(&target.served, views))?;
        let encodable = check_response(request, target, accepted, views);
        Ok(Self { accepted, encodable })
    }

    pub(super) fn options(
        &self,
        request: &Request<'_>,
        kind: WriteKind,
    ) -> Result<WriteOptions, Failure> {
        let mut options = request.action.options().write(kind)?;
        if self.encodable.is_err() {
            options.withhold();
        }
        Ok(options)
    }

    pub(super) async fn respond(
        self,
        api: &ResourceApi,
        request: &mut Request<'_>,
        target: &Target,
        written: &Written,
    ) -> Result<Response, Rejection> {
        self.encodable?;
        respond_written(api, request, target, written, self.accepted).await
    }
}

/// Decodes and audits the object of a create or update.
pub(super) async fn decode_object(
    api: &ResourceApi,
    request: &mut Request<'_>,
    target: &Target,
    form: Form,
    bytes: Bytes,
) -> Result<Body, Failure> {
    let body = decode::object(api.encoder.messages(), target, form, &bytes).await?;
    flow::shrink_tree(|| body.document.heap_bytes());
    audit_payload::request(request, form, bytes, &body.document);
    Ok(body)
}
