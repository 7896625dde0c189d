//! Writes: one path for every resource. What a write is, and the registry that carries it through
//! its steps.
//!
//! The steps are in the modules below, in the order in which a write meets them.

mod collection;
mod create;
mod delete;
mod options;
mod patching;
mod turn;
mod update;
mod write_op;

use crate::admission::{Admission, Stamps};
use crate::backlog::Backlog;
use crate::catalog::{Catalog, Served};
pub use crate::codec::view;
use crate::context::{FieldValidation, Target};
use crate::conversion::ConvertedEntries;
use crate::offload::Offload;
use crate::read::{Exits, Pages, Readers};
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Key, Prefix, Store};
use ring::hmac;
use std::sync::Arc;
use tokio::sync::watch;
pub(crate) use update::project;

/// A decoded request body.
#[derive(Clone, Debug)]
pub struct Body {
    /// The object.
    pub document: Document,
    /// Paths of repeated keys.
    pub duplicates: Vec<String>,
    /// What else was found while it was read, as sentences.
    pub noted: Vec<String>,
    /// Protobuf bodies are lenient: not field-validated.
    pub lenient: bool,
    /// YAML: it is decoded in the order of its keys.
    pub yaml: bool,
    /// What it was read from, for messages.
    pub source: Bytes,
}

impl Body {
    /// The body whose order its decoder follows; nothing where there is none.
    pub(crate) fn ordered(&self) -> &[u8] {
        if self.yaml || self.lenient { &[] } else { &self.source }
    }
}

impl From<Document> for Body {
    /// A body that the server made itself.
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

/// Options that every write takes from its query.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Nothing is stored.
    pub dry_run: bool,
    /// Unknown and repeated fields; `None`: the default.
    pub field_validation: Option<FieldValidation>,
    /// The field manager; empty: from the User-Agent.
    pub field_manager: String,
    /// Apply over other managers' fields (PATCH apply only).
    pub force: bool,
    /// The answer if this update or apply would have to create the object, when its client may not
    /// (authorization of verb `create`).
    pub forbid_create: Option<Failure>,
}

/// A patch of one of the four types.
#[derive(Clone, Debug)]
pub enum Patch {
    /// `application/json-patch+json`: the operations, and what strict validation finds in them, as
    /// sentences.
    Json(Value, Vec<String>),
    /// `application/merge-patch+json`
    Merge(Body),
    /// `application/strategic-merge-patch+json`
    Strategic(Body),
    /// `application/apply-patch+yaml`
    Apply(Body),
    /// Any but the last that cannot be read: refused so, once there is something to patch.
    Unreadable(Failure),
}

impl Patch {
    /// Length of the body where that tells how much it adds: the operations of a JSON patch add
    /// more, or less.
    fn source_bytes(&self) -> usize {
        match self {
            Self::Merge(body) | Self::Strategic(body) | Self::Apply(body) => body.source.len(),
            Self::Json(..) | Self::Unreadable(_) => 0,
        }
    }
}

/// DeleteOptions, from the query or the body.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Nothing is stored.
    pub dry_run: bool,
    /// Asked grace.
    pub grace_seconds: Option<i64>,
    /// `Foreground`, `Background`, `Orphan`.
    pub propagation: Option<String>,
    /// The old form of `Orphan`.
    pub orphan_dependents: Option<bool>,
    /// Preconditions.
    pub uid: Option<String>,
    /// Preconditions.
    pub resource_version: Option<String>,
}

/// An object in an answer.
#[derive(Clone, Debug)]
pub enum Object {
    /// As stored: its bytes are the answer in the version of the request, as they stand, unless
    /// somebody else must convert them first ([`Registry::entry_in_version`]); writes have done
    /// that.
    Stored(Arc<Entry>),
    /// Computed, in the version of the request: converted, dry run, reviews, subresources of
    /// another kind.
    Computed(Document),
}

impl Object {
    /// The object as a document (parsed when it is stored).
    pub fn into_document(self, served: &Served) -> Document {
        match self {
            Self::Stored(entry) => view(&entry, served),
            Self::Computed(document) => document,
        }
    }
}

/// What a write did.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object.
    pub object: Object,
    /// 201 instead of 200.
    pub created: bool,
}

/// What a delete did.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// Gone: its last state.
    Gone(Object),
    /// Marked, waiting for finalizers or grace: the object as it is now.
    Pending(Object),
    /// Its deletion had begun before and its grace period runs; nothing was written. Answered as
    /// `Gone` (a Status for most kinds).
    AlreadyPending(Object),
}

/// The pipeline over one store and catalog. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    pub(crate) parts: Arc<Parts>,
}

/// What a registry holds.
pub(crate) struct Parts {
    pub(crate) store: Store,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) admission: Arc<dyn Admission>,
    /// Authenticates continue tokens.
    pub(crate) token_key: hmac::Key,
    pub(crate) converted: ConvertedEntries,
    /// The states of lists between their pages.
    pub(crate) pages: Pages,
    /// Answers under way.
    pub(crate) readers: Readers,
    /// What left selections, as it is shown.
    pub(crate) exits: Arc<Exits>,
    /// Set when watches must end.
    pub(crate) ending: watch::Sender<bool>,
    pub(crate) offload: Offload,
    pub(crate) backlog: Backlog,
}

impl Registry {
    /// Over a store, the resources that are served and the admission steps.
    pub fn new(store: Store, catalog: Arc<Catalog>, admission: Arc<dyn Admission>) -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the system has random numbers");
        let token_key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        Self {
            parts: Arc::new(Parts {
                store,
                catalog,
                admission,
                token_key,
                converted: ConvertedEntries::default(),
                pages: Pages::default(),
                readers: Readers::default(),
                exits: Arc::default(),
                ending: watch::Sender::new(false),
                offload: Offload::default(),
                backlog: Backlog::default(),
            }),
        }
    }

    /// The same with a key that authenticates continue tokens, so that they survive a restart.
    /// Without it the key is this process's own.
    #[must_use]
    pub fn with_token_key(self, key: &[u8; 32]) -> Self {
        let Parts { store, catalog, admission, ending, .. } = &*self.parts;
        let token_key = hmac::Key::new(hmac::HMAC_SHA256, key);
        let (store, catalog, admission, ending) =
            (store.clone(), catalog.clone(), admission.clone(), ending.clone());
        Self {
            parts: Arc::new(Parts {
                store,
                catalog,
                admission,
                token_key,
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

    /// Bytes that answers under way keep from being freed, at most.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.parts.readers.pinned_bytes(&self.parts.store)
    }

    /// Ends all watches, also those to come (shutdown). Writes and reads go on.
    pub fn end_watches(&self) {
        self.parts.ending.send_replace(true);
    }

    /// The resources that are served.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.parts.catalog
    }

    /// The state core.
    pub fn store(&self) -> &Store {
        &self.parts.store
    }

    /// How many writes were given ids, and how many were not, since start.
    pub fn stamps(&self) -> Stamps {
        self.parts.admission.stamps()
    }

    /// The threads for long computations: requests run inside [`Offload::run`].
    pub fn offload(&self) -> &Offload {
        &self.parts.offload
    }

    /// The admission steps.
    pub(crate) fn admission(&self) -> &dyn Admission {
        &*self.parts.admission
    }

    /// An entry in an answer: its own bytes when they are the answer, else converted.
    pub(crate) fn object(entry: Arc<Entry>, served: &Served) -> Object {
        if served.is_direct(&entry) || served.needs_converter(&entry) {
            Object::Stored(entry)
        } else {
            Object::Computed(view(&entry, served))
        }
    }
}

/// The part of the key space that a resource has.
///
/// # Errors
/// 405 for a resource that stores nothing.
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

/// The key of a named object. Segments that no object can have are answered as upstream does.
///
/// # Errors
/// 400 for `.` and `..`, 500 for such a namespace, 404 for other impossible names.
pub(crate) fn key(target: &Target, name: &str) -> Result<Key, Failure> {
    let prefix = prefix(&target.served)?;
    let namespaced = target.served.definition.scope == ferrokube_resource::Scope::Namespaced;
    let namespace = target.namespace.as_deref().filter(|_| namespaced);
    if namespaced && namespace.is_none() {
        return Err(Failure::bad_request("a namespace is needed"));
    }
    if let Some(namespace) = namespace.filter(|namespace| prefix.key(None, namespace).is_err()) {
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
