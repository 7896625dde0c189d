//! Namespace: the scope of other objects. Has two phases; its spec's finalizers hold it until its
//! content is deleted.

use crate::checks::{ErrorList, all_invalid, finalizer, keep_stored};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, Hooks, MetadataRules, Policy, Printable, TableRow, Verbs};
use std::sync::Arc;

/// Label with the namespace's name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Finalizer that the namespace controller removes once the content is deleted.
const FINALIZER: &str = "kubernetes";

pub(crate) fn body() -> KindBody {
    KindBody {
        subresources: &[
            NativeSubresource {
                name: "finalize",
                kind: None,
                verbs: Verbs::UPDATE,
                reset: &["status"],
            },
            NativeSubresource::STATUS,
        ],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("Status", "The status of the namespace"),
                NativeColumn::AGE,
            ]
        },
        selectable: &["status.phase"],
        storage: Some("namespaces"),
        policy: Policy {
            untabled_subresources: &["finalize"],
            subresource_metadata_rules: MetadataRules::Changes,
            selects_namespace: false,
            returns_deleted: true,
            begins_own_deletion: true,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(Namespace),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Namespace;

impl Hooks for Namespace {
    fn default(&self, _version: &str, object: &mut Document) {
        label(object);
        if object.str(&["status", "phase"]).unwrap_or_default().is_empty() {
            object.set(&["status", "phase"], "Active");
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        // Again, for a generated name.
        label(object);
        let Some(old) = change.old else {
            object.set(&["status"], json!({"phase": "Active"}));
            let mut finalizers = object.list(&["spec", "finalizers"]).to_vec();
            if !finalizers.iter().any(|name| name == FINALIZER) {
                finalizers.push(Value::from(FINALIZER));
                object.set(&["spec", "finalizers"], finalizers);
            }
            return;
        };
        if change.subresource.is_empty() {
            keep_stored(old, object, "spec");
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        match (change.old, change.subresource) {
            (None, _) => finalizers(object, |_| "spec.finalizers".to_owned()),
            (_, "finalize") => finalizers(object, |index| format!("spec.finalizers[{index}]")),
            (_, "status") => phase(object).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::dns1123_label(name))
    }

    fn has_pending_finalizers(&self, object: &Document) -> bool {
        // The first delete only marks the namespace.
        !object.is_terminating() || !object.list(&["spec", "finalizers"]).is_empty()
    }

    fn deletion_begins(&self, object: &mut Document) {
        object.set(&["status", "phase"], "Terminating");
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.text(&object.str(&["status", "phase"]));
        row.age(object);
    }
}

fn label(object: &mut Document) {
    let name = object.name();
    if !name.is_empty() && object.label(NAME_LABEL) != Some(name) {
        let name = name.to_owned();
        object.set(&["metadata", "labels", NAME_LABEL], name);
    }
}

/// kube-apiserver includes the index only for updates.
fn finalizers(object: &Document, path: impl Fn(usize) -> String) -> Vec<FieldError> {
    let names =
        object.list(&["spec", "finalizers"]).iter().map(|name| name.as_str().unwrap_or_default());
    let mut errors = ErrorList::default();
    errors.check_each(names.enumerate(), |(index, name)| {
        all_invalid(&path(index), name, finalizer(name)).collect::<Vec<_>>()
    });
    errors.into_vec()
}

/// The phase must match the deletionTimestamp.
fn phase(object: &Document) -> Option<FieldError> {
    let phase = object.str(&["status", "phase"]).unwrap_or_default();
    let (expected, why) = match object.is_terminating() {
        true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
    };
    (phase != expected).then(|| FieldError::invalid("status.Phase", Word(phase), why))
}
