//! Values in a storage that others write too, such as kube-apiserver: the canonical form and the
//! sidecar are derived from their bytes.

use crate::catalog::{Catalog, Served};
use crate::codec::selectable;
use crate::decode::ObjectDecoder;
use crate::meta;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_resource::{Definition, DefinitionVersion};
use ferrokube_storage::{Key, Sidecar, ValueReader};
use std::sync::Arc;

/// Start of a value in protobuf.
const PROTOBUF: &[u8] = b"k8s\0";

/// Reads the stored values of the catalog's resources, and of custom resources that it does not
/// know yet. JSON and protobuf.
pub struct StoredValues {
    catalog: Arc<Catalog>,
    messages: Arc<Messages>,
}

impl StoredValues {
    /// The catalog has the bundled resources, whose messages these are.
    pub fn new(catalog: Arc<Catalog>, messages: Arc<Messages>) -> Self {
        Self { catalog, messages }
    }

    /// As written. Errors do not quote the value.
    fn parse(&self, owner: Option<&Definition>, value: &[u8]) -> Result<Document, String> {
        if !value.starts_with(PROTOBUF) {
            let decoded = json::read(value).map_err(|_| "it is not a JSON object")?;
            return Ok(decoded.document);
        }
        let (api_version, kind) = Messages::type_of(value).map_err(|_| "it is malformed")?;
        let message = owner
            .and_then(|owner| version_of(owner, &api_version, &kind))
            .and_then(|version| version.message.as_deref())
            .ok_or("its kind has no protobuf message here")?;
        Ok(self.messages.read(message, value).map_err(|_| "it is malformed")?)
    }
}

/// The version of a definition that an object is of.
fn version_of<'a>(
    owner: &'a Definition,
    api_version: &str,
    kind: &str,
) -> Option<&'a DefinitionVersion> {
    let index = version_index(owner, api_version, kind)?;
    owner.versions.get(index)
}

fn version_index(owner: &Definition, api_version: &str, kind: &str) -> Option<usize> {
    let is_own = |version: &usize| {
        let gvk = owner.gvk(*version);
        gvk.api_version() == api_version && gvk.kind == kind
    };
    (0..owner.versions.len()).find(is_own)
}

/// What another writer wrote, as this server would have written it.
fn in_form(owner: &Arc<Definition>, mut object: Document) -> Result<Document, String> {
    if version_index(owner, object.api_version(), object.kind()).is_none() {
        owner.hooks.restore_former(&mut object);
    }
    if let Some(version) = version_index(owner, object.api_version(), object.kind()) {
        let served = Served { definition: Arc::clone(owner), version };
        let decoded = ObjectDecoder::of(&served).decode_applied(object);
        object = decoded.map_err(|_| "its fields have other types".to_owned())?;
        owner.restore(version, &mut object);
        meta::normalize(&mut object);
        meta::drop_empty_managed_fields(&mut object);
        drop_empty_members(&mut object);
    }
    Ok(object)
}

/// Protobuf has empty texts where JSON has nothing. Metadata's lists have no schema.
fn drop_empty_members(object: &mut Document) {
    for field in ["managedFields", "ownerReferences"] {
        let Some(Value::Array(entries)) = object.get_mut(&["metadata", field]) else { continue };
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.retain(|_, value| value.as_str() != Some(""));
        }
    }
}

impl ValueReader for StoredValues {
    fn prefix<'a>(&self, key: &'a str) -> Option<&'a str> {
        let start = "/registry/".len();
        let rest = key.strip_prefix("/registry/")?;
        let first = rest.find('/')?;
        let second = rest[first + 1..].find('/').map(|at| first + 1 + at);
        let is_stored = |end: usize| self.catalog.at_prefix(&rest[..end]).is_some();
        // Custom resources are below their group, whose name has a dot.
        let is_custom = |_: &usize| rest[..first].contains('.');
        let end = second
            .filter(|second| is_stored(*second) || !is_stored(first) && is_custom(second))
            .or_else(|| Some(first).filter(|first| is_stored(*first)))?;
        Some(&key[..start + end + 1])
    }

    fn read(&self, key: &Key, value: &Bytes) -> Result<(Bytes, Sidecar), String> {
        let prefix = key.prefix().trim_start_matches("/registry/").trim_end_matches('/');
        let owner = self.catalog.at_prefix(prefix);
        let mut object = self.parse(owner.as_deref(), value)?;
        if object.kind().is_empty() || object.api_version().is_empty() {
            return Err("it has no kind".to_owned());
        }
        if object.name() != key.name() || object.namespace() != key.namespace().unwrap_or_default()
        {
            return Err("it is an object of another name".to_owned());
        }
        object.remove(&["metadata", "resourceVersion"]);
        // Custom objects may have been written under any schema: they are decoded at each read.
        let bundled = owner.filter(|owner| !owner.dialect.has_epochs());
        let (mut bytes, mut layout) = json::write(&object);
        let stale = value.strip_suffix(b"\n").unwrap_or(value) != bytes;
        if let (true, Some(owner)) = (stale, &bundled) {
            object = in_form(owner, object)?;
            (bytes, layout) = json::write(&object);
        }
        let sidecar = Sidecar {
            marks: layout.marks(),
            revision_at: layout.revision_at,
            comma: layout.comma(),
            fields: bundled.as_ref().map(|owner| selectable(owner, &object)).unwrap_or_default(),
            schema_epoch: bundled.map_or(0, |owner| owner.epoch),
            stale,
        };
        Ok((bytes.into(), sidecar))
    }
}
