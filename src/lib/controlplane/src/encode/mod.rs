//! Objects to bytes: slices of stored bytes where possible, documents encoded on demand where not.

pub(crate) mod chunk_cache;
pub(crate) mod gzip;
pub(crate) mod list;
pub(crate) mod pretty;
pub(crate) mod protobuf;
pub(crate) mod rendered;
pub(crate) mod rows;
pub(crate) mod slices;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod vectored;

use crate::negotiate::{Accepted, Form, View};
use crate::status;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::json::Layout;
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_registry::{Object, Served};
use ferrokube_storage::Entry;
use std::sync::Arc;

/// Package of the metadata messages in the protobuf tables.
const META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1";

/// Encodes objects. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    messages: Arc<Messages>,
}

/// An encoded object and its form: JSON if it has no protobuf message.
pub(crate) struct Encoded {
    pub(crate) bytes: Bytes,
    pub(crate) form: Form,
}

impl Encoded {
    fn new(bytes: Vec<u8>, form: Form) -> Self {
        Self { bytes: bytes.into(), form }
    }
}

impl Encoder {
    pub(crate) fn new(messages: Arc<Messages>) -> Self {
        Self { messages }
    }

    pub(crate) fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Encodes a document.
    pub(crate) fn document(
        &self,
        document: &Document,
        accepted: Accepted,
        message: Option<&str>,
    ) -> Encoded {
        match accepted.form {
            Form::Json => Encoded::new(json_document(document, accepted.pretty), Form::Json),
            Form::Yaml => {
                Encoded::new(yaml::to_vec(&Value::Object(document.fields().clone())), Form::Yaml)
            }
            Form::Protobuf => match message.map(|message| self.messages.write(message, document)) {
                Some(Ok(bytes)) => Encoded::new(bytes, Form::Protobuf),
                Some(Err(error)) => {
                    tracing::warn!(message, error = %error, "an object does not fit its protobuf message");
                    Encoded::new(json_document(document, false), Form::Json)
                }
                None => Encoded::new(json_document(document, false), Form::Json),
            },
        }
    }

    /// Encodes one object, in a view that is not a list.
    ///
    /// # Errors
    /// 500 if the stored bytes cannot be decoded.
    pub(crate) fn object(
        &self,
        served: &Served,
        object: &Object,
        accepted: Accepted,
    ) -> Result<Encoded, Failure> {
        let version = match accepted.view {
            View::Metadata(version) | View::MetadataList(version) => version,
            _ => return Ok(self.whole(served, object, accepted)),
        };
        if let (Object::Stored(entry), Form::Json) = (object, accepted.form)
            && served.has_stored_metadata()
        {
            let bytes = slices::partial(entry, version);
            return Ok(Encoded::new(finish_plain(bytes, accepted.pretty), Form::Json));
        }
        let document = partial_document(served, &document_of(served, object), version);
        Ok(self.document(&document, accepted, Some(&format!("{META}.PartialObjectMetadata"))))
    }

    /// One object as JSON, on one line, in a view that is not a list: stored bytes if possible. To
    /// be indented or written as YAML while it is sent.
    pub(crate) fn json(served: &Served, object: &Object, view: View) -> Bytes {
        let partial = match view {
            View::Metadata(version) | View::MetadataList(version) => Some(version),
            _ => None,
        };
        match (object, partial) {
            (Object::Stored(entry), Some(version)) if served.has_stored_metadata() => {
                slices::partial(entry, version).into()
            }
            (Object::Stored(entry), None) if served.is_direct(entry) => entry.bytes.clone(),
            (_, partial) => {
                let document = document_of(served, object);
                let document = match partial {
                    Some(version) => partial_document(served, &document, version),
                    None => document,
                };
                let mut bytes = json_document(&document, false);
                bytes.pop();
                bytes.into()
            }
        }
    }

    fn whole(&self, served: &Served, object: &Object, accepted: Accepted) -> Encoded {
        if let (Object::Stored(entry), Form::Json) = (object, accepted.form)
            && served.is_direct(entry)
        {
            let bytes = if accepted.pretty {
                pretty::indent(&entry.bytes)
            } else {
                slices::with_newline(&entry.bytes)
            };
            return Encoded::new(bytes, Form::Json);
        }
        let document = document_of(served, object);
        let message = self.message_of(served, &document);
        self.document(&document, accepted, message.as_deref())
    }

    /// The protobuf message of an object: its version's, or for a subresource of another kind the
    /// one that its apiVersion and kind name. Some subresources answer a Status.
    fn message_of(&self, served: &Served, document: &Document) -> Option<String> {
        if document.kind() == served.definition.kind {
            return served.version().message.clone();
        }
        if document.kind() == "Status" && document.api_version() == "v1" {
            return Some(status::message().to_owned());
        }
        let (group, version) =
            document.api_version().rsplit_once('/').unwrap_or(("core", document.api_version()));
        let name = format!(
            "k8s.io.api.{}.{version}.{}",
            group.split('.').next().unwrap_or_default(),
            document.kind()
        );
        self.messages.contains(&name).then_some(name)
    }
}

/// Canonical JSON with the resource version and a trailing newline.
fn json_document(document: &Document, indented: bool) -> Vec<u8> {
    if document.get(&["metadata"]).is_none() {
        return finish_plain(json::to_vec(&Value::Object(document.fields().clone())), indented);
    }
    finish_plain(canonical(document).bytes, indented)
}

/// Canonical JSON with the resource version.
struct CanonicalBytes {
    bytes: Vec<u8>,
    layout: Layout,
    /// Length of the inserted resource version.
    spliced: usize,
}

fn canonical(document: &Document) -> CanonicalBytes {
    let (mut bytes, layout) = json::write(document);
    let revision = document.meta("resourceVersion");
    if revision.is_empty() {
        return CanonicalBytes { bytes, layout, spliced: 0 };
    }
    let at = layout.revision_at as usize;
    let comma = if layout.comma() { "," } else { "" };
    let splice = format!("{comma}\"resourceVersion\":\"{revision}\"").into_bytes();
    let spliced = splice.len();
    bytes.splice(at..at, splice);
    CanonicalBytes { bytes, layout, spliced }
}

fn finish_plain(mut bytes: Vec<u8>, indented: bool) -> Vec<u8> {
    if indented {
        return pretty::indent(&bytes);
    }
    bytes.push(b'\n');
    bytes
}

/// Decodes an object in the requested version.
pub(crate) fn document_of(served: &Served, object: &Object) -> Document {
    match object {
        Object::Stored(entry) => entry_document(served, entry),
        Object::Computed(document) => document.clone(),
    }
}

/// Decodes a stored object in the requested version.
pub(crate) fn entry_document(served: &Served, entry: &Entry) -> Document {
    ferrokube_registry::view(entry, served)
}

/// Kind, apiVersion and metadata only.
pub(crate) fn partial_document(served: &Served, document: &Document, version: &str) -> Document {
    let mut partial = Document::new();
    partial.set(&["kind"], "PartialObjectMetadata");
    partial.set(&["apiVersion"], format!("meta.k8s.io/{version}"));
    partial.set(&["metadata"], document.get(&["metadata"]).cloned().unwrap_or_default());
    let annotations = ["metadata", "annotations"];
    for name in served.definition.policy.internal_annotations {
        partial.remove(&[annotations[0], annotations[1], *name]);
    }
    if partial.get(&annotations).and_then(Value::as_object).is_some_and(Map::is_empty) {
        partial.remove(&annotations);
    }
    partial
}
