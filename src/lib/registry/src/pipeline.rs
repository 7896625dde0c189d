//! Writes, on one path for every resource: their types, and the [`Registry`] that runs them.
//!
//! Read `order` first: it has the steps of every write. Then create, update or delete, patching,
//! write_op, turn.

mod amend;
mod collection;
mod connect;
mod create;
mod delete;
mod mutated;
mod order;
mod patching;
mod turn;
mod update;
mod write_op;

use crate::admission::{Admission, Stamps};
use crate::backlog::Backlog;
use crate::catalog::{Catalog, Served};
pub use crate::codec::view;
use crate::context::Target;
use crate::conversion::ConvertedEntries;
use crate::offload::Offload;
use crate::read::{Exits, Pages, Readers};
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Key, Prefix, Store, is_key_segment};
pub use mutated::{decode_mutated, schema_at};
pub use patching::no_object;
use ring::hmac;
use std::sync::Arc;
use tokio::sync::watch;
pub(crate) use update::project;

/// A parsed request body, not decoded yet.
#[derive(Clone, Debug)]
pub struct Body {
    /// Untyped.
    pub document: Document,
    /// Paths of repeated keys.
    pub duplicates: Vec<String>,
    /// Further findings of the parser, one sentence each, for field validation.
    pub noted: Vec<String>,
    /// Not field-validated: protobuf bodies and those that the server makes.
    pub lenient: bool,
    /// YAML is decoded in the order of the schema, not of the body.
    pub yaml: bool,
    /// Raw bytes, quoted in errors.
    pub source: Bytes,
}

impl Body {
    /// Raw bytes if findings are reported in their order, else empty.
    pub(crate) fn ordered(&self) -> &[u8] {
        if self.yaml || self.lenient { &[] } else { &self.source }
    }
}

impl From<Document> for Body {
    /// For bodies made by the server.
    fn from(document: Document) -> Self {
        Self {
            document,
            duplicates: Vec::new(),
            noted: Vec::new(),
            lenient: true,
            yaml: false,
            source: Bytes::new(),
        }
    }
}

/// A parsed patch, by content type.
#[derive(Clone, Debug)]
pub enum Patch {
    /// `application/json-patch+json`: operations, and findings of strict field validation, one
    /// sentence each.
    Json(Value, Vec<String>),
    /// `application/merge-patch+json`
    Merge(Body),
    /// `application/strategic-merge-patch+json`
    Strategic(Body),
    /// `application/apply-patch+yaml`
    Apply(Body),
    /// Does not parse. Any type but apply fails with this error once the object to patch is known
    /// to exist.
    Unreadable(Failure),
}

impl Patch {
    /// Length of the body if it bounds the growth of the object; 0 for a JSON patch, whose
    /// operations may copy.
    fn source_bytes(&self) -> usize {
        match self {
            Self::Merge(body) | Self::Strategic(body) | Self::Apply(body) => body.source.len(),
            Self::Json(..) | Self::Unreadable(_) => 0,
        }
    }
}

/// An object in a response.
#[derive(Clone, Debug)]
pub enum Object {
    /// As stored. The bytes are the response body in the version of the request; after a read they
    /// may need the conversion webhook first ([`Registry::entry_in_version`]).
    Stored(Arc<Entry>),
    /// Computed in the version of the request: converted, dry run, reviews, subresources of another
    /// kind.
    Computed(Document),
}

impl Object {
    /// Parses a stored object.
    pub fn into_document(self, served: &Served) -> Document {
        match self {
            Self::Stored(entry) => view(&entry, served),
            Self::Computed(document) => document,
        }
    }
}

/// Result of a write.
#[derive(Clone, Debug)]
pub struct Written {
    /// In the version of the request.
    pub object: Object,
    /// Whether the response is 201, not 200.
    pub created: bool,
}

/// Result of a delete.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// Removed; the last state.
    Gone(Object),
    /// Marked for deletion, waiting for finalizers or the grace period; the current state.
    Pending(Object),
    /// Marked earlier, and the grace period runs; nothing was written. The response is that of
    /// `Gone` (a Status for most kinds).
    AlreadyPending(Object),
}

/// The pipeline over a store and a catalog. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    pub(crate) state: Arc<RegistryState>,
}

/// Shared by all clones of a [`Registry`].
pub(crate) struct RegistryState {
    pub(crate) store: Store,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) admission: Arc<dyn Admission>,
    /// Authenticates continue tokens.
    pub(crate) token_key: hmac::Key,
    pub(crate) converted: ConvertedEntries,
    /// Snapshots of paged lists.
    pub(crate) pages: Pages,
    /// Lists and initial watch states being sent.
    pub(crate) readers: Readers,
    /// Last states of objects that left a selection.
    pub(crate) exits: Arc<Exits>,
    /// True on shutdown: watches end.
    pub(crate) ending: watch::Sender<bool>,
    pub(crate) offload: Offload,
    pub(crate) backlog: Backlog,
}

impl Registry {
    /// With a random token key.
    pub fn new(store: Store, catalog: Arc<Catalog>, admission: Arc<dyn Admission>) -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the system has random numbers");
        Self::of(store, catalog, admission, &key, watch::Sender::new(false))
    }

    /// Uses a persistent key for continue tokens, which then survive a restart.
    #[must_use]
    pub fn with_token_key(self, key: &[u8; 32]) -> Self {
        let RegistryState { store, catalog, admission, ending, .. } = &*self.state;
        Self::of(store.clone(), catalog.clone(), admission.clone(), key, ending.clone())
    }

    fn of(
        store: Store,
        catalog: Arc<Catalog>,
        admission: Arc<dyn Admission>,
        token_key: &[u8; 32],
        ending: watch::Sender<bool>,
    ) -> Self {
        Self {
            state: Arc::new(RegistryState {
                store,
                catalog,
                admission,
                token_key: hmac::Key::new(hmac::HMAC_SHA256, token_key),
                converted: ConvertedEntries::default(),
                pages: Pages::default(),
                readers: Readers::default(),
                exits: Arc::default(),
                ending,
                offload: Offload::default(),
                backlog: Backlog::default(),
            }),
        }
    }

    /// Upper bound of the bytes that responses being sent keep from being freed.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.state.readers.pinned_bytes(&self.state.store)
    }

    /// Ends all watches, and those that start later (shutdown). Reads and writes continue.
    pub fn end_watches(&self) {
        self.state.ending.send_replace(true);
    }

    /// Resources served.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.state.catalog
    }

    /// The state core.
    pub fn store(&self) -> &Store {
        &self.state.store
    }

    /// Number and bytes of a resource's objects; `None` if they are not stored.
    pub fn size(&self, served: &Served) -> Option<(u64, u64)> {
        let snapshot = self.store().snapshot(&prefix(served).ok()?);
        Some((snapshot.count(None, None) as u64, snapshot.bytes()))
    }

    /// Counts of stamped and unstamped writes since start.
    pub fn stamps(&self) -> Stamps {
        self.state.admission.stamps()
    }

    /// Slots for long computations. Requests run inside [`Offload::run`].
    pub fn offload(&self) -> &Offload {
        &self.state.offload
    }

    pub(crate) fn admission(&self) -> &dyn Admission {
        &*self.state.admission
    }

    /// The entry's own bytes if they are in the version of the request, or only the conversion
    /// webhook can make them so; else converted.
    pub(crate) fn object(entry: Arc<Entry>, served: &Served) -> Object {
        if served.is_direct(&entry) || served.needs_converter(&entry) {
            Object::Stored(entry)
        } else {
            Object::Computed(view(&entry, served))
        }
    }
}

/// Key prefix of a resource.
///
/// # Errors
/// 405 if the resource is not stored.
pub(crate) fn prefix(served: &Served) -> Result<Prefix, Failure> {
    let definition = &served.definition;
    let not_stored = || {
        Failure::new(
            ferrokube_apimachinery::status::Reason::MethodNotAllowed,
            format!("{} are not stored", definition.plural),
        )
    };
    let resource = definition.storage_prefix.as_deref().ok_or_else(not_stored)?;
    Prefix::new(resource).map_err(|error| Failure::internal(error.to_string()))
}

/// Key of a named object. Impossible names fail with kube-apiserver's errors.
///
/// # Errors
/// 400 for `.` and `..`, 500 for an impossible namespace, 404 for other impossible names.
pub(crate) fn key(target: &Target, name: &str) -> Result<Key, Failure> {
    let prefix = prefix(&target.served)?;
    let namespaced = target.served.definition.scope == ferrokube_resource::Scope::Namespaced;
    let namespace = target.namespace.as_deref().filter(|_| namespaced);
    if namespaced && namespace.is_none() {
        return Err(Failure::bad_request("a namespace is needed"));
    }
    if let Some(namespace) = namespace.filter(|namespace| !is_key_segment(namespace)) {
        return Err(Failure::bare(500, format!("the namespace {namespace:?} is invalid")));
    }
    if name.contains('%') {
        return Err(Failure::bad_request(format!(
            "Name parameter invalid: {}: may not contain '%'",
            quote(name)
        )));
    }
    prefix.key(namespace, name).map_err(|_| match name {
        "." | ".." => {
            Failure::bad_request(format!("Name parameter invalid: \"{name}\": may not be '{name}'"))
        }
        _ => Failure::not_found(&target.served.definition.group_resource(), name),
    })
}
