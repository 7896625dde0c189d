//! The client of the server's own loops (bootstrap, CRDs, quota): it enters at admission, by the same path as everybody else.

use crate::catalog::Served;
use crate::context::{RequestContext, UserInfo};
use crate::pipeline::{DeleteOptions, Patch, Registry};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;

/// A client with the server's own identity (`system:apiserver` in `system:masters`). Cheap to clone.
///
/// Documents are given and taken in the version that is named first: `Local::new(registry, "", "v1", "namespaces")`.
#[derive(Clone)]
pub struct Local {}

impl Local {
    /// For one resource; `None` when it is not served.
    pub fn new(_registry: &Registry, _group: &str, _version: &str, _plural: &str) -> Option<Self> {
        unimplemented!("registry owner")
    }

    /// The definition and version.
    pub fn served(&self) -> &Served {
        unimplemented!("registry owner")
    }

    /// A context with the server's identity and a new trace.
    pub fn context() -> RequestContext {
        unimplemented!("registry owner")
    }

    /// The server's identity.
    pub fn user() -> UserInfo {
        unimplemented!("registry owner")
    }

    /// One object, `None` when it is not there. The namespace is empty for cluster scope.
    ///
    /// # Errors
    /// As every client sees it; also for all below.
    pub async fn get(&self, _namespace: &str, _name: &str) -> Result<Option<Document>, Failure> {
        unimplemented!("registry owner")
    }

    /// All objects; an empty namespace lists across namespaces.
    pub async fn list(&self, _namespace: &str) -> Result<Vec<Document>, Failure> {
        unimplemented!("registry owner")
    }

    /// POST.
    pub async fn create(&self, _namespace: &str, _object: Document) -> Result<Document, Failure> {
        unimplemented!("registry owner")
    }

    /// PUT of the object (`subresource` empty) or a subresource; heeds a resourceVersion in the object.
    pub async fn update(&self, _object: Document, _subresource: &str) -> Result<Document, Failure> {
        unimplemented!("registry owner")
    }

    /// PATCH.
    pub async fn patch(&self, _namespace: &str, _name: &str, _subresource: &str, _patch: Patch) -> Result<Document, Failure> {
        unimplemented!("registry owner")
    }

    /// DELETE; `Ok` also when it is not there.
    pub async fn delete(&self, _namespace: &str, _name: &str, _options: &DeleteOptions) -> Result<(), Failure> {
        unimplemented!("registry owner")
    }
}
