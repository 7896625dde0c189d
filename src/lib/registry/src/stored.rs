//! Values in a storage that others write too, such as kube-apiserver: the canonical form and the
//! sidecar are derived from their bytes.

use crate::catalog::{Catalog, Served};
use crate::codec::selectable;
use crate::decode::ObjectDecoder;
use crate::meta;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::gvk::is_api_version;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::protobuf::{MAGIC, Messages};
use ferrokube_resource::{Definition, DefinitionVersion};
use ferrokube_storage::{Key, Sidecar, ValueCodec, ValueForm};
use std::sync::Arc;

/// Groups that kube-apiserver stores as JSON, by the two servers that it delegates to.
const JSON_GROUPS: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Prefix of [`crate::MasterLeases`]; their values are Endpoints, but have no name.
pub(crate) const MASTER_LEASES: &str = "masterleases";
/// Prefix of Endpoints.
const ENDPOINTS: &str = "services/endpoints";

/// Start of a value that kube-apiserver encrypted, with any of its providers.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Form in which objects of bundled kinds are stored. Both are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageMediaType {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`: kube-apiserver's default. JSON where kube-apiserver
    /// uses JSON, and for distinctions that protobuf cannot express, such as an empty list.
    #[default]
    Protobuf,
}

/// Reads and writes the stored values of the catalog's resources, and of custom resources that it
/// does not know yet. JSON and protobuf.
pub struct StoredValues {
    catalog: Arc<Catalog>,
    messages: Arc<Messages>,
    media_type: StorageMediaType,
}

impl StoredValues {
    /// The catalog has the bundled resources, whose messages these are. They are written in this
    /// form.
    pub fn new(
        catalog: Arc<Catalog>,
        messages: Arc<Messages>,
        media_type: StorageMediaType,
    ) -> Self {
        Self { catalog, messages, media_type }
    }

    fn owner(&self, key: &Key) -> Option<Arc<Definition>> {
        self.catalog.at_prefix(owner_prefix(resource(key)))
    }

    /// As written. Errors do not quote the value.
    fn parse(&self, owner: Option<&Definition>, value: &[u8]) -> Result<Document, String> {
        if value.starts_with(ENCRYPTED) {
            return Err("it is encrypted; kube-apiserver can write it again unencrypted".into());
        }
        if !value.starts_with(MAGIC) {
            let decoded = json::read(value).map_err(|_| "it is not a JSON object")?;
            return Ok(decoded.document);
        }
        let (api_version, kind) = Messages::type_of(value).map_err(|_| "it is malformed")?;
        let message = owner
            .and_then(|owner| {
                let former = || former_version(owner, &api_version, &kind);
                version_of(owner, &api_version, &kind).or_else(former)
            })
            .and_then(|version| version.message.as_deref())
            .ok_or("its kind has no protobuf message here")?;
        Ok(self.messages.read(message, value).map_err(|_| "it is malformed")?)
    }

    /// In protobuf, as far as that holds the object; `None` if it is to be JSON.
    fn encoded(&self, owner: &Definition, object: &Document) -> Option<Vec<u8>> {
        let is_json = self.media_type == StorageMediaType::Json
            || owner.dialect.has_epochs()
            || JSON_GROUPS.contains(&owner.group.as_str());
        let version = version_of(owner, object.api_version(), object.kind());
        let message = version.filter(|_| !is_json)?.message.as_deref()?;
        self.messages.write_as_go(message, object).ok()
    }

    /// An object of a bundled kind, as it is in the value.
    fn own_form(
        &self,
        owner: &Arc<Definition>,
        object: Document,
        value: &[u8],
    ) -> Result<OwnForm, String> {
        let is_protobuf = value.starts_with(MAGIC);
        if !is_protobuf && version_index(owner, object.api_version(), object.kind()).is_some() {
            let (bytes, layout) = json::write(&object);
            if value.strip_suffix(b"\n").unwrap_or(value) == bytes {
                // kube-apiserver ends JSON with a newline.
                let form = ValueForm::of(&bytes);
                return Ok(OwnForm { object, bytes, layout, form });
            }
        }
        let object = in_form(owner, object, is_protobuf)?;
        let (bytes, layout) = json::write(&object);
        Ok(OwnForm { object, bytes, layout, form: ValueForm::of(value) })
    }

    /// [`Self::encoded`], if an object that is read from it is the same.
    fn encoded_exactly(&self, owner: &Arc<Definition>, object: &Document) -> Option<Vec<u8>> {
        let value = self.encoded(owner, object)?;
        let read = in_form(owner, self.parse(Some(owner), &value).ok()?, true).ok()?;
        (read == *object).then_some(value)
    }
}

/// A value in this server's form.
struct OwnForm {
    object: Document,
    bytes: Vec<u8>,
    layout: json::Layout,
    /// The form in which it is stored.
    form: ValueForm,
}

/// The part of a key that names its resource.
fn resource(key: &Key) -> &str {
    key.prefix().trim_start_matches("/registry/").trim_end_matches('/')
}

/// Prefix of the kind of the values at a prefix.
fn owner_prefix(prefix: &str) -> &str {
    if prefix == MASTER_LEASES { ENDPOINTS } else { prefix }
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
    let is_own =
        |version: &DefinitionVersion| is_api_version(api_version, &owner.group, &version.name);
    if owner.kind == kind { owner.versions.iter().position(is_own) } else { None }
}

/// The storage version, whose fields the objects of this version have.
fn former_version<'a>(
    owner: &'a Definition,
    api_version: &str,
    kind: &str,
) -> Option<&'a DefinitionVersion> {
    let version = api_version.strip_prefix(owner.group.as_str())?.strip_prefix('/')?;
    let is_former = kind == owner.kind && owner.policy.former_versions.contains(&version);
    owner.versions.get(owner.storage_version).filter(|_| is_former)
}

/// A custom object as kube-apiserver stores it: Go sorts the keys, escapes what HTML and JavaScript
/// would misread, and ends with a newline. Floats may have other digits.
fn custom_value(object: &Document) -> Vec<u8> {
    let plain = json::document_to_vec(object);
    let mut value = Vec::with_capacity(plain.len() + 16);
    let mut rest = &plain[..];
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'<' | b'>' | b'&' | 0xe2)) {
        let (before, found) = rest.split_at(at);
        value.extend_from_slice(before);
        let (escaped, length): (&[u8], usize) = match found {
            [b'<', ..] => (b"\\u003c", 1),
            [b'>', ..] => (b"\\u003e", 1),
            [b'&', ..] => (b"\\u0026", 1),
            [0xe2, 0x80, 0xa8, ..] => (b"\\u2028", 3),
            [0xe2, 0x80, 0xa9, ..] => (b"\\u2029", 3),
            _ => (&found[..1], 1),
        };
        value.extend_from_slice(escaped);
        rest = &found[length..];
    }
    value.extend_from_slice(rest);
    value.push(b'\n');
    value
}

/// Converts a value of another writer, read from a message or from JSON, to this server's own
/// format.
fn in_form(
    owner: &Arc<Definition>,
    mut object: Document,
    is_message: bool,
) -> Result<Document, String> {
    if version_index(owner, object.api_version(), object.kind()).is_none() {
        if former_version(owner, object.api_version(), object.kind()).is_some() {
            object.set(&["apiVersion"], owner.gvk(owner.storage_version).api_version());
        }
        owner.hooks.restore_former(&mut object);
    }
    if let Some(version) = version_index(owner, object.api_version(), object.kind()) {
        let decoded = if is_message {
            ObjectDecoder::decode_message(owner, version, object).ok()
        } else {
            let served = Served { definition: Arc::clone(owner), version };
            ObjectDecoder::of(&served).decode_applied(object).ok()
        };
        object = decoded.ok_or("its fields have other types")?;
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

impl ValueCodec for StoredValues {
    fn prefix<'a>(&self, key: &'a str) -> Option<&'a str> {
        let start = "/registry/".len();
        let rest = key.strip_prefix("/registry/")?;
        let first = rest.find('/')?;
        let second = rest[first + 1..].find('/').map(|at| first + 1 + at);
        let is_stored = |end: usize| self.catalog.at_prefix(owner_prefix(&rest[..end])).is_some();
        // Custom resources are below their group, whose name has a dot.
        let is_custom = |_: &usize| rest[..first].contains('.');
        let end = second
            .filter(|second| is_stored(*second) || !is_stored(first) && is_custom(second))
            .or_else(|| Some(first).filter(|first| is_stored(*first)))?;
        Some(&key[..start + end + 1])
    }

    fn may_expire(&self, key: &Key) -> bool {
        self.owner(key).is_some_and(|owner| owner.hooks.ttl(&Document::new()).is_some())
    }

    fn read(&self, key: &Key, value: &Bytes) -> Result<(Bytes, Sidecar), String> {
        let owner = self.owner(key);
        let mut object = self.parse(owner.as_deref(), value)?;
        if object.kind().is_empty() || object.api_version().is_empty() {
            return Err("it has no kind".to_owned());
        }
        let is_of_key = || {
            object.name() == key.name() && object.namespace() == key.namespace().unwrap_or_default()
        };
        if resource(key) != MASTER_LEASES && !is_of_key() {
            return Err("it is an object of another name".to_owned());
        }
        object.remove(&["metadata", "resourceVersion"]);
        // Custom objects may have been written under any schema: they are decoded at each read.
        let bundled = owner.filter(|owner| !owner.dialect.has_epochs());
        let OwnForm { object, bytes, layout, form } = match &bundled {
            Some(owner) => self.own_form(owner, object, value)?,
            None => {
                let (bytes, layout) = json::write(&object);
                OwnForm { object, bytes, layout, form: ValueForm::of(value) }
            }
        };
        let sidecar = Sidecar {
            marks: layout.marks(),
            revision_at: layout.revision_at,
            comma: layout.comma(),
            fields: bundled.as_ref().map(|owner| selectable(owner, &object)).unwrap_or_default(),
            schema_epoch: bundled.map_or(0, |owner| owner.epoch),
            form,
        };
        Ok((bytes.into(), sidecar))
    }

    fn write(&self, key: &Key, value: &Bytes) -> Bytes {
        let owner = self.owner(key);
        let is_custom = owner.as_ref().map_or_else(
            || resource(key).split('/').next().is_some_and(|group| group.contains('.')),
            |owner| owner.dialect.has_epochs(),
        );
        if !is_custom && self.media_type == StorageMediaType::Json {
            return value.clone();
        }
        let Ok(decoded) = json::read(value) else { return value.clone() };
        let object = decoded.document;
        let written = match owner {
            _ if is_custom => Some(custom_value(&object)),
            Some(owner) => self.encoded_exactly(&owner, &object),
            None => None,
        };
        written.map_or_else(|| value.clone(), Bytes::from)
    }
}
