//! The admission seam: what a write must pass. The steps live in crate `admission`; this is how the
//! pipeline calls them.

use crate::context::{RequestContext, Target};
use crate::pipeline::{DeleteOptions, WriteOptions};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Guard, Write};
use ferrokube_trace::annotation::Ids;
use std::future::Future;
use std::pin::Pin;

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object (also by apply or PUT).
    Create,
    /// A change.
    Update,
    /// A deletion (each object of a collection by itself).
    Delete,
    /// A computed answer.
    Connect,
}

/// The options of the request, by their kind: what a webhook sees as `request.options`.
#[derive(Clone, Copy, Debug)]
pub enum RequestOptions<'a> {
    /// `CreateOptions`
    Create(&'a WriteOptions),
    /// `UpdateOptions`
    Update(&'a WriteOptions),
    /// `PatchOptions` (also of an apply that creates)
    Patch(&'a WriteOptions),
    /// `DeleteOptions`
    Delete(&'a DeleteOptions),
    /// None.
    Connect,
}

/// A write on its way through admission.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Who, in which trace.
    pub context: &'a RequestContext,
    /// About what; `name` is set (also when it was generated).
    pub target: &'a Target,
    /// What it does.
    pub operation: Operation,
    /// The stored object in the version of the target, for update and delete.
    pub old: Option<&'a Document>,
    /// The request's options.
    pub options: RequestOptions<'a>,
    /// Nothing will be stored.
    pub dry_run: bool,
}

/// What a step wants to happen in the same transaction as the write.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Must hold when the write is accepted (a namespace's phase, a quota's usage).
    pub guards: Vec<Guard>,
    /// Written with it (a quota's usage).
    pub writes: Vec<Write>,
}

/// What the ids' step did with writes since start, attempts that were repeated included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Given ids.
    pub stamped: u64,
    /// Left as they were: status, heartbeats, events, nothing that changes.
    pub skipped: u64,
}

/// What a remote step may answer.
pub type RemoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The ordered admission steps of a server. Local steps are synchronous and run inside the key's
/// turn; remote ones run outside it. By default there are no remote ones.
pub trait Admission: Send + Sync {
    /// Whether a remote step (webhook) takes part in this write; then the pipeline works outside
    /// the turn and commits by compare-and-swap. Asked before the stored object is read: `old` is
    /// `None`, and an update or apply that may create asks for both operations.
    fn is_remote(&self, _attributes: &Attributes<'_>) -> bool {
        false
    }

    /// Local mutating steps, in order.
    ///
    /// # Errors
    /// The refusal, as the client sees it.
    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure>;

    /// Remote mutating steps, in order. Called only after [`Self::is_remote`], never for a delete.
    /// May run again when the object changed meanwhile.
    fn mutate_remote<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        object: Document,
    ) -> RemoteFuture<'a, Document> {
        Box::pin(std::future::ready(Ok(object)))
    }

    /// The ids (design section 5) that are written into `metadata.annotations`: asked after the
    /// mutating steps, the second defaulting and what the server itself sets or keeps, before
    /// validation. For a delete `object` is the last state (`old` is `None`), so that watchers
    /// learn whose deletion it was. The default gives none.
    ///
    /// What clients put under the three keys is replaced in the object by what is stored. The ids
    /// themselves come to the object's bytes when it is encoded, and into the object only for those
    /// who see it before (remote steps, dry runs): making room for them in every document costs
    /// more than everything else about them. So local validating steps do not see the ids of the
    /// write that they judge.
    ///
    /// The three annotations belong to the server: the pipeline leaves them out of managedFields,
    /// of applied patches and of the no-op test.
    fn stamp(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Option<Ids> {
        None
    }

    /// Whether the three annotations are the server's (see [`Self::stamp`]); while they are not,
    /// they are annotations like any other.
    fn owns_ids(&self) -> bool {
        true
    }

    /// How often [`Self::stamp`] wrote ids, and how often it left them.
    fn stamps(&self) -> Stamps {
        Stamps::default()
    }

    /// Local validating steps; `object` is `None` for a delete, and without the ids of this write
    /// (see [`Self::stamp`]). Quota adds its guards and writes here.
    ///
    /// # Errors
    /// The refusal.
    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure>;

    /// Remote validating steps, in parallel; for a delete also the mutating webhooks that match it.
    fn validate_remote<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        _object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Lets everything pass as it is: for tests and measurements of what lies around admission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Admission for Open {
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
