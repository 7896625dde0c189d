//! Fields that a write of an endpoint does not change: a status, or all but the status.

use crate::definition::Definition;
use crate::hooks::Change;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::ResetFields;

impl Definition {
    /// Fields that writes of an endpoint neither change nor own. `version`: index in `versions`.
    /// `None` if that version lacks the subresource.
    pub fn reset(&self, version: usize, subresource: &str) -> Option<&ResetFields> {
        match subresource {
            "" => Some(&self.versions[version].reset),
            name => self.subresource(version, name).map(|subresource| &subresource.reset),
        }
    }

    /// Restores the fields that this endpoint does not change. A new object has none of them.
    pub fn keep_reset(&self, version: usize, change: &Change<'_>, object: &mut Document) {
        let Some(reset) = self.reset(version, change.subresource) else { return };
        match change.old {
            Some(old) if self.dialect.writes_status_alone() && change.subresource == "status" => {
                keep_all_but_status(&self.versions[version].schema, old, object)
            }
            Some(old) => {
                self.each_reset(reset, |path| keep(old, object, path));
                if reset.has("metadata") {
                    self.keep_metadata(old, object);
                }
            }
            None if self.policy.keeps_reset_on_create => {}
            None => self.each_reset(reset, |path| _ = object.remove(path)),
        }
        if change.subresource.is_empty() {
            self.default_status(version, object);
        }
    }

    /// Adds the default status of a custom object that has none: kube-apiserver applies defaults to
    /// what it has stored, without the status that the writer gave.
    fn default_status(&self, version: usize, object: &mut Document) {
        let has_default = || {
            let status = self.versions[version].schema.child("status");
            status.is_some_and(|status| status.default.is_some())
        };
        if self.dialect.writes_status_alone() && object.get(&["status"]).is_none() && has_default()
        {
            self.set_defaults(version, object);
        }
    }

    /// Restores the metadata that a write of the status does not change.
    fn keep_metadata(&self, old: &Document, object: &mut Document) {
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            keep(old, object, &["metadata", field]);
        }
        if self.policy.status_keeps_deletion {
            for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
                keep(old, object, &["metadata", field]);
            }
        }
    }

    /// Visits the reset fields outside of metadata, which the pipeline and `keep_metadata` handle.
    fn each_reset(&self, reset: &ResetFields, mut visit: impl FnMut(&[&str])) {
        let unowned = self.policy.written_unowned;
        let is_written =
            |path: &[&str]| unowned.iter().any(|dotted| dotted.split('.').eq(path.iter().copied()));
        reset.for_each(|path| {
            if path[0] != "metadata" && !is_written(path) {
                visit(path);
            }
        });
    }
}

/// Restores a field; clones only if it differs.
fn keep(old: &Document, object: &mut Document, path: &[&str]) {
    let stored = old.get(path);
    if object.get(path) == stored {
        return;
    }
    match stored {
        Some(value) => object.set(path, value.clone()),
        None => _ = object.remove(path),
    }
}

/// A status write of a custom object changes only status and managedFields. A null that the schema
/// does not allow is no change to an object without a status.
fn keep_all_but_status(schema: &Schema, old: &Document, object: &mut Document) {
    let given = object.remove(&["status"]);
    let may_be_null = old.get(&["status"]).is_some()
        || schema.child("status").is_some_and(|status| status.nullable);
    let status = given.filter(|status| may_be_null || !status.is_null());
    let kept = ["resourceVersion", "managedFields"]
        .map(|field| (field, object.remove(&["metadata", field])));
    *object = old.clone();
    let put = |object: &mut Document, path: &[&str], value: Option<Value>| match value {
        Some(value) => object.set(path, value),
        None => _ = object.remove(path),
    };
    put(object, &["status"], status);
    kept.into_iter().for_each(|(field, value)| put(object, &["metadata", field], value));
}
