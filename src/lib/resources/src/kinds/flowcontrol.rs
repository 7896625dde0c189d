//! Common code of FlowSchemas and PriorityLevelConfigurations.

use crate::checks::{is_full, text};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, Hooks, MetadataRules, Policy};
use std::collections::HashSet;
use std::sync::Arc;

/// A kind with generation and status.
pub(super) fn body(
    storage: &'static str,
    columns: &'static [NativeColumn],
    hooks: Arc<dyn Hooks>,
) -> KindBody {
    KindBody {
        subresources: &[NativeSubresource::STATUS_ALONE],
        reset: &["status"],
        columns,
        storage: Some(storage),
        policy: Policy {
            metadata_rules: MetadataRules::Object,
            subresource_metadata_rules: MetadataRules::Nothing,
            counts_generation: true,
            ..Policy::DEFAULT
        },
        hooks,
        ..KindBody::default()
    }
}

/// [`Hooks::prepare`].
pub(super) fn prepare(change: &Change<'_>, object: &mut Document) {
    match (change.old, change.subresource) {
        (None, _) => object.set(&["status"], json!({})),
        (Some(old), "status") => match old.get(&["metadata", "generateName"]) {
            Some(prefix) => object.set(&["metadata", "generateName"], prefix.clone()),
            None => drop(object.remove(&["metadata", "generateName"])),
        },
        (Some(_), _) => {}
    }
}

pub(super) fn conditions(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (index, condition) in object.list(&["status", "conditions"]).iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let (kind, field) = (text(condition, "type"), format!("status.conditions[{index}].type"));
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(field.as_str(), Word(kind)));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    errors
}
