//! Which resources are served: an immutable table that is swapped when a definition comes or goes.

use crate::context::{RequestContext, Target};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::{Definition, Version};
use ferrokube_storage::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A definition in one of its versions.
#[derive(Clone, Debug)]
pub struct Served {
    /// The definition.
    pub definition: Arc<Definition>,
    /// Index into its versions.
    pub version: usize,
}

impl Served {
    /// The version.
    pub fn version(&self) -> &Version {
        &self.definition.versions[self.version]
    }

    /// Whether an entry's bytes are an object in this version as they stand: no conversion, and for custom resources the same epoch.
    pub fn is_direct(&self, _entry: &Entry) -> bool {
        unimplemented!("registry owner")
    }
}

/// Behaviour of a resource or subresource that computes its answer instead of storing (reviews, `serviceaccounts/token`).
pub trait Virtual: Send + Sync {
    /// Answers a create. The object is decoded, defaulted and type-checked.
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        target: &'a Target,
        object: Document,
    ) -> Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send + 'a>>;

    /// For a subresource that shows a part of the stored object as another kind (`scale`): that part. Then GET, PUT and PATCH of it work on the
    /// projection, and [`Self::inject`] writes it back; `create` is never called.
    ///
    /// # Errors
    /// The object cannot be shown so. The default: no projection (405).
    fn project(&self, target: &Target, _object: &Document) -> Result<Document, Failure> {
        Err(Failure::new(ferrokube_apimachinery::status::Reason::MethodNotAllowed, format!("{} cannot be read", target.subresource)))
    }

    /// Writes a changed projection back into the stored object.
    ///
    /// # Errors
    /// The projection is invalid.
    fn inject(&self, target: &Target, _projection: &Document, _object: &mut Document) -> Result<(), Failure> {
        Err(Failure::new(ferrokube_apimachinery::status::Reason::MethodNotAllowed, format!("{} cannot be written", target.subresource)))
    }
}

/// The resources that are served now.
#[derive(Default)]
pub struct Catalog {}

impl Catalog {
    /// Adds or replaces a definition (by group and plural).
    pub fn put(&self, _definition: Arc<Definition>) {
        unimplemented!("registry owner")
    }

    /// Adds a computed resource or subresource (`subresource` empty: the resource itself).
    pub fn put_virtual(&self, _group: &str, _plural: &str, _subresource: &str, _behaviour: Arc<dyn Virtual>) {
        unimplemented!("registry owner")
    }

    /// Removes a definition.
    pub fn remove(&self, _group: &str, _plural: &str) {
        unimplemented!("registry owner")
    }

    /// Looks a path's resource up; only served versions are found.
    pub fn find(&self, _group: &str, _version: &str, _plural: &str) -> Option<Served> {
        unimplemented!("registry owner")
    }

    /// The computed behaviour, if there is one.
    pub fn find_virtual(&self, _group: &str, _plural: &str, _subresource: &str) -> Option<Arc<dyn Virtual>> {
        unimplemented!("registry owner")
    }

    /// The number of [`Self::all`] changed: for loops that follow the catalog (discovery, watches).
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        unimplemented!("registry owner")
    }

    /// All definitions in the order in which they were put (discovery's), and a number that changes with every change.
    pub fn all(&self) -> (u64, Vec<Arc<Definition>>) {
        unimplemented!("registry owner")
    }
}
