//! The review kinds: nothing is stored, the authentication crate computes the answers.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Hooks;
use ferrokube_resource::native::{Body, Printed};
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) fn body() -> Body {
    Body { columns: const { &[Printed::NAME, Printed::CREATED_AT] }, hooks: Arc::new(Review), ..Body::default() }
}

#[derive(Debug)]
struct Review;

impl Hooks for Review {
    fn cells(&self, object: &Document, _now: SystemTime) -> Vec<Value> {
        vec![Value::from(object.name()), Value::from(object.meta("creationTimestamp"))]
    }
}
