//! Conversion between versions by somebody else: a webhook.

use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;

/// What was converted.
#[derive(Debug, Default)]
pub struct Conversion {
    /// In the order of the objects that were given.
    pub objects: Vec<Document>,
    /// What they take of a budget: kept as long as they are.
    pub room: Option<Box<dyn Any + Send + Sync>>,
}

/// The converted objects.
pub type ConversionFuture<'a> = Pin<Box<dyn Future<Output = Result<Conversion, Failure>> + Send + 'a>>;

/// The end of a wait.
pub type WaitFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Converts objects of one resource. Slow, and may fail: it is never called in a key's turn.
///
/// Callers hold nothing but bytes while they wait: they read what they need anew.
pub trait Converter: Send + Sync + std::fmt::Debug {
    /// The objects, given as JSON, in another `apiVersion` (`example.com/v1`). Metadata other than labels and annotations are as they were, whatever the other
    /// side says.
    ///
    /// # Errors
    /// 500: the other side cannot be reached, fails, or answers what is no conversion of the objects. 429: too many wait for it.
    fn convert(&self, api_version: String, objects: Vec<Bytes>) -> ConversionFuture<'_>;

    /// Waits for a conversion that another request has begun; the caller lets go of what others could use meanwhile.
    ///
    /// # Errors
    /// 429: too many wait for it.
    fn wait<'a>(&'a self, other: Pin<Box<dyn Future<Output = ()> + Send + 'a>>) -> WaitFuture<'a> {
        Box::pin(async move {
            other.await;
            Ok(())
        })
    }
}
