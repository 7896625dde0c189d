//! Behavior of a resource beyond its data. Every method has a default; hooks are pure and must not
//! block.

use crate::conversion::Converter;
use crate::print::{Printable, TableRow, since};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// The write that a hook is called for.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Stored object; `None` for a create.
    pub old: Option<&'a Document>,
    /// Subresource (`status`, `finalize`, `approval`, ...); empty for the main resource.
    pub subresource: &'a str,
    /// Version of the object (`v1`).
    pub version: &'a str,
    /// User name, for hooks that record it.
    pub user: &'a str,
    /// User's uid; may be empty.
    pub user_uid: &'a str,
    /// User's groups.
    pub groups: &'a [String],
    /// User's extra attributes.
    pub user_extra: &'a BTreeMap<String, Vec<String>>,
    /// Time of the request, read once.
    pub now: SystemTime,
}

/// An object that the server maintains.
#[derive(Clone, Debug)]
pub struct MaintainedObject {
    /// In its first version, with all defaults.
    pub object: Document,
    /// Restored whatever users do; otherwise only while its annotation permits that.
    pub is_mandatory: bool,
    /// Path of a field that users may set nevertheless; empty: none.
    pub free: &'static [&'static str],
}

impl MaintainedObject {
    /// # Panics
    /// If the value is not an object.
    pub fn new(object: Value, is_mandatory: bool) -> Self {
        let object = Document::from_value(object).expect("an object literal");
        Self { object, is_mandatory, free: &[] }
    }

    /// Whether it has this name.
    pub fn is(&self, name: &str) -> bool {
        self.object.name() == name
    }
}

/// Behavior of one resource.
pub trait Hooks: Send + Sync + std::fmt::Debug {
    /// Runs before validation of every create and update, after decoding and patching, when the
    /// reset fields of the endpoint have their stored values: restores others that this write may
    /// not set, and fills in derived ones (Secret's `stringData`, the status of a new object).
    fn prepare(&self, _change: &Change<'_>, _object: &mut Document) {}

    /// Validation errors beyond metadata rules and types.
    fn validate(&self, _change: &Change<'_>, _object: &Document) -> Vec<FieldError> {
        Vec::new()
    }

    /// [`Self::validate`] with warnings, which are sent even if the object is rejected.
    fn check(
        &self,
        change: &Change<'_>,
        object: &Document,
        _warn: &mut dyn FnMut(String),
    ) -> Vec<FieldError> {
        self.validate(change, object)
    }

    /// Replaces [`Self::check`] if a custom object violates its schema in a way that its rules
    /// could not handle; `None`: there are no rules.
    fn unchecked(&self, _change: &Change<'_>) -> Option<FieldError> {
        None
    }

    /// Warnings for the client.
    fn warnings(&self, _change: &Change<'_>, _object: &Document) -> Vec<String> {
        Vec::new()
    }

    /// Objects that the server creates if they are missing, and keeps up to date.
    fn maintained(&self) -> &[MaintainedObject] {
        &[]
    }

    /// Defaults that are not schema constants; runs after those.
    fn default(&self, _version: &str, _object: &mut Document) {}

    /// Errors in a name. `Some` replaces the DNS subdomain rule.
    fn validate_name(&self, _name: &str) -> Option<Vec<String>> {
        None
    }

    /// Grace period: seconds that a deleted object remains with a deletionTimestamp; `None` deletes
    /// at once (after finalizers).
    fn grace_seconds(&self, _object: &Document, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether a delete must wait for finalizers beyond `metadata.finalizers` (a namespace's
    /// `spec.finalizers`). While true, a delete only sets `metadata.deletionTimestamp`, without a
    /// grace period, and calls [`Self::deletion_begins`].
    fn has_pending_finalizers(&self, _object: &Document) -> bool {
        false
    }

    /// Modifies the object when its deletion begins (namespace phase).
    fn deletion_begins(&self, _object: &mut Document) {}

    /// Reason to refuse creates with 403, if any. (Custom resources whose definition is being
    /// deleted.)
    fn forbids_create(&self) -> Option<String> {
        None
    }

    /// Reason to refuse deleting the object with 403, if any.
    fn forbids_delete(&self, _object: &Document) -> Option<String> {
        None
    }

    /// Lifetime of an object (events); `None`: unlimited.
    fn ttl(&self, _object: &Document) -> Option<std::time::Duration> {
        None
    }

    /// Converts from a served version to the storage version, in place. `apiVersion` and `kind` are
    /// those of the storage version already; a definition stored as another group's kind
    /// (events.k8s.io) sets them itself.
    fn to_storage(&self, _version: &str, _object: &mut Document) {}

    /// Converts from the stored form to a served version, in place. `apiVersion` is still the
    /// stored one, and set afterwards.
    #[allow(
        clippy::wrong_self_convention,
        reason = "the opposite of `to_storage`; the hooks are not what is converted"
    )]
    fn from_storage(&self, _version: &str, _object: &mut Document) {}

    /// Converts an object that another server stored in a version that this server does
    /// not serve to the storage version, `apiVersion` included. Leaves unknown objects unchanged.
    fn restore_former(&self, _object: &mut Document) {}

    /// Converter between versions, in place of `to_storage` and `from_storage`; `None`: these
    /// convert, or versions differ only in name.
    fn converter(&self) -> Option<&dyn Converter> {
        None
    }

    /// Values of the selectable fields, in the definition's order; the default reads the paths. The
    /// object is in its stored form. If definitions share a storage prefix, the one registered
    /// first computes them.
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

    /// Cells of the object's table row, for columns without a JSONPath, in column order. Only
    /// called by [`Self::print`].
    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        vec![Value::from(object.name()), Value::from(since(object.meta("creationTimestamp"), now))]
    }

    /// Writes the same cells, from an object's bytes. The default parses the object, and its rows
    /// cannot be cached; kinds with many objects override this method, read only what they print,
    /// and record times by [`TableRow::since`].
    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        let now = row.dated();
        self.print_document(&object.document(), now).iter().for_each(|cell| row.value(cell));
    }
}

/// Default behavior.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultHooks;

impl Hooks for DefaultHooks {}
