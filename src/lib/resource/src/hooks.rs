//! Behaviour of a resource that data cannot say. Every method has a default; hooks are pure and must not block.

use crate::conversion::Converter;
use crate::print::{Printable, TableRow, since};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// The write that a hook takes part in.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The stored object; `None` for a create.
    pub old: Option<&'a Document>,
    /// Empty for the object itself; else `status`, `finalize`, `approval`, ...
    pub subresource: &'a str,
    /// The version (`v1`) that the object is in.
    pub version: &'a str,
    /// Who writes (for hooks that record it).
    pub user: &'a str,
    /// The user's stable id; may be empty.
    pub user_uid: &'a str,
    /// The user's groups.
    pub groups: &'a [String],
    /// The user's extra attributes.
    pub user_extra: &'a BTreeMap<String, Vec<String>>,
    /// Read once per request.
    pub now: SystemTime,
}

/// Behaviour of one resource.
pub trait Hooks: Send + Sync + std::fmt::Debug {
    /// Before validation of every create and update, after decoding and patching: fields that this write may not set are put back, derived ones filled in (Secret's `stringData`, generation of kinds that count it, status of a fresh object).
    fn prepare(&self, _change: &Change<'_>, _object: &mut Document) {}

    /// Everything that is wrong with the object, beyond metadata rules and types.
    fn validate(&self, _change: &Change<'_>, _object: &Document) -> Vec<FieldError> {
        Vec::new()
    }

    /// [`Self::validate`], with warnings that come out of it (they are sent even when the object is refused).
    fn check(&self, change: &Change<'_>, object: &Document, _warn: &mut dyn FnMut(String)) -> Vec<FieldError> {
        self.validate(change, object)
    }

    /// What is said instead of [`Self::check`] when a custom object does not even fit its schema in a way that rules could not cope with; `None`: there
    /// are no rules.
    fn unchecked(&self, _change: &Change<'_>) -> Option<FieldError> {
        None
    }

    /// Warnings for the client.
    fn warnings(&self, _change: &Change<'_>, _object: &Document) -> Vec<String> {
        Vec::new()
    }

    /// Defaults that are no constants of the schema; runs after those.
    fn default(&self, _version: &str, _object: &mut Document) {}

    /// The group that an `Invalid` failure names when it is not the definition's (`events.k8s.io` answers as the core group).
    fn invalid_group(&self) -> Option<&'static str> {
        None
    }

    /// What is wrong with a name (after the DNS subdomain rule, which this replaces when it returns `Some`).
    fn validate_name(&self, _name: &str) -> Option<Vec<String>> {
        None
    }

    /// Whether a finalizer without a domain is refused, the standard ones excepted; kinds that upstream validates outside of its core API take any
    /// qualified name.
    fn demands_qualified_finalizers(&self) -> bool {
        true
    }

    /// Whether lists may select by `metadata.namespace`. (Not of kinds that list their selectable fields themselves and are in no namespace.)
    fn selects_namespace(&self) -> bool {
        true
    }

    /// Whether a PUT (or a non-apply PATCH is never allowed to) may create the object.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Whether a PUT without a resourceVersion replaces whatever is there.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// Whether a small object may take long to validate: its writes are computed off the workers.
    fn computes_long(&self) -> bool {
        false
    }

    /// Whether `metadata.generation` is kept: 1 at create, +1 when a spec (anything but metadata and status) changes.
    fn counts_generation(&self) -> bool {
        false
    }

    /// Whether a client's `status` (the version's `reset` fields) survives a create; elsewhere it is dropped before [`Self::prepare`]. (Nodes.)
    fn keeps_reset_on_create(&self) -> bool {
        false
    }

    /// Whether deletes heed propagation policies, by adding `orphan` and `foregroundDeletion` finalizers (not events).
    fn supports_garbage_collection(&self) -> bool {
        true
    }

    /// Whether a delete is graceful: seconds that the object stays with a deletionTimestamp; `None` deletes at once (after finalizers).
    fn grace_seconds(&self, _object: &Document, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Finalizers beyond `metadata.finalizers` that a delete waits for (a namespace's `spec.finalizers`). While true, a delete only sets
    /// `metadata.deletionTimestamp` (without a grace period) and calls [`Self::deletion_begins`].
    fn has_pending_finalizers(&self, _object: &Document) -> bool {
        false
    }

    /// Whether the kind begins its deletion by itself: then preconditions are refused in other words.
    fn begins_its_deletion(&self) -> bool {
        false
    }

    /// Whether the delete that only marks leaves the finalizers of garbage collection as they are, whatever propagation it asks for.
    fn mark_keeps_finalizers(&self) -> bool {
        false
    }

    /// Changes the object when its deletion begins (namespace phase).
    fn deletion_begins(&self, _object: &mut Document) {}

    /// Why no object may be created now (403); `None`: one may. (Custom resources whose definition is being deleted.)
    fn forbids_create(&self) -> Option<String> {
        None
    }

    /// Why the object may not be deleted now (403); `None`: it may.
    fn forbids_delete(&self, _object: &Document) -> Option<String> {
        None
    }

    /// Whether a completed delete answers with the object as it was last, instead of a `Status`.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// How long an object lives (events); `None`: for ever.
    fn ttl(&self, _object: &Document) -> Option<std::time::Duration> {
        None
    }

    /// Converts from a served version to the storage version, in place. `apiVersion` and `kind` are already those of the storage version; a
    /// definition that stores as another group's kind (events.k8s.io) sets them itself.
    fn to_storage(&self, _version: &str, _object: &mut Document) {}

    /// Converts from the stored form to a served version, in place; `apiVersion` still is the stored one and is set afterwards.
    #[allow(clippy::wrong_self_convention, reason = "the opposite of `to_storage`; the hooks are not what is converted")]
    fn from_storage(&self, _version: &str, _object: &mut Document) {}

    /// Who converts between versions, where neither `to_storage` nor `from_storage` do; `None`: versions differ in their name only, or those convert.
    fn converter(&self) -> Option<&dyn Converter> {
        None
    }

    /// Values of the declared selectable fields, in the definition's order; the default reads the paths. The object is in its stored form, and
    /// of several definitions with one storage prefix the first one that was put computes them.
    fn selectable(&self, paths: &[String], object: &Document) -> Vec<String> {
        paths
            .iter()
            .map(|path| {
                let segments: Vec<&str> = path.split('.').collect();
                match object.get(&segments) {
                    Some(Value::String(text)) => text.to_string(),
                    Some(Value::Bool(flag)) => flag.to_string(),
                    Some(Value::Number(number)) => number.to_string(),
                    _ => String::new(),
                }
            })
            .collect()
    }

    /// The cells of the object's table row, for columns without a JSONPath, in the columns' order. Asked by [`Self::print`] only.
    fn cells(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        vec![Value::from(object.name()), Value::from(since(object.meta("creationTimestamp"), now))]
    }

    /// Writes the same cells from an object's bytes. The default parses them, and its rows cannot be used again: kinds of which there are many override
    /// this one instead, look for what they print, and leave ages to [`TableRow::since`].
    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        let now = row.dated();
        self.cells(&object.document(), now).iter().for_each(|cell| row.value(cell));
    }
}

/// Hooks that leave everything at its default.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultHooks;

impl Hooks for DefaultHooks {}
