//! Decodes request bodies to objects, patches and options.

use crate::body::BodyReader;
use crate::exchange::Request;
use crate::negotiate::{Form, MediaTypeError, body_form as form_of};
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::json::{DecodeError, Decoded};
use ferrokube_apimachinery::patch::merge_patch;
use ferrokube_apimachinery::protobuf::{Messages, ProtobufError};
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_apimachinery::{go, heap, json, yaml};
use ferrokube_flow::{Flow, UNCOUNTED_BODY, hold_body, too_large, too_many};
use ferrokube_registry::offload::{
    INLINE_BYTES, caller, is_costly, json_micros, leave_worker_for, queue_is_full,
};
use ferrokube_registry::{Body, FieldValidation, Patch, Served, Target, no_object, unrecognized};
use http::header::CONTENT_TYPE;

/// Longer YAML bodies are parsed off the workers: 1 KiB takes about 0.1 ms.
const YAML_BYTES: usize = 1024;
/// Longer protobuf bodies are decoded, and longer objects encoded to anything but JSON, off the
/// workers.
pub(crate) const ENCODED_BYTES: usize = INLINE_BYTES / 2;

const DELETE_OPTIONS: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// The form of a request body.
///
/// # Errors
/// 415 if unsupported.
pub(crate) fn body_form(request: &Request<'_>, served: &Served) -> Result<Form, Failure> {
    form_of(request.header(CONTENT_TYPE), served.version().message.is_some())
}

/// Moves the task off the workers, for about as many microseconds; 429 if the caller has too many
/// tasks waiting there.
pub(crate) async fn leave_worker_or_reject(caller: u64, micros: u64) -> Result<(), Failure> {
    if queue_is_full(caller) {
        return Err(too_many());
    }
    leave_worker_for(micros).await;
    Ok(())
}

/// Decodes the object of a create or update.
///
/// # Errors
/// 400 for a body that cannot be read.
pub(crate) async fn object(
    messages: &Messages,
    target: &Target,
    form: Form,
    bytes: &Bytes,
) -> Result<Body, Failure> {
    let refused =
        |why: String| Failure::bad_request(unrecognized(kind_of_body(target), &why, bytes));
    let decoded = match form {
        Form::Json => nullable(json::read(bytes)).map_err(|error| {
            unreadable(&error, |error| match error {
                // The type is known by then.
                DecodeError::Range(_) => beyond(target, error),
                error => refused(missing_type_message(error)),
            })
        })?,
        Form::Yaml => nullable(read_yaml(bytes).await?).map_err(|error| {
            unreadable(&error, |error| refused(yaml_message(error, &missing_type_message(error))))
        })?,
        Form::Protobuf => return protobuf(messages, target, bytes),
    };
    Ok(body(decoded, form == Form::Yaml, bytes))
}

/// Reads a YAML body. JSON is parsed on the worker; anything that needs the YAML parser, also to
/// name repeated keys, off the workers.
async fn read_yaml(bytes: &[u8]) -> Result<Result<Decoded, DecodeError>, Failure> {
    let json = yaml::read_json(bytes);
    let is_read = json.as_ref().is_some_and(|read| match read {
        Ok(decoded) => decoded.duplicates.is_empty(),
        Err(_) => true,
    });
    if !is_read && bytes.len() > YAML_BYTES {
        leave_worker_or_reject(caller(), decode_micros(Form::Yaml, bytes)).await?;
    }
    Ok(json.unwrap_or_else(|| yaml::read_events(bytes)))
}

/// A body in JSON or YAML.
fn body(decoded: Decoded, yaml: bool, bytes: &Bytes) -> Body {
    let Decoded { document, mut duplicates } = decoded;
    let noted =
        if yaml && !duplicates.is_empty() { yaml::repeated_keys(bytes) } else { Vec::new() };
    if !noted.is_empty() {
        duplicates.clear();
    }
    Body { document, duplicates, noted, lenient: false, yaml, source: bytes.clone() }
}

/// The kind that an endpoint accepts.
fn kind_of_body(target: &Target) -> &str {
    let definition = &target.served.definition;
    definition
        .subresource(target.served.version, &target.subresource)
        .map_or(definition.kind.as_str(), |subresource| subresource.kind.kind.as_str())
}

/// 400 for a number that no float can be.
fn beyond(target: &Target, error: &DecodeError) -> Failure {
    unfit(target, "", "", &error.to_string())
}

/// Reads `null` as an object without fields.
fn nullable(read: Result<Decoded, DecodeError>) -> Result<Decoded, DecodeError> {
    match read {
        Err(DecodeError::NotObject("null")) => {
            Ok(Decoded { document: Document::new(), duplicates: Vec::new() })
        }
        other => other,
    }
}

/// 413 if decoding would take too much memory, else the failure that `why` makes.
fn unreadable(error: &DecodeError, why: impl FnOnce(&DecodeError) -> Failure) -> Failure {
    if matches!(error, DecodeError::TooLarge) { too_large() } else { why(error) }
}

fn unreadable_protobuf(error: &ProtobufError, why: impl FnOnce(String) -> Failure) -> Failure {
    if matches!(error, ProtobufError::TooLarge) { too_large() } else { why(error.to_string()) }
}

/// 400 for a body whose type is known.
fn unfit(target: &Target, kind: &str, api_version: &str, why: &str) -> Failure {
    let expected = kind_of_body(target);
    let kind = if kind.is_empty() { expected } else { kind };
    let version = match api_version {
        "" => target.served.version().name.as_str(),
        named => named.rsplit('/').next().unwrap_or_default(),
    };
    Failure::bad_request(format!(
        "{kind} in version {} cannot be handled as a {expected}: {why}",
        quote(version)
    ))
}

/// The message for a body without kind or apiVersion.
fn missing_type_message(error: &DecodeError) -> String {
    let why = match error {
        DecodeError::NotObject(given) => {
            format!("json: cannot unmarshal {given} into Go value of type {}", go::TYPE_META)
        }
        other => other.to_string(),
    };
    format!("couldn't get version/kind; json parse error: {why}")
}

/// The same for YAML, where the parser's error comes first.
fn yaml_message(error: &DecodeError, otherwise: &str) -> String {
    match error {
        DecodeError::Syntax(why) => format!("yaml: {why}"),
        _ => otherwise.to_owned(),
    }
}

fn protobuf(messages: &Messages, target: &Target, bytes: &Bytes) -> Result<Body, Failure> {
    let (api_version, kind) = Messages::type_of(bytes).map_err(|error| {
        unreadable_protobuf(&error, |why| {
            Failure::bad_request(unrecognized(kind_of_body(target), &why, bytes))
        })
    })?;
    let own = target.served.version().message.as_deref().unwrap_or_default();
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("core", &api_version));
    let named =
        format!("k8s.io.api.{}.{version}.{kind}", group.split('.').next().unwrap_or_default());
    let message = if kind.is_empty() || !messages.contains(&named) { own } else { &named };
    let mut document = messages.read(message, bytes).map_err(|error| {
        unreadable_protobuf(&error, |why| unfit(target, &kind, &api_version, &why))
    })?;
    drop_unreadable_version(&mut document);
    Ok(Body {
        document,
        duplicates: Vec::new(),
        noted: Vec::new(),
        lenient: true,
        yaml: false,
        source: bytes.clone(),
    })
}

/// Decodes `DeleteOptions`.
///
/// # Errors
/// 400.
pub(crate) async fn delete_options(
    messages: &Messages,
    form: Form,
    bytes: &[u8],
) -> Result<Document, Failure> {
    match form {
        Form::Json => {
            let refused = |error: DecodeError| {
                unreadable(&error, |error| Failure::bad_request(missing_type_message(error)))
            };
            nullable(json::read(bytes)).map(|decoded| decoded.document).map_err(refused)
        }
        Form::Yaml => {
            let refused = |error: DecodeError| {
                unreadable(&error, |error| {
                    Failure::bad_request(yaml_message(error, &missing_type_message(error)))
                })
            };
            nullable(read_yaml(bytes).await?).map(|decoded| decoded.document).map_err(refused)
        }
        Form::Protobuf => {
            let bad = |error: ProtobufError| unreadable_protobuf(&error, Failure::bad_request);
            let (api_version, kind) = Messages::type_of(bytes).map_err(bad)?;
            if !matches!(&*kind, "" | "DeleteOptions") {
                // Refused by its kind.
                let mut document = Document::new();
                document.set(&["kind"], kind);
                document.set(&["apiVersion"], api_version);
                return Ok(document);
            }
            let mut options = messages.read(DELETE_OPTIONS, bytes).map_err(bad)?;
            drop_unreadable_version(&mut options);
            Ok(options)
        }
    }
}

/// In protobuf, an apiVersion with more than one slash counts as none.
fn drop_unreadable_version(document: &mut Document) {
    if document.api_version().matches('/').count() > 1 {
        document.remove(&["apiVersion"]);
    }
}

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

/// The kind of a patch, from its content type.
///
/// # Errors
/// 415 if unknown, or a strategic merge of a custom resource.
pub(crate) fn patch_kind(
    request: &Request<'_>,
    served: &Served,
) -> Result<PatchKind, MediaTypeError> {
    // Compared exactly, like kube-apiserver.
    let content_type = request.header(CONTENT_TYPE);
    match content_type.split(';').next().unwrap_or_default() {
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/strategic-merge-patch+json" if served.definition.dialect.is_typed() => {
            Ok(PatchKind::Strategic)
        }
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        _ => {
            // The router rejects most for a native kind, the handler all for a custom one.
            let [json, merge, _, apply] = PATCH_TYPES;
            Err(match served.definition.dialect.routes_itself() {
                true => unknown_format(&[json, merge, apply]),
                false if is_routed(content_type) => unknown_format(&PATCH_TYPES),
                false => MediaTypeError::Router(
                    Failure::new(Reason::UnsupportedMediaType, "415: Unsupported Media Type")
                        .with_details(Details::default()),
                ),
            })
        }
    }
}

const PATCH_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Whether kube-apiserver's router takes it for the type of a patch, since one of a list is.
fn is_routed(content_type: &str) -> bool {
    content_type.split(',').any(|part| {
        let media = part.split(';').next().unwrap_or_default().trim();
        PATCH_TYPES.contains(&media)
    })
}

fn unknown_format(known: &[&str]) -> MediaTypeError {
    MediaTypeError::Handler(Failure::new(
        Reason::UnsupportedMediaType,
        format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            known.join(", ")
        ),
    ))
}

/// Approximate memory of a patch.
pub(crate) fn patch_bytes(patch: &Patch) -> usize {
    match patch {
        Patch::Json(operations, _) => heap::bytes(operations),
        Patch::Merge(body) | Patch::Strategic(body) | Patch::Apply(body) => {
            body.document.heap_bytes()
        }
        Patch::Unreadable(_) => 0,
    }
}

/// Decodes a patch. Other than an apply, a malformed one is only rejected once the object was
/// found.
///
/// # Errors
/// 400 for a body that cannot be read.
pub(crate) async fn patch(
    kind: PatchKind,
    bytes: &Bytes,
    validation: FieldValidation,
) -> Result<Patch, Failure> {
    let body = |decoded: Decoded| body(decoded, kind == PatchKind::Apply, bytes);
    let strict = validation != FieldValidation::Ignore;
    let read = match kind {
        PatchKind::Json => operations(bytes, strict),
        PatchKind::Merge => {
            json::read(bytes).map(|decoded| Patch::Merge(body(decoded))).map_err(|error| {
                unreadable(&error, |error| match error {
                    DecodeError::NotObject("null") => Failure::bad_request("Invalid JSON Patch"),
                    DecodeError::Syntax(_) | DecodeError::NotObject(_) if !strict => {
                        unmerged(bytes)
                    }
                    error => Failure::bad_request(format!("error decoding patch: {error}")),
                })
            })
        }
        PatchKind::Strategic => {
            let refused = |error: DecodeError| {
                unreadable(&error, |error| Failure::bad_request(error.to_string()))
            };
            nullable(json::read(bytes))
                .map(|decoded| Patch::Strategic(body(decoded)))
                .map_err(refused)
        }
        PatchKind::Apply => {
            let refused = |error: &DecodeError| {
                Failure::bad_request(match error {
                    DecodeError::NotObject(_) => format!(
                        "error decoding YAML: error unmarshaling JSON: while decoding JSON: {error}"
                    ),
                    error => format!(
                        "error decoding YAML: error converting YAML to JSON: {}",
                        yaml_message(error, &error.to_string())
                    ),
                })
            };
            return nullable(read_yaml(bytes).await?)
                .map(|decoded| Patch::Apply(body(decoded)))
                .map_err(|error| unreadable(&error, refused));
        }
    };
    Ok(read.unwrap_or_else(Patch::Unreadable))
}

/// The error of a merge patch that is no object. A list replaces the whole object.
fn unmerged(bytes: &[u8]) -> Failure {
    match json::read_any(bytes) {
        Ok(read) if read.value.is_array() => {
            let mut whole = Value::Null;
            merge_patch(&mut whole, &read.value);
            no_object(&whole)
        }
        _ => Failure::bad_request("Invalid JSON Patch"),
    }
}

/// The operations of a JSON patch, with the findings of strict validation.
fn operations(bytes: &[u8], strict: bool) -> Result<Patch, Failure> {
    let (prefix, list) = if strict {
        ("error decoding patch: ", "[]handlers.jsonPatchOp")
    } else {
        ("", "jsonpatch.Patch")
    };
    let read = json::read_any(bytes).map_err(|error| {
        unreadable(&error, |error| match error {
            DecodeError::Range(number) => Failure::bad_request(format!("{prefix}json: cannot unmarshal number {number} into Go struct field jsonPatchOp.value of type float64")),
            error => Failure::bad_request(format!("{prefix}{error}")),
        })
    })?;
    let wrong = |value: &Value, what: &str| {
        Err(Failure::bad_request(format!(
            "{prefix}json: cannot unmarshal {} into Go {what}",
            json::type_name(value)
        )))
    };
    let operations = match &read.value {
        Value::Null => &[],
        Value::Array(operations) => &operations[..],
        other => return wrong(other, &format!("value of type {list}")),
    };
    let mut noted: Vec<String> = read
        .duplicates
        .iter()
        .map(|path| format!("json patch duplicate field {}", quote(path)))
        .collect();
    for (index, operation) in operations.iter().enumerate().filter(|_| strict) {
        let Value::Object(fields) = operation else {
            if operation.is_null() {
                continue;
            }
            return wrong(operation, "value of type handlers.jsonPatchOp");
        };
        for (name, value) in fields {
            match &**name {
                "op" | "path" | "from" if !value.is_string() && !value.is_null() => {
                    return wrong(
                        value,
                        &format!("struct field jsonPatchOp.{name} of type string"),
                    );
                }
                "op" | "path" | "from" | "value" => {}
                unknown if noted.len() < MAX_FINDINGS => noted.push(format!(
                    "json patch unknown field {}",
                    quote(&format!("[{index}].{unknown}"))
                )),
                _ => {}
            }
        }
    }
    Ok(Patch::Json(read.value, noted))
}

/// Max findings reported about a JSON patch.
const MAX_FINDINGS: usize = 20;

/// Reads the body of a request, then reserves memory for decoding it, then takes the request's
/// seat: in this order, so that no request holds a seat while it waits for its client or for
/// memory. Leaves the worker if counting or decoding the body may take long.
///
/// # Errors
/// As [`BodyReader::read`]; 413 if decoding would take too much, 429 while others hold too much.
pub(crate) async fn read_body(
    flow: &Flow,
    request: &mut Request<'_>,
    form: Form,
) -> Result<Bytes, Failure> {
    let mut bytes = Bytes::new();
    if let Some(body) = request.take_body() {
        let reader = BodyReader { flow, class: request.class(), limit: flow.limits().body_bytes };
        let (read, held) = reader.read(body).await?;
        hold_body(held);
        bytes = read;
        if bytes.len() > UNCOUNTED_BODY {
            if bytes.len() > INLINE_BOUND {
                leave_worker_or_reject(caller(), decode_micros(form, &bytes)).await?;
            }
            flow.tree(request.class(), bound(form, &bytes)).await?;
        }
    }
    flow.take_seat(&request.user().name).await?;
    if decodes_long(form, &bytes) {
        leave_worker_or_reject(request.caller_number(), decode_micros(form, &bytes)).await?;
    }
    Ok(bytes)
}

/// Whether decoding a body may take long.
fn decodes_long(form: Form, bytes: &Bytes) -> bool {
    match form {
        Form::Json => is_costly(bytes),
        // Most applies are JSON; others leave the worker when they are read.
        Form::Yaml if bytes.first() == Some(&b'{') => is_costly(bytes),
        Form::Yaml => bytes.len() > YAML_BYTES,
        Form::Protobuf => bytes.len() > ENCODED_BYTES,
    }
}

/// Bodies up to this length are counted on the worker: up to 0.2 ms.
const INLINE_BOUND: usize = 256 * 1024;

/// Microseconds of decoding a body and encoding its object, at least: of longer JSON, only the
/// beginning is read.
fn decode_micros(form: Form, bytes: &[u8]) -> u64 {
    match form {
        Form::Json => json_micros(&bytes[..bytes.len().min(INLINE_BOUND)]),
        Form::Yaml => 2 * encode_micros(bytes.len()),
        Form::Protobuf => encode_micros(bytes.len()),
    }
}

/// Microseconds of encoding an object of this length to anything but JSON.
pub(crate) fn encode_micros(bytes: usize) -> u64 {
    u64::try_from(bytes / 20).unwrap_or(u64::MAX)
}

/// Upper bound of the decoded size.
fn bound(form: Form, body: &[u8]) -> usize {
    match form {
        Form::Json => heap::json_bound(body),
        Form::Yaml => heap::yaml_bound(body),
        Form::Protobuf => heap::protobuf_bound(body),
    }
}
