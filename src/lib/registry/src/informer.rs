//! A cache's feed: list a resource, then follow its history, and list again when the history was compacted.

use crate::pipeline::Registry;
use ferrokube_apimachinery::document::Document;
use ferrokube_storage::Key;
use std::sync::Arc;

/// What an informer tells its owner, in the history's order.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Forget everything: this is all there is (at the start, and after a compaction).
    Replaced(Vec<(Key, Arc<Document>)>),
    /// New or changed.
    Changed(Key, Arc<Document>),
    /// Gone.
    Removed(Key),
}

/// Follows all objects of one resource, in one of its versions.
///
/// ```ignore
/// let mut informer = Informer::new(&registry, "rbac.authorization.k8s.io", "v1", "roles").expect("served");
/// let first = informer.snapshot();
/// while let Some(notices) = informer.next().await { .. }
/// ```
pub struct Informer {}

impl Informer {
    /// For one resource; `None` when it is not served or not stored.
    pub fn new(_registry: &Registry, _group: &str, _version: &str, _plural: &str) -> Option<Self> {
        unimplemented!("registry owner")
    }

    /// The present state, at once; [`Self::next`] then gives what follows it. Without this call `next` begins with [`Notice::Replaced`].
    pub fn snapshot(&mut self) -> Vec<(Key, Arc<Document>)> {
        unimplemented!("registry owner")
    }

    /// Waits for the next notices (at least one, bounded); `None` when the store closes. Cancel safe.
    pub async fn next(&mut self) -> Option<Vec<Notice>> {
        unimplemented!("registry owner")
    }
}
