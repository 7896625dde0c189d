//! How the pipeline calls admission. The steps are in crate `admission`.

use crate::catalog::{Catalog, Served};
use crate::codec;
use crate::context::{RequestContext, Target};
use crate::options::{DeleteOptions, WriteOptions};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Guard, KeyError, Prefix, Store, Write};
use ferrokube_trace::annotation::Ids;
use std::future::Future;
use std::pin::Pin;

/// Operation as admission sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// POST; also an apply or PUT that creates.
    Create,
    /// Any change of an existing object.
    Update,
    /// Once per object of a collection.
    Delete,
    /// Request of a subresource without an object.
    Connect,
}

/// Options by type: `request.options` of an AdmissionReview.
#[derive(Clone, Copy, Debug)]
pub enum AdmissionOptions<'a> {
    /// `CreateOptions`
    Create(&'a WriteOptions),
    /// `UpdateOptions`
    Update(&'a WriteOptions),
    /// `PatchOptions` (also of an apply that creates)
    Patch(&'a WriteOptions),
    /// `DeleteOptions`
    Delete(&'a DeleteOptions),
    /// No options.
    Connect,
}

/// A write as admission sees it.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// User, trace and time of the request.
    pub context: &'a RequestContext,
    /// With a name; while a create is mutated, without one that is yet to be generated.
    pub target: &'a Target,
    /// Operation on the object.
    pub operation: Operation,
    /// The stored object in the version of the target, for update and delete.
    pub old: Option<&'a Document>,
    /// Options of the request.
    pub options: AdmissionOptions<'a>,
    /// Whether nothing is stored.
    pub dry_run: bool,
}

impl<'a> Attributes<'a> {
    /// The name in a rejection of this object: as long as it has none, its generateName.
    pub fn shown_name(&self, object: Option<&'a Document>) -> &'a str {
        let of_object = || {
            let object = object?;
            let names = [object.name(), object.meta("generateName")];
            names.into_iter().find(|name| !name.is_empty())
        };
        self.target.name.as_deref().or_else(of_object).unwrap_or("Unknown")
    }
}

/// Source of objects of [`Effects::change`].
#[derive(Clone, Copy)]
pub struct WriteContext<'a> {
    /// The server's storage.
    pub store: &'a Store,
    /// The server's resources.
    pub catalog: &'a Catalog,
}

/// Side effects of a step, in the same transaction as the write.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Must hold at commit (a namespace's phase, a quota's usage).
    pub guards: Vec<Guard>,
    /// Committed with the write (a quota's usage).
    pub writes: Vec<Write>,
}

impl Effects {
    /// Changes another object in the transaction of the write. Both are committed or neither; if
    /// the object changes meanwhile, the write starts again. `namespace` is empty for cluster
    /// scope. Returns whether the object exists; otherwise nothing is changed, and the write starts
    /// again if it is created meanwhile.
    ///
    /// The object must be of another resource than the write's: a transaction has one event per
    /// resource. The change is not validated, passes no admission, and keeps generation,
    /// managedFields and trace ids.
    ///
    /// # Errors
    /// A Status for the client: no such name can exist, or the object would be too large.
    pub fn change(
        &mut self,
        context: &WriteContext<'_>,
        served: &Served,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Document),
    ) -> Result<bool, Failure> {
        let WriteContext { store, catalog } = *context;
        let invalid = |error: KeyError| Failure::internal(error.to_string());
        let prefix = served.definition.storage_prefix.as_deref().unwrap_or_default();
        let prefix = Prefix::new(prefix).map_err(invalid)?;
        let key = prefix.key(Some(namespace).filter(|some| !some.is_empty()), name);
        let key = key.map_err(invalid)?;
        let Some(entry) = store.pending(&key) else {
            self.guards.push(Guard::Absent(key));
            return Ok(false);
        };
        let mut object = codec::view(&entry, served);
        change(&mut object);
        object.remove(&["metadata", "resourceVersion"]);
        let put = codec::put(catalog, served, key.clone(), &object, None)?;
        self.guards.push(Guard::At(key, entry.revision));
        self.writes.push(Write::Put(put));
        Ok(true)
    }
}

/// Counts of [`Admission::stamp`] since start, retries included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Writes that got ids.
    pub stamped: u64,
    /// Writes that kept the stored ids: status, heartbeats, events, no changes.
    pub skipped: u64,
}

/// Future of a remote step.
pub type RemoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The admission steps of a server, in order. Local steps are synchronous and run within the key's
/// turn, remote ones (webhooks) outside of it. The default has no remote steps.
pub trait Admission: Send + Sync {
    /// Whether a remote step matches this write. If so, the pipeline works outside the turn and
    /// commits by compare-and-swap. Called before the stored object is read: `old` is `None`. An
    /// update or apply that may create checks both operations.
    fn is_remote(&self, _attributes: &Attributes<'_>) -> bool {
        false
    }

    /// Whether local steps take long for a create of the target, which leaves the worker then.
    fn create_takes_long(&self, _target: &Target) -> bool {
        false
    }

    /// Local mutating steps, in order.
    ///
    /// # Errors
    /// A Status for the client.
    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure>;

    /// Mutating webhooks, in order. Only called if [`Self::is_remote`], and never for a delete;
    /// called again if the object changed meanwhile.
    fn mutate_remote<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        object: Document,
    ) -> RemoteFuture<'a, Document> {
        Box::pin(std::future::ready(Ok(object)))
    }

    /// Trace ids for `metadata.annotations`. Called after mutation, the second defaulting and the
    /// restoring of system fields, before validation. For a delete, `object` is the last state and
    /// `old` is `None`: watchers learn which request deleted it. The default returns no ids.
    ///
    /// Replaces client-set values of the three keys by the stored ones. The returned ids are added
    /// when the object is encoded, and to the object itself only for readers that precede that
    /// (remote steps, dry runs): inserting them into every document would dominate the cost of this
    /// method. Local validating steps therefore do not see the ids of the write.
    ///
    /// The server owns the three annotations: they are not tracked in managedFields, not applied,
    /// and ignored by the no-op test.
    fn stamp(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Option<Ids> {
        None
    }

    /// Whether the server owns the three annotations (see [`Self::stamp`]). Otherwise they are
    /// ordinary.
    fn owns_ids(&self) -> bool {
        true
    }

    /// Counts since start.
    fn stamps(&self) -> Stamps {
        Stamps::default()
    }

    /// Local validating steps. `object` is `None` for a delete, and lacks the ids of this write
    /// (see [`Self::stamp`]). Quota adds its effects here.
    ///
    /// # Errors
    /// A Status for the client.
    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure>;

    /// Validating webhooks, concurrently; for a delete also the matching mutating ones.
    fn validate_remote<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        _object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Admits everything unchanged, for tests and benchmarks of the rest of the pipeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Admission for AllowAll {
    fn mutate(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Result<(), Failure> {
        Ok(())
    }

    fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        Ok(())
    }
}
