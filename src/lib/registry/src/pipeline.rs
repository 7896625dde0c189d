//! Writes: one path for every resource.

use crate::admission::Admission;
use crate::catalog::Catalog;
use crate::context::{FieldValidation, RequestContext, Target};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Store};
use std::sync::Arc;

/// A decoded request body.
#[derive(Debug)]
pub struct Body {
    /// The object.
    pub document: Document,
    /// Paths of repeated keys.
    pub duplicates: Vec<String>,
    /// Protobuf bodies are lenient: not field-validated.
    pub lenient: bool,
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
    /// The answer if this update or apply would have to create the object, when its client may not (authorization of verb `create`).
    pub forbid_create: Option<Failure>,
}

/// A patch of one of the four types.
#[derive(Debug)]
pub enum Patch {
    /// `application/json-patch+json`
    Json(Value),
    /// `application/merge-patch+json`
    Merge(Body),
    /// `application/strategic-merge-patch+json`
    Strategic(Body),
    /// `application/apply-patch+yaml`
    Apply(Body),
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
    /// As stored, in the storage version: its bytes are the answer in that version.
    Stored(Arc<Entry>),
    /// Computed, in the version of the request: dry run, reviews, subresources of another kind.
    Computed(Document),
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
    /// Its deletion had begun before and its grace period runs; nothing was written. Answered as `Gone` (a Status for most kinds).
    AlreadyPending(Object),
}

/// The pipeline over one store and catalog. Cheap to clone.
#[derive(Clone)]
pub struct Registry {}

impl Registry {
    /// Over a store, the resources that are served and the admission steps.
    pub fn new(_store: Store, _catalog: Arc<Catalog>, _admission: Arc<dyn Admission>) -> Self {
        unimplemented!("registry owner")
    }

    /// The same with a key that authenticates continue tokens, so that they survive a restart. Without it the key is this process's own.
    #[must_use]
    pub fn with_token_key(self, _key: &[u8; 32]) -> Self {
        unimplemented!("registry owner")
    }

    /// Ends all watches, also those to come (shutdown). Writes and reads go on.
    pub fn end_watches(&self) {
        unimplemented!("registry owner")
    }

    /// The resources that are served.
    pub fn catalog(&self) -> &Catalog {
        unimplemented!("registry owner")
    }

    /// The state core.
    pub fn store(&self) -> &Store {
        unimplemented!("registry owner")
    }

    /// POST. The target has no name unless it is a subresource.
    ///
    /// # Errors
    /// As the client sees it; also for all below.
    pub async fn create(&self, _context: &RequestContext, _target: &Target, _body: Body, _options: &WriteOptions) -> Result<Written, Failure> {
        unimplemented!("registry owner")
    }

    /// PUT, of the object or a subresource.
    pub async fn update(&self, _context: &RequestContext, _target: &Target, _body: Body, _options: &WriteOptions) -> Result<Written, Failure> {
        unimplemented!("registry owner")
    }

    /// PATCH, of the object or a subresource.
    pub async fn patch(&self, _context: &RequestContext, _target: &Target, _patch: Patch, _options: &WriteOptions) -> Result<Written, Failure> {
        unimplemented!("registry owner")
    }

    /// DELETE of one object.
    pub async fn delete(&self, _context: &RequestContext, _target: &Target, _options: &DeleteOptions) -> Result<Deleted, Failure> {
        unimplemented!("registry owner")
    }

    /// DELETE of a collection: object by object, bounded concurrency; the answer lists what was there.
    pub async fn delete_collection(
        &self,
        _context: &RequestContext,
        _target: &Target,
        _options: &DeleteOptions,
        _select: &crate::read::ListOptions,
    ) -> Result<crate::read::ListPage, Failure> {
        unimplemented!("registry owner")
    }
}

/// Parses an entry's bytes into a document in a served version (converted, and for custom resources of another epoch pruned and defaulted).
/// Only needed when [`Served::is_direct`](crate::catalog::Served::is_direct) is false, or to look into the object.
pub fn view(_entry: &Entry, _served: &crate::catalog::Served) -> Document {
    unimplemented!("registry owner")
}
