//! Resources and subresources that are computed instead of stored.

use crate::context::{RequestContext, Target};
use crate::options::WriteOptions;
use crate::pipeline::Registry;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::Replicas;
use ferrokube_storage::Need;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Future of a computed resource.
pub type ComputedFuture<'a> = Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send + 'a>>;

/// A create of a computed resource or subresource, without its object.
#[derive(Clone, Copy)]
pub struct ComputedCall<'a> {
    /// The registry. Handlers are created before it and must not keep a reference.
    pub registry: &'a Registry,
    /// Context of the caller.
    pub context: &'a RequestContext,
    /// Target of the create.
    pub target: &'a Target,
    /// Options of the request. A dry run stores nothing.
    pub options: &'a WriteOptions,
}

/// A resource or subresource that is computed instead of stored (reviews, `serviceaccounts/token`).
pub trait ComputedResource: Send + Sync {
    /// Computes the response to a create. The object is decoded, defaulted and type-checked. The
    /// default: 405, as for a projection.
    fn create<'a>(&'a self, call: ComputedCall<'a>, _object: Document) -> ComputedFuture<'a> {
        let why = format!("{} cannot be created", call.target.subresource);
        Box::pin(std::future::ready(Err(Failure::new(Reason::MethodNotAllowed, why))))
    }

    /// How much a create is needed on a full disk ([`RequestContext::admit`]).
    fn need(&self, _target: &Target) -> Need {
        Need::Ordinary
    }

    /// Schema of a subresource's body; `None`: any object. Not called for a resource, which has its
    /// own.
    fn schema(&self) -> Option<Arc<Schema>> {
        None
    }

    /// Further apiVersions of a subresource's body, decoded as its own.
    fn other_versions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Defaults the body of a subresource.
    fn fill_in(&self, _object: &mut Document) {}

    /// Whether the subresource shows part of the stored object as another kind (`scale`). GET, PUT
    /// and PATCH then work on the result of [`Self::project`], [`Self::inject`] writes it back, and
    /// `create` is never called.
    fn is_projection(&self) -> bool {
        false
    }

    /// Projection of a stored object, without its resourceVersion.
    ///
    /// # Errors
    /// The object has no projection. The default: 405.
    fn project(&self, target: &Target, _object: &Document) -> Result<Document, Failure> {
        Err(Failure::new(
            Reason::MethodNotAllowed,
            format!("{} cannot be read", target.subresource),
        ))
    }

    /// [`Self::project`] for a write, which may add a missing part.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn project_for_update(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        self.project(target, object)
    }

    /// [`Self::project`] of the written object, which may lack parts that pruning dropped.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn project_written(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        self.project(target, object)
    }

    /// Location of the replicas in the objects, for managedFields; `None`: managedFields are not
    /// converted.
    fn replicas(&self) -> Option<&Replicas> {
        None
    }

    /// Writes a changed projection back into the stored object.
    ///
    /// # Errors
    /// The projection is invalid. The default: 405.
    fn inject(
        &self,
        target: &Target,
        _projection: &Document,
        _object: &mut Document,
    ) -> Result<(), Failure> {
        Err(Failure::new(
            Reason::MethodNotAllowed,
            format!("{} cannot be written", target.subresource),
        ))
    }
}
