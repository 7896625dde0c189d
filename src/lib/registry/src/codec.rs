//! Converts between documents and store entries: canonical bytes in the storage version, and the
//! sidecar.

use crate::catalog::{Catalog, Served};
use crate::conversion::is_long;
use crate::failure;
use crate::offload::{has_slot, leave_worker};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::heap;
use ferrokube_apimachinery::json::{self, Layout};
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::Definition;
use ferrokube_schema::validate;
use ferrokube_storage::{Entry, FieldValues, Key, Put, Sidecar, ValueForm};
use ferrokube_trace::annotation::Ids;
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

/// Size limit of a stored object: etcd's request limit, as with kube-apiserver.
pub(crate) const MAX_OBJECT_BYTES: usize = 1_536 * 1024;

/// Memory of an object that is defaulted, tracked and validated before its size is checked: these
/// multiply it. Strings cost little: a long one is refused by validation, as in kube-apiserver.
const MAX_UNCHECKED_BYTES: usize = 8 << 20;

/// Rejects early an object that [`put`] would reject after expensive steps.
///
/// # Errors
/// 413 for an object of many values above [`MAX_OBJECT_BYTES`].
pub(crate) fn refuse_expensive(object: &Document) -> Result<(), Failure> {
    if heap::fields(object.fields()) <= MAX_UNCHECKED_BYTES {
        return Ok(());
    }
    let bytes = json::document_to_vec(object).len();
    if bytes <= MAX_OBJECT_BYTES {
        return Ok(());
    }
    Err(failure::too_large_object(bytes, MAX_OBJECT_BYTES))
}

/// Parses an entry in a served version: converted, and for custom resources of another epoch pruned
/// and defaulted. Notes if that changed nothing. Not needed to return the bytes if
/// [`Served::is_direct`].
pub fn view(entry: &Entry, served: &Served) -> Document {
    let mut object = match json::read(&entry.bytes) {
        Ok(decoded) => decoded.document,
        Err(error) => {
            // Stored bytes come from the canonical writer and have a checksum, so this is a bug. An
            // empty object reveals nothing.
            tracing::error!(key = entry.key.as_str(), error = %error, "a stored object cannot be read");
            Document::new()
        }
    };
    if served.is_direct(entry) {
        return object;
    }
    let is_compared = served.definition.dialect.has_epochs() && served.has_head(&entry.bytes);
    let stored = is_compared.then(|| object.clone());
    from_stored(served, &mut object);
    if stored.is_some_and(|stored| stored == object) {
        entry.checked.set(served.definition.epoch);
    }
    object
}

fn from_stored(served: &Served, object: &mut Document) {
    let definition = &served.definition;
    let gvk = definition.gvk(served.version);
    let expected = gvk.api_version();
    let converts = object.api_version() != expected;
    if converts && definition.hooks.converter().is_some() {
        // The conversion webhook was not called. Shown as stored, since the schema of another
        // version must not prune it.
        return;
    }
    if definition.dialect.has_epochs() {
        decode_custom(definition, object);
    }
    if converts {
        definition.hooks.from_storage(&gvk.version, object);
        object.set(&["kind"], gvk.kind);
        object.set(&["apiVersion"], expected);
        if definition.dialect.has_epochs() {
            // Defaults are those of the stored version.
            validate::prune(&served.version().schema, object);
        }
    }
}

/// Decodes a custom object: the current schema of its stored version prunes and defaults it.
fn decode_custom(definition: &Definition, object: &mut Document) {
    let stored = (0..definition.versions.len())
        .find(|version| definition.gvk(*version).api_version() == object.api_version());
    if let Some(version) = stored {
        let schema = &definition.versions[version].schema;
        validate::prune(schema, object);
        validate::default(schema, object);
    }
}

/// An object in another served version of its resource, or of one that shares its storage. Calls
/// the conversion webhook if there is one.
///
/// # Errors
/// Those of the conversion webhook.
pub async fn convert(
    from: &Served,
    to: &Served,
    object: &Document,
) -> Result<ConvertedObject, Failure> {
    let (own, wanted) = (from.definition.gvk(from.version), to.definition.gvk(to.version));
    let unbounded = |object| Ok(ConvertedObject { object, room: None });
    if own == wanted {
        return unbounded(object.clone());
    }
    if let Some(converter) = from.converter() {
        let bytes = json::to_vec(&object.clone().into_value()).into();
        let had_slot = has_slot();
        let mut converted = converter.convert(wanted.api_version(), vec![bytes]).await?;
        let missing = || Failure::internal("a conversion gave no object");
        let object = converted.objects.pop().ok_or_else(missing)?;
        if had_slot || is_long(&object) {
            leave_worker().await;
        }
        return Ok(ConvertedObject { object, room: converted.room });
    }
    let mut object = to_stored(from, object).into_owned();
    from_stored(to, &mut object);
    unbounded(object)
}

/// An object in another version.
pub struct ConvertedObject {
    /// In the wanted version.
    pub object: Document,
    /// Room of the conversion webhook's response in its budget, to be held as long as the object.
    pub room: Option<Box<dyn Any + Send + Sync>>,
}

/// The object in the storage version: itself, or a converted copy.
pub(crate) fn to_stored<'a>(served: &Served, object: &'a Document) -> Cow<'a, Document> {
    let definition = &served.definition;
    let gvk = definition.gvk(definition.storage_version);
    let mut stored = Cow::Borrowed(object);
    if served.version != definition.storage_version {
        let stored = stored.to_mut();
        stored.set(&["kind"], gvk.kind.as_str());
        stored.set(&["apiVersion"], gvk.api_version());
        definition.hooks.to_storage(&served.version().name, stored);
        if definition.dialect.has_epochs() {
            // The next read would prune it.
            let schema = &definition.versions[definition.storage_version].schema;
            validate::prune(schema, stored);
            validate::default(schema, stored);
        }
    }
    stored
}

/// Encodes an object, with the given ids, for the store.
///
/// # Errors
/// 413 above [`MAX_OBJECT_BYTES`]. An object that exceeds it only with managedFields loses them, as
/// in kube-apiserver.
pub(crate) fn put(
    catalog: &Catalog,
    served: &Served,
    key: Key,
    object: &Document,
    ids: Option<&Ids>,
) -> Result<Put, Failure> {
    let stored = to_stored(served, object);
    let owner = catalog.owner(&served.definition);
    let (mut value, mut layout) = encode(&stored, ids);
    if value.len() > MAX_OBJECT_BYTES {
        let mut slim = stored.clone().into_owned();
        slim.remove(&["metadata", "managedFields"]);
        (value, layout) = encode(&slim, ids);
        if value.len() > MAX_OBJECT_BYTES {
            return Err(failure::too_large_object(value.len(), MAX_OBJECT_BYTES));
        }
    }
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        fields: selectable(&owner, &stored),
        schema_epoch: owner.epoch,
        form: ValueForm::OWN,
    };
    Ok(Put { key, value: value.into(), sidecar, ttl: served.definition.hooks.ttl(&stored) })
}

fn encode(object: &Document, ids: Option<&Ids>) -> (Vec<u8>, Layout) {
    ids.map_or_else(|| json::write(object), |ids| ids.with(|pairs| json::write_with(object, pairs)))
}

/// Copies an entry's value with other ids, without encoding it again. `None` if it would be encoded
/// differently today, or has no room for them.
pub(crate) fn with_ids(served: &Served, entry: &Entry, ids: &Ids) -> Option<Put> {
    let (stored, sidecar) = (served.stored(), &entry.sidecar);
    let is_of_schema =
        !stored.definition.dialect.has_epochs() || sidecar.schema_epoch == stored.definition.epoch;
    if !is_of_schema || !stored.is_direct(entry) {
        return None;
    }
    let layout = Layout::from_marks(sidecar.marks, sidecar.revision_at);
    let (value, layout) = ids.with(|pairs| {
        json::forms::with_annotations(&entry.bytes, &layout, entry.spliced().len(), pairs)
    })?;
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        form: ValueForm::OWN,
        ..sidecar.clone()
    };
    (value.len() <= MAX_OBJECT_BYTES).then(|| Put {
        key: entry.key.clone(),
        value: value.into(),
        sidecar,
        ttl: None,
    })
}

pub(crate) fn selectable(owner: &Definition, stored: &Document) -> FieldValues {
    let paths = &owner.versions[owner.storage_version].selectable;
    if paths.is_empty() {
        return FieldValues::default();
    }
    owner.hooks.selectable(paths, stored).into_iter().map(String::into_boxed_str).collect()
}

/// Whether encoding the object today gives the same entry. `object` is the entry's view; it is
/// encoded and compared if the entry is of another epoch or version.
pub(crate) fn is_fresh(
    catalog: &Catalog,
    served: &Served,
    entry: &Entry,
    object: &Document,
) -> bool {
    let owner: Arc<Definition> = catalog.owner(&served.definition);
    let stored = Served { version: owner.storage_version, definition: owner };
    if entry.sidecar.schema_epoch == stored.definition.epoch {
        return stored.is_direct(entry);
    }
    put(catalog, served, entry.key.clone(), object, None).is_ok_and(|put| {
        let [head, tail] = entry.value();
        put.value.strip_prefix(head) == Some(tail) && put.sidecar.fields == entry.sidecar.fields
    })
}
