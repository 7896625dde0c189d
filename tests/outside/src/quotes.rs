//! `quotes`: what a toy would cost, computed and not stored.

use ferrokube_server::apimachinery::document::{Document, Value};
use ferrokube_server::registry::ComputedResource;
use ferrokube_server::registry::catalog::{ComputedCall, ComputedFuture};

/// The handler of `quotes`.
pub struct Quotes;

impl ComputedResource for Quotes {
    fn create<'a>(&'a self, _call: ComputedCall<'a>, mut object: Document) -> ComputedFuture<'a> {
        let size = object.get(&["spec", "size"]).and_then(Value::as_i64).unwrap_or_default();
        object.set(&["status", "cents"], Value::from(size * 25));
        Box::pin(std::future::ready(Ok(object)))
    }
}
