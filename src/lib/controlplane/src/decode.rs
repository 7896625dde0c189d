//! Request bodies into objects, patches and options.

use crate::exchange::Exchange;
use crate::flow::too_large;
use crate::negotiate::{Form, body_form as form_of};
use crate::server::Shared;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json::{DecodeError, Decoded};
use ferrokube_apimachinery::protobuf::{Messages, ProtobufError};
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_apimachinery::{json, yaml};
use ferrokube_registry::{Body, Patch, Served, Target};
use http::header::CONTENT_TYPE;

/// The protobuf message of `DeleteOptions`.
const DELETE_OPTIONS: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// The form of the request's body.
///
/// # Errors
/// 415.
pub(crate) fn body_form(exchange: &Exchange, served: &Served) -> Result<Form, Failure> {
    form_of(exchange.header(CONTENT_TYPE), served.version().message.is_some())
}

/// The object of a create or update.
///
/// # Errors
/// 400 for a body that cannot be read.
pub(crate) fn object(shared: &Shared, target: &Target, form: Form, bytes: &[u8]) -> Result<Body, Failure> {
    let decoded = match form {
        _ if bytes.is_empty() => return Err(Failure::bad_request("the body of the request is empty")),
        Form::Json => nullable(json::read(bytes))?,
        Form::Yaml => nullable(yaml::read(bytes))?,
        Form::Protobuf => return protobuf(shared, target, bytes),
    };
    Ok(Body { document: decoded.document, duplicates: decoded.duplicates, lenient: false })
}

/// A body that is `null` is an object without fields.
fn nullable(read: Result<Decoded, DecodeError>) -> Result<Decoded, Failure> {
    match read {
        Err(DecodeError::NotObject("null")) => Ok(Decoded { document: Document::new(), duplicates: Vec::new() }),
        other => other.map_err(unreadable),
    }
}

fn unreadable(error: DecodeError) -> Failure {
    if matches!(error, DecodeError::TooLarge) { too_large() } else { Failure::bad_request(error.to_string()) }
}

fn unreadable_protobuf(error: ProtobufError) -> Failure {
    if matches!(error, ProtobufError::TooLarge) { too_large() } else { Failure::bad_request(error.to_string()) }
}

fn protobuf(shared: &Shared, target: &Target, bytes: &[u8]) -> Result<Body, Failure> {
    let (api_version, kind) = Messages::type_of(bytes).map_err(unreadable_protobuf)?;
    let messages = shared.encoder.messages();
    let own = target.served.version().message.as_deref().unwrap_or_default();
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("core", &api_version));
    let named = format!("k8s.io.api.{}.{version}.{kind}", group.split('.').next().unwrap_or_default());
    let message = if kind == target.served.definition.kind || kind.is_empty() || !messages.contains(&named) { own } else { &named };
    let document = messages.read(message, bytes).map_err(unreadable_protobuf)?;
    Ok(Body { document, duplicates: Vec::new(), lenient: true })
}

/// `DeleteOptions`.
///
/// # Errors
/// 400.
pub(crate) fn delete_options(shared: &Shared, form: Form, bytes: &[u8]) -> Result<Document, Failure> {
    match form {
        Form::Json => nullable(json::read(bytes)).map(|decoded| decoded.document),
        Form::Yaml => nullable(yaml::read(bytes)).map(|decoded| decoded.document),
        Form::Protobuf => {
            let (_, kind) = Messages::type_of(bytes).map_err(unreadable_protobuf)?;
            if !matches!(kind.as_str(), "" | "DeleteOptions") {
                return Err(Failure::bad_request(format!("expected DeleteOptions in the body, not {kind}")));
            }
            shared.encoder.messages().read(DELETE_OPTIONS, bytes).map_err(unreadable_protobuf)
        }
    }
}

/// The four kinds of patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// `application/json-patch+json`
    Json,
    /// `application/merge-patch+json`
    Merge,
    /// `application/strategic-merge-patch+json`
    Strategic,
    /// `application/apply-patch+yaml`
    Apply,
}

/// The patch's kind, from the content type.
///
/// # Errors
/// 415; custom resources have no strategic merge.
pub(crate) fn patch_kind(exchange: &Exchange, served: &Served) -> Result<PatchKind, Failure> {
    // To the letter, as upstream: patches come from programs.
    match exchange.header(CONTENT_TYPE).split(';').next().unwrap_or_default() {
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/strategic-merge-patch+json" if !served.definition.custom => Ok(PatchKind::Strategic),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        _ => {
            let strategic = if served.definition.custom { "" } else { ", application/strategic-merge-patch+json" };
            let message = format!(
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json{strategic}, application/apply-patch+yaml"
            );
            let failure = Failure::new(Reason::UnsupportedMediaType, message);
            // Of a native kind the router refuses it, of a custom one the handler.
            Err(if served.definition.custom { failure } else { failure.with_details(Details::default()) })
        }
    }
}

/// The patch.
///
/// # Errors
/// 400 for a body that cannot be read.
pub(crate) fn patch(kind: PatchKind, bytes: &[u8]) -> Result<Patch, Failure> {
    let body = |decoded: Decoded| Body { document: decoded.document, duplicates: decoded.duplicates, lenient: false };
    Ok(match kind {
        PatchKind::Json => {
            let read = json::read_any(bytes).map_err(unreadable)?;
            Patch::Json(read.value, read.duplicates)
        }
        PatchKind::Merge => Patch::Merge(body(json::read(bytes).map_err(unreadable)?)),
        PatchKind::Strategic => Patch::Strategic(body(json::read(bytes).map_err(unreadable)?)),
        PatchKind::Apply => Patch::Apply(body(yaml::read(bytes).map_err(unreadable)?)),
    })
}
