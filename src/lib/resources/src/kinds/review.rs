//! Review kinds: not stored; crate `auth` computes the responses.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Hooks;
use ferrokube_resource::native::{KindBody, NativeColumn};
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) fn body() -> KindBody {
    KindBody {
        columns: const { &[NativeColumn::NAME, NativeColumn::CREATED_AT] },
        hooks: Arc::new(Review),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Review;

impl Hooks for Review {
    fn print_document(&self, object: &Document, _now: SystemTime) -> Vec<Value> {
        vec![Value::from(object.name()), Value::from(object.meta("creationTimestamp"))]
    }
}
