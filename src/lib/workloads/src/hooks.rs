//! Behavior of a workload kind: its rows in the tables, and its code, if any.

use crate::cells::{self, CellSources, CellValue};
use crate::checks::FieldErrors;
use crate::rows::ColumnRows;
use crate::types::{self, DefaultsRoom, TypeRules};
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::print::Completion;
use ferrokube_resource::{Change, Hooks, Printable, TableRow};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Behavior of a kind that the tables cannot express. Pure, like [`Hooks`].
pub(crate) trait KindCode: fmt::Debug + Send + Sync {
    /// Defaults applied after those in the tables.
    fn default(&self, _version: &str, _object: &mut Document) {}

    /// As [`Hooks::prepare`].
    fn prepare(&self, _change: &Change<'_>, _object: &mut Document) {}

    /// The object to validate with the rows, if it is not the stored one.
    fn validated(&self, _change: &Change<'_>, _object: &Document) -> Option<Document> {
        None
    }

    /// Validation beyond the rows, in the storage version.
    fn validate(&self, _change: &Change<'_>, _object: &Document, _errors: &mut FieldErrors) {}

    /// Warnings beyond the rows.
    fn warnings(&self, _change: &Change<'_>, _object: &Document, _out: &mut Warnings) {}

    /// Cell of a column with the source `@WORD`.
    fn cell(&self, _word: &str, _object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text("")
    }

    /// Whether and when the object completed, for a kind whose code computes cells.
    fn completion(&self, _object: &Value) -> Option<Completion> {
        None
    }

    /// As [`Hooks::validate_name`].
    fn validate_name(&self, _name: &str) -> Option<Vec<String>> {
        None
    }

    /// As [`Hooks::grace_seconds`].
    fn grace_seconds(&self, _object: &Document, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// As [`Hooks::selectable`], for a field that is not read at its path.
    fn selectable(&self, _path: &str, _object: &Document) -> Option<String> {
        None
    }

    /// As [`Hooks::to_storage`].
    fn to_storage(&self, _version: &str, _object: &mut Document) {}

    /// As [`Hooks::from_storage`].
    #[allow(clippy::wrong_self_convention, reason = "the opposite of `to_storage`")]
    fn from_storage(&self, _version: &str, _object: &mut Document) {}
}

/// A kind without code.
#[derive(Debug)]
pub(crate) struct PlainKind;

impl KindCode for PlainKind {}

/// Names of pods become host names.
fn host_name(object: &Document, out: &mut Warnings) {
    let of = match object.kind() {
        "Pod" => "the Pod's hostname",
        "Deployment" | "ReplicaSet" | "ReplicationController" | "Job" | "CronJob" => {
            "Pod names and hostnames"
        }
        _ => return,
    };
    let whys = ferrokube_apimachinery::name::dns1123_label(object.name());
    if !whys.is_empty() {
        out.push(format!(
            "metadata.name: this is used in {of}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            whys.join(" ")
        ));
    }
}

/// Whether the object of a write is one of the kind: that of some subresources is not.
fn is_of_kind(change: &Change<'_>) -> bool {
    matches!(change.subresource, "" | "status" | "ephemeralcontainers" | "resize")
}

/// Rows and code of one kind.
#[derive(Debug)]
pub(crate) struct KindHooks {
    /// Types by version, the storage version last: (`v1`, `core.v1.Pod`).
    types: Vec<(&'static str, String)>,
    plans: Vec<OnceLock<Option<Arc<TypeRules>>>>,
    cells: CellSources,
    /// Metadata that a status write does not change.
    kept: &'static [&'static str],
    /// Whether the generation is incremented.
    counts: bool,
    /// Whether an update reports its errors twice, as in kube-apiserver.
    checks_twice: bool,
    code: &'static dyn KindCode,
}

impl KindHooks {
    pub(crate) fn new(
        types: Vec<(&'static str, String)>,
        columns: Option<&'static ColumnRows>,
        kept: &'static [&'static str],
        has: impl Fn(&str) -> bool,
        code: &'static dyn KindCode,
    ) -> Self {
        let plans = types.iter().map(|_| OnceLock::new()).collect();
        let (counts, checks_twice) = (has("generation"), has("twice"));
        Self { types, plans, cells: CellSources::new(columns), kept, counts, checks_twice, code }
    }

    fn plan(&self, version: &str) -> Option<&Arc<TypeRules>> {
        let at = self.types.iter().position(|(name, _)| *name == version)?;
        self.plans[at].get_or_init(|| types::of(&self.types[at].1)).as_ref()
    }

    fn storage_version(&self) -> &'static str {
        self.types.last().map_or("v1", |(version, _)| version)
    }

    fn validate_stored(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = FieldErrors::default();
        let of_status = change.subresource == "status";
        if is_of_kind(change)
            && let Some(plan) = self.plan(change.version)
        {
            let old = change.old.map(Document::fields);
            let validated = self.code.validated(change, object);
            let fields = validated.as_ref().unwrap_or(object).fields();
            plan.check_object(fields, old, of_status, &mut errors);
            if self.checks_twice && old.is_some() && !of_status {
                plan.check_object(fields, None, of_status, &mut errors);
            }
        }
        self.code.validate(change, object, &mut errors);
        errors.into_vec()
    }
}

impl Hooks for KindHooks {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if let Some(old) = change.old.filter(|_| change.subresource == "status") {
            for field in self.kept {
                let path = ["metadata", field];
                match old.get(&path) {
                    Some(value) => object.set(&path, value.clone()),
                    None => _ = object.remove(&path),
                }
            }
        }
        if is_of_kind(change)
            && let Some(plan) = self.plan(change.version)
        {
            plan.drop_off(object.fields_mut(), change.old.map(Document::fields));
        }
        self.code.prepare(change, object);
    }

    /// Like kube-apiserver, which validates its internal version.
    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let stored = self.storage_version();
        if change.version == stored {
            return self.validate_stored(change, object);
        }
        let convert = |object: &Document| {
            let mut converted = object.clone();
            self.code.to_storage(change.version, &mut converted);
            converted
        };
        let (object, old) = (convert(object), change.old.map(convert));
        self.validate_stored(&Change { version: stored, old: old.as_ref(), ..*change }, &object)
    }

    fn warnings(&self, change: &Change<'_>, object: &Document) -> Vec<String> {
        // An update that changes nothing of note is not commented.
        let noted: Option<&[&str]> = match object.kind() {
            "CSIDriver" => Some(&["spec", "tokenRequests"]),
            "PodTemplate" => Some(&["template"]),
            // Always commented.
            "NetworkPolicy" => None,
            _ => self.counts.then_some(&["spec"]),
        };
        let is_quiet = change.old.is_some() && object.kind() == "Pod"
            || change.old.zip(noted).is_some_and(|(old, path)| old.get(path) == object.get(path));
        let of_status = change.subresource == "status";
        let mut out = Warnings::default();
        if let Some(plan) = self.plan(change.version).filter(|_| of_status) {
            plan.warn_object(object.fields(), of_status, &mut out);
        }
        let mut rest = None;
        if is_quiet && object.kind() == "StatefulSet" {
            // All but its template is commented.
            rest.insert(object.clone()).remove(&["spec", "template"]);
        } else if is_quiet {
            return out.into_vec();
        }
        if !change.subresource.is_empty() {
            return out.into_vec();
        }
        let object = rest.as_ref().unwrap_or(object);
        if change.old.is_none() {
            host_name(object, &mut out);
        }
        if let Some(plan) = self.plan(change.version) {
            plan.warn_object(object.fields(), of_status, &mut out);
        }
        self.code.warnings(change, object, &mut out);
        out.into_vec()
    }

    fn default(&self, version: &str, object: &mut Document) {
        let mut room = DefaultsRoom::default();
        if let Some(plan) = self.plan(version) {
            plan.default(object.fields_mut(), &mut room);
        }
        if !room.is_used_up() {
            self.code.default(version, object);
        }
    }

    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        self.code.validate_name(name)
    }

    fn grace_seconds(&self, object: &Document, asked: Option<i64>) -> Option<i64> {
        self.code.grace_seconds(object, asked)
    }

    fn to_storage(&self, version: &str, object: &mut Document) {
        if version != self.storage_version() {
            self.code.to_storage(version, object);
        }
    }

    fn from_storage(&self, version: &str, object: &mut Document) {
        if version != self.storage_version() {
            self.code.from_storage(version, object);
        }
    }

    fn selectable(&self, paths: &[String], object: &Document) -> Vec<String> {
        let value = |path: &String| {
            self.code.selectable(path, object).unwrap_or_else(|| {
                let segments: Vec<&str> = path.split('.').collect();
                cells::plain_text(object.get(&segments))
            })
        };
        paths.iter().map(value).collect()
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        self.cells.print(self.code, object, row);
    }
}
