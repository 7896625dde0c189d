//! Conversion between versions by somebody else: a webhook.

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use std::future::Future;
use std::pin::Pin;

/// The converted objects, in the order of those that were given.
pub type Converted<'a> = Pin<Box<dyn Future<Output = Result<Vec<Document>, Failure>> + Send + 'a>>;

/// Converts objects of one resource. Slow, and may fail: it is never called in a key's turn.
pub trait Converter: Send + Sync + std::fmt::Debug {
    /// The objects in another `apiVersion` (`example.com/v1`). Metadata other than labels and annotations are as they were, whatever the other side says.
    ///
    /// # Errors
    /// 500: the other side cannot be reached, fails, or answers what is no conversion of the objects.
    fn convert(&self, api_version: String, objects: Vec<Document>) -> Converted<'_>;

    /// Called by a request that is about to wait for a conversion that another one has begun: it lets go of what others could use meanwhile.
    fn wait_idle(&self) {}
}
