//! What custom resources have in common beyond their data.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Hooks;
use std::time::SystemTime;

/// Behaviour of a custom resource.
#[derive(Debug)]
pub(super) struct CustomHooks {
    /// Its definition is being deleted.
    pub(super) terminating: bool,
}

impl Hooks for CustomHooks {
    fn counts_generation(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn forbids_create(&self) -> Option<String> {
        self.terminating.then(|| "create not allowed while the custom resource definition is terminating".to_owned())
    }

    fn cells(&self, object: &Document, _now: SystemTime) -> Vec<Value> {
        vec![Value::from(object.name())]
    }
}
