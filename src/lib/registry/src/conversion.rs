//! Objects of resources whose versions somebody else converts: entries in another version are made into entries in the asked one, outside every turn,
//! and kept for a while, since an entry never changes.

use crate::catalog::Served;
use crate::context::Target;
use crate::pipeline::{Deleted, Object, Registry, Written};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::conversion::Converter;
use ferrokube_schema::validate;
use ferrokube_storage::{Entry, Key, Sidecar};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// So many bytes of converted entries are kept, over all resources; then all are dropped.
const KEPT_BYTES: usize = 32 << 20;

/// What was converted lately, by key, revision, the definition's epoch and the index of the version.
#[derive(Default)]
pub(crate) struct ConvertedEntries(Mutex<Kept>);

type Name = (Key, u64, u32, usize);

#[derive(Default)]
struct Kept {
    entries: HashMap<Name, Arc<Entry>>,
    bytes: usize,
}

impl ConvertedEntries {
    fn get(&self, name: &Name) -> Option<Arc<Entry>> {
        self.0.lock().expect("no panic while held").entries.get(name).cloned()
    }

    fn put(&self, name: Name, entry: &Arc<Entry>) {
        let mut kept = self.0.lock().expect("no panic while held");
        if kept.bytes + entry.bytes.len() > KEPT_BYTES {
            *kept = Kept::default();
        }
        kept.bytes += entry.bytes.len();
        kept.entries.insert(name, Arc::clone(entry));
    }
}

impl Served {
    /// Who converts its objects.
    pub(crate) fn converter(&self) -> Option<&dyn Converter> {
        self.definition.hooks.converter()
    }

    /// Whether an entry is in another version, which somebody else must convert.
    pub fn needs_converter(&self, entry: &Entry) -> bool {
        self.converter().is_some() && !self.has_head(&entry.bytes)
    }

    /// The same definition in the version that is stored.
    pub(crate) fn stored(&self) -> Self {
        Self { version: self.definition.storage_version, definition: Arc::clone(&self.definition) }
    }

    fn name(&self, entry: &Entry) -> Name {
        (entry.key.clone(), entry.revision.0, self.definition.epoch, self.version)
    }
}

impl Registry {
    /// The entries in a served version. Those that nobody else must convert are given back as they are.
    ///
    /// # Errors
    /// 500: the conversion failed.
    pub async fn in_version(&self, served: &Served, mut entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Failure> {
        let Some(converter) = served.converter() else { return Ok(entries) };
        let mut places = Vec::new();
        let mut objects = Vec::new();
        for (place, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| served.needs_converter(entry)) {
            match self.parts.converted.get(&served.name(entry)) {
                Some(known) => *entry = known,
                None => {
                    objects.push(json::read(&entry.bytes).map_err(|error| Failure::internal(format!("a stored object cannot be read: {error}")))?.document);
                    places.push(place);
                }
            }
        }
        if objects.is_empty() {
            return Ok(entries);
        }
        let converted = converter.convert(served.definition.gvk(served.version).api_version(), objects).await?;
        for (place, object) in places.into_iter().zip(converted) {
            let name = served.name(&entries[place]);
            entries[place] = Arc::new(entry_of(served, &entries[place], object));
            self.parts.converted.put(name, &entries[place]);
        }
        Ok(entries)
    }

    /// One entry in a served version.
    ///
    /// # Errors
    /// 500: the conversion failed.
    pub async fn entry_in_version(&self, served: &Served, entry: Arc<Entry>) -> Result<Arc<Entry>, Failure> {
        if !served.needs_converter(&entry) {
            return Ok(entry);
        }
        Ok(self.in_version(served, vec![entry]).await?.swap_remove(0))
    }

    /// An object of an answer in the version of the request.
    ///
    /// # Errors
    /// 500: the conversion failed.
    pub(crate) async fn shown(&self, served: &Served, object: Object) -> Result<Object, Failure> {
        match object {
            Object::Stored(entry) => Ok(Self::object(self.entry_in_version(served, entry).await?, served)),
            computed => Ok(computed),
        }
    }

    pub(crate) async fn written_in_version(&self, served: &Served, written: Written) -> Result<Written, Failure> {
        Ok(Written { object: self.shown(served, written.object).await?, created: written.created })
    }

    pub(crate) async fn deleted_in_version(&self, served: &Served, deleted: Deleted) -> Result<Deleted, Failure> {
        Ok(match deleted {
            // The answer is a Status; nothing of the object is shown.
            Deleted::Gone(object) if !served.definition.hooks.returns_deleted() => Deleted::Gone(object),
            Deleted::Gone(object) => Deleted::Gone(self.shown(served, object).await?),
            Deleted::Pending(object) => Deleted::Pending(self.shown(served, object).await?),
            Deleted::AlreadyPending(object) => Deleted::AlreadyPending(self.shown(served, object).await?),
        })
    }

    /// An object as it is stored, where somebody else converts it; `None`: the codec does.
    pub(crate) async fn stored_form(&self, served: &Served, object: &Document) -> Result<Option<Document>, Failure> {
        let Some(converter) = served.converter().filter(|_| served.version != served.definition.storage_version) else { return Ok(None) };
        let stored = served.stored();
        let mut converted = converter.convert(stored.definition.gvk(stored.version).api_version(), vec![object.clone()]).await?;
        let mut object = converted.pop().ok_or_else(|| Failure::internal("a conversion gave no object"))?;
        complete(&stored, &mut object);
        Ok(Some(object))
    }

    /// Whether a write of a target waits for somebody else to convert the object.
    pub(crate) fn converts(&self, target: &Target) -> bool {
        target.served.converter().is_some()
    }
}

/// What was converted is pruned and defaulted as if it had been stored so.
fn complete(served: &Served, object: &mut Document) {
    let schema = &served.version().schema;
    validate::prune(schema, object);
    validate::default(schema, object);
}

/// An entry of the same revision with other bytes.
fn entry_of(served: &Served, entry: &Entry, mut object: Document) -> Entry {
    complete(served, &mut object);
    let (value, layout) = json::write(&object);
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        fields: entry.sidecar.fields.clone(),
        schema_epoch: served.definition.epoch,
        stale: entry.sidecar.stale,
    };
    entry.with_value(&value, sidecar)
}
