//! Objects of resources whose versions somebody else converts: entries in another version are made
//! into entries in the asked one, outside every turn, and kept for a while, since an entry never
//! changes.

use crate::catalog::Served;
use crate::context::Target;
use crate::offload::{INLINE_BYTES, leave_worker};
use crate::pipeline::{Deleted, Object, Registry, Written};
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::conversion::{Conversion, Converter};
use ferrokube_schema::validate;
use ferrokube_storage::{Entry, Sidecar};
use std::any::Any;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// So many bytes of converted entries and of what they were made of are kept, over all resources;
/// then all are dropped.
const KEPT_BYTES: usize = 32 << 20;

/// Objects are converted together up to so many bytes, or one at a time.
const BATCH_BYTES: usize = 2 << 20;

/// And up to so many.
const BATCH_OBJECTS: usize = 500;

/// What was converted lately.
#[derive(Default)]
pub(crate) struct ConvertedEntries(Mutex<Kept>);

/// What a converted entry is found by: the exact bytes that it was made of. A revision is not
/// enough, since a watch shows what left its selection in an earlier state at the revision of the
/// change.
#[derive(Clone)]
struct Name {
    source: Arc<Entry>,
    /// Of the definition.
    epoch: u32,
    /// The index of the version.
    version: usize,
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        let (one, same) = (&self.source, &other.source);
        self.epoch == other.epoch
            && self.version == other.version
            && (Arc::ptr_eq(one, same)
                || (one.revision == same.revision
                    && one.key == same.key
                    && one.bytes == same.bytes))
    }
}

impl Eq for Name {}

impl Hash for Name {
    /// Without the bytes: two states under one revision are rare.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.source.key, self.source.revision, self.epoch, self.version).hash(hasher);
    }
}

#[derive(Default)]
struct Kept {
    entries: HashMap<Name, Arc<Entry>>,
    bytes: usize,
    /// What is being converted now: others wait for it instead of asking for the same.
    flights: HashMap<Name, watch::Sender<Option<Failure>>>,
}

/// What is known of an entry in another version.
enum State {
    Kept(Arc<Entry>),
    /// Somebody else has it converted.
    Underway(watch::Receiver<Option<Failure>>),
    /// The caller is to do it, and has said so.
    Claimed,
}

/// Ends the flights of one call, however it ends.
struct Claims<'a> {
    of: &'a ConvertedEntries,
    names: Vec<Name>,
}

impl Claims<'_> {
    /// Tells those who wait why it failed.
    fn fail(&self, failure: &Failure) {
        let kept = self.of.lock();
        for sender in self.names.iter().filter_map(|name| kept.flights.get(name)) {
            sender.send_replace(Some(failure.clone()));
        }
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let mut kept = self.of.lock();
        for name in &self.names {
            // Who waits looks again.
            kept.flights.remove(name);
        }
    }
}

impl ConvertedEntries {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("no panic while held")
    }

    /// What is known of an entry; what nobody has converted is claimed by the caller.
    fn state(&self, name: &Name) -> State {
        let mut kept = self.lock();
        if let Some(entry) = kept.entries.get(name) {
            return State::Kept(Arc::clone(entry));
        }
        if let Some(flight) = kept.flights.get(name) {
            return State::Underway(flight.subscribe());
        }
        kept.flights.insert(name.clone(), watch::Sender::new(None));
        State::Claimed
    }

    fn put(&self, name: Name, entry: &Arc<Entry>) {
        let mut kept = self.lock();
        let bytes = entry.bytes.len() + name.source.bytes.len();
        if kept.bytes + bytes > KEPT_BYTES {
            kept.entries = HashMap::new();
            kept.bytes = 0;
        }
        kept.bytes += bytes;
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

    fn name(&self, entry: &Arc<Entry>) -> Name {
        Name { source: Arc::clone(entry), epoch: self.definition.epoch, version: self.version }
    }
}

impl Registry {
    /// The entries in a served version. Those that nobody else must convert are given back as they
    /// are.
    ///
    /// # Errors
    /// 500: the conversion failed.
    pub async fn in_version(
        &self,
        served: &Served,
        mut entries: Vec<Arc<Entry>>,
    ) -> Result<Vec<Arc<Entry>>, Failure> {
        let Some(converter) = served.converter() else { return Ok(entries) };
        loop {
            let mut claims = Claims { of: &self.parts.converted, names: Vec::new() };
            let (mut mine, mut underway) = (Vec::new(), Vec::new());
            for (place, entry) in
                entries.iter_mut().enumerate().filter(|(_, entry)| served.needs_converter(entry))
            {
                let name = served.name(entry);
                match claims.of.state(&name) {
                    State::Kept(known) => *entry = known,
                    State::Underway(flight) => underway.push(flight),
                    State::Claimed => {
                        claims.names.push(name);
                        mine.push(place);
                    }
                }
            }
            if !mine.is_empty() {
                if mine.iter().map(|place| entries[*place].bytes.len()).sum::<usize>()
                    > INLINE_BYTES
                {
                    leave_worker().await;
                }
                let mut done = 0;
                while done < mine.len() {
                    let batch = &mine[done..done + batch(&entries, &mine[done..])];
                    let converted = self
                        .convert(served, converter, &entries, batch)
                        .await
                        .inspect_err(|failure| {
                            // Of several objects it is not known whose failure it is: who waits for
                            // one of the others asks again.
                            if claims.names.len() == 1 {
                                claims.fail(failure);
                            }
                        })?;
                    for ((place, object), name) in
                        batch.iter().zip(converted.objects).zip(&claims.names[done..])
                    {
                        entries[*place] = Arc::new(entry_of(served, &entries[*place], object));
                        self.parts.converted.put(name.clone(), &entries[*place]);
                    }
                    done += batch.len();
                }
            }
            drop(claims);
            if underway.is_empty() {
                return Ok(entries);
            }
            // What this call was to do is done: it holds up nobody while it waits for others.
            for mut flight in underway {
                // An error: it has ended.
                converter.wait(Box::pin(async { _ = flight.changed().await })).await?;
                if let Some(failure) = flight.borrow().clone() {
                    return Err(failure);
                }
            }
        }
    }

    async fn convert(
        &self,
        served: &Served,
        converter: &dyn Converter,
        entries: &[Arc<Entry>],
        places: &[usize],
    ) -> Result<Conversion, Failure> {
        let objects = places.iter().map(|place| entries[*place].bytes.clone()).collect();
        converter.convert(served.definition.gvk(served.version).api_version(), objects).await
    }

    /// One entry in a served version.
    ///
    /// # Errors
    /// 500: the conversion failed.
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

    /// An object of an answer in the version of the request.
    ///
    /// # Errors
    /// 500: the conversion failed.
    pub(crate) async fn shown(&self, served: &Served, object: Object) -> Result<Object, Failure> {
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
        Ok(Written { object: self.shown(served, written.object).await?, created: written.created })
    }

    pub(crate) async fn deleted_in_version(
        &self,
        served: &Served,
        deleted: Deleted,
    ) -> Result<Deleted, Failure> {
        Ok(match deleted {
            // The answer is a Status; nothing of the object is shown.
            Deleted::Gone(object) if !served.definition.policy.returns_deleted => {
                Deleted::Gone(object)
            }
            Deleted::Gone(object) => Deleted::Gone(self.shown(served, object).await?),
            Deleted::Pending(object) => Deleted::Pending(self.shown(served, object).await?),
            Deleted::AlreadyPending(object) => {
                Deleted::AlreadyPending(self.shown(served, object).await?)
            }
        })
    }

    /// An object, given as JSON, as it is stored, which somebody else knows.
    pub(crate) async fn stored_form(
        &self,
        served: &Served,
        converter: &dyn Converter,
        object: Bytes,
    ) -> Result<StoredForm, Failure> {
        let stored = served.stored();
        let mut converted = converter
            .convert(stored.definition.gvk(stored.version).api_version(), vec![object])
            .await?;
        let mut object = converted
            .objects
            .pop()
            .ok_or_else(|| Failure::internal("a conversion gave no object"))?;
        tidy(&stored, &mut object);
        validate::default(&stored.version().schema, &mut object);
        Ok(StoredForm { object, _room: converted.room })
    }

    /// Whether a write of a target waits for somebody else to convert the object.
    pub(crate) fn converts(&self, target: &Target) -> bool {
        target.served.converter().is_some()
    }
}

/// An object as somebody else converted it, to be stored.
pub(crate) struct StoredForm {
    pub(crate) object: Document,
    _room: Option<Box<dyn Any + Send + Sync>>,
}

/// How many of these entries are converted together: their trees are in memory afterwards.
fn batch(entries: &[Arc<Entry>], places: &[usize]) -> usize {
    let mut bytes = 0;
    let fit = places.iter().take(BATCH_OBJECTS).take_while(|place| {
        bytes += entries[**place].bytes.len();
        bytes <= BATCH_BYTES
    });
    fit.count().max(1)
}

/// What was converted has only what its version knows, and its numbers as if it had been stored so.
fn tidy(served: &Served, object: &mut Document) {
    object.fields_mut().values_mut().for_each(json::round_trip_floats);
    validate::prune(&served.version().schema, object);
}

/// An entry of the same revision with other bytes, without the defaults of a version that it was
/// never decoded in.
fn entry_of(served: &Served, entry: &Entry, mut object: Document) -> Entry {
    tidy(served, &mut object);
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use ferrokube_storage::Revision;

    fn entry(number: u64, size: usize) -> (Name, Arc<Entry>) {
        let key = ferrokube_storage::Prefix::new("things")
            .and_then(|prefix| prefix.key(Some("ns"), "a"))
            .expect("a key");
        let revision = Revision(number);
        let entry = Arc::new(Entry {
            key,
            revision,
            create_revision: revision,
            bytes: Bytes::from(vec![0; size]),
            sidecar: Sidecar::default(),
        });
        (Name { source: Arc::clone(&entry), epoch: 1, version: 1 }, entry)
    }

    #[test]
    fn a_name_is_the_exact_bytes() {
        let ((one, entry), (same, _), (other, _)) =
            (super::tests::entry(7, 10), super::tests::entry(7, 10), super::tests::entry(7, 11));
        let converted = ConvertedEntries::default();
        converted.put(one, &entry);
        assert!(matches!(converted.state(&same), State::Kept(_)), "the same bytes read again");
        assert!(
            matches!(converted.state(&other), State::Claimed),
            "another state at the same revision"
        );
        let changed = Name { epoch: 2, ..same.clone() };
        assert!(
            matches!(converted.state(&changed), State::Claimed),
            "another definition of the same name"
        );
        let elsewhere = Name { version: 2, ..same };
        assert!(matches!(converted.state(&elsewhere), State::Claimed), "another version");
    }

    #[test]
    fn what_was_converted_is_bounded() {
        const SIZE: usize = 3 << 19;
        let converted = ConvertedEntries::default();
        let mut evictions = 0;
        for number in 0..100 {
            let (name, entry) = entry(number, SIZE);
            let before = converted.lock().entries.len();
            converted.put(name.clone(), &entry);
            assert!(matches!(converted.state(&name), State::Kept(_)), "the last one is kept");
            let kept = converted.lock();
            let bytes: usize = kept
                .entries
                .iter()
                .map(|(name, entry)| name.source.bytes.len() + entry.bytes.len())
                .sum();
            assert_eq!(bytes, kept.bytes);
            assert!(bytes <= KEPT_BYTES, "{bytes}");
            evictions += usize::from(kept.entries.len() <= before);
        }
        assert_eq!(evictions, 9, "ten of them fit");
        let (gone, _) = entry(0, 0);
        assert!(matches!(converted.state(&gone), State::Claimed));
    }

    #[test]
    fn a_claim_ends_with_its_call() {
        let converted = ConvertedEntries::default();
        let (name, _) = entry(1, 0);
        assert!(matches!(converted.state(&name), State::Claimed));
        let claims = Claims { of: &converted, names: vec![name.clone()] };
        assert!(matches!(converted.state(&name), State::Underway(_)));
        drop(claims);
        assert!(converted.lock().flights.is_empty());
        assert!(matches!(converted.state(&name), State::Claimed));
    }
}
