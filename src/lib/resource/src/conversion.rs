//! Conversion between versions by an external converter: the conversion webhook.

use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;

/// Result of a conversion.
#[derive(Debug, Default)]
pub struct Conversion {
    /// In the order of the input.
    pub objects: Vec<Document>,
    /// Memory reservation for the objects, held as long as they are.
    pub room: Option<Box<dyn Any + Send + Sync>>,
}

/// Result of [`Converter::convert`].
pub type ConversionFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Conversion, Failure>> + Send + 'a>>;

/// Future of [`Converter::wait`].
pub type WaitFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// Converts objects of one resource. Slow and fallible, so never called during a key's turn.
///
/// While waiting, callers hold only bytes, and parse again afterwards.
pub trait Converter: Send + Sync + std::fmt::Debug {
    /// Converts objects, given as JSON, to another `apiVersion` (`example.com/v1`). Metadata other
    /// than labels and annotations is preserved, whatever the converter returns.
    ///
    /// # Errors
    /// 500: the converter is unreachable, fails, or returns something other than a conversion of
    /// the objects. 429: too many callers are waiting.
    fn convert(&self, api_version: String, objects: Vec<Bytes>) -> ConversionFuture<'_>;

    /// Waits for a conversion started by another request, releasing shared resources in the
    /// meantime.
    ///
    /// # Errors
    /// 429: too many callers are waiting.
    fn wait<'a>(&'a self, other: Pin<Box<dyn Future<Output = ()> + Send + 'a>>) -> WaitFuture<'a> {
        Box::pin(async move {
            other.await;
            Ok(())
        })
    }
}
