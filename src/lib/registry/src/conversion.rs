//! Conversion webhooks: converts entries to the requested version outside of every turn. Results
//! are cached, since entries are immutable.

mod cache;

use crate::catalog::Served;
use crate::context::Target;
use crate::offload::{INLINE_BYTES, compute_shared, has_slot, leave_worker, return_to_worker};
use crate::pipeline::{Deleted, Object, Registry, Written};
use bytes::Bytes;
pub(crate) use cache::ConvertedEntries;
use cache::{CacheKey, CacheLookup, ConversionClaims};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::{heap, json};
use ferrokube_resource::conversion::{Conversion, Converter};
use ferrokube_schema::validate;
use ferrokube_storage::{Entry, Sidecar, ValueForm};
use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Bytes of objects in one conversion request; a larger object is sent alone.
const BATCH_BYTES: usize = 2 << 20;

/// Objects in one conversion request.
const BATCH_OBJECTS: usize = 500;

impl Served {
    pub(crate) fn converter(&self) -> Option<&dyn Converter> {
        self.definition.hooks.converter()
    }

    /// Whether an entry is in a version that only the conversion webhook can convert.
    pub fn needs_converter(&self, entry: &Entry) -> bool {
        self.converter().is_some() && !self.has_head(&entry.bytes)
    }

    /// In the storage version.
    pub(crate) fn stored(&self) -> Self {
        Self { version: self.definition.storage_version, definition: Arc::clone(&self.definition) }
    }
}

impl Registry {
    /// Converts entries to a served version with the conversion webhook, if the definition has one.
    ///
    /// # Errors
    /// 500 if the conversion fails.
    pub async fn in_version(
        &self,
        served: &Served,
        mut entries: Vec<Arc<Entry>>,
    ) -> Result<Vec<Arc<Entry>>, Failure> {
        let Some(converter) = served.converter() else { return Ok(entries) };
        let mut leaves = has_slot();
        loop {
            let mut claims = ConversionClaims::new(&self.state.converted);
            let (mut mine, mut pending) = (Vec::new(), Vec::new());
            for (index, entry) in
                entries.iter_mut().enumerate().filter(|(_, entry)| served.needs_converter(entry))
            {
                let name = CacheKey::of(served, entry);
                match self.state.converted.state(&name) {
                    CacheLookup::Hit(known) => *entry = known,
                    CacheLookup::InProgress(conversion) => pending.push(conversion),
                    CacheLookup::Claimed => {
                        claims.names.push(name);
                        mine.push(index);
                    }
                }
            }
            if mine.is_empty() && pending.is_empty() {
                return Ok(entries);
            }
            // Other callers wait for the claimed ones: they must not wait in the queue of this one.
            return_to_worker().await;
            let mut done = 0;
            while done < mine.len() {
                let batch = &mine[done..done + batch_len(&entries, &mine[done..])];
                let converted = self
                    .convert(served, converter, &entries, batch)
                    .await
                    .inspect_err(|failure| {
                        // The error may concern any object of the batch, or only this caller, for
                        // which there is no room: requests that wait for one of them retry.
                        if claims.names.len() == 1 && failure.code != 429 {
                            claims.fail(failure);
                        }
                    })?;
                let bytes: usize = batch.iter().map(|index| entries[*index].bytes.len()).sum();
                let objects = converted.objects;
                let is_long = bytes > INLINE_BYTES || are_long(&objects);
                let encode = || {
                    let pairs = batch.iter().zip(objects);
                    let encoded = pairs
                        .map(|(index, object)| entry_of(served, &entries[*index], object))
                        .map(Arc::new);
                    encoded.collect::<Vec<_>>()
                };
                let encoded = match is_long {
                    true => compute_shared(queue_of(served), encode).await,
                    false => encode(),
                };
                leaves |= is_long;
                for ((index, entry), name) in batch.iter().zip(encoded).zip(&claims.names[done..]) {
                    self.state.converted.put(name.clone(), &entry);
                    entries[*index] = entry;
                }
                done += batch.len();
            }
            drop(claims);
            if pending.is_empty() {
                if leaves {
                    leave_worker().await;
                }
                return Ok(entries);
            }
            // Own conversions end before waiting for others, so that requests never wait in a
            // cycle.
            for mut conversion in pending {
                // An error means that it ended.
                converter.wait(Box::pin(async { _ = conversion.changed().await })).await?;
                if let Some(failure) = conversion.borrow().clone() {
                    return Err(failure);
                }
            }
            if leaves {
                leave_worker().await;
            }
        }
    }

    async fn convert(
        &self,
        served: &Served,
        converter: &dyn Converter,
        entries: &[Arc<Entry>],
        indexes: &[usize],
    ) -> Result<Conversion, Failure> {
        let objects = indexes.iter().map(|index| entries[*index].bytes.clone()).collect();
        converter.convert(served.definition.gvk(served.version).api_version(), objects).await
    }

    /// [`Self::in_version`] for one entry.
    ///
    /// # Errors
    /// 500 if the conversion fails.
    pub async fn entry_in_version(
        &self,
        served: &Served,
        entry: Arc<Entry>,
    ) -> Result<Arc<Entry>, Failure> {
        if !served.needs_converter(&entry) {
            return Ok(entry);
        }
        Ok(self.in_version(served, vec![entry]).await?.swap_remove(0))
    }

    /// Converts a stored object to the version of the request.
    ///
    /// # Errors
    /// 500 if the conversion fails.
    pub(crate) async fn object_in_version(
        &self,
        served: &Served,
        object: Object,
    ) -> Result<Object, Failure> {
        match object {
            Object::Stored(entry) => {
                Ok(Self::object(self.entry_in_version(served, entry).await?, served))
            }
            computed => Ok(computed),
        }
    }

    pub(crate) async fn written_in_version(
        &self,
        served: &Served,
        written: Written,
    ) -> Result<Written, Failure> {
        Ok(Written {
            object: self.object_in_version(served, written.object).await?,
            created: written.created,
        })
    }

    pub(crate) async fn deleted_in_version(
        &self,
        served: &Served,
        deleted: Deleted,
    ) -> Result<Deleted, Failure> {
        Ok(match deleted {
            // The response is a Status without the object.
            Deleted::Gone(object) if !served.definition.policy.returns_deleted => {
                Deleted::Gone(object)
            }
            Deleted::Gone(object) => Deleted::Gone(self.object_in_version(served, object).await?),
            Deleted::Pending(object) => {
                Deleted::Pending(self.object_in_version(served, object).await?)
            }
            Deleted::AlreadyPending(object) => {
                Deleted::AlreadyPending(self.object_in_version(served, object).await?)
            }
        })
    }

    /// Converts an object, as JSON, to the storage version with the conversion webhook.
    pub(crate) async fn stored_form(
        &self,
        served: &Served,
        converter: &dyn Converter,
        object: Bytes,
    ) -> Result<StoredForm, Failure> {
        let stored = served.stored();
        let had_slot = has_slot();
        let mut converted = converter
            .convert(stored.definition.gvk(stored.version).api_version(), vec![object])
            .await?;
        let mut object = converted
            .objects
            .pop()
            .ok_or_else(|| Failure::internal("a conversion gave no object"))?;
        if had_slot || is_long(&object) {
            leave_worker().await;
        }
        normalize(&stored, &mut object);
        validate::default(&stored.version().schema, &mut object);
        Ok(StoredForm { object, _memory: converted.room })
    }

    /// Whether a write calls the conversion webhook.
    pub(crate) fn converts(&self, target: &Target) -> bool {
        target.served.converter().is_some()
    }
}

/// An object in the storage version, from the conversion webhook.
pub(crate) struct StoredForm {
    pub(crate) object: Document,
    _memory: Option<Box<dyn Any + Send + Sync>>,
}

/// The queue for what all callers of a resource share, as its webhook's: the server's own work must
/// not wait for it.
fn queue_of(served: &Served) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{}.{}", served.definition.plural, served.definition.group).hash(&mut hasher);
    hasher.finish()
}

/// Whether the rest of a request computes for long on a converted object, which may be longer than
/// the one that was sent.
pub(crate) fn is_long(object: &Document) -> bool {
    are_long(std::slice::from_ref(object))
}

/// The same of all objects of a batch.
fn are_long(objects: &[Document]) -> bool {
    /// Memory of a byte of JSON.
    const MEMORY: usize = 8;
    let memory: usize = objects.iter().map(|object| heap::fields(object.fields())).sum();
    memory > MEMORY * INLINE_BYTES
}

/// Number of leading entries to convert in one request: all results are in memory at once.
fn batch_len(entries: &[Arc<Entry>], indexes: &[usize]) -> usize {
    let mut bytes = 0;
    let fit = indexes.iter().take(BATCH_OBJECTS).take_while(|index| {
        bytes += entries[**index].bytes.len();
        bytes <= BATCH_BYTES
    });
    fit.count().max(1)
}

/// Prunes a converted object to its version's schema, and normalizes its numbers.
fn normalize(served: &Served, object: &mut Document) {
    object.fields_mut().values_mut().for_each(json::round_trip_floats);
    validate::prune(&served.version().schema, object);
}

/// An entry of the same revision with converted bytes, without defaults of the new version, in
/// which it was never decoded.
fn entry_of(served: &Served, entry: &Entry, mut object: Document) -> Entry {
    normalize(served, &mut object);
    let (value, layout) = json::write(&object);
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        fields: entry.sidecar.fields.clone(),
        schema_epoch: served.definition.epoch,
        // These bytes are stored nowhere.
        form: ValueForm::STALE,
    };
    entry.with_value(&value, sidecar)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    /// A webhook may make much of each.
    #[test]
    fn fault_34_short_objects_may_be_long_together() {
        let object = json!({"text": "x".repeat(INLINE_BYTES / 2)});
        let objects = vec![Document::from_value(object).expect("an object"); 40];
        assert!(!are_long(&objects[..1]) && are_long(&objects));
    }
}
